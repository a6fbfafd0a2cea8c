#include "common/data/flatbuffer.h"

#include <string.h>

static bool inside(struct flat *f, size_t at, size_t bytes)
{
    if (at <= f->size && bytes <= f->size - at)
        return true;
    f->bad = true;
    return false;
}

/* A little-endian integer; 0 outside the buffer. */
static uint64_t load(struct flat *f, size_t at, size_t bytes)
{
    uint64_t v = 0;
    if (inside(f, at, bytes))
        memcpy(&v, f->data + at, bytes);
    return v;
}

/* Where the offset at `at` leads; 0: nowhere. */
static size_t follow(struct flat *f, size_t at)
{
    size_t to = at + load(f, at, 4);
    return to > at && inside(f, to, 4) ? to : 0;
}

static struct flat_ref table_at(struct flat *f, size_t at)
{
    struct flat_ref r = {0};
    if (!at)
        return r;
    int64_t vtable = (int64_t)at - (int32_t)load(f, at, 4);
    if (vtable < 0 || !inside(f, (size_t)vtable, 4)) {
        f->bad = true;
        return r;
    }
    r.vtable = (size_t)vtable;
    r.vtable_bytes = load(f, r.vtable, 2);
    if (r.vtable_bytes < 4 || !inside(f, r.vtable, r.vtable_bytes)) {
        f->bad = true;
        return (struct flat_ref){0};
    }
    r.at = at;
    return r;
}

/* Where a member is; 0: absent. */
static size_t member(struct flat *f, struct flat_ref table, int slot)
{
    size_t entry = 4 + 2 * (size_t)slot;
    if (!table.at || entry + 2 > table.vtable_bytes)
        return 0;
    size_t offset = load(f, table.vtable + entry, 2);
    return offset ? table.at + offset : 0;
}

struct flat_ref flat_root(struct flat *f)
{
    return table_at(f, follow(f, 0));
}

int64_t flat_int(struct flat *f, struct flat_ref table, int slot, int bytes, int64_t absent)
{
    size_t at = member(f, table, slot);
    if (!at)
        return absent;
    int unused = 64 - 8 * bytes;
    return (int64_t)(load(f, at, (size_t)bytes) << unused) >> unused;
}

struct flat_ref flat_table(struct flat *f, struct flat_ref table, int slot)
{
    size_t at = member(f, table, slot);
    return table_at(f, at ? follow(f, at) : 0);
}

struct flat_ref flat_vector(struct flat *f, struct flat_ref table, int slot, size_t bytes)
{
    struct flat_ref r = {0};
    size_t at = member(f, table, slot);
    at = at ? follow(f, at) : 0;
    size_t n = at ? load(f, at, 4) : 0;
    if (at && inside(f, at + 4, n * bytes)) {
        r.at = at + 4;
        r.n = n;
    }
    return r;
}

int64_t flat_element(struct flat *f, struct flat_ref vector, size_t i, size_t bytes, size_t at)
{
    if (i >= vector.n) {
        f->bad = true;
        return 0;
    }
    return (int64_t)load(f, vector.at + i * bytes + at, 8);
}

struct flat_ref flat_table_at(struct flat *f, struct flat_ref vector, size_t i)
{
    if (i >= vector.n) {
        f->bad = true;
        return (struct flat_ref){0};
    }
    return table_at(f, follow(f, vector.at + 4 * i));
}

const char *flat_string(struct flat *f, struct flat_ref table, int slot, size_t *ret_len)
{
    struct flat_ref r = flat_vector(f, table, slot, 1);
    *ret_len = r.n;
    return r.at ? (const char *)f->data + r.at : NULL;
}
