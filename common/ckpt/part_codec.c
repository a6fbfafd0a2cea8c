/* The encoding of a part's index, which travels between nodes in marker files: little-endian. The decoder checks counts
 * against the bytes left before it allocates, and checks every entry by the rules that the writer follows. */
#include "common/ckpt/part.h"

#include "common/ckpt/le_bytes.h"
#include "common/ckpt/sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC 0x54524150u /* "PART" */
#define VERSION 1u
#define ENTRY_MIN_BYTES 20 /* of a scalar entry with an empty name */
#define MAX_RANK (1 << 24) /* above JOB_MAX_WORKERS (2^20): a larger value means damage */

struct ckpt_part *part_new(int rank)
{
    struct ckpt_part *part = calloc(1, sizeof(*part));
    if (part) {
        part->rank = rank;
        snprintf(part->file, sizeof(part->file), "__%d_0.distcp", rank);
    }
    return part;
}

void ckpt_part_free(struct ckpt_part *part)
{
    if (!part)
        return;
    for (int i = 0; i < part->n_entries; i++)
        free(part->entries[i].fqn);
    free(part->entries);
    free(part->crcs);
    free(part);
}

struct part_entry *part_entry_add(struct ckpt_part *part, const char *fqn, size_t len)
{
    if (part->n_entries == part->cap_entries) {
        int cap = part->cap_entries ? part->cap_entries * 2 : 16;
        struct part_entry *entries = realloc(part->entries, (size_t)cap * sizeof(*entries));
        if (!entries)
            return NULL;
        part->entries = entries;
        part->cap_entries = cap;
    }
    char *copy = strndup(fqn, len);
    if (!copy)
        return NULL;
    struct part_entry *e = &part->entries[part->n_entries++];
    *e = (struct part_entry){.fqn = copy};
    return e;
}

static err_t put_entry(const struct part_entry *e, struct buf *b)
{
    size_t len = strlen(e->fqn);
    err_t err = le_put_u16(b, (uint16_t)len);
    if (!err)
        err = le_put_u16(b, (uint16_t)((unsigned)e->dtype << 8 | (unsigned)e->box.ndim));
    if (!err)
        err = le_put_u64(b, (uint64_t)e->offset);
    if (!err)
        err = le_put_u64(b, (uint64_t)e->length);
    if (!err)
        err = buf_append(b, e->fqn, len);
    for (int d = 0; d < e->box.ndim && !err; d++) {
        err = le_put_u64(b, (uint64_t)e->shape[d]);
        if (!err)
            err = le_put_u64(b, (uint64_t)e->box.offset[d]);
        if (!err)
            err = le_put_u64(b, (uint64_t)e->box.size[d]);
    }
    return err;
}

err_t ckpt_part_encode(const struct ckpt_part *part, struct buf *ret)
{
    const uint32_t head[] = {MAGIC, VERSION, (uint32_t)part->rank, (uint32_t)part->n_entries};
    err_t err = OK;
    for (size_t i = 0; i < sizeof(head) / sizeof(head[0]) && !err; i++)
        err = le_put_u32(ret, head[i]);
    if (!err)
        err = le_put_u64(ret, part->size);
    for (uint32_t i = 0; i < part->n_crcs && !err; i++)
        err = le_put_u32(ret, part->crcs[i]);
    for (int i = 0; i < part->n_entries && !err; i++)
        err = put_entry(&part->entries[i], ret);
    return err;
}

static bool entry_is_legal(const struct part_entry *e, uint64_t file_size)
{
    if (e->offset < 0 || e->length < 0 || (uint64_t)e->offset > file_size ||
        (uint64_t)e->length > file_size - (uint64_t)e->offset)
        return false;
    for (int d = 0; d < e->box.ndim; d++)
        if (e->shape[d] < 0 || e->box.offset[d] < 0 || e->box.size[d] < 0 || e->box.offset[d] > e->shape[d] ||
            e->box.size[d] > e->shape[d] - e->box.offset[d])
            return false;
    return true;
}

static err_t entry_read(struct le_reader *w, struct ckpt_part *part)
{
    uint16_t len = le_u16(w), kind = le_u16(w);
    uint64_t offset = le_u64(w), length = le_u64(w);
    const uint8_t *name = le_bytes(w, len);
    unsigned dtype = kind >> 8, ndim = kind & 0xff;
    if (!name || !len || len > PART_MAX_NAME || memchr(name, 0, len) || ndim > BOX_MAX_DIMS ||
        (dtype != DT_NONE && !dtype_bytes((enum dtype)dtype)))
        return ERR_CORRUPT;
    struct part_entry *e = part_entry_add(part, (const char *)name, len);
    if (!e)
        return ERR_NOMEM;
    e->dtype = (enum dtype)dtype;
    e->offset = (int64_t)offset;
    e->length = (int64_t)length;
    e->box.ndim = (int)ndim;
    for (unsigned d = 0; d < ndim; d++) {
        e->shape[d] = (int64_t)le_u64(w);
        e->box.offset[d] = (int64_t)le_u64(w);
        e->box.size[d] = (int64_t)le_u64(w);
    }
    return !w->bad && entry_is_legal(e, part->size) ? OK : ERR_CORRUPT;
}

static err_t crcs_read(struct le_reader *w, struct ckpt_part *part)
{
    uint64_t n = sums_extents_count(part->size, CKPT_EXTENT_BYTES);
    if (n > le_left(w) / 4)
        return ERR_CORRUPT;
    part->crcs = calloc(n + 1, sizeof(*part->crcs));
    if (!part->crcs)
        return ERR_NOMEM;
    for (part->n_crcs = 0; part->n_crcs < n; part->n_crcs++)
        part->crcs[part->n_crcs] = le_u32(w);
    return OK;
}

err_t ckpt_part_decode(const void *data, size_t len, struct ckpt_part **ret)
{
    struct le_reader w = le_reader_of(data, len);
    uint32_t magic = le_u32(&w), version = le_u32(&w), rank = le_u32(&w), n = le_u32(&w);
    uint64_t size = le_u64(&w);
    if (w.bad || magic != MAGIC || rank > MAX_RANK || n > le_left(&w) / ENTRY_MIN_BYTES)
        return ERR_CORRUPT;
    if (version != VERSION)
        return ERR_UNSUPPORTED;
    struct ckpt_part *part = part_new((int)rank);
    if (!part)
        return ERR_NOMEM;
    part->size = size;
    err_t err = crcs_read(&w, part);
    for (uint32_t i = 0; i < n && !err; i++)
        err = entry_read(&w, part);
    if (!err && le_left(&w))
        err = ERR_CORRUPT;
    if (err)
        ckpt_part_free(part);
    else
        *ret = part;
    return err;
}
