/* Pages: a header of Thrift's compact protocol, then the payload. The length of a header is only known when it is
 * parsed, so a window of the file is read, and a larger one if the header does not end in it. */
#include "common/data/parquet_priv.h"
#include "common/data/thrift.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

/* A header has about 50 bytes; statistics with long strings make it longer. */
#define HEAD_WINDOW ((int64_t)4096)
#define HEAD_WINDOW_MAX ((int64_t)16 << 20)
/* Writers cut pages near 1 MiB; a page with one long string is longer. */
#define MAX_PAGE ((int64_t)1 << 30)

enum page_type { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 };
#define ENCODING_RLE 3

struct pq_page_v1 {
    int64_t values, encoding, def_encoding, rep_encoding;
};
struct pq_page_v2 {
    int64_t values, encoding, def_bytes, rep_bytes, compressed;
};
struct pq_page_head {
    int64_t type, size, packed_size; /* size: decompressed */
    int64_t crc;
    bool has_crc;
    struct pq_page_v1 v1, dictionary;
    struct pq_page_v2 v2;
};

#define MEMBER(of, id, name, how)          \
    {                                      \
        id, how, offsetof(struct of, name) \
    }
#define COUNT(x) (sizeof(x) / sizeof((x)[0]))

static void read_v1(struct thrift *t, int type, void *dst)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_page_v1, 1, values, thrift_int),
        MEMBER(pq_page_v1, 2, encoding, thrift_int),
        MEMBER(pq_page_v1, 3, def_encoding, thrift_int),
        MEMBER(pq_page_v1, 4, rep_encoding, thrift_int),
    };
    if (thrift_is_struct(t, type))
        thrift_struct(t, members, COUNT(members), dst);
}

static void read_dictionary_head(struct thrift *t, int type, void *dst)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_page_v1, 1, values, thrift_int),
        MEMBER(pq_page_v1, 2, encoding, thrift_int),
    };
    if (thrift_is_struct(t, type))
        thrift_struct(t, members, COUNT(members), dst);
}

static void read_v2(struct thrift *t, int type, void *dst)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_page_v2, 1, values, thrift_int),     MEMBER(pq_page_v2, 4, encoding, thrift_int),
        MEMBER(pq_page_v2, 5, def_bytes, thrift_int),  MEMBER(pq_page_v2, 6, rep_bytes, thrift_int),
        MEMBER(pq_page_v2, 7, compressed, thrift_int),
    };
    if (thrift_is_struct(t, type))
        thrift_struct(t, members, COUNT(members), dst);
}

static void read_crc(struct thrift *t, int type, void *dst)
{
    struct pq_page_head *h = dst;
    thrift_int(t, type, &h->crc);
    h->has_crc = true;
}

/* False: the header does not end in these bytes, or is damaged. */
static bool parse_head(const struct buf *b, struct pq_page_head *ret, size_t *ret_len)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_page_head, 1, type, thrift_int),
        MEMBER(pq_page_head, 2, size, thrift_int),
        MEMBER(pq_page_head, 3, packed_size, thrift_int),
        {4, read_crc, 0},
        MEMBER(pq_page_head, 5, v1, read_v1),
        MEMBER(pq_page_head, 7, dictionary, read_dictionary_head),
        MEMBER(pq_page_head, 8, v2, read_v2),
    };
    struct thrift t = {.p = b->data, .end = b->data + b->len};
    *ret = (struct pq_page_head){.type = -1, .v2.compressed = 1};
    thrift_struct(&t, members, COUNT(members), ret);
    *ret_len = (size_t)(t.p - b->data);
    return !t.bad;
}

static err_t fill_raw(struct parquet_column *c, int64_t len, struct why *why)
{
    c->raw.len = 0;
    if (buf_reserve(&c->raw, (size_t)len + 1))
        return parquet_fail(c, ERR_NOMEM, why, "%s", err_text(ERR_NOMEM));
    err_t err = c->in->ops->read(c->in, c->at, c->raw.data, (size_t)len, why);
    if (!err)
        c->raw.len = (size_t)len;
    return err;
}

/* Reads the header at c->at and moves behind it. */
static err_t read_head(struct parquet_column *c, struct pq_page_head *ret, struct why *why)
{
    int64_t left = c->end - c->at;
    size_t len;
    for (int64_t window = HEAD_WINDOW;; window *= 16) {
        int64_t n = window < left ? window : left;
        err_t err = fill_raw(c, n, why);
        if (err)
            return err;
        if (parse_head(&c->raw, ret, &len))
            break;
        if (n == left || n >= HEAD_WINDOW_MAX)
            return parquet_fail(c, ERR_CORRUPT, why, "the header of the page at byte %" PRId64 " is damaged", c->at);
    }
    c->at += (int64_t)len;
    return OK;
}

