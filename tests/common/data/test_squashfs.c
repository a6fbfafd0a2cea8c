/* Images that mksquashfs makes of files whose bytes are known. Skipped without mksquashfs. */
#include "common/data/parquet.h"
#include "common/data/squashfs.h"
#include "common/data/tables.h"
#include "tests/common/data/files.h"

static const size_t sizes[] = {0, 1, 4000, 131071, 131072, 131073, 1 << 20, 3000007};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* Bytes that compress a little, and a hole in the long files. */
static uint8_t byte_at(size_t file, size_t at)
{
    return at / 262144 % 3 == 1 ? 0 : (uint8_t)(at * at / 77 + file * 31 + at / 1000);
}

static void make_files(void)
{
    uint8_t *data = malloc(sizes[N_SIZES - 1]);
    assert_non_null(data);
    assert_int_equal(mkdir(file_path("src"), 0755), 0);
    assert_int_equal(mkdir(file_path("src/a"), 0755), 0);
    assert_int_equal(mkdir(file_path("src/a/deep"), 0755), 0);
    for (size_t i = 0; i < N_SIZES; i++) {
        char name[64];
        for (size_t j = 0; j < sizes[i]; j++)
            data[j] = byte_at(i, j);
        snprintf(name, sizeof(name), "src/%s%zu.bin", i % 2 ? "a/deep/" : "", i);
        file_make(name, data, sizes[i]);
    }
    for (int i = 0; i < 50; i++) {
        char name[64];
        snprintf(name, sizeof(name), "src/a/small-%02d.txt", i);
        file_make_text(name, name);
    }
    assert_int_equal(mkdir(file_path("src/a-b"), 0755), 0);
    file_make_text("src/a-b/small-99.txt", "");
    file_make_text("src/.hidden.txt", "no");
    assert_int_equal(symlink("0.bin", file_path("src/link.bin")), 0);
    free(data);
}

/* The path of an image of src; `how` is for mksquashfs. */
static char *make_image(const char *how)
{
    char command[3 * PATH_MAX];
    if (system("command -v mksquashfs >/dev/null"))
        TEST_SKIP("mksquashfs is not installed (squashfs-tools)");
    make_files();
    char *image = file_path("set.sqsh"); /* after them, because file_path uses its buffers in turn */
    snprintf(command, sizeof(command), "mksquashfs '%s' '%s' -noappend -quiet -no-progress %s >/dev/null",
             file_path("src"), image, how);
    assert_int_equal(system(command), 0);
    return image;
}

static struct squashfs *open_image(const char *image)
{
    struct squashfs *s = NULL;
    struct why why = {0};
    if (squashfs_open(image, &s, &why))
        fail_msg("%s", why.text);
    return s;
}

