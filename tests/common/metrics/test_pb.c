#include "common/metrics/pb.h"
#include "tests/common/metrics/fixture.h"

#include <math.h>

/* Bytes as protobuf's documentation of the encoding has them: 150 is 96 01, "testing" has 7 bytes. */
TEST(numbers_and_texts)
{
    struct buf b = {0}, right = fixture_hex("08 96 01  12 07 74 65 73 74 69 6e 67  19 00 00 00 00 00 00 04 40"
                                            "2d 00 00 c0 3f  f8 ff ff ff 0f ff ff ff ff ff ff ff ff ff 01");
    assert_ok(pb_uint(&b, 1, 150));
    assert_ok(pb_text(&b, 2, "testing"));
    assert_ok(pb_double(&b, 3, 2.5));
    assert_ok(pb_float(&b, 5, 1.5F));
    assert_ok(pb_uint(&b, 536870911, UINT64_MAX));
    assert_int_equal(b.len, right.len);
    assert_memory_equal(b.data, right.data, right.len);

    struct pb_reader r = pb_read(b.data, b.len);
    struct pb_field f;
    assert_true(pb_next(&r, &f) && f.field == 1 && f.whole == 150);
    assert_true(pb_next(&r, &f) && f.field == 2 && f.len == 7 && memcmp(f.data, "testing", 7) == 0);
    assert_true(pb_next(&r, &f) && f.field == 3 && fabs(f.real - 2.5) < 1e-12);
    assert_true(pb_next(&r, &f) && f.field == 5 && fabs(f.real - 1.5) < 1e-12);
    assert_true(pb_next(&r, &f) && f.field == 536870911 && f.whole == UINT64_MAX);
    assert_false(pb_next(&r, &f));
    assert_false(r.broken);
    buf_fini(&b);
    buf_fini(&right);
}

/* A message that ends early is never read beyond its end. */
TEST(cut_short)
{
    struct buf b = fixture_hex("12 07 74 65 73 74 69 6e 67");
    for (size_t n = 1; n < b.len; n++) {
        uint8_t *part = malloc(n); /* the address sanitizer watches its end */
        memcpy(part, b.data, n);
        struct pb_reader r = pb_read(part, n);
        struct pb_field f;
        assert_false(pb_next(&r, &f));
        assert_true(r.broken);
        free(part);
    }
    buf_fini(&b);
}

TEST(foreign_bytes)
{
    static const char *const texts[] = {
        "0b", "0c", "00 01", "0f", "ff ff ff ff ff ff ff ff ff ff ff 01", "0a ff ff ff ff ff ff ff ff ff 01"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct buf b = fixture_hex(texts[i]);
        struct pb_reader r = pb_read(b.data, b.len);
        struct pb_field f;
        assert_false(pb_next(&r, &f));
        assert_true(r.broken);
        buf_fini(&b);
    }
}
