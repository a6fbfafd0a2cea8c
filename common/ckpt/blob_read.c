/* data.pkl is checked against the archive before it is used: dtype, sizes, strides and the storage's length must put
 * every element inside data/0. */
#include "common/ckpt/blob.h"

#include "common/ckpt/pickle.h"
#include "common/ckpt/storage.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PKL (1u << 20) /* the pickle of one tensor has less than 1 KiB; this bounds memory */

/* ---- the archive ---- */

static err_t index_of(const struct zip_source *src, bool scan, struct zip_index *ret, struct why *why)
{
    err_t err = scan ? zip_index_scan(src, ret, why) : ERR_AGAIN;
    return err == ERR_AGAIN ? zip_index_read(src, ret, why) : err;
}

static err_t small_record(const struct zip_source *src, const struct zip_entry *e, char *ret, size_t size,
                          struct why *why)
{
    struct buf b = {0};
    err_t err = zip_record_read(src, e, size - 1, &b, why);
    if (!err) {
        memcpy(ret, b.data, b.len);
        ret[b.len] = '\0';
    }
    buf_fini(&b);
    return err;
}

static err_t envelope_check(const struct zip_source *src, const struct zip_index *x, struct why *why)
{
    char text[32];
    if (!x->entry[ZIP_DATA_PKL].there || !x->entry[ZIP_VERSION].there)
        return why_set(why, ERR_CORRUPT, "the archive has no %s: torch.save did not write it",
                       x->entry[ZIP_DATA_PKL].there ? "version" : "data.pkl");
    err_t err = small_record(src, &x->entry[ZIP_VERSION], text, sizeof(text), why);
    if (err)
        return err;
    long version = strtol(text, NULL, 10);
    if (version < 1 || version > 10)
        return why_set(why, ERR_UNSUPPORTED, "archive version %ld is unknown", version);
    if (!x->entry[ZIP_BYTEORDER].there)
        return OK;
    err = small_record(src, &x->entry[ZIP_BYTEORDER], text, sizeof(text), why);
    if (err)
        return err;
    return strcmp(text, "little") == 0 ? OK
                                       : why_set(why, ERR_UNSUPPORTED, "the archive's bytes are not little-endian");
}

static err_t open_pkl(const struct zip_source *src, bool scan, struct zip_index *x, struct buf *pkl, struct why *why)
{
    err_t err = index_of(src, scan, x, why);
    if (!err)
        err = envelope_check(src, x, why);
    if (!err)
        err = zip_record_read(src, &x->entry[ZIP_DATA_PKL], MAX_PKL, pkl, why);
    return err;
}

/* ---- a tensor ---- */

/* The arguments of the innermost _rebuild_tensor*. At most two wrappers (Parameter, subclasses) are unwrapped. */
static const struct pickle_node *rebuild_args(const struct pickle *p, const struct pickle_node *n)
{
    for (int depth = 0; depth < 3 && n && n->kind == PK_CALL; depth++) {
        const struct pickle_node *f = pickle_node(p, n->a), *args = pickle_node(p, n->b);
        uint8_t global = f->kind == PK_GLOBAL ? f->global : PG_OPAQUE;
        if (global == PG_REBUILD_1 || global == PG_REBUILD_2 || global == PG_REBUILD_3)
            return args;
        if (global == PG_REBUILD_PARAMETER) {
            n = pickle_item(p, args, 0);
            continue;
        }
        const struct pickle_node *inner = global == PG_REBUILD_TYPE ? pickle_item(p, args, 0) : NULL;
        if (!inner || inner->kind != PK_GLOBAL || inner->global < PG_REBUILD_1 || inner->global > PG_REBUILD_3)
            return NULL;
        return pickle_item(p, args, 2); /* (function, type, arguments, state) */
    }
    return NULL;
}

/* ('storage', class, key, device, elements): dtype and the storage's length in bytes. */
static err_t storage_parse(const struct pickle *p, const struct pickle_node *args, struct blob_tensor *t,
                           struct why *why)
{
    const struct pickle_node *persid = pickle_item(p, args, 0);
    const struct pickle_node *id = persid && persid->kind == PK_PERSID ? pickle_node(p, persid->a) : NULL;
    const struct pickle_node *class = pickle_item(p, id, 1), *numel = pickle_item(p, id, 4);
    const char *tag = pickle_text(pickle_item(p, id, 0)), *key = pickle_text(pickle_item(p, id, 2));
    if (!tag || strcmp(tag, "storage") != 0 || !key || !numel || numel->kind != PK_INT || numel->i < 0)
        return why_set(why, ERR_CORRUPT, "data.pkl does not name a storage");
    if (strcmp(key, "0") != 0)
        return why_set(why, ERR_UNSUPPORTED, "the tensor uses storage %.40s; only storage 0 is supported", key);
    bool untyped = class && class->kind == PK_GLOBAL && class->global == PG_UNTYPED_STORAGE;
    const char *name =
        untyped ? pickle_global_name(p, pickle_item(p, args, 6), "torch") : pickle_global_name(p, class, "torch");
    t->dtype = !name ? DT_NONE : untyped ? dtype_parse(name) : storage_dtype(name);
    if (t->dtype == DT_NONE)
        return why_set(why, ERR_UNSUPPORTED, "elements of type %.60s are not supported", name ? name : "?");
    int64_t bytes;
    if (__builtin_mul_overflow(numel->i, untyped ? 1 : (int64_t)dtype_bytes(t->dtype), &bytes))
        return why_set(why, ERR_CORRUPT, "data.pkl: a storage of %lld elements", (long long)numel->i);
    t->payload_bytes = (uint64_t)bytes;
    return OK;
}

