/* Archives: the layouts of torch and dtd are read, including ZIP64, and damaged archives are rejected. */
#include "common/ckpt/blob.h"
#include "common/ckpt/sums.h"
#include "tests/common/ckpt/golden.h"
#include "tests/lib/test.h"

/* An archive in up to three pieces, so that a payload of many gigabytes does not need memory. */
struct memory {
    const uint8_t *head, *tail;
    uint64_t head_len, hole, tail_len;
};

static err_t memory_read(void *arg, uint64_t offset, void *dst, size_t len, struct why *why)
{
    const struct memory *m = arg;
    for (size_t i = 0; i < len; i++) {
        uint64_t at = offset + i;
        uint8_t v = 0;
        if (at < m->head_len)
            v = m->head[at];
        else if (at >= m->head_len + m->hole)
            v = at - m->head_len - m->hole < m->tail_len ? m->tail[at - m->head_len - m->hole] : 0xee;
        ((uint8_t *)dst)[i] = v;
    }
    return OK;
}

static struct zip_source source_of(struct memory *m)
{
    return (struct zip_source){memory_read, m, m->head_len + m->hole + m->tail_len};
}

TEST(layouts_of_torch)
{
    static const struct {
        const char *name;
        uint64_t payload;
    } layouts[] = {{"blob_26", 448}, {"blob_27", 704}, {"blob_lean", 448}};
    static const float values[6] = {0, 1, 2, 3, 4, 5};
    for (size_t i = 0; i < 3; i++) {
        struct buf b;
        struct blob_tensor t;
        struct why why = {{0}};
        golden_read(layouts[i].name, &b);
        struct memory m = {.head = b.data, .head_len = b.len};
        struct zip_source src = source_of(&m);
        for (int scan = 0; scan < 2; scan++) {
            if (blob_tensor_read(&src, scan, &t, &why))
                fail_msg("%s: %s", layouts[i].name, why.text);
            assert_int_equal(t.dtype, DT_F32);
            assert_int_equal(t.ndim, 2);
            assert_int_equal(t.stride[0], 3);
            assert_int_equal(t.payload, layouts[i].payload);
            assert_int_equal(t.payload_bytes, 24);
            assert_int_equal(t.crc, sums_crc32(0, values, 24));
            assert_memory_equal(b.data + t.payload, values, 24);
        }
        buf_fini(&b);
    }
}

TEST(every_cut_is_refused)
{
    struct buf b;
    struct blob_tensor t;
    struct why why;
    golden_read("blob_27", &b);
    for (size_t n = 0; n < b.len; n++) {
        struct memory m = {.head = b.data, .head_len = n};
        struct zip_source src = source_of(&m);
        if (blob_tensor_read(&src, false, &t, &why) == OK)
            fail_msg("the first %zu of %zu bytes are accepted", n, b.len);
    }
    buf_fini(&b);
}

static void check_written(enum dtype dtype, int ndim, const int64_t *size, uint64_t bytes)
{
    struct buf head = {0}, tail = {0};
    struct blob_tensor t;
    struct why why = {{0}};
    assert_ok(blob_tensor_write(dtype, ndim, size, bytes, 0x12345678, &head, &tail));
    assert_int_equal(head.len % ZIP_PAYLOAD_ALIGN, 0);
    struct memory m = {head.data, tail.data, head.len, bytes, tail.len};
    struct zip_source src = source_of(&m);
    for (int scan = 0; scan < 2; scan++) {
        if (blob_tensor_read(&src, scan, &t, &why))
            fail_msg("%llu bytes: %s", (unsigned long long)bytes, why.text);
        assert_int_equal(t.dtype, dtype);
        assert_int_equal(t.ndim, ndim);
        for (int d = 0; d < ndim; d++)
            assert_int_equal(t.size[d], size[d]);
        assert_int_equal(t.payload, head.len);
        assert_int_equal(t.payload_bytes, bytes);
        assert_int_equal(t.crc, 0x12345678);
    }
    buf_fini(&head);
    buf_fini(&tail);
}

