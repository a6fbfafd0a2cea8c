/* Corruption is detected: if any bit of any file is wrong, or any file is short or missing, the load fails and the
 * error names the file and the extent. */
#include "tests/common/ckpt/ckpt_fixture.h"

#include "common/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

static char dir[PATH_MAX];

static void save(int ranks)
{
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&f, ranks);
    fixture_save(&f, test_tmpdir(), 100, 3, ranks);
    fixture_free(&f);
    assert_ok(ckpt_step_dir(test_tmpdir(), 100, dir, sizeof(dir)));
}

/* Reads everything in a checkpoint. */
static err_t load_everything(struct why *why)
{
    struct ckpt *c;
    const struct ckpt_tensor *t;
    struct buf b = {0};
    char sha[65];
    err_t err = ckpt_open(dir, &c, why);
    if (err)
        return err;
    int n = ckpt_tensors(c, &t);
    for (int i = 0; i < n && !err; i++)
        err = ckpt_tensor_hash(c, t[i].fqn, sha, why);
    for (int i = 0; !err && ckpt_scalar_name(c, i); i++) {
        struct ckpt_scalar s;
        err = ckpt_scalar(c, ckpt_scalar_name(c, i), &s, why);
    }
    if (!err)
        err = ckpt_small_file(c, CKPT_JOB_FILE, &b, why);
    if (!err)
        err = ckpt_small_file(c, CKPT_VOCAB_FILE, &b, why);
    buf_fini(&b);
    ckpt_close(c);
    return err;
}

static void path_to(const char *file, char ret[PATH_MAX])
{
    assert_true((size_t)snprintf(ret, PATH_MAX, "%s/%s", dir, file) < PATH_MAX);
}

