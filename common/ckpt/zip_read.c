/* There are two ways to find the four records. The central directory is authoritative and is found from the end of the
 * archive. The local headers can be scanned forward if they contain the sizes, which avoids reading the end of a large
 * blob. Invariant: a record is returned only if its header, name, extra field and payload lie inside the archive. */
#include "common/ckpt/zip.h"

#include "common/ckpt/le_bytes.h"
#include "common/ckpt/sums.h"
#include "common/ckpt/zip_format.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NAME 512                       /* bytes; names of torch.save are far shorter */
#define MAX_DIRECTORY ((uint64_t)64 << 20) /* bounds memory */
#define MAX_COMMENT 65535                  /* the format's limit: its length field has 16 bits */
#define MAX_SCAN 64                        /* records before data/0, of which dtd writes three */

static const char *const names[ZIP_NAMES] = {"data.pkl", "byteorder", "version", "data/0"};

struct header {
    uint16_t flags, method, name_len, extra_len, comment_len;
    uint32_t crc;
    uint64_t csize, usize, offset;
};

struct zip_root {
    char text[MAX_NAME];
    size_t len; /* including the slash; 0: not known yet */
};

/* The fields that local and central headers share, from "version needed" to the extra field's length. */
static void common_read(struct le_reader *w, struct header *h)
{
    (void)le_u16(w);
    h->flags = le_u16(w);
    h->method = le_u16(w);
    (void)le_u32(w);
    h->crc = le_u32(w);
    h->csize = le_u32(w);
    h->usize = le_u32(w);
    h->name_len = le_u16(w);
    h->extra_len = le_u16(w);
}

/* The ZIP64 field contains only the values that are saturated in the header, in this order. */
static bool extra_apply(const uint8_t *extra, size_t len, struct header *h)
{
    struct le_reader w = le_reader_of(extra, len);
    while (le_left(&w) >= 4) {
        uint16_t id = le_u16(&w), n = le_u16(&w);
        const uint8_t *data = le_bytes(&w, n);
        if (!data)
            return false;
        if (id != ZIP_EXTRA_64)
            continue;
        struct le_reader f = le_reader_of(data, n);
        if (h->usize == ZIP_SATURATED)
            h->usize = le_u64(&f);
        if (h->csize == ZIP_SATURATED)
            h->csize = le_u64(&f);
        if (h->offset == ZIP_SATURATED)
            h->offset = le_u64(&f);
        return !f.bad;
    }
    return !w.bad;
}

/* The name below the root, or NULL if it is not below the root. The first entry determines the root. */
static const char *below_root(struct zip_root *root, const char *name)
{
    if (!root->len) {
        const char *slash = strchr(name, '/');
        if (!slash)
            return NULL;
        root->len = (size_t)(slash - name) + 1;
        memcpy(root->text, name, root->len);
    }
    return strncmp(name, root->text, root->len) == 0 ? name + root->len : NULL;
}

static bool name_copy(const uint8_t *raw, size_t len, char ret[MAX_NAME])
{
    if (!raw || !len || len >= MAX_NAME || memchr(raw, 0, len))
        return false;
    memcpy(ret, raw, len);
    ret[len] = '\0';
    return true;
}

static err_t entry_keep(struct zip_index *index, const char *name, const struct header *h, uint64_t payload,
                        const struct zip_source *src, struct why *why)
{
    for (int i = 0; i < ZIP_NAMES; i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        if (index->entry[i].there)
            return why_set(why, ERR_CORRUPT, "the archive has two records named %s", name);
        if (h->method != 0 || h->csize != h->usize)
            return why_set(why, ERR_UNSUPPORTED, "record %s is compressed (method %u)", name, h->method);
        if (payload > src->length || h->usize > src->length - payload)
            return why_set(why, ERR_CORRUPT, "record %s reaches beyond its archive", name);
        index->entry[i] =
            (struct zip_entry){.there = true, .crc = h->crc, .header = h->offset, .payload = payload, .size = h->usize};
    }
    return OK;
}

/* ---- by the central directory ---- */

static err_t local_payload(const struct zip_source *src, struct zip_entry *e, struct why *why)
{
    uint8_t raw[ZIP_LOCAL_BYTES];
    if (src->length < ZIP_LOCAL_BYTES || e->header > src->length - ZIP_LOCAL_BYTES)
        return why_set(why, ERR_CORRUPT, "a local header lies beyond its archive");
    err_t err = src->read(src->arg, e->header, raw, sizeof(raw), why);
    if (err)
        return err;
    struct le_reader w = le_reader_of(raw, sizeof(raw));
    struct header h = {0};
    uint32_t sig = le_u32(&w);
    common_read(&w, &h);
    e->payload = e->header + ZIP_LOCAL_BYTES + h.name_len + h.extra_len;
    if (sig != ZIP_LOCAL_SIG)
        return why_set(why, ERR_CORRUPT, "the archive's directory does not point at a local header");
    if (e->payload > src->length || e->size > src->length - e->payload)
        return why_set(why, ERR_CORRUPT, "a record reaches beyond its archive");
    return OK;
}

