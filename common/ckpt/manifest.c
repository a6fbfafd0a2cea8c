/* The hash is checked before any field is read, so a later error means that the writer was wrong. All reads are bounded
 * nevertheless, because the hash of a forged manifest can be computed, too. */
#include "common/ckpt/manifest.h"

#include "common/ckpt/le_bytes.h"
#include "common/ckpt/sums.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC "DTDMANIF"
#define VERSION 1u
#define FILE_MIN_BYTES 10 /* name length and size, for an empty name, which is rejected later */

static err_t put_header(const struct manifest *m, struct buf *b)
{
    uint64_t loss;
    memcpy(&loss, &m->loss, sizeof(loss));
    err_t err = buf_append(b, MAGIC, 8);
    if (!err)
        err = le_put_u32(b, VERSION);
    if (!err)
        err = le_put_u32(b, CKPT_EXTENT_BYTES);
    const uint64_t fields[] = {(uint64_t)m->step, m->epoch, loss, (uint64_t)m->committed_ms, (uint64_t)m->n_files};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !err; i++)
        err = le_put_u64(b, fields[i]);
    return err;
}

static err_t put_file(const struct manifest_file *f, struct buf *b)
{
    size_t len = strlen(f->name);
    err_t err = len > UINT16_MAX ? ERR_LIMIT : le_put_u16(b, (uint16_t)len);
    if (!err)
        err = le_put_u64(b, f->size);
    if (!err)
        err = buf_append(b, f->name, len);
    for (uint32_t i = 0; i < f->n_crcs && !err; i++)
        err = le_put_u32(b, f->crcs[i]);
    return err;
}

err_t manifest_write(const struct manifest *m, struct buf *ret)
{
    uint8_t sha[SUMS_SHA256_BYTES];
    size_t start = ret->len;
    err_t err = put_header(m, ret);
    for (int i = 0; i < m->n_files && !err; i++)
        err = put_file(&m->files[i], ret);
    if (!err)
        err = sums_sha256(ret->data + start, ret->len - start, sha);
    return err ? err : buf_append(ret, sha, sizeof(sha));
}

static bool name_is_plain(const char *name, size_t len)
{
    return len && len < 256 && !memchr(name, 0, len) && !memchr(name, '/', len) && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0 && strcmp(name, CKPT_MANIFEST) != 0;
}

static err_t file_read_one(struct le_reader *w, struct manifest_file *f)
{
    uint16_t len = le_u16(w);
    f->size = le_u64(w);
    const uint8_t *name = le_bytes(w, len);
    uint64_t n = sums_extents_count(f->size, CKPT_EXTENT_BYTES);
    const uint8_t *raw = n <= UINT32_MAX ? le_bytes(w, 4 * n) : NULL;
    if (!name || !raw)
        return ERR_CORRUPT;
    f->name = strndup((const char *)name, len);
    f->crcs = calloc(n + 1, sizeof(*f->crcs));
    if (!f->name || !f->crcs)
        return ERR_NOMEM;
    f->n_crcs = (uint32_t)n;
    struct le_reader r = le_reader_of(raw, 4 * n);
    for (uint64_t i = 0; i < n; i++)
        f->crcs[i] = le_u32(&r);
    return strlen(f->name) == len && name_is_plain(f->name, len) ? OK : ERR_CORRUPT;
}

static err_t files_read(struct le_reader *w, uint64_t n, struct manifest *m)
{
    if (n > le_left(w) / FILE_MIN_BYTES)
        return ERR_CORRUPT;
    m->files = calloc(n + 1, sizeof(*m->files));
    if (!m->files)
        return ERR_NOMEM;
    for (uint64_t i = 0; i < n; i++) {
        err_t err = file_read_one(w, &m->files[m->n_files++]);
        if (err)
            return err;
        if (i && strcmp(m->files[i - 1].name, m->files[i].name) >= 0)
            return ERR_CORRUPT;
    }
    return w->bad || le_left(w) ? ERR_CORRUPT : OK;
}

static err_t parse(struct le_reader *w, struct manifest *m, struct why *why)
{
    uint32_t version = le_u32(w), extent = le_u32(w);
    if (version != VERSION || extent != CKPT_EXTENT_BYTES)
        return why_set(why, ERR_UNSUPPORTED,
                       CKPT_MANIFEST " has version %u with extents of %u bytes; this dtd reads "
                                     "version %u with %u",
                       version, extent, VERSION, CKPT_EXTENT_BYTES);
    m->step = (int64_t)le_u64(w);
    m->epoch = le_u64(w);
    uint64_t loss = le_u64(w);
    memcpy(&m->loss, &loss, sizeof(loss));
    m->committed_ms = (int64_t)le_u64(w);
    uint64_t n = le_u64(w);
    err_t err = w->bad ? ERR_CORRUPT : files_read(w, n, m);
    return err ? why_set(why, err, CKPT_MANIFEST ": %s", err_text(err)) : OK;
}

err_t manifest_read(const void *data, size_t len, struct manifest *ret, struct why *why)
{
    uint8_t sha[SUMS_SHA256_BYTES];
    const uint8_t *p = data;
    if (len < 8 + SUMS_SHA256_BYTES || memcmp(p, MAGIC, 8) != 0)
        return why_set(why, ERR_CORRUPT, CKPT_MANIFEST " is not a manifest (%zu bytes)", len);
    err_t err = sums_sha256(p, len - SUMS_SHA256_BYTES, sha);
    if (err)
        return err;
    if (memcmp(sha, p + len - SUMS_SHA256_BYTES, SUMS_SHA256_BYTES) != 0)
        return why_set(why, ERR_CORRUPT, CKPT_MANIFEST " does not match its own SHA-256");
    struct manifest m = {0};
    struct le_reader w = le_reader_of(p + 8, len - 8 - SUMS_SHA256_BYTES);
    err = parse(&w, &m, why);
    if (err)
        manifest_fini(&m);
    else
        *ret = m;
    return err;
}

void manifest_fini(struct manifest *m)
{
    for (int i = 0; i < m->n_files; i++) {
        free(m->files[i].name);
        free(m->files[i].crcs);
    }
    free(m->files);
    *m = (struct manifest){0};
}

static int file_compare(const void *x, const void *y)
{
    return strcmp(((const struct manifest_file *)x)->name, ((const struct manifest_file *)y)->name);
}

const struct manifest_file *manifest_find(const struct manifest *m, const char *name)
{
    const struct manifest_file key = {.name = (char *)(uintptr_t)name};
    return m->n_files ? bsearch(&key, m->files, (size_t)m->n_files, sizeof(key), file_compare) : NULL;
}

err_t manifest_add(struct manifest *m, const char *name, uint64_t size, uint32_t *crcs, uint32_t n_crcs)
{
    struct manifest_file *files = realloc(m->files, ((size_t)m->n_files + 1) * sizeof(*files));
    if (files)
        m->files = files;
    char *copy = strdup(name);
    if (!files || !copy) {
        free(copy);
        free(crcs);
        return ERR_NOMEM;
    }
    files[m->n_files++] = (struct manifest_file){copy, size, crcs, n_crcs};
    return OK;
}

void manifest_sort(struct manifest *m)
{
    qsort(m->files, (size_t)m->n_files, sizeof(*m->files), file_compare);
}
