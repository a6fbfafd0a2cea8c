#include "tests/lib/test.h"

#include "common/base/box.h"
#include "common/base/buf.h"
#include "common/base/dtype.h"
#include "common/base/file.h"
#include "common/base/rng.h"

#include <errno.h>
#include <unistd.h>

TEST(errors_have_names_and_texts)
{
    assert_string_equal(err_name(ERR_NOSPACE), "ERR_NOSPACE");
    assert_string_equal(err_text(ERR_NOSPACE), "no space left");
    assert_int_equal(err_from_errno(ENOSPC), ERR_NOSPACE);
    assert_int_equal(err_from_errno(EXDEV), ERR_IO);
    struct why why;
    assert_int_equal(why_set(&why, ERR_IO, "disk %d", 7), ERR_IO);
    assert_int_equal(why_prefix(&why, ERR_IO, "job %s", "a"), ERR_IO);
    assert_string_equal(why.text, "job a: disk 7");
    assert_int_equal(why_set(NULL, ERR_IO, "nobody listens"), ERR_IO);
}

/* Known answers of Philox 4x32-10 from the authors' Random123 distribution. */
TEST(philox_known_answers)
{
    static const struct {
        uint32_t ctr[4], key[2], out[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(kat) / sizeof(kat[0]); i++) {
        uint32_t r[4];
        rng_philox4x32(kat[i].key, kat[i].ctr, r);
        assert_memory_equal(r, kat[i].out, sizeof(r));
    }
}

TEST(normal_has_mean_zero_and_variance_one)
{
    double sum = 0, sq = 0;
    const int n = 200000;
    for (int i = 0; i < n; i++) {
        double x = rng_normal(7, rng_stream("w"), (uint64_t)i);
        sum += x;
        sq += x * x;
    }
    assert_true(fabs(sum / n) < 5 / sqrt(n));
    assert_true(fabs(sq / n - 1) < 5 * sqrt(2.0 / n));
}

TEST(boxes_intersect)
{
    struct box a = {2, {0, 0}, {4, 6}}, b = {2, {3, 2}, {4, 2}}, c;
    assert_true(box_intersect(&a, &b, &c));
    struct box want = {2, {3, 2}, {1, 2}};
    assert_true(box_equal(&c, &want));
    b.offset[0] = 4;
    assert_false(box_intersect(&a, &b, &c));
    struct box scalar = {0};
    assert_int_equal(box_elements(&scalar), 1);
    assert_true(box_intersect(&scalar, &scalar, &c));
}

TEST(buffer_grows_and_prints)
{
    struct buf b = {0};
    for (int i = 0; i < 1000; i++)
        assert_ok(buf_printf(&b, "%d,", i));
    assert_int_equal(b.len, 10 * 2 + 90 * 3 + 900 * 4);
    buf_fini(&b);
    assert_null(b.data);
}

TEST(file_is_replaced_whole)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/a/b", test_tmpdir());
    assert_ok(file_make_dirs(path, 0700));
    strcat(path, "/f");
    assert_ok(file_replace(path, "one", 3, 0600));
    assert_ok(file_replace(path, "two!", 4, 0600));
    struct buf b = {0};
    assert_ok(file_read(path, 100, &b));
    assert_int_equal(b.len, 4);
    assert_memory_equal(b.data, "two!", 4);
    assert_err(ERR_LIMIT, file_read(path, 3, &b));
    assert_int_equal(b.len, 4);
    buf_fini(&b);
}

TEST(tree_is_removed_and_links_are_not_followed)
{
    char path[512], stays[512], link[600];
    snprintf(stays, sizeof(stays), "%s/stays", test_tmpdir());
    snprintf(path, sizeof(path), "%s/tree/a/b", test_tmpdir());
    assert_ok(file_make_dirs(stays, 0700));
    assert_ok(file_make_dirs(path, 0700));
    snprintf(link, sizeof(link), "%s/link", path);
    assert_int_equal(symlink(stays, link), 0);
    snprintf(link, sizeof(link), "%s/f", stays);
    assert_ok(file_replace(link, "x", 1, 0600));
    snprintf(path, sizeof(path), "%s/tree", test_tmpdir());
    assert_ok(file_remove_tree(path));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(link, F_OK), 0);
    assert_ok(file_remove_tree(path));
}

TEST(dtype_names_round_trip)
{
    assert_int_equal(dtype_parse("bfloat16"), DT_BF16);
    assert_int_equal(dtype_bytes(DT_BF16), 2);
    assert_string_equal(dtype_name(DT_F64), "float64");
    assert_int_equal(dtype_parse("float65"), DT_NONE);
}
