/* Opening checks the manifest against its own hash, every file's presence and size, all bytes of .metadata, and that
 * every box and value lies inside a file of the manifest. The bytes of tensors are checked when they are read. */
#include "common/base/file.h"
#include "common/ckpt/blob.h"
#include "common/ckpt/ckpt_priv.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_SMALL_FILE ((uint64_t)256 << 20) /* bounds memory; the vocabulary is the largest such file */

static err_t path_of(const struct ckpt *c, const char *name, char ret[PATH_MAX], struct why *why)
{
    if ((size_t)snprintf(ret, PATH_MAX, "%s/%s", c->dir, name) >= PATH_MAX)
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", c->dir);
    return OK;
}

/* ---- the manifest ---- */

static err_t sizes_check(const struct ckpt *c, struct why *why)
{
    char path[PATH_MAX];
    struct stat st;
    for (int i = 0; i < c->manifest.n_files; i++) {
        const struct manifest_file *f = &c->manifest.files[i];
        err_t err = path_of(c, f->name, path, why);
        if (err)
            return err;
        if (stat(path, &st))
            return why_set(why, ERR_CORRUPT, "%s: %s, but " CKPT_MANIFEST " lists it", path, strerror(errno));
        if ((uint64_t)st.st_size != f->size)
            return why_set(
                why, ERR_CORRUPT, "%s has %lld bytes, but %llu in " CKPT_MANIFEST ": extent %llu is incomplete", path,
                (long long)st.st_size, (unsigned long long)f->size,
                (unsigned long long)((uint64_t)st.st_size < f->size ? st.st_size : (off_t)f->size) / CKPT_EXTENT_BYTES);
    }
    return OK;
}

static err_t manifest_open(struct ckpt *c, struct why *why)
{
    char path[PATH_MAX];
    struct buf b = {0};
    err_t err = path_of(c, CKPT_MANIFEST, path, why);
    if (!err) {
        err = file_read_plain(path, MANIFEST_MAX_BYTES, &b);
        if (err == ERR_NOTFOUND)
            return OK;
        if (err)
            why_set(why, err, "%s: %s", path, err_text(err));
    }
    if (!err) {
        err = manifest_read(b.data, b.len, &c->manifest, why);
        if (err)
            why_prefix(why, err, "%s", c->dir);
    }
    buf_fini(&b);
    c->has_manifest = !err;
    return err ? err : sizes_check(c, why);
}

/* ---- whole files ---- */

/* Appends a complete, verified file, which must fit in memory. */
static err_t file_whole(const struct ckpt *c, const struct ckpt_file *f, struct buf *ret, struct why *why)
{
    struct extent_reader r;
    extent_reader_init(&r, c->dir, c->claims);
    err_t err = extent_reader_open(&r, f, why);
    if (!err)
        err = buf_reserve(ret, (size_t)f->size + 1);
    if (!err)
        err = extent_reader_copy(&r, 0, ret->data + ret->len, (size_t)f->size, why);
    if (!err)
        ret->len += (size_t)f->size;
    extent_reader_fini(&r);
    return err;
}

static err_t file_lookup(const struct ckpt *c, const char *name, struct ckpt_file *ret, struct why *why)
{
    char path[PATH_MAX];
    struct stat st;
    *ret = (struct ckpt_file){.name = name};
    if (c->has_manifest) {
        ret->sums = manifest_find(&c->manifest, name);
        if (!ret->sums)
            return why_set(why, ERR_NOTFOUND, "%s has no %s", c->dir, name);
        ret->size = ret->sums->size;
        return OK;
    }
    err_t err = path_of(c, name, path, why);
    if (err)
        return err;
    if (stat(path, &st))
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    ret->size = (uint64_t)st.st_size;
    return OK;
}

err_t ckpt_small_file(struct ckpt *c, const char *name, struct buf *ret, struct why *why)
{
    struct ckpt_file f;
    if (strchr(name, '/'))
        return why_set(why, ERR_INVALID, "%s is not a file name in a checkpoint", name);
    err_t err = file_lookup(c, name, &f, why);
    if (!err && f.size > MAX_SMALL_FILE)
        err = why_set(why, ERR_LIMIT, "%s/%s is too large for a small file", c->dir, name);
    return err ? err : file_whole(c, &f, ret, why);
}

/* ---- .metadata ---- */