/* The last element that the strides reach must lie inside the storage. */
static bool extent_fits(const struct blob_tensor *t)
{
    int64_t last = t->first, reach, end;
    for (int d = 0; d < t->ndim; d++) {
        if (t->size[d] == 0)
            return true; /* no elements at all */
        if (__builtin_mul_overflow(t->size[d] - 1, t->stride[d], &reach) || __builtin_add_overflow(last, reach, &last))
            return false;
    }
    if (__builtin_add_overflow(last, 1, &end) || __builtin_mul_overflow(end, (int64_t)dtype_bytes(t->dtype), &end))
        return false;
    return (uint64_t)end <= t->payload_bytes;
}

static err_t tensor_from(const struct pickle *p, struct blob_tensor *t, struct why *why)
{
    const struct pickle_node *args = rebuild_args(p, pickle_node(p, p->root));
    if (!args)
        return why_set(why, ERR_UNSUPPORTED, "data.pkl is not a plain tensor");
    err_t err = storage_parse(p, args, t, why);
    if (err)
        return err;
    const struct pickle_node *first = pickle_item(p, args, 1);
    int n_strides = -1;
    if (!first || first->kind != PK_INT || first->i < 0 ||
        !pickle_dims(p, pickle_item(p, args, 2), BOX_MAX_DIMS, t->size, &t->ndim) ||
        !pickle_dims(p, pickle_item(p, args, 3), BOX_MAX_DIMS, t->stride, &n_strides) || n_strides != t->ndim)
        return why_set(why, ERR_CORRUPT, "data.pkl: size, stride or offset of the tensor is not a list of integers");
    t->first = first->i;
    return extent_fits(t) ? OK : why_set(why, ERR_CORRUPT, "data.pkl: the tensor reaches beyond its storage");
}

err_t blob_tensor_parse(const void *pkl, size_t len, struct blob_tensor *ret, struct why *why)
{
    struct pickle p;
    struct blob_tensor t = {0};
    err_t err = pickle_read(pkl, len, &p, why);
    if (err)
        return err;
    err = tensor_from(&p, &t, why);
    pickle_fini(&p);
    if (!err)
        *ret = t;
    return err;
}

err_t blob_tensor_read(const struct zip_source *src, bool scan, struct blob_tensor *ret, struct why *why)
{
    struct zip_index x;
    struct buf pkl = {0};
    struct blob_tensor t;
    err_t err = open_pkl(src, scan, &x, &pkl, why);
    if (!err)
        err = blob_tensor_parse(pkl.data, pkl.len, &t, why);
    buf_fini(&pkl);
    if (err)
        return err;
    const struct zip_entry *data = &x.entry[ZIP_DATA_0];
    if (t.payload_bytes && (!data->there || data->size < t.payload_bytes))
        return why_set(why, ERR_CORRUPT, "data/0 is shorter than its length in data.pkl");
    t.payload = data->payload;
    t.payload_bytes = data->there ? data->size : 0;
    t.crc = data->there ? data->crc : 0;
    *ret = t;
    return OK;
}

/* ---- a value ---- */

static err_t scalar_from(const struct pickle *p, struct ckpt_scalar *s)
{
    const struct pickle_node *n = pickle_node(p, p->root), *a = pickle_item(p, n, 0), *b = pickle_item(p, n, 1);
    s->kind = CKPT_OPAQUE;
    if (n->kind == PK_INT || n->kind == PK_BOOL) {
        s->kind = n->kind == PK_INT ? CKPT_INT : CKPT_BOOL;
        s->i = n->i;
    } else if (n->kind == PK_FLOAT) {
        s->kind = CKPT_FLOAT;
        s->f[0] = n->f;
    } else if (n->kind == PK_NONE) {
        s->kind = CKPT_NONE;
    } else if (pickle_text(n)) {
        s->kind = CKPT_STR;
        s->s = strdup(n->s);
        return s->s ? OK : ERR_NOMEM;
    } else if (n->kind == PK_TUPLE && n->len == 2 && a->kind == PK_FLOAT && b->kind == PK_FLOAT) {
        s->kind = CKPT_FLOAT_PAIR;
        s->f[0] = a->f;
        s->f[1] = b->f;
    }
    return OK;
}

err_t blob_scalar_parse(const void *pkl, size_t len, struct ckpt_scalar *ret, struct why *why)
{
    struct pickle p;
    struct ckpt_scalar s = {0};
    err_t err = pickle_read(pkl, len, &p, why);
    if (err == ERR_UNSUPPORTED) { /* another Python object: legal, but not decoded */
        ret->kind = CKPT_OPAQUE;
        return OK;
    }
    if (err)
        return err;
    err = scalar_from(&p, &s);
    pickle_fini(&p);
    if (!err) {
        s.fqn = ret->fqn;
        *ret = s;
    }
    return err;
}

err_t blob_scalar_read(const struct zip_source *src, bool scan, struct ckpt_scalar *ret, struct why *why)
{
    struct zip_index x;
    struct buf pkl = {0};
    err_t err = open_pkl(src, scan, &x, &pkl, why);
    if (!err)
        err = blob_scalar_parse(pkl.data, pkl.len, ret, why);
    buf_fini(&pkl);
    return err;
}
