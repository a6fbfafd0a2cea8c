/* The walk has a fixed depth: Metadata, its two dicts, their values, the values' attributes. If a hostile file shares
 * one list between many tensors, the number of chunks is still bounded by the number of stored places, and there are at
 * most as many of those as opcodes in the pickle. */
#include "common/ckpt/metadata.h"

#include "common/ckpt/pickle.h"

#include <stdlib.h>
#include <string.h>

/* One entry of storage_data: where a box or value is stored. */
struct stored_place {
    const char *fqn, *file;
    int ndim; /* -1: a scalar value, which has no offset */
    int64_t at[BOX_MAX_DIMS];
    int64_t offset, length;
};

struct stored_places {
    struct stored_place *v;
    size_t n;
};

static int place_compare(const void *x, const void *y)
{
    const struct stored_place *a = x, *b = y;
    int c = strcmp(a->fqn, b->fqn);
    if (c || a->ndim != b->ndim)
        return c ? c : a->ndim < b->ndim ? -1 : 1;
    for (int d = 0; d < a->ndim; d++)
        if (a->at[d] != b->at[d])
            return a->at[d] < b->at[d] ? -1 : 1;
    return 0;
}

/* Readers append this path to the folder, so it must not lead outside. */
static bool path_is_plain(const char *path)
{
    if (!path || !*path || *path == '/' || strlen(path) > 512)
        return false;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += n;
        if (*p && !*++p)
            return false;
    }
    return true;
}

static err_t info_read(const struct pickle *p, const struct pickle_node *n, struct stored_place *ret, struct why *why)
{
    const struct pickle_node *offset = pickle_get(p, n, "offset"), *length = pickle_get(p, n, "length");
    const struct pickle_node *transforms = pickle_get(p, n, "transform_descriptors");
    ret->file = pickle_text(pickle_get(p, n, "relative_path"));
    if (!path_is_plain(ret->file))
        return why_set(why, ERR_CORRUPT, "the place of %.200s has no plain relative path", ret->fqn);
    if (!offset || offset->kind != PK_INT || offset->i < 0 || !length || length->kind != PK_INT || length->i < 0 ||
        offset->i > INT64_MAX - length->i)
        return why_set(why, ERR_CORRUPT, "the place of %.200s has no offset and length", ret->fqn);
    if (transforms && transforms->kind == PK_LIST && transforms->len)
        return why_set(why, ERR_UNSUPPORTED,
                       "%.200s is stored through a transform (%.40s), which is not supported; save it without one",
                       ret->fqn,
                       pickle_text(pickle_item(p, transforms, 0)) ? pickle_text(pickle_item(p, transforms, 0)) : "?");
    ret->offset = offset->i;
    ret->length = length->i;
    return OK;
}

static err_t place_read(const struct pickle *p, const struct pickle_node *key, const struct pickle_node *value,
                        struct stored_place *ret, struct why *why)
{
    ret->fqn = pickle_text(pickle_get(p, key, "fqn"));
    if (!ret->fqn)
        return why_set(why, ERR_CORRUPT, "a key of storage_data has no fqn");
    const struct pickle_node *at = pickle_get(p, key, "offset");
    ret->ndim = -1;
    if (at && at->kind != PK_NONE && !pickle_dims(p, at, BOX_MAX_DIMS, ret->at, &ret->ndim))
        return why_set(why, ERR_CORRUPT, "a key of storage_data has a bad offset (%.200s)", ret->fqn);
    return info_read(p, value, ret, why);
}

static err_t places_read(const struct pickle *p, const struct pickle_node *dict, struct stored_places *ret,
                         struct why *why)
{
    if (!dict || dict->kind != PK_DICT)
        return why_set(why, ERR_CORRUPT, "storage_data is missing");
    ret->v = calloc((size_t)dict->len + 1, sizeof(*ret->v));
    if (!ret->v)
        return why_set(why, ERR_NOMEM, "out of memory for %u stored places", dict->len);
    for (uint32_t i = 0; i < dict->len; i++) {
        const uint32_t *kv = p->items + dict->items + 2 * i;
        err_t err = place_read(p, pickle_node(p, kv[0]), pickle_node(p, kv[1]), &ret->v[ret->n++], why);
        if (err)
            return err;
    }
    qsort(ret->v, ret->n, sizeof(*ret->v), place_compare);
    for (size_t i = 1; i < ret->n; i++)
        if (place_compare(&ret->v[i - 1], &ret->v[i]) == 0)
            return why_set(why, ERR_CORRUPT, "storage_data has two places for one box of %.200s", ret->v[i].fqn);
    return OK;
}