/* Reads the payload into c->raw. */
static err_t read_payload(struct parquet_column *c, const struct pq_page_head *h, struct why *why)
{
    if (h->packed_size < 0 || h->size < 0 || h->packed_size > c->end - c->at)
        return parquet_fail(c, ERR_CORRUPT, why, "the page at byte %" PRId64 " is longer than the column", c->at);
    if (h->packed_size > MAX_PAGE || h->size > MAX_PAGE)
        return parquet_fail(c, ERR_LIMIT, why, "a page of %" PRId64 " bytes; at most 1 GiB is read", h->size);
    err_t err = fill_raw(c, h->packed_size, why);
    if (err)
        return err;
    if (h->has_crc && (uint32_t)crc32(0, c->raw.data, (uInt)c->raw.len) != (uint32_t)h->crc)
        return parquet_fail(c, ERR_CORRUPT, why,
                            "the checksum of the page at byte %" PRId64 " does not match; copy the file again", c->at);
    c->at += h->packed_size;
    return OK;
}

/* Decompresses raw[skip..] to the end of `ret`, which then has `size` bytes; the first `skip` are copied. */
static err_t unpack_page(struct parquet_column *c, bool packed, size_t skip, size_t size, struct buf *ret,
                         struct why *why)
{
    enum unpack_codec codec = packed ? c->chunks[c->group].codec : UNPACK_NONE;
    ret->len = 0;
    err_t err = skip > c->raw.len || skip > size ? ERR_CORRUPT : buf_reserve(ret, size + 1);
    if (!err) {
        memcpy(ret->data, c->raw.data, skip);
        err = unpack_block(codec, c->raw.data + skip, c->raw.len - skip, ret->data + skip, size - skip);
    }
    if (err == ERR_CORRUPT)
        return parquet_fail(c, err, why, "a page cannot be decompressed; the file is damaged");
    if (err)
        return parquet_fail(c, err, why, "%s", err_text(err));
    ret->len = size;
    return OK;
}

static err_t load_dictionary(struct parquet_column *c, const struct pq_page_head *h, struct why *why)
{
    if (h->dictionary.encoding != PQ_PLAIN && h->dictionary.encoding != PQ_PLAIN_DICTIONARY)
        return parquet_fail(c, ERR_UNSUPPORTED, why, "the encoding of the dictionary is number %" PRId64 ", not PLAIN",
                            h->dictionary.encoding);
    if (c->has_dictionary)
        return parquet_fail(c, ERR_CORRUPT, why, "the row group has two dictionaries");
    err_t err = unpack_page(c, true, 0, (size_t)h->size, &c->dictionary.bytes, why);
    if (err)
        return err;
    err = parquet_dictionary_index(&c->dictionary, c->leaf->type, h->dictionary.values);
    if (err)
        return parquet_fail(c, err, why, "the dictionary is damaged");
    c->has_dictionary = true;
    return OK;
}

/* ---- pages of values ---- */

static int level_width(int max)
{
    return max ? 32 - __builtin_clz((unsigned)max) : 0;
}

static err_t check_encoding(const struct parquet_column *c, int64_t encoding, struct why *why)
{
    static const char *const names[] = {"PLAIN",
                                        "1",
                                        "PLAIN_DICTIONARY",
                                        "RLE",
                                        "BIT_PACKED",
                                        "DELTA_BINARY_PACKED",
                                        "DELTA_LENGTH_BYTE_ARRAY",
                                        "DELTA_BYTE_ARRAY",
                                        "RLE_DICTIONARY",
                                        "BYTE_STREAM_SPLIT",
                                        "ALP"};
    bool bytes = c->leaf->type == PQ_BYTE_ARRAY;
    bool dictionary = encoding == PQ_PLAIN_DICTIONARY || encoding == PQ_RLE_DICTIONARY;
    if (dictionary && !c->has_dictionary)
        return parquet_fail(c, ERR_CORRUPT, why, "a page uses a dictionary, but there is none in front of it");
    if (dictionary || encoding == PQ_PLAIN || encoding == (bytes ? PQ_DELTA_LENGTH : PQ_DELTA_BINARY))
        return OK;
    return parquet_fail(c, ERR_UNSUPPORTED, why,
                        "the encoding is %s; PLAIN, a dictionary and %s can be read. Write the file with its writer's "
                        "default encoding",
                        encoding >= 0 && encoding < (int64_t)COUNT(names) ? names[encoding] : "of an unknown number",
                        names[bytes ? PQ_DELTA_LENGTH : PQ_DELTA_BINARY]);
}

