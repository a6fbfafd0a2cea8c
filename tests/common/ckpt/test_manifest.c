/* The manifest and the index of a part: round trips, golden bytes, and every kind of error. */
#include "common/ckpt/manifest.h"
#include "common/ckpt/part.h"
#include "common/ckpt/sums.h"
#include "tests/common/ckpt/ckpt_fixture.h"
#include "tests/common/ckpt/golden.h"

#include <limits.h>
#include <math.h>

static struct manifest sample(void)
{
    struct manifest m = {.step = 100, .epoch = 3, .loss = 2.25, .committed_ms = 1700000000123};
    uint32_t *one = malloc(4), *three = malloc(12);
    one[0] = 0x11223344;
    three[0] = 1;
    three[1] = 2;
    three[2] = 0xffffffff;
    assert_ok(manifest_add(&m, "__0_0.distcp", 2 * CKPT_EXTENT_BYTES + 1, three, 3));
    assert_ok(manifest_add(&m, ".metadata", 7, one, 1));
    assert_ok(manifest_add(&m, "empty", 0, calloc(1, 4), 0));
    manifest_sort(&m);
    return m;
}

TEST(written_and_read)
{
    struct manifest in = sample(), out;
    struct buf b = {0}, golden;
    struct why why = {{0}};
    assert_ok(manifest_write(&in, &b));
    golden_read("manifest", &golden);
    assert_int_equal(b.len, golden.len);
    assert_memory_equal(b.data, golden.data, b.len);
    assert_ok(manifest_read(b.data, b.len, &out, &why));
    assert_int_equal(out.step, 100);
    assert_int_equal(out.epoch, 3);
    assert_true(out.loss == 2.25);
    assert_int_equal(out.committed_ms, 1700000000123);
    assert_int_equal(out.n_files, 3);
    assert_string_equal(out.files[0].name, ".metadata");
    const struct manifest_file *f = manifest_find(&out, "__0_0.distcp");
    assert_non_null(f);
    assert_int_equal(f->n_crcs, 3);
    assert_int_equal(f->crcs[2], 0xffffffff);
    assert_null(manifest_find(&out, "other"));
    manifest_fini(&in);
    manifest_fini(&out);
    buf_fini(&b);
    buf_fini(&golden);
}

/* Recomputes the hash of b, as any program could: the last 32 bytes are replaced. */
static void sign(struct buf *b)
{
    assert_ok(sums_sha256(b->data, b->len - 32, b->data + b->len - 32));
}

TEST(any_flipped_bit_and_any_cut)
{
    struct manifest in = sample(), out;
    struct buf b = {0};
    struct why why;
    assert_ok(manifest_write(&in, &b));
    for (size_t i = 0; i < b.len * 8; i++) {
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_err(ERR_CORRUPT, manifest_read(b.data, b.len, &out, &why));
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    for (size_t n = 0; n < b.len; n++)
        assert_err(ERR_CORRUPT, manifest_read(b.data, n, &out, &why));
    size_t whole = b.len;
    for (b.len = whole - 1; b.len > 64; b.len--) { /* the same with a right hash */
        sign(&b);
        if (manifest_read(b.data, b.len, &out, &why) == OK)
            fail_msg("%zu of %zu bytes are accepted", b.len, whole);
    }
    manifest_fini(&in);
    buf_fini(&b);
}

TEST(rules_beyond_the_hash)
{
    struct manifest out;
    struct why why;
    static const struct {
        size_t at;
        uint8_t value;
        err_t err;
    } edits[] = {
        {8, 2, ERR_UNSUPPORTED},  /* version */
        {14, 0, ERR_UNSUPPORTED}, /* extent size */
        {48, 4, ERR_CORRUPT},     /* one file more than there is */
        {48, 2, ERR_CORRUPT},     /* one less */
        {55, 0xff, ERR_CORRUPT},  /* very many */
        {66, '/', ERR_CORRUPT},   /* a name that leads elsewhere */
        {66, 'z', ERR_CORRUPT},   /* not sorted */
        {66, 0, ERR_CORRUPT},     /* a NUL in a name */
        {63, 0x10, ERR_CORRUPT},  /* a size that has more extents than bytes follow */
    };
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        struct manifest in = sample();
        struct buf b = {0};
        assert_ok(manifest_write(&in, &b));
        b.data[edits[i].at] = edits[i].value;
        sign(&b);
        err_t err = manifest_read(b.data, b.len, &out, &why);
        if (err != edits[i].err)
            fail_msg("byte %zu = %u gives %s", edits[i].at, edits[i].value, err_name(err));
        manifest_fini(&in);
        buf_fini(&b);
    }
}

/* ---- parts ---- */

