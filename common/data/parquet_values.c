/* Encodings of values (parquet-format, Encodings.md). Each decoder returns one value at a time, so a few bytes that
 * claim a billion values cost no memory. */
#include "common/data/parquet_priv.h"

#include <string.h>

static bool varint_u64(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
    *ret = 0;
    for (int shift = 0; shift < 64 && *p < end; shift += 7) {
        uint8_t byte = *(*p)++;
        *ret |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

static bool zigzag_i64(const uint8_t **p, const uint8_t *end, int64_t *ret)
{
    uint64_t v;
    if (!varint_u64(p, end, &v))
        return false;
    *ret = (int64_t)(v >> 1 ^ -(v & 1));
    return true;
}

/* `width` bits (0 to 64) from `bit` on, the lowest first. The caller has checked that they are inside p .. end. */
static uint64_t bits_at(const uint8_t *p, const uint8_t *end, uint64_t bit, int width)
{
    const uint8_t *from = p + bit / 8;
    int shift = (int)(bit % 8);
    size_t n = (size_t)(end - from) < 8 ? (size_t)(end - from) : 8;
    uint64_t v = 0;
    if (width == 0)
        return 0;
    memcpy(&v, from, n);
    v >>= shift;
    if (shift + width > 64)
        v |= (uint64_t)from[8] << (64 - shift);
    return width == 64 ? v : v & (((uint64_t)1 << width) - 1);
}

/* ---- runs ---- */

static bool next_run(struct parquet_runs *r)
{
    uint64_t head, bytes = ((uint64_t)r->width + 7) / 8;
    if (r->packed)
        r->p += r->bit / 8; /* a run of packed values is a whole number of bytes */
    r->packed = false;
    if (!varint_u64(&r->p, r->end, &head) || head >> 1 == 0)
        return false;
    r->left = head >> 1;
    r->packed = head & 1;
    r->bit = 0;
    if (r->packed) {
        if (r->left > UINT32_MAX || r->left * (uint64_t)r->width > (uint64_t)(r->end - r->p))
            return false;
        r->left *= 8;
        return true;
    }
    if (bytes > (uint64_t)(r->end - r->p))
        return false;
    r->value = 0;
    memcpy(&r->value, r->p, bytes);
    r->p += bytes;
    return r->width == 32 || r->value >> r->width == 0;
}

bool parquet_runs_next(struct parquet_runs *r, uint32_t *ret)
{
    if (r->left == 0 && !next_run(r)) {
        r->left = 0;
        r->packed = false;
        r->p = r->end;
        return false;
    }
    r->left--;
    *ret = r->value;
    if (r->packed) {
        *ret = (uint32_t)bits_at(r->p, r->end, r->bit, r->width);
        r->bit += (uint64_t)r->width;
    }
    return true;
}

/* ---- deltas ---- */

/* Writers use 128 values in 4 miniblocks; the limits keep products small. */
#define MAX_BLOCK (1 << 20)

bool parquet_deltas_init(struct parquet_deltas *d, const uint8_t *p, const uint8_t *end)
{
    int64_t first;
    *d = (struct parquet_deltas){.p = p, .end = end, .first = true};
    if (!varint_u64(&d->p, end, &d->block) || !varint_u64(&d->p, end, &d->minis) || !varint_u64(&d->p, end, &d->left) ||
        !zigzag_i64(&d->p, end, &first))
        return false;
    d->value = (uint64_t)first;
    if (d->block == 0 || d->block > MAX_BLOCK || d->minis == 0 || d->block % d->minis != 0)
        return false;
    d->per_mini = d->block / d->minis;
    d->mini = d->minis; /* no block has begun */
    d->in_mini = d->per_mini;
    return d->per_mini % 8 == 0;
}

static bool next_block(struct parquet_deltas *d)
{
    if (!zigzag_i64(&d->p, d->end, &d->min) || d->minis > (uint64_t)(d->end - d->p))
        return false;
    d->widths = d->p;
    d->p += d->minis;
    d->mini = 0;
    return true;
}

/* Enters the next miniblock. d->p then is behind it. */
static bool next_mini(struct parquet_deltas *d)
{
    if (d->mini + 1 < d->minis)
        d->mini++;
    else if (!next_block(d))
        return false;
    int width = d->widths[d->mini];
    uint64_t bytes = d->per_mini / 8 * (uint64_t)width;
    if (width > 64 || bytes > (uint64_t)(d->end - d->p))
        return false;
    d->p += bytes;
    d->in_mini = 0;
    return true;
}

bool parquet_deltas_next(struct parquet_deltas *d, int64_t *ret)
{
    if (d->left == 0)
        return false;
    d->left--;
    if (!d->first) {
        if (d->in_mini == d->per_mini && !next_mini(d))
            return false;
        int width = d->widths[d->mini];
        const uint8_t *from = d->p - d->per_mini / 8 * (uint64_t)width;
        d->value += (uint64_t)d->min + bits_at(from, d->end, d->in_mini++ * (uint64_t)width, width);
    }
    d->first = false;
    *ret = (int64_t)d->value;
    return true;
}

bool parquet_deltas_skip(struct parquet_deltas *d)
{
    for (uint64_t n = d->left ? d->left - 1 : 0; n > 0; n -= n < d->per_mini ? n : d->per_mini)
        if (!next_mini(d))
            return false;
    return true;
}

/* ---- values ---- */

static bool plain_bytes(const uint8_t **p, const uint8_t *end, const uint8_t **ret, size_t *ret_len)
{
    uint32_t len;
    if (end - *p < 4)
        return false;
    memcpy(&len, *p, sizeof(len));
    if (len > (size_t)(end - *p) - 4)
        return false;
    *ret = *p + 4;
    *ret_len = len;
    *p += 4 + (size_t)len;
    return true;
}

static bool plain_int(const uint8_t **p, const uint8_t *end, int type, int64_t *ret)
{
    size_t size = type == PQ_INT32 ? 4 : 8;
    int32_t narrow;
    if ((size_t)(end - *p) < size)
        return false;
    memcpy(type == PQ_INT32 ? (void *)&narrow : (void *)ret, *p, size);
    if (type == PQ_INT32)
        *ret = narrow;
    *p += size;
    return true;
}

err_t parquet_dictionary_index(struct parquet_dictionary *d, int type, int64_t n)
{
    const uint8_t *p = d->bytes.data, *end = p + d->bytes.len, *value;
    size_t size = type == PQ_INT64 ? 8 : 4, len; /* a string takes at least the four bytes of its length */
    if (n < 0 || (uint64_t)n > d->bytes.len / size || d->bytes.len > UINT32_MAX)
        return ERR_CORRUPT;
    d->n = (uint32_t)n;
    d->at.len = 0;
    if (type != PQ_BYTE_ARRAY)
        return OK;
    err_t err = buf_reserve(&d->at, (size_t)n * sizeof(uint32_t) + 1);
    for (int64_t i = 0; !err && i < n; i++) {
        uint32_t at = (uint32_t)(p - d->bytes.data);
        err = plain_bytes(&p, end, &value, &len) ? buf_append(&d->at, &at, sizeof(at)) : ERR_CORRUPT;
    }
    return err;
}

static bool is_dictionary(int encoding)
{
    return encoding == PQ_PLAIN_DICTIONARY || encoding == PQ_RLE_DICTIONARY;
}

bool parquet_values_init(struct parquet_values *v, int encoding, int type, const uint8_t *p, const uint8_t *end,
                         const struct parquet_dictionary *dictionary)
{
    *v = (struct parquet_values){.encoding = encoding, .type = type, .p = p, .end = end, .dictionary = dictionary};
    if (is_dictionary(encoding)) {
        if (p == end) /* a page of nulls */
            return true;
        v->runs = (struct parquet_runs){.p = p + 1, .end = end, .width = *p};
        return v->runs.width <= 32;
    }
    if (encoding == PQ_PLAIN)
        return true;
    if (p == end)
        return true;
    if (!parquet_deltas_init(&v->deltas, p, end))
        return false;
    if (encoding == PQ_DELTA_BINARY)
        return true;
    struct parquet_deltas lengths = v->deltas;
    bool ok = parquet_deltas_skip(&lengths);
    v->p = lengths.p;
    return ok;
}

/* The next index into the dictionary. */
static bool next_index(struct parquet_values *v, uint32_t *ret)
{
    return v->runs.p && parquet_runs_next(&v->runs, ret) && *ret < v->dictionary->n;
}

bool parquet_values_bytes(struct parquet_values *v, const uint8_t **ret, size_t *ret_len)
{
    int64_t len;
    uint32_t i;
    if (is_dictionary(v->encoding)) {
        if (!next_index(v, &i))
            return false;
        const uint8_t *p = v->dictionary->bytes.data + ((const uint32_t *)(const void *)v->dictionary->at.data)[i];
        return plain_bytes(&p, v->dictionary->bytes.data + v->dictionary->bytes.len, ret, ret_len);
    }
    if (v->encoding == PQ_PLAIN)
        return plain_bytes(&v->p, v->end, ret, ret_len);
    if (!parquet_deltas_next(&v->deltas, &len))
        return false;
    len = (int32_t)len; /* lengths are 32-bit integers, whose sums wrap around */
    if (len < 0 || len > v->end - v->p)
        return false;
    *ret = v->p;
    *ret_len = (size_t)len;
    v->p += len;
    return true;
}

bool parquet_values_int(struct parquet_values *v, int64_t *ret)
{
    uint32_t i;
    if (v->encoding == PQ_PLAIN)
        return plain_int(&v->p, v->end, v->type, ret);
    if (v->encoding == PQ_DELTA_BINARY) {
        bool ok = parquet_deltas_next(&v->deltas, ret);
        if (ok && v->type == PQ_INT32)
            *ret = (int32_t)*ret;
        return ok;
    }
    if (!next_index(v, &i))
        return false;
    const uint8_t *p = v->dictionary->bytes.data + (size_t)i * (v->type == PQ_INT32 ? 4 : 8);
    return plain_int(&p, p + 8, v->type, ret);
}