static void free_names(char **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

static err_t prepare_files(const char *pattern, const char *format, char ret_hash[65], int *ret_n, struct why *why)
{
    char **paths;
    err_t err =
        data_resolve("/", (char *const[]){(char *)(uintptr_t)pattern}, 1, &table_containers, &paths, ret_n, NULL, why);
    if (err)
        return err;
    const struct data_prepare p = {.files = paths,
                                   .n_files = *ret_n,
                                   .cache = file_path("cache"),
                                   .tables = table_rows,
                                   .containers = &table_containers,
                                   .format = format};
    err = data_prepare(&p, ret_hash, why);
    data_paths_free(paths, *ret_n);
    return err;
}

TEST(files_of_an_image_give_the_set_of_the_files)
{
    char name[PATH_MAX + 64], packed[65], loose[65];
    int n;
    struct why why = {0};
    char *image = make_image("");
    assert_ok(prepare_files(file_path("src/a/small-*.txt"), NULL, loose, &n, &why));
    snprintf(name, sizeof(name), "%s:/a/small-*.txt", image);
    assert_ok(prepare_files(name, NULL, packed, &n, &why));
    assert_int_equal(n, 50);
    assert_string_equal(packed, loose); /* the name has the hash of all bytes */
    snprintf(name, sizeof(name), "%s:/a/small-07.txt", image);
    assert_ok(prepare_files(name, NULL, packed, &n, &why));
    assert_ok(prepare_files(file_path("src/a/small-07.txt"), NULL, loose, &n, &why));
    assert_string_equal(packed, loose);
    assert_err(ERR_UNSUPPORTED, prepare_files(name, "uint16", packed, &n, &why));
    assert_non_null(strstr(why.text, "a file in an image cannot be; unpack it"));
    snprintf(name, sizeof(name), "%s:/none*", image);
    assert_err(ERR_NOTFOUND, prepare_files(name, NULL, packed, &n, &why));
    snprintf(name, sizeof(name), "%s.no:/a", image);
    assert_err(ERR_NOTFOUND, prepare_files(name, NULL, packed, &n, &why));
}

static void check_file(struct squashfs *s, size_t i)
{
    char path[64];
    struct byte_source *f;
    struct why why = {0};
    uint64_t seed = 7 + i;
    uint8_t *got = malloc(sizes[i] + 1);
    assert_non_null(got);
    snprintf(path, sizeof(path), "/%s%zu.bin", i % 2 ? "a/deep/" : "", i);
    if (squashfs_source(s, path, &f, &why))
        fail_msg("%s", why.text);
    assert_int_equal(f->size, sizes[i]);
    assert_ok(f->ops->read(f, 0, got, sizes[i], NULL));
    for (size_t j = 0; j < sizes[i]; j++)
        if (got[j] != byte_at(i, j))
            fail_msg("%s: byte %zu", path, j);
    for (int k = 0; k < 12 && sizes[i]; k++) { /* anywhere, of any length */
        size_t at = random_next(&seed) % sizes[i], n = random_next(&seed) % (sizes[i] - at + 1);
        assert_ok(f->ops->read(f, (int64_t)at, got, n, NULL));
        assert_true(n == 0 || (got[0] == byte_at(i, at) && got[n - 1] == byte_at(i, at + n - 1)));
    }
    assert_err(ERR_CORRUPT, f->ops->read(f, (int64_t)sizes[i], got, 1, &why));
    assert_non_null(strstr(why.text, path));
    f->ops->close(f);
    free(got);
}

static void check_image(const char *how)
{
    struct squashfs *s = open_image(make_image(how));
    for (size_t i = 0; i < N_SIZES; i++)
        check_file(s, i);
    squashfs_close(s);
}

TEST(gzip_with_fragments)
{
    check_image("-comp gzip");
}

TEST(zstd_in_small_blocks)
{
    check_image("-comp zstd -b 4096");
}

TEST(xz_without_fragments)
{
    check_image("-comp xz -no-fragments");
}

TEST(lz4_with_options)
{
    check_image("-comp lz4 -Xhc -b 1M");
}

TEST(not_compressed)
{
    check_image("-noI -noD -noF -noX");
}

static void assert_list(struct squashfs *s, const char *pattern, int n, const char *first, const char *last)
{
    char **names;
    int got;
    struct why why = {0};
    if (squashfs_list(s, pattern, &names, &got, &why))
        fail_msg("%s", why.text);
    assert_int_equal(got, n);
    assert_string_equal(names[0], first);
    assert_string_equal(names[n - 1], last);
    free_names(names, got);
}

TEST(patterns)
{
    struct squashfs *s = open_image(make_image("-comp zstd"));
    struct why why = {0};
    char **names;
    int n;
    assert_list(s, "/*.bin", 4, "/0.bin", "/6.bin"); /* a link is no file, and a star matches no slash */
    assert_list(s, "/a/deep/[1-5].bin", 3, "/a/deep/1.bin", "/a/deep/5.bin");
    assert_list(s, "/a/small-*.txt", 50, "/a/small-00.txt", "/a/small-49.txt");
    assert_list(s, "/*/small-*.txt", 51, "/a-b/small-99.txt", "/a/small-49.txt"); /* a folder's order is another */
    assert_list(s, "/a/small-07.txt", 1, "/a/small-07.txt", "/a/small-07.txt");
    assert_err(ERR_NOTFOUND, squashfs_list(s, "/*.txt", &names, &n, &why)); /* not the hidden one */
    assert_non_null(strstr(why.text, "set.sqsh: no file in the image matches /*.txt"));
    squashfs_close(s);
}

TEST(what_is_no_file)
{
    struct squashfs *s = open_image(make_image("-comp zstd"));
    struct byte_source *f;
    struct why why = {0};
    assert_err(ERR_NOTFOUND, squashfs_source(s, "/nothing", &f, &why));
    assert_non_null(strstr(why.text, "set.sqsh:/nothing: there is no such file in the image"));
    assert_err(ERR_INVALID, squashfs_source(s, "/a", &f, &why));
    assert_err(ERR_INVALID, squashfs_source(s, "/link.bin", &f, &why));
    assert_err(ERR_NOTFOUND, squashfs_source(s, "/0.bin/x", &f, &why));
    squashfs_close(s);
}

TEST(cut_and_damaged_images)
{
    char *image = make_image("-comp zstd");
    struct squashfs *s;
    struct why why = {0};
    struct buf whole = {0};
    assert_ok(file_read(image, 1 << 24, &whole));
    /* mksquashfs pads an image to 4 KiB; the superblock has its length. */
    for (size_t n = 0; n + 4096 < whole.len; n += 1 + whole.len / 50)
        assert_err(ERR_CORRUPT, squashfs_open(file_make("cut.sqsh", whole.data, n), &s, &why));
    assert_non_null(strstr(why.text, "cut short"));
    assert_err(ERR_INVALID, squashfs_open(file_path("src"), &s, &why));
    uint64_t seed = 5;
    for (int i = 0; i < 300; i++) { /* no crash */
        uint64_t bit = random_next(&seed) % (8 * (i % 3 ? whole.len : 96));
        char **names;
        int n;
        whole.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (!squashfs_open(file_make("flip.sqsh", whole.data, whole.len), &s, &why)) {
            if (!squashfs_list(s, "/*", &names, &n, &why)) {
                struct byte_source *f;
                uint8_t *data = malloc(sizes[N_SIZES - 1]);
                if (!squashfs_source(s, names[0], &f, &why)) {
                    err_t err =
                        f->size <= (int64_t)sizes[N_SIZES - 1] ? f->ops->read(f, 0, data, (size_t)f->size, &why) : OK;
                    assert_true(!err || why.text[0]);
                    f->ops->close(f);
                }
                free(data);
                free_names(names, n);
            }
            squashfs_close(s);
        }
        whole.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    buf_fini(&whole);
}

TEST(names_of_files_in_images)
{
    char image[PATH_MAX];
    const char *path;
    assert_true(squashfs_split("set.sqsh:/a/*.txt", image, &path));
    assert_string_equal(image, "set.sqsh");
    assert_string_equal(path, "/a/*.txt");
    assert_true(squashfs_split("/data/x:y.sqsh:/b", image, &path));
    assert_string_equal(image, "/data/x:y.sqsh");
    assert_false(squashfs_split("set.sqsh", image, &path));
    assert_false(squashfs_split("set.sqsh:a", image, &path));
    assert_false(squashfs_split("set.sqsh:/", image, &path));
    assert_false(squashfs_split(":/a", image, &path));
    assert_true(squashfs_is((const uint8_t *)"hsqs", 4));
    assert_false(squashfs_is((const uint8_t *)"hsq", 3));
}

/* A table in an image is read like a file of its own. */
TEST(a_reader_in_an_image)
{
    struct squashfs *s = open_image(make_image("-comp zstd"));
    struct byte_source *f;
    struct doc_reader *r;
    struct why why = {0};
    assert_ok(squashfs_source(s, "/a/deep/3.bin", &f, NULL));
    assert_err(ERR_CORRUPT, parquet_format.open(f, NULL, &r, &why));
    assert_non_null(strstr(why.text, "set.sqsh:/a/deep/3.bin: a Parquet file begins and ends with PAR1"));
    f->ops->close(f);
    squashfs_close(s);
}