TEST(written_and_read)
{
    static const int64_t big[] = {5, 1 << 20, 1 << 10};
    check_written(DT_F32, 0, NULL, 4);
    check_written(DT_BOOL, 1, (const int64_t[]){7}, 7);
    check_written(DT_BF16, 8, (const int64_t[]){1, 2, 1, 3, 1, 1, 2, 1}, 24);
    check_written(DT_F32, 2, (const int64_t[]){0, 4}, 0);
    check_written(DT_F32, 3, big, (uint64_t)20 << 30);                  /* sizes and directory need ZIP64 */
    check_written(DT_U8, 1, (const int64_t[]){0xfffffffe}, 0xfffffffe); /* only the directory's offset needs it */
    check_written(DT_U8, 1, (const int64_t[]){0xffffffff}, 0xffffffff);
}

/* 20 GiB again, field by field: the local header has the ZIP64 field, the trailer the ZIP64 record and its locator. */
TEST(zip64_fields_are_where_they_belong)
{
    struct buf head = {0}, tail = {0};
    const struct zip_record r[] = {{"data/0", NULL, (uint64_t)20 << 30, 0xabcdef01}};
    assert_ok(zip_write(r, 1, &head, &tail));
    static const uint8_t local[] = {'P',  'K',  3,    4,    45,   0,    0,    8,    0,    0,    0,    0,    0,  0,
                                    0x01, 0xef, 0xcd, 0xab, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 14, 0};
    static const uint8_t extra[] = {1, 0, 16, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0};
    assert_memory_equal(head.data, local, sizeof(local));
    assert_memory_equal(head.data + 30 + 14, extra, sizeof(extra));
    assert_memory_equal(tail.data + 46 + 14, extra, sizeof(extra));
    assert_memory_equal(tail.data + 46 + 14 + 20, "PK\x06\x06", 4);
    assert_memory_equal(tail.data + 46 + 14 + 20 + 56, "PK\x06\x07", 4);
    assert_memory_equal(tail.data + tail.len - 22, "PK\x05\x06", 4);
    head.len = tail.len = 0;
    const struct zip_record edge[] = {
        {"data/0", NULL, 0xffffffff, 0}}; /* the saturated value is a mark and not a size */
    assert_ok(zip_write(edge, 1, &head, &tail));
    assert_int_equal(head.data[4], 45);
    buf_fini(&head);
    buf_fini(&tail);
}

TEST(a_tensor_that_reaches_beyond_its_storage)
{
    /* float32 (3, 3) with strides (3, 1) over a storage of 8 elements, then of 9. */
    static const char format[] = "80 02 63746f7263682e5f7574696c730a5f72656275696c645f74656e736f725f76320a 28 28 "
                                 "58 07000000 73746f72616765 63746f7263680a466c6f617453746f726167650a 58 01000000 30 "
                                 "58 03000000 637075 4b %02x 74 51 4b00 4b034b0386 4b034b0186 89 4e 74 52 2e";
    struct blob_tensor t;
    struct why why;
    for (int n = 8; n <= 9; n++) {
        char hex[512];
        struct buf b = {0};
        int len = snprintf(hex, sizeof(hex), format, (unsigned)n);
        golden_parse(hex, (size_t)len, &b);
        assert_err(n == 9 ? OK : ERR_CORRUPT, blob_tensor_parse(b.data, b.len, &t, &why));
        buf_fini(&b);
    }
}

TEST(values)
{
    static const struct ckpt_scalar cases[] = {
        {NULL, CKPT_INT, -5, {0}, NULL},
        {NULL, CKPT_INT, INT64_MAX, {0}, NULL},
        {NULL, CKPT_FLOAT, 0, {0.001}, NULL},
        {NULL, CKPT_BOOL, 1, {0}, NULL},
        {NULL, CKPT_NONE, 0, {0}, NULL},
        {NULL, CKPT_FLOAT_PAIR, 0, {0.9, 0.999}, NULL},
        {NULL, CKPT_STR, 0, {0}, (char *)(uintptr_t) "text \xc3\xa4"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf b = {0};
        struct ckpt_scalar s = {0};
        struct why why = {{0}};
        assert_ok(blob_scalar_write(&cases[i], &b));
        struct memory m = {.head = b.data, .head_len = b.len};
        struct zip_source src = source_of(&m);
        assert_ok(blob_scalar_read(&src, i % 2, &s, &why));
        assert_int_equal(s.kind, cases[i].kind);
        assert_int_equal(s.i, cases[i].i);
        assert_true(s.f[0] == cases[i].f[0] && s.f[1] == cases[i].f[1]);
        if (cases[i].s)
            assert_string_equal(s.s, cases[i].s);
        free(s.s);
        buf_fini(&b);
    }
}
