/* Every value takes at least one byte, so the work is linear in the bytes, and a list cannot claim more elements than
 * bytes are left. */
#include "common/data/thrift.h"

#include <string.h>

enum wire_type { W_TRUE = 1, W_FALSE, W_I8, W_I16, W_I32, W_I64, W_DOUBLE, W_BINARY, W_LIST, W_SET, W_MAP, W_STRUCT };

#define MAX_DEPTH 32 /* Parquet's structures are nested 8 deep */

static void *set_bad(struct thrift *t)
{
    t->bad = true;
    t->p = t->end;
    return NULL;
}

static const uint8_t *take(struct thrift *t, uint64_t n)
{
    const uint8_t *p = t->p;
    if (n > (uint64_t)(t->end - p))
        return set_bad(t);
    t->p += n;
    return p;
}

static uint8_t take_byte(struct thrift *t)
{
    const uint8_t *p = take(t, 1);
    return p ? *p : 0;
}

static uint64_t varint(struct thrift *t)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = take_byte(t);
        v |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return v;
    }
    set_bad(t);
    return 0;
}

static int64_t zigzag(struct thrift *t)
{
    uint64_t v = varint(t);
    return (int64_t)(v >> 1 ^ -(v & 1));
}

/* The head of a list: its length, and the type of its elements. */
static uint64_t list_head(struct thrift *t, int *ret_type)
{
    uint8_t head = take_byte(t);
    uint64_t n = head >> 4;
    *ret_type = head & 15;
    if (n == 15)
        n = varint(t);
    if (n > (uint64_t)(t->end - t->p)) {
        set_bad(t);
        return 0;
    }
    return n;
}

static void skip(struct thrift *t, int type);

static void skip_element(struct thrift *t, int type)
{
    if (type == W_TRUE || type == W_FALSE)
        take(t, 1); /* a boolean is a byte of its own in a container, and part of the type elsewhere */
    else
        skip(t, type);
}

static void skip_list(struct thrift *t)
{
    int type;
    for (uint64_t n = list_head(t, &type); n > 0 && !t->bad; n--)
        skip_element(t, type);
}

static void skip_map(struct thrift *t)
{
    uint64_t n = varint(t);
    uint8_t types = n ? take_byte(t) : 0;
    for (; n > 0 && !t->bad; n--) {
        skip_element(t, types >> 4);
        skip_element(t, types & 15);
    }
}

static void skip(struct thrift *t, int type)
{
    if (++t->depth > MAX_DEPTH)
        set_bad(t);
    switch (t->bad ? 0 : type) {
    case W_TRUE:
    case W_FALSE:
        break;
    case W_I8:
        take(t, 1);
        break;
    case W_I16:
    case W_I32:
    case W_I64:
        varint(t);
        break;
    case W_DOUBLE:
        take(t, 8);
        break;
    case W_BINARY:
        take(t, varint(t));
        break;
    case W_LIST:
    case W_SET:
        skip_list(t);
        break;
    case W_MAP:
        skip_map(t);
        break;
    case W_STRUCT:
        thrift_struct(t, NULL, 0, NULL);
        break;
    default:
        set_bad(t);
    }
    t->depth--;
}

/* The next member; false at the end of the structure. */
static bool next_member(struct thrift *t, int *id, int *ret_type)
{
    uint8_t head = take_byte(t);
    if (t->bad || head == 0)
        return false;
    *id = head >> 4 ? *id + (head >> 4) : (int)(int16_t)zigzag(t);
    *ret_type = head & 15;
    return !t->bad;
}

void thrift_struct(struct thrift *t, const struct thrift_member *members, size_t n, void *dst)
{
    int id = 0, type;
    if (++t->depth > MAX_DEPTH)
        set_bad(t);
    while (next_member(t, &id, &type)) {
        size_t i = 0;
        while (i < n && members[i].id != id)
            i++;
        if (i < n)
            members[i].read(t, type, (char *)dst + members[i].offset);
        else
            skip(t, type);
    }
    t->depth--;
}

void thrift_int(struct thrift *t, int type, void *dst)
{
    int64_t v = 0;
    if (type == W_TRUE || type == W_FALSE)
        v = type == W_TRUE;
    else if (type >= W_I16 && type <= W_I64)
        v = zigzag(t);
    else if (type == W_I8)
        v = (int8_t)take_byte(t);
    else
        set_bad(t);
    memcpy(dst, &v, sizeof(v));
}

void thrift_binary(struct thrift *t, int type, void *dst)
{
    struct thrift_bytes b = {0};
    if (type != W_BINARY)
        set_bad(t);
    b.len = varint(t);
    b.data = take(t, b.len);
    b.len = b.data ? b.len : 0;
    memcpy(dst, &b, sizeof(b));
}

void thrift_present(struct thrift *t, int type, void *dst)
{
    *(bool *)dst = true;
    skip(t, type);
}

size_t thrift_list_of_structs(struct thrift *t, int type)
{
    int of = W_STRUCT;
    uint64_t n = type == W_LIST ? list_head(t, &of) : 0;
    if (type != W_LIST || (n > 0 && of != W_STRUCT))
        set_bad(t);
    return t->bad ? 0 : (size_t)n;
}

bool thrift_is_struct(struct thrift *t, int type)
{
    if (type != W_STRUCT)
        set_bad(t);
    return type == W_STRUCT;
}