static err_t directory_parse(const uint8_t *dir, size_t len, const struct zip_source *src, struct zip_index *ret,
                             struct why *why)
{
    struct le_reader w = le_reader_of(dir, len);
    struct zip_root root = {.len = 0};
    while (le_left(&w)) {
        struct header h = {0};
        char name[MAX_NAME];
        uint32_t sig = le_u32(&w);
        (void)le_u16(&w);
        common_read(&w, &h);
        h.comment_len = le_u16(&w);
        (void)le_bytes(&w, 8); /* disk and attributes */
        h.offset = le_u32(&w);
        const uint8_t *raw = le_bytes(&w, h.name_len), *extra = le_bytes(&w, h.extra_len);
        (void)le_bytes(&w, h.comment_len);
        if (w.bad || sig != ZIP_CENTRAL_SIG || !name_copy(raw, h.name_len, name) ||
            !extra_apply(extra, h.extra_len, &h))
            return why_set(why, ERR_CORRUPT, "the archive's directory is damaged");
        const char *inner = below_root(&root, name);
        if (!inner)
            return why_set(why, ERR_CORRUPT, "record %.100s lies outside the archive's root", name);
        err_t err = entry_keep(ret, inner, &h, 0, src, why);
        if (err)
            return err;
    }
    return OK;
}

struct trailer {
    uint64_t dir_offset, dir_size;
};

static err_t end64_apply(const struct zip_source *src, uint64_t end, struct trailer *t, struct why *why)
{
    uint8_t raw[ZIP_END64_BYTES];
    if (end < ZIP_LOCATOR_BYTES + ZIP_END64_BYTES)
        return OK;
    err_t err = src->read(src->arg, end - ZIP_LOCATOR_BYTES, raw, ZIP_LOCATOR_BYTES, why);
    if (err)
        return err;
    struct le_reader w = le_reader_of(raw, ZIP_LOCATOR_BYTES);
    if (le_u32(&w) != ZIP_LOCATOR_SIG)
        return OK; /* no ZIP64: the 32-bit record is complete */
    (void)le_u32(&w);
    uint64_t at = le_u64(&w);
    if (at > end - ZIP_LOCATOR_BYTES - ZIP_END64_BYTES)
        return why_set(why, ERR_CORRUPT, "the archive's ZIP64 locator points beyond it");
    err = src->read(src->arg, at, raw, ZIP_END64_BYTES, why);
    if (err)
        return err;
    w = le_reader_of(raw, ZIP_END64_BYTES);
    if (le_u32(&w) != ZIP_END64_SIG)
        return why_set(why, ERR_CORRUPT, "the archive's ZIP64 record is damaged");
    (void)le_bytes(&w, 36);
    t->dir_size = le_u64(&w);
    t->dir_offset = le_u64(&w);
    return OK;
}

/* Position of the last end record in a tail of the archive; SIZE_MAX: none. */
static size_t end_find(const uint8_t *tail, size_t len)
{
    for (size_t i = len - ZIP_END_BYTES + 1; i-- > 0;) {
        struct le_reader w = le_reader_of(tail + i, 4);
        if (le_u32(&w) == ZIP_END_SIG)
            return i;
    }
    return SIZE_MAX;
}

static err_t trailer_try(const struct zip_source *src, size_t tail_len, struct trailer *ret, struct why *why)
{
    uint8_t *tail = malloc(tail_len);
    if (!tail)
        return why_set(why, ERR_NOMEM, "out of memory for an archive's trailer");
    uint64_t base = src->length - tail_len;
    err_t err = src->read(src->arg, base, tail, tail_len, why);
    size_t at = err ? 0 : end_find(tail, tail_len);
    if (!err && at == SIZE_MAX)
        err = ERR_NOTFOUND;
    if (!err) {
        struct le_reader w = le_reader_of(tail + at + 12, 8);
        ret->dir_size = le_u32(&w);
        ret->dir_offset = le_u32(&w);
        err = end64_apply(src, base + at, ret, why);
    }
    free(tail);
    return err;
}

