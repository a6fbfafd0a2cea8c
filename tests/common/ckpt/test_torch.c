/* A checkpoint that torch 2.13 wrote, stored as golden bytes, so the test does not need torch:
 *
 *   w float32 (4, 6) = 0..23; t bfloat16 (4, 3), the transpose of 0..11 as (3, 4), its strides kept; empty float32 (0,
 * 4); e8 float8_e4m3fn (2), which dtd does not support; optimizer.state.w.step = 3.0; param_groups.w.lr = 0.001 and
 * .betas = (0.9, 0.95); train_state.step = 10 and .name = "abc". */
#include "common/base/file.h"
#include "common/ckpt/ckpt.h"
#include "tests/common/ckpt/golden.h"
#include "tests/lib/test.h"

#include <limits.h>

static const char *dir(void)
{
    static char path[PATH_MAX];
    static const char *const names[][2] = {{"torch213.metadata", ".metadata"}, {"torch213.distcp", "__0_0.distcp"}};
    snprintf(path, sizeof(path), "%s/step-77", test_tmpdir());
    assert_ok(file_make_dirs(path, 0700));
    for (int i = 0; i < 2; i++) {
        char file[PATH_MAX + 32];
        struct buf b;
        golden_read(names[i][0], &b);
        snprintf(file, sizeof(file), "%s/%s", path, names[i][1]);
        assert_ok(file_replace(file, b.data, b.len, 0600));
        buf_fini(&b);
    }
    return path;
}

static struct ckpt *open_it(void)
{
    struct ckpt *c;
    struct why why = {{0}};
    if (ckpt_open(dir(), &c, &why))
        fail_msg("%s", why.text);
    return c;
}

TEST(tensors)
{
    struct ckpt *c = open_it();
    struct why why = {{0}};
    float w[6], t[12], step;
    const struct ckpt_want wants[] = {
        {"w", {2, {1, 2}, {3, 2}}, DT_F32, w},
        {"t", {2, {0, 0}, {4, 3}}, DT_F32, t},
        {"optimizer.state.w.step", {.ndim = 0}, DT_F32, &step},
    };
    if (ckpt_read(c, wants, 3, NULL, &why))
        fail_msg("%s", why.text);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            assert_true(w[i * 2 + j] == (float)((i + 1) * 6 + j + 2));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++)
            assert_true(t[i * 3 + j] == (float)(j * 4 + i));
    assert_true(step == 3.0f);
    assert_false(ckpt_has_manifest(c));
    assert_int_equal(ckpt_step(c), 10);
    assert_int_equal(ckpt_find(c, "e8")->dtype, DT_NONE);
    uint8_t raw[2];
    const struct ckpt_want e8 = {"e8", {1, {0}, {2}}, DT_U8, raw};
    assert_err(ERR_INVALID, ckpt_read(c, &e8, 1, NULL, &why));
    ckpt_close(c);
}

TEST(values)
{
    struct ckpt *c = open_it();
    struct ckpt_scalar s;
    assert_ok(ckpt_scalar(c, "optimizer.param_groups.w.lr", &s, NULL));
    assert_true(s.kind == CKPT_FLOAT && s.f[0] == 0.001);
    assert_ok(ckpt_scalar(c, "optimizer.param_groups.w.betas", &s, NULL));
    assert_true(s.kind == CKPT_FLOAT_PAIR && s.f[0] == 0.9 && s.f[1] == 0.95);
    assert_ok(ckpt_scalar(c, "train_state.name", &s, NULL));
    assert_string_equal(s.s, "abc");
    ckpt_close(c);
}

/* Without a manifest only the archive's CRC-32 exists; it is checked when a tensor is read completely. */
TEST(a_flipped_bit_is_found_by_the_crc)
{
    const char *path = dir();
    char file[PATH_MAX + 32];
    struct ckpt *c;
    struct why why = {{0}};
    struct buf b = {0};
    static const float w[6] = {0, 1, 2, 3, 4, 5};
    assert_ok(ckpt_verify(path, NULL, NULL, &why));
    snprintf(file, sizeof(file), "%s/__0_0.distcp", path);
    assert_ok(file_read(file, 1 << 20, &b));
    uint8_t *at = memmem(b.data, b.len, w, sizeof(w));
    assert_non_null(at);
    at[9] ^= 0x10;
    assert_ok(file_replace(file, b.data, b.len, 0600));
    assert_ok(ckpt_open(path, &c, &why));
    char sha[65];
    assert_err(ERR_CORRUPT, ckpt_tensor_hash(c, "w", sha, &why));
    assert_non_null(strstr(why.text, "__0_0.distcp"));
    assert_non_null(strstr(why.text, "CRC-32"));
    ckpt_close(c);
    assert_err(ERR_CORRUPT, ckpt_verify(path, NULL, NULL, &why));
    buf_fini(&b);
}

/* A checkpoint of dtd that has lost its manifest is not mistaken for one of torch. */
TEST(a_lost_manifest)
{
    static const float v = 1;
    const struct ckpt_piece piece = {.fqn = "x", .dtype = DT_F32, .data = &v};
    const struct ckpt_commit commit = {.root = test_tmpdir(), .step = 1, .epoch = 1, .loss = 1};
    struct ckpt_part *part;
    struct ckpt *c;
    struct why why;
    char path[PATH_MAX];
    assert_ok(ckpt_partial_dir(test_tmpdir(), 1, 1, path, sizeof(path)));
    assert_ok(ckpt_part_write(path, 0, &piece, 1, NULL, 0, &part, &why));
    assert_ok(ckpt_commit(&commit, &part, 1, &why));
    ckpt_part_free(part);
    snprintf(path, sizeof(path), "%s/step-1/%s", test_tmpdir(), CKPT_MANIFEST);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/step-1", test_tmpdir());
    assert_err(ERR_CORRUPT, ckpt_open(path, &c, &why));
    assert_non_null(strstr(why.text, CKPT_MANIFEST));
}
