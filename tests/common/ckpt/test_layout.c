/* Layouts that the format allows but dtd's writer does not produce, built by hand; and commits over files that an
 * earlier attempt left. */
#include "common/base/file.h"
#include "common/ckpt/blob.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/metadata.h"
#include "common/ckpt/sums.h"
#include "tests/common/ckpt/ckpt_fixture.h"

#include <limits.h>

static char dir[PATH_MAX];

/* Writes a file and adds it to the manifest. */
static void put(struct manifest *m, const char *name, const struct buf *b)
{
    char path[PATH_MAX + 32];
    struct sums_extents s = {0};
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_ok(file_replace(path, b->data, b->len, 0600));
    assert_ok(sums_extents_add(&s, b->data, b->len));
    assert_ok(sums_extents_end(&s));
    if (m)
        assert_ok(manifest_add(m, name, b->len, (uint32_t *)(void *)s.crcs.data, (uint32_t)(s.crcs.len / 4)));
    else
        sums_extents_fini(&s);
}

/* One tensor in one blob at byte `offset` of its file. */
static void make(const struct fixture_tensor *t, const void *data, size_t offset)
{
    struct buf file = {0}, head = {0}, tail = {0}, meta = {0}, manifest = {0};
    struct manifest m = {.step = 1, .epoch = 1};
    size_t bytes = (size_t)(t->shape[0] * t->shape[1]) * dtype_bytes(t->dtype);
    snprintf(dir, sizeof(dir), "%s/step-1", test_tmpdir());
    assert_ok(file_make_dirs(dir, 0700));
    assert_ok(blob_tensor_write(t->dtype, 2, t->shape, bytes, sums_crc32(0, data, bytes), &head, &tail));
    for (size_t i = 0; i < offset; i++)
        assert_ok(buf_append(&file, "j", 1));
    assert_ok(buf_append(&file, head.data, head.len));
    assert_ok(buf_append(&file, data, bytes));
    assert_ok(buf_append(&file, tail.data, tail.len));
    struct ckpt_chunk chunk = {fixture_whole(t), "sub.distcp", (int64_t)offset, (int64_t)(file.len - offset)};
    struct ckpt_tensor tensor = {(char *)(uintptr_t)t->fqn, t->dtype, 2, {t->shape[0], t->shape[1]}, &chunk, 1};
    const struct meta table = {.tensors = &tensor, .n_tensors = 1};
    assert_ok(metadata_write(&table, &meta));
    put(&m, "sub.distcp", &file);
    put(&m, ".metadata", &meta);
    manifest_sort(&m);
    assert_ok(manifest_write(&m, &manifest));
    put(NULL, CKPT_MANIFEST, &manifest);
    manifest_fini(&m);
    buf_fini(&file);
    buf_fini(&head);
    buf_fini(&tail);
    buf_fini(&meta);
    buf_fini(&manifest);
}

static struct ckpt *open_it(void)
{
    struct ckpt *c;
    struct why why = {{0}};
    if (ckpt_open(dir, &c, &why))
        fail_msg("%s", why.text);
    return c;
}

/* Elements that lie across two extents, and across two windows of the reader. */
TEST(blob_at_an_odd_offset)
{
    static const struct fixture_tensor t[] = {{"w", DT_F32, 2, {2700, 1000}}};
    struct fixture f = {.tensors = t, .n_tensors = 1};
    const struct box whole = fixture_whole(t), part = {2, {200, 300}, {2400, 400}};
    fixture_add(&f, 0, 0, &whole);
    make(t, f.pieces[0].piece.data, 3);
    struct ckpt *c = open_it();
    fixture_check_box(&f, c, 0, &whole, DT_F32);
    fixture_check_box(&f, c, 0, &whole, DT_F64);
    fixture_check_box(&f, c, 0, &part, DT_F64);
    ckpt_close(c);
    fixture_free(&f);
}