static err_t metadata_open(struct ckpt *c, struct why *why)
{
    struct ckpt_file f;
    struct buf b = {0};
    err_t err = file_lookup(c, METADATA_FILE, &f, why);
    if (err == ERR_NOTFOUND)
        return why_set(why, c->has_manifest ? ERR_CORRUPT : ERR_NOTFOUND, "%s is not a checkpoint: it has no %s",
                       c->dir, METADATA_FILE);
    if (!err && f.size > METADATA_MAX_BYTES)
        err = why_set(why, ERR_LIMIT, "%s/%s has %llu bytes", c->dir, METADATA_FILE, (unsigned long long)f.size);
    if (!err)
        err = file_whole(c, &f, &b, why);
    if (!err) {
        err = metadata_read(b.data, b.len, &c->meta, why);
        if (err)
            why_prefix(why, err, "%s/%s", c->dir, METADATA_FILE);
    }
    buf_fini(&b);
    if (!err && c->meta.ours && !c->has_manifest)
        err = why_set(why, ERR_CORRUPT, "%s has lost its " CKPT_MANIFEST ": its data cannot be verified", c->dir);
    return err;
}

/* ---- files that .metadata names ---- */

static int name_compare(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* All names, sorted and unique; the caller frees the array. */
static const char **names_collect(const struct meta *m, int *ret_n)
{
    size_t n = (size_t)m->n_leaves, k = 0;
    for (int i = 0; i < m->n_tensors; i++)
        n += (size_t)m->tensors[i].n_chunks;
    const char **names = calloc(n + 1, sizeof(*names));
    if (!names)
        return NULL;
    for (int i = 0; i < m->n_tensors; i++)
        for (int j = 0; j < m->tensors[i].n_chunks; j++)
            names[k++] = m->tensors[i].chunks[j].file;
    for (int i = 0; i < m->n_leaves; i++)
        names[k++] = m->leaves[i].file;
    qsort(names, n, sizeof(*names), name_compare);
    size_t out = 0;
    for (size_t i = 0; i < n; i++)
        if (!out || strcmp(names[out - 1], names[i]) != 0)
            names[out++] = names[i];
    *ret_n = (int)out;
    return names;
}

static err_t files_open(struct ckpt *c, struct why *why)
{
    int n = 0;
    const char **names = names_collect(&c->meta, &n);
    if (!names)
        return why_set(why, ERR_NOMEM, "out of memory for the names of a checkpoint's files");
    c->files = calloc((size_t)n + 1, sizeof(*c->files));
    if (!c->files) {
        free(names);
        return why_set(why, ERR_NOMEM, "out of memory for the files of a checkpoint");
    }
    err_t err = OK;
    for (int i = 0; !err && i < n; i++) {
        err = file_lookup(c, names[i], &c->files[i], why);
        if (err == ERR_NOTFOUND)
            err = why_set(why, ERR_CORRUPT, "%s: .metadata names %s, which does not exist%s", c->dir, names[i],
                          c->has_manifest ? " or not in " CKPT_MANIFEST : "");
        c->n_files++;
    }
    free(names);
    return err;
}

static int file_compare(const void *x, const void *y)
{
    return strcmp(((const struct ckpt_file *)x)->name, ((const struct ckpt_file *)y)->name);
}

const struct ckpt_file *ckpt_file_find(const struct ckpt *c, const char *name)
{
    const struct ckpt_file key = {.name = name};
    return c->n_files ? bsearch(&key, c->files, (size_t)c->n_files, sizeof(key), file_compare) : NULL;
}

static err_t place_check(const struct ckpt *c, const char *fqn, const char *file, int64_t offset, int64_t length,
                         struct why *why)
{
    const struct ckpt_file *f = ckpt_file_find(c, file);
    if (!f || (uint64_t)offset > f->size || (uint64_t)length > f->size - (uint64_t)offset)
        return why_set(why, ERR_CORRUPT, "%s/%s ends before the bytes of %.200s (%lld at %lld)", c->dir, file, fqn,
                       (long long)length, (long long)offset);
    return OK;
}

static err_t places_check(const struct ckpt *c, struct why *why)
{
    const struct meta *m = &c->meta;
    err_t err = OK;
    for (int i = 0; i < m->n_tensors; i++)
        for (int j = 0; j < m->tensors[i].n_chunks && !err; j++) {
            const struct ckpt_chunk *k = &m->tensors[i].chunks[j];
            err = place_check(c, m->tensors[i].fqn, k->file, k->offset, k->length, why);
        }
    for (int i = 0; i < m->n_leaves && !err; i++)
        err = place_check(c, m->leaves[i].fqn, m->leaves[i].file, m->leaves[i].offset, m->leaves[i].length, why);
    return err;
}

/* ---- the step ---- */

static int64_t step_of_name(const char *dir)
{
    const char *base = strrchr(dir, '/');
    long long step = -1;
    int end = 0;
    base = base ? base + 1 : dir;
    return sscanf(base, "step-%lld%n", &step, &end) == 1 && (base[end] == '\0' || base[end] == '.') ? step : -1;
}

static int64_t step_find(struct ckpt *c)
{
    struct ckpt_scalar s = {0};
    if (c->has_manifest)
        return c->manifest.step;
    if (ckpt_scalar(c, "train_state.step", &s, NULL) == OK && s.kind == CKPT_INT)
        return s.i;
    return step_of_name(c->dir);
}

/* ---- open and close ---- */

err_t ckpt_open(const char *dir, struct ckpt **ret, struct why *why)
{
    struct ckpt *c = calloc(1, sizeof(*c));
    if (!c)
        return why_set(why, ERR_NOMEM, "out of memory for a checkpoint");
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/')
        len--;
    err_t err = len < sizeof(c->dir) ? OK : why_set(why, ERR_LIMIT, "the path %.200s is too long", dir);
    if (!err) {
        snprintf(c->dir, sizeof(c->dir), "%.*s", (int)len, dir);
        err = manifest_open(c, why);
    }
    if (!err)
        err = metadata_open(c, why);
    if (!err)
        err = files_open(c, why);
    if (!err)
        err = places_check(c, why);
    if (err) {
        ckpt_close(c);
        return err;
    }
    c->step = step_find(c);
    *ret = c;
    return OK;
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_kept; i++)
        free(c->kept[i]);
    free(c->kept);
    free(c->files);
    metadata_fini(&c->meta);
    manifest_fini(&c->manifest);
    free(c);
}

