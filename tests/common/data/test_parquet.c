/* A file of two rows, typed in from parquet.thrift and Thrift's compact protocol, and changes to it. Whole files of
 * another writer are compared in tests/interop. */
#include "common/data/parquet.h"
#include "tests/common/data/read_all.h"

#include <zlib.h>

static const uint8_t plain[] = {
    'P', 'A', 'R', '1',
    /* 4: PageHeader: type DATA_PAGE, 10 bytes, 10 compressed; DataPageHeader: 2 values, PLAIN, levels RLE */
    0x15, 0x00, 0x15, 0x14, 0x15, 0x14, 0x2c, 0x15, 0x04, 0x15, 0x00, 0x15, 0x06, 0x15, 0x06, 0x00, 0x00,
    /* 21: "ab" and "" */
    2, 0, 0, 0, 'a', 'b', 0, 0, 0, 0,
    /* 31: FileMetaData: version 1; schema: a list of two */
    0x15, 0x02, 0x19, 0x2c,
    /* 35: the root: name "r", one child */
    0x48, 0x01, 'r', 0x15, 0x02, 0x00,
    /* 41: BYTE_ARRAY, required, "text" */
    0x15, 0x0c, 0x25, 0x00, 0x18, 0x04, 't', 'e', 'x', 't', 0x00,
    /* 52: 2 rows; a row group with one column: at 4 */
    0x16, 0x04, 0x19, 0x1c, 0x19, 0x1c, 0x26, 0x08, 0x1c,
    /* 61: BYTE_ARRAY; encodings [PLAIN]; path ["text"]; codec 0; 2 values; 27 bytes; 27 compressed; pages at 4 */
    0x15, 0x0c, 0x19, 0x15, 0x00, 0x19, 0x18, 0x04, 't', 'e', 'x', 't', 0x15, 0x00, 0x16, 0x04, 0x16, 0x36, 0x16, 0x36,
    0x26, 0x08, 0x00, 0x00,
    /* 85: 27 bytes, 2 rows in the group */
    0x16, 0x36, 0x16, 0x04, 0x00, 0x00,
    /* 91: the footer has 60 bytes */
    60, 0, 0, 0, 'P', 'A', 'R', '1'};

#define ENCODING 14
#define ROWS 53
#define CODEC 74
#define GROUP_ROWS 88
#define COMPRESSED_BYTES 80

/* `plain` with one byte changed. */
static const uint8_t *changed(size_t at, uint8_t value)
{
    static uint8_t copy[sizeof(plain)];
    memcpy(copy, plain, sizeof(plain));
    copy[at] = value;
    return copy;
}

static void assert_changed(size_t at, uint8_t value, err_t want, const char *part)
{
    assert_refuses(&parquet_format, changed(at, value), sizeof(plain), NULL, want, part);
}

TEST(plain_strings)
{
    assert_true(parquet_format.is(plain, sizeof(plain), "t"));
    assert_reads(&parquet_format, plain, sizeof(plain), NULL, "0 ab\n1 \n");
    assert_reads(&parquet_format, plain, sizeof(plain), "text", "0 ab\n1 \n");
}

TEST(every_prefix_is_refused)
{
    for (size_t n = 0; n < sizeof(plain); n++)
        assert_refuses(&parquet_format, plain, n, NULL, ERR_CORRUPT, "t: ");
}

TEST(what_is_not_read_is_named)
{
    assert_changed(sizeof(plain) - 1, 'E', ERR_UNSUPPORTED, "encrypted");
    assert_changed(CODEC, 2 * 4, ERR_UNSUPPORTED, "t: column text, row group 0: the compression is brotli");
    assert_changed(CODEC, 2 * 9, ERR_UNSUPPORTED, "of an unknown number");
    assert_changed(ENCODING, 2 * 7, ERR_UNSUPPORTED, "the encoding is DELTA_BYTE_ARRAY");
    assert_changed(ENCODING, 2 * 5, ERR_UNSUPPORTED, "the encoding is DELTA_BINARY_PACKED");
    assert_changed(42, 0x02, ERR_UNSUPPORTED, "its type is INT32"); /* the column */
    assert_refuses(&parquet_format, plain, sizeof(plain), "body", ERR_INVALID, "no column body; the columns are: text");
    assert_changed(48, 'a', ERR_INVALID, "the columns are: taxt");
}

TEST(counts_must_agree)
{
    assert_changed(ROWS, 2 * 3, ERR_CORRUPT, "the footer of the Parquet file is damaged");
    uint8_t three[sizeof(plain)];
    memcpy(three, changed(ROWS, 2 * 3), sizeof(plain));
    three[GROUP_ROWS] = 2 * 3;
    assert_refuses(&parquet_format, three, sizeof(three), NULL, ERR_CORRUPT,
                   "fewer values than the row group has rows");
    three[ROWS] = three[GROUP_ROWS] = 2 * 1;
    assert_refuses(&parquet_format, three, sizeof(three), NULL, ERR_CORRUPT, "more values than the row group has rows");
    assert_changed(COMPRESSED_BYTES, 2 * 26, ERR_CORRUPT, "longer than the column");
    assert_changed(COMPRESSED_BYTES, 127, ERR_CORRUPT, "the footer");       /* -64 */
    assert_changed(21, 7, ERR_CORRUPT, "the values of a page are damaged"); /* the length of the first string */
    assert_changed(12, 2 * 3, ERR_CORRUPT, "more values than the footer has");
}

/* The same file with a CRC-32 in the page's header, which begins with the field 4: delta 1, i32, zigzag. */
TEST(checksum)
{
    uint8_t with[sizeof(plain) + 6], *p = with;
    uint32_t crc = (uint32_t)crc32(0, plain + 21, 10), zigzag = crc << 1 ^ (uint32_t)((int32_t)crc >> 31);
    memcpy(p, plain, 10);
    p += 10;
    *p++ = 0x15;
    for (int i = 0; i < 5; i++)
        *p++ = (uint8_t)((zigzag >> 7 * i & 127) | (i < 4 ? 128 : 0));
    memcpy(p, plain + 10, sizeof(plain) - 10);
    with[10 + 6] = 0x1c; /* field 5 now follows 4 */
    with[80 + 6] = with[78 + 6] = 2 * 33;
    assert_reads(&parquet_format, with, sizeof(with), NULL, "0 ab\n1 \n");
    with[25 + 6] ^= 1;
    assert_refuses(&parquet_format, with, sizeof(with), NULL, ERR_CORRUPT, "checksum");
}

/* Flipping any bit never crashes; where the document stays readable it has as many rows. */
TEST(flipped_bits)
{
    for (size_t bit = 0; bit < 8 * sizeof(plain); bit++) {
        struct buf got = {0};
        struct why why = {0};
        err_t err = read_all(&parquet_format, changed(bit / 8, plain[bit / 8] ^ (uint8_t)(1 << bit % 8)), sizeof(plain),
                             NULL, &got, &why);
        if (!err && !strstr((char *)got.data, "\n1 "))
            fail_msg("bit %zu: '%s'", bit, (char *)got.data);
        buf_fini(&got);
    }
}