static void flip(const char *file, off_t at, int bit)
{
    char path[PATH_MAX];
    unsigned char c;
    path_to(file, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= (unsigned char)(1 << bit);
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

static off_t size_of(const char *file)
{
    char path[PATH_MAX];
    struct stat st;
    path_to(file, path);
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void expect_refusal(const char *file, off_t at, int extent)
{
    struct why why = {{0}}, verify = {{0}};
    char words[64];
    snprintf(words, sizeof(words), "extent %d ", extent);
    err_t err = load_everything(&why);
    if (err != ERR_CORRUPT || !strstr(why.text, file))
        fail_msg("bit at %lld of %s: %s (%s)", (long long)at, file, err_name(err), why.text);
    if (extent >= 0 && !strstr(why.text, words))
        fail_msg("bit at %lld of %s: the extent is not named: %s", (long long)at, file, why.text);
    err = ckpt_verify(dir, NULL, NULL, &verify);
    if (err != ERR_CORRUPT || !strstr(verify.text, file))
        fail_msg("verify: bit at %lld of %s: %s (%s)", (long long)at, file, err_name(err), verify.text);
}

static int list_files(char names[][64])
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            snprintf(names[n++], 64, "%.63s", e->d_name);
    closedir(d);
    return n;
}

TEST(a_flipped_bit_anywhere)
{
    struct why why = {{0}};
    char names[16][64];
    save(3);
    assert_ok(load_everything(&why));
    assert_ok(ckpt_verify(dir, NULL, NULL, &why));
    int n = list_files(names);
    assert_int_equal(n, 3 + 4);
    unsigned seed = 1;
    for (int i = 0; i < n; i++) {
        off_t size = size_of(names[i]);
        for (int k = 0; k < 40; k++) { /* the ends, and 38 places spread over the middle */
            off_t at = k == 0 ? 0 : k == 1 ? size - 1 : (off_t)((uint64_t)rand_r(&seed) % (uint64_t)size);
            int bit = rand_r(&seed) % 8;
            flip(names[i], at, bit);
            expect_refusal(names[i], at, strcmp(names[i], CKPT_MANIFEST) == 0 ? -1 : 0);
            flip(names[i], at, bit);
        }
    }
    assert_ok(load_everything(&why));
}

/* Files of several extents: the error names the wrong one, and the others can still be read. */
TEST(the_extent_is_named)
{
    static const struct fixture_tensor big[] = {{"a", DT_F32, 2, {1024, 1024}}, {"b", DT_F32, 2, {512, 1024}}};
    struct fixture f = {.tensors = big, .n_tensors = 2};
    struct why why = {{0}};
    struct ckpt *c;
    fixture_shard(&f, 1);
    fixture_save(&f, test_tmpdir(), 100, 1, 1);
    assert_ok(ckpt_step_dir(test_tmpdir(), 100, dir, sizeof(dir)));
    for (int extent = 0; extent < 6; extent++) {
        off_t at = (off_t)extent * CKPT_EXTENT_BYTES + 4711;
        flip("__0_0.distcp", at, 3);
        err_t err = ckpt_verify(dir, NULL, NULL, &why);
        char words[64];
        snprintf(words, sizeof(words), "__0_0.distcp: extent %d ", extent);
        assert_err(ERR_CORRUPT, err);
        if (!strstr(why.text, words))
            fail_msg("extent %d is not named: %s", extent, why.text);
        flip("__0_0.distcp", at, 3);
    }
    flip("__0_0.distcp", 5 * (off_t)CKPT_EXTENT_BYTES + 1, 0); /* in the middle of b */
    assert_ok(ckpt_open(dir, &c, &why));
    struct box whole = fixture_whole(&big[0]);
    fixture_check_box(&f, c, 0, &whole, DT_F32);
    char sha[65];
    assert_err(ERR_CORRUPT, ckpt_tensor_hash(c, "b", sha, &why));
    assert_non_null(strstr(why.text, "extent 5 "));
    ckpt_close(c);
    fixture_free(&f);
}

TEST(short_long_and_missing_files)
{
    char names[16][64], path[PATH_MAX], aside[PATH_MAX + 8];
    save(2);
    int n = list_files(names);
    for (int i = 0; i < n; i++) {
        off_t size = size_of(names[i]);
        struct why why = {{0}};
        path_to(names[i], path);
        snprintf(aside, sizeof(aside), "%s/../kept", dir);
        struct buf b = {0};
        assert_ok(file_read(path, 1 << 24, &b));
        assert_int_equal(truncate(path, size - 1), 0);
        expect_refusal(names[i], size - 1, -1);
        assert_int_equal(truncate(path, size + 1), 0);
        expect_refusal(names[i], size + 1, -1);
        assert_ok(file_replace(path, b.data, b.len, 0600));
        assert_int_equal(rename(path, aside), 0);
        assert_err(ERR_CORRUPT, load_everything(&why));
        if (!strstr(why.text, names[i]))
            fail_msg("missing %s: %s", names[i], why.text);
        assert_int_equal(rename(aside, path), 0);
        assert_ok(load_everything(&why));
        buf_fini(&b);
    }
}

TEST(a_file_that_nothing_covers)
{
    char path[PATH_MAX];
    struct why why = {{0}};
    save(1);
    path_to("stranger", path);
    assert_ok(file_replace(path, "x", 1, 0600));
    assert_ok(load_everything(&why)); /* no load reads it */
    assert_err(ERR_CORRUPT, ckpt_verify(dir, NULL, NULL, &why));
    assert_non_null(strstr(why.text, "stranger"));
}

TEST(not_a_checkpoint)
{
    struct why why = {{0}};
    struct ckpt *c;
    char path[PATH_MAX];
    assert_err(ERR_NOTFOUND, ckpt_open("/nonexistent/step-1", &c, &why));
    assert_err(ERR_NOTFOUND, ckpt_open(test_tmpdir(), &c, &why));
    snprintf(dir, sizeof(dir), "%s", test_tmpdir());
    path_to(".metadata", path);
    assert_ok(file_replace(path, "\x80\x04N.", 4, 0600));
    assert_err(ERR_CORRUPT, ckpt_open(dir, &c, &why));
    assert_non_null(strstr(why.text, ".metadata"));
}
