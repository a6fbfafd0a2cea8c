/* Key rings and key files. */
#include "common/base/file.h"
#include "common/tunnel/key.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

static const char *path_of(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    return path;
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_ok(file_write_all(fd, text, strlen(text)));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void expect_refused(const char *path, err_t err, const char *part)
{
    struct key_ring ring;
    struct why why = {""};
    assert_err(err, key_file_read(path, &ring, &why));
    if (!strstr(why.text, part) || !strstr(why.text, path))
        fail_msg("\"%s\" has no \"%s\"", why.text, part);
}

TEST(ring_of_keys)
{
    struct key_ring ring;
    struct why why = {""};
    uint32_t version;
    assert_ok(key_ring_make(&ring, &why));
    assert_int_equal(key_ring_newest(&ring)->version, 1);
    for (uint32_t v = 2; v <= KEY_RING_MAX; v++) {
        assert_ok(key_ring_add(&ring, &version, &why));
        assert_int_equal(version, v);
        assert_false(key_equal(&ring.keys[v - 1], &ring.keys[v - 2]));
    }
    assert_err(ERR_LIMIT, key_ring_add(&ring, &version, &why));
    assert_err(ERR_NOTFOUND, key_ring_drop(&ring, 17, &why));
    struct key third = *key_ring_find(&ring, 3);
    assert_ok(key_ring_drop(&ring, 3, &why));
    assert_null(key_ring_find(&ring, 3));
    assert_int_equal(ring.n, KEY_RING_MAX - 1);
    assert_ok(key_ring_put(&ring, &third, &why)); /* inserted in order */
    assert_int_equal(ring.keys[2].version, 3);
    assert_ok(key_ring_put(&ring, &third, &why)); /* again */
    third.secret[31] ^= 1;
    assert_err(ERR_EXISTS, key_ring_put(&ring, &third, &why));
    for (uint32_t v = 1; v < KEY_RING_MAX; v++)
        assert_ok(key_ring_drop(&ring, v, &why));
    assert_err(ERR_INVALID, key_ring_drop(&ring, KEY_RING_MAX, &why));
    key_ring_wipe(&ring);
    for (size_t i = 0; i < sizeof(ring); i++)
        assert_int_equal(((uint8_t *)&ring)[i], 0);
}

TEST(secrets_by_identity)
{
    struct key_ring ring;
    struct tunnel_secret secret;
    assert_ok(key_ring_make(&ring, NULL));
    assert_ok(key_ring_secret(&ring, key_id(&ring.keys[0]), &secret));
    assert_int_equal(secret.len, KEY_BYTES);
    assert_memory_equal(secret.bytes, ring.keys[0].secret, KEY_BYTES);
    assert_err(ERR_NOTFOUND, key_ring_secret(&ring, (struct tunnel_key_id){TUNNEL_KEY_JOIN, 1}, &secret));
    assert_err(ERR_NOTFOUND, key_ring_secret(&ring, (struct tunnel_key_id){TUNNEL_KEY_CLUSTER, 2}, &secret));
    assert_err(ERR_NOTFOUND,
               key_ring_secret(&ring, (struct tunnel_key_id){TUNNEL_KEY_CLUSTER, (1ull << 32) + 1}, &secret));
}

TEST(file_comes_back)
{
    struct key_ring ring, back;
    struct why why = {""};
    uint32_t version;
    struct stat st;
    const char *path = path_of("cluster.key");
    assert_ok(key_ring_make(&ring, &why));
    assert_ok(key_file_write(path, &ring, &why));
    assert_ok(key_ring_add(&ring, &version, &why));
    assert_ok(key_file_write(path, &ring, &why));
    assert_ok(key_file_read(path, &back, &why));
    assert_memory_equal(&back, &ring, sizeof(ring));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
}

/* A file that another program left at the path of the new file must not determine its permissions. */
TEST(left_over_file_does_not_leak)
{
    struct key_ring ring;
    struct why why = {""};
    struct stat st;
    char path[PATH_MAX], fresh[PATH_MAX + 8], elsewhere[PATH_MAX];
    snprintf(path, sizeof(path), "%s", path_of("k"));
    snprintf(elsewhere, sizeof(elsewhere), "%s", path_of("elsewhere"));
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    assert_ok(key_ring_make(&ring, &why));
    write_file(fresh, "old", 0666);
    assert_ok(key_file_write(path, &ring, &why));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    write_file(elsewhere, "", 0666);
    assert_int_equal(symlink(elsewhere, fresh), 0);
    assert_ok(key_file_write(path, &ring, &why));
    assert_int_equal(stat(elsewhere, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
}

TEST(write_that_fails_leaves_the_old_file)
{
    struct key_ring ring, back;
    struct why why = {""};
    char path[PATH_MAX], fresh[PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s", path_of("k"));
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    assert_ok(key_ring_make(&ring, &why));
    assert_ok(key_file_write(path, &ring, &why));
    assert_int_equal(mkdir(fresh, 0700), 0); /* a directory at the path of the new file */
    struct key_ring other;
    assert_ok(key_ring_make(&other, &why));
    assert_true(key_file_write(path, &other, &why) != OK);
    assert_non_null(strstr(why.text, path));
    assert_ok(key_file_read(path, &back, &why));
    assert_memory_equal(&back, &ring, sizeof(ring));
    assert_true(key_file_write("/nowhere/at/all", &ring, &why) != OK);
}

#define HEX64 "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

TEST(file_that_others_may_read_is_refused)
{
    const char *path = path_of("k");
    static const mode_t bad[] = {0640, 0604, 0620, 0602, 0644, 0610, 0677};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        write_file(path, "k1 " HEX64 "\n", bad[i]);
        expect_refused(path, ERR_DENIED, "chmod 600");
    }
    struct key_ring ring;
    write_file(path, "k1 " HEX64 "\n", 0400);
    assert_ok(key_file_read(path, &ring, NULL));
}

TEST(file_of_another_user_is_refused)
{
    if (geteuid() != 0)
        TEST_SKIP("giving a file away needs root");
    const char *path = path_of("k");
    write_file(path, "k1 " HEX64 "\n", 0600);
    assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
    expect_refused(path, ERR_DENIED, "belongs to uid 12345");
}

TEST(what_is_no_file_is_refused)
{
    char path[PATH_MAX], other[PATH_MAX];
    snprintf(other, sizeof(other), "%s", path_of("real"));
    snprintf(path, sizeof(path), "%s", path_of("k"));
    expect_refused(path, ERR_NOTFOUND, "No such file");
    write_file(other, "k1 " HEX64 "\n", 0600);
    assert_int_equal(symlink(other, path), 0);
    expect_refused(path, ERR_DENIED, "symbolic link");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refused(path, ERR_DENIED, "not a regular file");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refused(path, ERR_DENIED, "not a regular file");
}

TEST(bad_text_is_refused_with_its_line)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"", "contains no key"},
        {"k1 " HEX64, "line 1: the line has no newline"},
        {"k1 " HEX64 "\nk1 " HEX64 "\n", "line 2: k1 occurs twice"},
        {"k1 " HEX64 "\n\n", "line 2: expected"},
        {"k0 " HEX64 "\n", "line 1: expected"},
        {"k01 " HEX64 "\n", "line 1: expected"},
        {"k4294967296 " HEX64 "\n", "line 1: expected"},
        {"k99999999999 " HEX64 "\n", "line 1: expected"},
        {"k " HEX64 "\n", "line 1: expected"},
        {"k1  " HEX64 "\n", "line 1: expected"},
        {"k1 " HEX64 "0\n", "line 1: expected"},
        {"k1 " HEX64 " \n", "line 1: expected"},
        {"K1 " HEX64 "\n", "line 1: expected"},
        {"k1 " HEX64 "\r\n", "line 1: expected"},
        {"k1 0011\n", "line 1: expected"},
    };
    const char *path = path_of("k");
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        write_file(path, rows[i].text, 0600);
        expect_refused(path, ERR_CORRUPT, rows[i].part);
    }
    struct key_ring ring;
    write_file(path, "k7 " HEX64 "\nk3 " HEX64 "\nk4294967295 " HEX64 "\n", 0600);
    assert_ok(key_file_read(path, &ring, NULL));
    assert_int_equal(ring.n, 3);
    assert_int_equal(ring.keys[0].version, 3);
    assert_int_equal(key_ring_newest(&ring)->version, 4294967295u);
    uint32_t version;
    assert_err(ERR_INVALID, key_ring_add(&ring, &version, NULL)); /* there is no higher version */
}

TEST(too_many_and_too_long)
{
    char text[4096] = "";
    const char *path = path_of("k");
    for (int i = 1; i <= KEY_RING_MAX + 1; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "k%d " HEX64 "\n", i);
    write_file(path, text, 0600);
    expect_refused(path, ERR_LIMIT, "line 17");
    memset(text, 'k', 3000);
    text[3000] = '\0';
    write_file(path, text, 0600);
    expect_refused(path, ERR_LIMIT, "longer than");
}