static const struct stored_place *place_find(const struct stored_places *places, const struct stored_place *key)
{
    return places->n ? bsearch(key, places->v, places->n, sizeof(*places->v), place_compare) : NULL;
}

/* ---- state_dict_metadata ---- */

struct metadata_reader {
    const struct pickle *p;
    struct stored_places places;
    struct meta m;
    size_t n_chunks;
};

static enum dtype dtype_of(const struct pickle *p, const struct pickle_node *properties)
{
    if (!pickle_is_call(p, properties, PG_PROPERTIES) && !pickle_is_call(p, properties, PG_PROPERTIES_OLD))
        return DT_NONE;
    const struct pickle_node *state = properties->c == PICKLE_NIL ? NULL : pickle_node(p, properties->c);
    const struct pickle_node *dtype = pickle_item(p, state, 0); /* newer releases of torch write longer tuples */
    const char *name = pickle_global_name(p, dtype ? dtype : pickle_get(p, properties, "dtype"), "torch");
    return name ? dtype_parse(name) : DT_NONE;
}

static err_t chunk_read(struct metadata_reader *r, const struct ckpt_tensor *t, const struct pickle_node *n,
                        struct ckpt_chunk *ret, struct why *why)
{
    struct stored_place key = {.fqn = t->fqn, .ndim = t->ndim};
    int ndim = -1, sdim = -1;
    ret->box.ndim = t->ndim;
    if (!pickle_dims(r->p, pickle_get(r->p, n, "offsets"), BOX_MAX_DIMS, ret->box.offset, &ndim) ||
        !pickle_dims(r->p, pickle_get(r->p, n, "sizes"), BOX_MAX_DIMS, ret->box.size, &sdim) || ndim != t->ndim ||
        sdim != t->ndim)
        return why_set(why, ERR_CORRUPT, "a chunk of %.200s has no box of %d dimensions", t->fqn, t->ndim);
    memcpy(key.at, ret->box.offset, sizeof(key.at));
    const struct stored_place *place = place_find(&r->places, &key);
    if (!place)
        return why_set(why, ERR_CORRUPT, "a chunk of %.200s is not stored", t->fqn);
    ret->file = place->file;
    ret->offset = place->offset;
    ret->length = place->length;
    return OK;
}

static err_t tensor_read(struct metadata_reader *r, const char *fqn, const struct pickle_node *n, struct why *why)
{
    struct ckpt_tensor *t = &r->m.tensors[r->m.n_tensors];
    const struct pickle_node *chunks = pickle_get(r->p, n, "chunks");
    t->fqn = (char *)(uintptr_t)fqn;
    if (!pickle_dims(r->p, pickle_get(r->p, n, "size"), BOX_MAX_DIMS, t->shape, &t->ndim) || !chunks ||
        chunks->kind != PK_LIST)
        return why_set(why, ERR_CORRUPT, "%.200s has no size of at most %d dimensions, or no chunks", fqn,
                       BOX_MAX_DIMS);
    if (chunks->len > r->places.n - r->n_chunks)
        return why_set(why, ERR_CORRUPT, "%.200s has more chunks than storage_data has places", fqn);
    t->dtype = dtype_of(r->p, pickle_get(r->p, n, "properties"));
    t->chunks = r->m.chunks + r->n_chunks;
    t->n_chunks = (int)chunks->len;
    r->n_chunks += chunks->len;
    r->m.n_tensors++;
    err_t err = OK;
    for (int i = 0; i < t->n_chunks && !err; i++)
        err = chunk_read(r, t, pickle_item(r->p, chunks, (uint32_t)i), &t->chunks[i], why);
    if (!err)
        err = cover_check(t, false, why);
    return err == ERR_INVALID ? ERR_CORRUPT : err; /* an invalid layout in a file counts as damage */
}