int ckpt_tensors(const struct ckpt *c, const struct ckpt_tensor **ret)
{
    *ret = c->meta.tensors;
    return c->meta.n_tensors;
}

static int tensor_key_compare(const void *key, const void *t)
{
    return strcmp(key, ((const struct ckpt_tensor *)t)->fqn);
}

const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *fqn)
{
    return bsearch(fqn, c->meta.tensors, (size_t)c->meta.n_tensors, sizeof(*c->meta.tensors), tensor_key_compare);
}

static int leaf_key_compare(const void *key, const void *l)
{
    return strcmp(key, ((const struct meta_leaf *)l)->fqn);
}

const char *ckpt_scalar_name(const struct ckpt *c, int i)
{
    return i >= 0 && i < c->meta.n_leaves ? c->meta.leaves[i].fqn : NULL;
}

static err_t string_keep(struct ckpt *c, struct ckpt_scalar *s)
{
    char **kept = s->s ? realloc(c->kept, ((size_t)c->n_kept + 1) * sizeof(*kept)) : c->kept;
    if (s->s && !kept) {
        free(s->s);
        return ERR_NOMEM;
    }
    c->kept = kept;
    if (s->s)
        c->kept[c->n_kept++] = s->s;
    return OK;
}

err_t ckpt_scalar(struct ckpt *c, const char *fqn, struct ckpt_scalar *ret, struct why *why)
{
    const struct meta_leaf *l =
        bsearch(fqn, c->meta.leaves, (size_t)c->meta.n_leaves, sizeof(*c->meta.leaves), leaf_key_compare);
    if (!l)
        return why_set(why, ERR_NOTFOUND, "%s has no scalar value %.200s", c->dir, fqn);
    struct ckpt_scalar s = {.fqn = (char *)(uintptr_t)l->fqn};
    struct extent_reader r;
    struct blob_source src;
    extent_reader_init(&r, c->dir, c->claims);
    blob_source_init(&src, &r, (uint64_t)l->offset, (uint64_t)l->length);
    err_t err = extent_reader_open(&r, ckpt_file_find(c, l->file), why);
    if (!err) {
        err = blob_scalar_read(&src.zip, c->has_manifest, &s, why);
        if (err)
            why_prefix(why, err, "value %.200s in %s", l->fqn, l->file);
    }
    extent_reader_fini(&r);
    if (!err)
        err = string_keep(c, &s);
    if (!err)
        *ret = s;
    return err;
}

void ckpt_share_reads(struct ckpt *c, struct read_claims *claims)
{
    c->claims = claims;
}

bool ckpt_has_manifest(const struct ckpt *c)
{
    return c->has_manifest;
}

int64_t ckpt_step(const struct ckpt *c)
{
    return c->step;
}

uint64_t ckpt_epoch(const struct ckpt *c)
{
    return c->manifest.epoch;
}

double ckpt_loss(const struct ckpt *c)
{
    return c->has_manifest ? c->manifest.loss : (double)NAN;
}