/* torch writes no comment, so the record is usually the last 22 bytes. */
static err_t trailer_read(const struct zip_source *src, struct trailer *ret, struct why *why)
{
    if (src->length < ZIP_END_BYTES)
        return why_set(why, ERR_CORRUPT, "%llu bytes are too few for an archive", (unsigned long long)src->length);
    err_t err = trailer_try(src, ZIP_END_BYTES, ret, why);
    if (err == ERR_NOTFOUND) {
        uint64_t most = ZIP_END_BYTES + MAX_COMMENT;
        err = trailer_try(src, (size_t)(src->length < most ? src->length : most), ret, why);
    }
    return err == ERR_NOTFOUND ? why_set(why, ERR_CORRUPT, "not an archive: the end record is missing") : err;
}

err_t zip_index_read(const struct zip_source *src, struct zip_index *ret, struct why *why)
{
    struct trailer t = {0};
    err_t err = trailer_read(src, &t, why);
    if (err)
        return err;
    if (t.dir_offset > src->length || t.dir_size > src->length - t.dir_offset || t.dir_size > MAX_DIRECTORY)
        return why_set(why, ERR_CORRUPT, "the archive's directory lies beyond it");
    uint8_t *dir = malloc((size_t)t.dir_size + 1);
    if (!dir)
        return why_set(why, ERR_NOMEM, "out of memory for an archive's directory");
    struct zip_index index = {0};
    err = src->read(src->arg, t.dir_offset, dir, (size_t)t.dir_size, why);
    if (!err)
        err = directory_parse(dir, (size_t)t.dir_size, src, &index, why);
    free(dir);
    for (int i = 0; i < ZIP_NAMES && !err; i++)
        if (index.entry[i].there)
            err = local_payload(src, &index.entry[i], why);
    if (!err)
        *ret = index;
    return err;
}

/* ---- by the local headers ---- */

static err_t local_scan(const struct zip_source *src, uint64_t at, struct zip_root *root, struct zip_index *index,
                        uint64_t *ret_next, struct why *why)
{
    uint8_t raw[ZIP_LOCAL_BYTES], rest[MAX_NAME + 2 * ZIP_PAYLOAD_ALIGN];
    char name[MAX_NAME];
    if (src->length < ZIP_LOCAL_BYTES || at > src->length - ZIP_LOCAL_BYTES)
        return ERR_AGAIN;
    err_t err = src->read(src->arg, at, raw, sizeof(raw), why);
    if (err)
        return err;
    struct le_reader w = le_reader_of(raw, sizeof(raw));
    struct header h = {0};
    uint32_t sig = le_u32(&w);
    if (sig != ZIP_LOCAL_SIG)
        return sig == ZIP_CENTRAL_SIG ? ERR_NOTFOUND : ERR_AGAIN;
    common_read(&w, &h);
    size_t more = (size_t)h.name_len + h.extra_len;
    if ((h.flags & ZIP_FLAG_DESCRIPTOR) || more > sizeof(rest) || more > src->length - at - ZIP_LOCAL_BYTES)
        return ERR_AGAIN;
    err = src->read(src->arg, at + ZIP_LOCAL_BYTES, rest, more, why);
    if (err)
        return err;
    if (!name_copy(rest, h.name_len, name) || !extra_apply(rest + h.name_len, h.extra_len, &h))
        return ERR_AGAIN;
    const char *inner = below_root(root, name);
    uint64_t payload = at + ZIP_LOCAL_BYTES + more;
    h.offset = at;
    if (!inner || h.csize > src->length - payload)
        return ERR_AGAIN;
    *ret_next = payload + h.csize;
    return entry_keep(index, inner, &h, payload, src, why);
}

err_t zip_index_scan(const struct zip_source *src, struct zip_index *ret, struct why *why)
{
    struct zip_index index = {0};
    struct zip_root root = {.len = 0};
    uint64_t at = 0;
    err_t err = OK;
    for (int i = 0; i < MAX_SCAN && !err && !index.entry[ZIP_DATA_0].there; i++)
        err = local_scan(src, at, &root, &index, &at, why);
    if (err && err != ERR_NOTFOUND)
        return err;
    *ret = index;
    return OK;
}

err_t zip_record_read(const struct zip_source *src, const struct zip_entry *e, size_t max_bytes, struct buf *ret,
                      struct why *why)
{
    if (e->size > max_bytes)
        return why_set(why, ERR_LIMIT, "a record of %llu bytes is above the limit of %zu", (unsigned long long)e->size,
                       max_bytes);
    size_t len = (size_t)e->size;
    err_t err = buf_reserve(ret, len + 1);
    if (!err)
        err = src->read(src->arg, e->payload, ret->data + ret->len, len, why);
    if (err)
        return err;
    if (e->crc && sums_crc32(0, ret->data + ret->len, len) != e->crc)
        return why_set(why, ERR_CORRUPT, "a record's CRC-32 does not match the archive's directory");
    ret->len += len;
    return OK;
}