static err_t leaf_read(struct metadata_reader *r, const char *fqn, struct why *why)
{
    const struct stored_place key = {.fqn = fqn, .ndim = -1}, *place = place_find(&r->places, &key);
    if (!place)
        return why_set(why, ERR_CORRUPT, "%.200s is not stored", fqn);
    r->m.leaves[r->m.n_leaves++] = (struct meta_leaf){fqn, place->file, place->offset, place->length};
    return OK;
}

static err_t entries_read(struct metadata_reader *r, const struct pickle_node *dict, struct why *why)
{
    if (!dict || dict->kind != PK_DICT)
        return why_set(why, ERR_CORRUPT, "state_dict_metadata is missing");
    r->m.tensors = calloc((size_t)dict->len + 1, sizeof(*r->m.tensors));
    r->m.leaves = calloc((size_t)dict->len + 1, sizeof(*r->m.leaves));
    r->m.chunks = calloc(r->places.n + 1, sizeof(*r->m.chunks));
    if (!r->m.tensors || !r->m.leaves || !r->m.chunks)
        return why_set(why, ERR_NOMEM, "out of memory for %u tensors", dict->len);
    for (uint32_t i = 0; i < dict->len; i++) {
        const uint32_t *kv = r->p->items + dict->items + 2 * i;
        const char *fqn = pickle_text(pickle_node(r->p, kv[0]));
        const struct pickle_node *v = pickle_node(r->p, kv[1]);
        err_t err;
        if (!fqn)
            err = why_set(why, ERR_CORRUPT, "a key of state_dict_metadata is not a string");
        else if (pickle_is_call(r->p, v, PG_TENSOR_META))
            err = tensor_read(r, fqn, v, why);
        else if (pickle_is_call(r->p, v, PG_BYTES_META))
            err = leaf_read(r, fqn, why);
        else
            err = why_set(why, ERR_UNSUPPORTED, "%.200s is neither a tensor nor a scalar value", fqn);
        if (err)
            return err;
    }
    return OK;
}

static int tensor_compare(const void *x, const void *y)
{
    return strcmp(((const struct ckpt_tensor *)x)->fqn, ((const struct ckpt_tensor *)y)->fqn);
}

static int leaf_compare(const void *x, const void *y)
{
    return strcmp(((const struct meta_leaf *)x)->fqn, ((const struct meta_leaf *)y)->fqn);
}

static err_t sort_unique(struct meta *m, struct why *why)
{
    if (m->n_tensors)
        qsort(m->tensors, (size_t)m->n_tensors, sizeof(*m->tensors), tensor_compare);
    if (m->n_leaves)
        qsort(m->leaves, (size_t)m->n_leaves, sizeof(*m->leaves), leaf_compare);
    for (int i = 1; i < m->n_tensors; i++)
        if (tensor_compare(&m->tensors[i - 1], &m->tensors[i]) == 0)
            return why_set(why, ERR_CORRUPT, "%.200s is listed twice", m->tensors[i].fqn);
    for (int i = 1; i < m->n_leaves; i++)
        if (leaf_compare(&m->leaves[i - 1], &m->leaves[i]) == 0)
            return why_set(why, ERR_CORRUPT, "%.200s is listed twice", m->leaves[i].fqn);
    return OK;
}

err_t metadata_read(const void *data, size_t len, struct meta *ret, struct why *why)
{
    struct pickle p;
    err_t err = pickle_read(data, len, &p, why);
    if (err)
        return err;
    struct metadata_reader r = {.p = &p};
    const struct pickle_node *root = pickle_node(&p, p.root);
    err = places_read(&p, pickle_get(&p, root, "storage_data"), &r.places, why);
    if (!err)
        err = entries_read(&r, pickle_get(&p, root, "state_dict_metadata"), why);
    if (!err)
        err = sort_unique(&r.m, why);
    r.m.ours = pickle_get(&p, root, "dtd_manifest") != NULL;
    free(r.places.v);
    if (!err) {
        r.m.strings = p.strings;
        p.strings = NULL;
        *ret = r.m;
    } else {
        metadata_fini(&r.m);
    }
    pickle_fini(&p);
    return err;
}

void metadata_fini(struct meta *m)
{
    free(m->tensors);
    free(m->leaves);
    free(m->chunks);
    free(m->strings);
    *m = (struct meta){0};
}