/* Takes `len` bytes of levels at *p. */
static bool take_levels(const uint8_t **p, const uint8_t *end, int64_t len, int max, struct parquet_runs *ret)
{
    if (len < 0 || len > end - *p)
        return false;
    *ret = (struct parquet_runs){.p = *p, .end = *p + len, .width = level_width(max)};
    *p += len;
    return true;
}

/* The same with the length in front, as version 1 has it. */
static bool take_levels_v1(const uint8_t **p, const uint8_t *end, int max, struct parquet_runs *ret)
{
    uint32_t len;
    if (max == 0)
        return true;
    if (end - *p < 4)
        return false;
    memcpy(&len, *p, sizeof(len));
    *p += 4;
    return take_levels(p, end, len, max, ret);
}

static err_t begin_values(struct parquet_column *c, int64_t n, int64_t encoding, const uint8_t *p, struct why *why)
{
    if (n < 0 || n > INT32_MAX || n > c->chunk_left)
        return parquet_fail(c, ERR_CORRUPT, why, "the pages have more values than the footer has");
    err_t err = check_encoding(c, encoding, why);
    if (err)
        return err;
    if (!parquet_values_init(&c->values, (int)encoding, c->leaf->type, p, c->page.data + c->page.len, &c->dictionary))
        return parquet_fail(c, ERR_CORRUPT, why, "the values of a page are damaged");
    c->page_left = n;
    c->chunk_left -= n;
    return OK;
}

static err_t load_v1(struct parquet_column *c, const struct pq_page_head *h, struct why *why)
{
    const struct parquet_leaf *l = c->leaf;
    if ((l->max_def && h->v1.def_encoding != ENCODING_RLE) || (l->max_rep && h->v1.rep_encoding != ENCODING_RLE))
        return parquet_fail(c, ERR_UNSUPPORTED, why, "the encoding of the levels is not RLE");
    err_t err = unpack_page(c, true, 0, (size_t)h->size, &c->page, why);
    if (err)
        return err;
    const uint8_t *p = c->page.data, *end = p + c->page.len;
    if (!take_levels_v1(&p, end, l->max_rep, &c->reps) || !take_levels_v1(&p, end, l->max_def, &c->defs))
        return parquet_fail(c, ERR_CORRUPT, why, "the levels of a page are damaged");
    return begin_values(c, h->v1.values, h->v1.encoding, p, why);
}

/* Version 2 has the levels in front, never compressed. */
static err_t load_v2(struct parquet_column *c, const struct pq_page_head *h, struct why *why)
{
    int64_t def = h->v2.def_bytes, rep = h->v2.rep_bytes;
    if (def < 0 || rep < 0 || def > h->size || rep > h->size - def)
        return parquet_fail(c, ERR_CORRUPT, why, "the levels of a page are damaged");
    err_t err = unpack_page(c, h->v2.compressed, (size_t)(def + rep), (size_t)h->size, &c->page, why);
    if (err)
        return err;
    const uint8_t *p = c->page.data, *end = p + c->page.len;
    if (!take_levels(&p, end, rep, c->leaf->max_rep, &c->reps) ||
        !take_levels(&p, end, def, c->leaf->max_def, &c->defs))
        return parquet_fail(c, ERR_CORRUPT, why, "the levels of a page are damaged");
    return begin_values(c, h->v2.values, h->v2.encoding, p, why);
}

static err_t load_page(struct parquet_column *c, struct why *why)
{
    struct pq_page_head h;
    err_t err = read_head(c, &h, why);
    err = err ? err : read_payload(c, &h, why);
    if (err)
        return err;
    switch (h.type) {
    case PAGE_DATA:
        return load_v1(c, &h, why);
    case PAGE_DATA_V2:
        return load_v2(c, &h, why);
    case PAGE_DICTIONARY:
        return load_dictionary(c, &h, why);
    case PAGE_INDEX:
        return OK;
    default:
        return parquet_fail(c, ERR_CORRUPT, why, "a page of the unknown type %" PRId64, h.type);
    }
}

err_t parquet_page_next(struct parquet_column *c, struct why *why)
{
    err_t err = OK;
    while (!err && c->page_left == 0) {
        if (c->at >= c->end)
            return parquet_fail(c, ERR_CORRUPT, why, "the pages have fewer values than the footer has");
        err = load_page(c, why);
    }
    return err;
}