/* The first and the last row of 20 MiB: the middle is not read. */
TEST(gaps_are_not_read)
{
    static const struct fixture_tensor t[] = {{"w", DT_F32, 2, {5120, 1024}}};
    struct fixture f = {.tensors = t, .n_tensors = 1};
    const struct box whole = fixture_whole(t);
    float rows[2][1024];
    fixture_add(&f, 0, 0, &whole);
    make(t, f.pieces[0].piece.data, 0);
    struct ckpt *c = open_it();
    const struct ckpt_want wants[] = {{"w", {2, {0, 0}, {1, 1024}}, DT_F32, rows[0]},
                                      {"w", {2, {5119, 0}, {1, 1024}}, DT_F32, rows[1]}};
    struct ckpt_read_stats stats;
    assert_ok(ckpt_read(c, wants, 2, &stats, NULL));
    assert_int_equal(stats.bytes_needed, 8192);
    assert_true(stats.bytes_read <= 3 * CKPT_EXTENT_BYTES);
    assert_memory_equal(rows[1], (const float *)f.pieces[0].piece.data + (size_t)5119 * 1024, sizeof(rows[1]));
    ckpt_close(c);
    fixture_free(&f);
}

/* The commit removes files of an earlier attempt before it writes the manifest, which covers all files. */
TEST(leftovers_are_swept)
{
    static const struct fixture_tensor t[] = {{"w", DT_F32, 2, {4, 4}}};
    struct fixture f = {.tensors = t, .n_tensors = 1};
    const struct box whole = fixture_whole(t);
    char path[PATH_MAX + 64];
    fixture_add(&f, 0, 0, &whole);
    assert_ok(ckpt_partial_dir(test_tmpdir(), 1, 1, dir, sizeof(dir)));
    assert_ok(file_make_dirs(dir, 0700));
    snprintf(path, sizeof(path), "%s/__7_0.distcp", dir);
    assert_ok(file_replace(path, "old", 3, 0600));
    fixture_save(&f, test_tmpdir(), 1, 1, 1);
    assert_ok(ckpt_step_dir(test_tmpdir(), 1, dir, sizeof(dir)));
    assert_ok(ckpt_verify(dir, NULL, NULL, NULL));
    fixture_free(&f);
}

struct bytes {
    const uint8_t *data;
    size_t len;
};

static err_t bytes_read(void *arg, uint64_t offset, void *dst, size_t len, struct why *why)
{
    const struct bytes *b = arg;
    assert_true(offset <= b->len && len <= b->len - offset);
    memcpy(dst, b->data + offset, len);
    return OK;
}

/* Properties of dtd's archives that only other readers use: the payloads' CRC-32, in both places, and alignment. The
 * headers of huge payloads are written after them; two of these follow each other, and one begins in the extent in
 * which the other one ends. */
TEST(crc_and_alignment_of_our_archives)
{
    static const struct fixture_tensor t[] = {{"a", DT_F32, 2, {9, 5}},       {"b", DT_BF16, 2, {300, 700}},
                                              {"c", DT_F32, 2, {3100, 1024}}, {"d", DT_F32, 2, {2100, 1001}},
                                              {"e", DT_F32, 2, {7, 3}},       {"f", DT_F32, 2, {2048, 1024}}};
    struct fixture f = {.tensors = t, .n_tensors = 6};
    char path[PATH_MAX + 64];
    struct buf file = {0};
    const struct ckpt_tensor *tensors;
    fixture_shard(&f, 1);
    fixture_save(&f, test_tmpdir(), 1, 1, 1);
    assert_ok(ckpt_step_dir(test_tmpdir(), 1, dir, sizeof(dir)));
    snprintf(path, sizeof(path), "%s/__0_0.distcp", dir);
    assert_ok(file_read(path, 1 << 26, &file));
    assert_ok(ckpt_verify(dir, NULL, NULL, NULL));
    struct ckpt *c = open_it();
    assert_int_equal(ckpt_tensors(c, &tensors), 6);
    for (int i = 0; i < 12; i++) {
        const struct ckpt_chunk *k = &tensors[i / 2].chunks[0];
        struct bytes b = {file.data + k->offset, (size_t)k->length};
        const struct zip_source src = {bytes_read, &b, b.len};
        struct blob_tensor blob;
        assert_ok(blob_tensor_read(&src, i % 2, &blob, NULL));
        assert_int_equal(blob.crc, sums_crc32(0, b.data + blob.payload, blob.payload_bytes));
        assert_int_equal(((uint64_t)k->offset + blob.payload) % (blob.payload_bytes >= 65536 ? 4096 : 64), 0);
        assert_int_equal(blob.payload % 64, 0);
    }
    buf_fini(&file);
    ckpt_close(c);
    fixture_free(&f);
}