static struct ckpt_part *part_sample(struct fixture *f)
{
    struct ckpt_part *parts[2];
    *f = (struct fixture){.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(f, 2);
    fixture_write_parts(f, test_tmpdir(), 1, 1, 2, parts);
    ckpt_part_free(parts[1]);
    return parts[0];
}

TEST(part_record)
{
    struct fixture f;
    struct ckpt_part *in = part_sample(&f), *out;
    struct buf b = {0}, again = {0};
    assert_ok(ckpt_part_encode(in, &b));
    assert_ok(ckpt_part_decode(b.data, b.len, &out));
    assert_int_equal(out->n_entries, in->n_entries);
    assert_string_equal(out->file, in->file);
    assert_ok(ckpt_part_encode(out, &again));
    assert_int_equal(again.len, b.len);
    assert_memory_equal(again.data, b.data, b.len);
    ckpt_part_free(out);
    for (size_t n = 0; n < b.len; n++)
        assert_err(ERR_CORRUPT, ckpt_part_decode(b.data, n, &out));
    assert_ok(buf_append(&b, "x", 1));
    assert_err(ERR_CORRUPT, ckpt_part_decode(b.data, b.len, &out));
    buf_fini(&b);
    buf_fini(&again);
    ckpt_part_free(in);
    fixture_free(&f);
}

/* A commit rejects parts that could not be loaded. */
static void commit_refused(struct fixture *f, int ranks, const char *word)
{
    static int64_t step = 50;
    struct ckpt_part *parts[8];
    struct why why = {{0}};
    char dir[PATH_MAX];
    struct ckpt_info info;
    step++;
    fixture_write_parts(f, test_tmpdir(), step, 1, ranks, parts);
    const struct ckpt_commit commit = {.root = test_tmpdir(), .step = step, .epoch = 1, .loss = (double)NAN};
    err_t err = ckpt_commit(&commit, parts, ranks, &why);
    if (err != ERR_INVALID || !strstr(why.text, word))
        fail_msg("%s expected: %s (%s)", word, err_name(err), why.text);
    assert_ok(ckpt_step_dir(test_tmpdir(), step, dir, sizeof(dir)));
    assert_err(ERR_NOTFOUND, ckpt_info(dir, &info, NULL));
    for (int r = 0; r < ranks; r++)
        ckpt_part_free(parts[r]);
    fixture_free(f);
}

TEST(commit_refuses_what_is_not_a_checkpoint)
{
    static const struct fixture_tensor w[] = {
        {"w", DT_F32, 2, {8, 4}}, {"w", DT_F32, 2, {9, 4}}, {"s", DT_F32, 0, {0}}};
    struct fixture f = {.tensors = w, .n_tensors = 3};
    fixture_add(&f, 0, 0, &(struct box){2, {0, 0}, {4, 4}});
    fixture_add(&f, 0, 1, &(struct box){2, {3, 0}, {5, 4}});
    commit_refused(&f, 2, "overlap");
    fixture_add(&f, 0, 0, &(struct box){2, {0, 0}, {4, 4}});
    fixture_add(&f, 0, 1, &(struct box){2, {5, 0}, {3, 4}});
    commit_refused(&f, 2, "28 of its 32");
    fixture_add(&f, 0, 0, &(struct box){2, {0, 0}, {4, 4}});
    fixture_add(&f, 1, 1, &(struct box){2, {4, 0}, {4, 4}});
    commit_refused(&f, 2, "another shape");
    fixture_add(&f, 2, 0, &(struct box){.ndim = 0});
    fixture_add(&f, 2, 1, &(struct box){.ndim = 0});
    commit_refused(&f, 2, "scalar s");
}

TEST(a_part_that_changed_is_refused)
{
    struct fixture f;
    struct ckpt_part *part = part_sample(&f);
    char path[PATH_MAX];
    struct why why;
    const struct ckpt_commit commit = {.root = test_tmpdir(), .step = 1, .epoch = 1, .loss = 1};
    fixture_free(&f);
    struct fixture whole = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    ckpt_part_free(part);
    fixture_shard(&whole, 1);
    fixture_write_parts(&whole, test_tmpdir(), 1, 1, 1, &part);
    snprintf(path, sizeof(path), "%s/.step-1.e1.partial/__0_0.distcp", test_tmpdir());
    assert_int_equal(truncate(path, 100), 0);
    assert_err(ERR_CORRUPT, ckpt_commit(&commit, &part, 1, &why));
    assert_non_null(strstr(why.text, "__0_0.distcp"));
    ckpt_part_free(part);
    fixture_free(&whole);
}

TEST(checksums)
{
    uint8_t sha[32];
    char hex[65];
    assert_int_equal(sums_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(sums_crc32(0, "123456789", 9), 0xcbf43926);
    assert_int_equal(sums_crc32c(sums_crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
    assert_int_equal(sums_crc32(sums_crc32(0, "1234", 4), "56789", 5), 0xcbf43926);
    assert_ok(sums_sha256("abc", 3, sha));
    sums_hex(sha, 32, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
