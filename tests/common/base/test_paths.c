/* The default place of the state. The linker replaces statfs, so that a folder of the test appears to be on a file
 * system of any type; the numbers are those of statfs(2). */
#include "common/base/paths.h"
#include "tests/lib/test.h"

#include <sys/stat.h>
#include <sys/vfs.h>

#define NFS 0x6969
#define EXT4 0xef53

static const char *home;
static long home_type = EXT4;

int __real_statfs(const char *path, struct statfs *ret);
int __wrap_statfs(const char *path, struct statfs *ret);
int __wrap_statfs(const char *path, struct statfs *ret)
{
    int r = __real_statfs(path, ret);
    if (r == 0)
        ret->f_type = home && strncmp(path, home, strlen(home)) == 0 ? home_type : EXT4;
    return r;
}

static void set_home(long type)
{
    home = test_tmpdir();
    home_type = type;
    setenv("HOME", home, 1);
    unsetenv("DTD_DIR");
    unsetenv("XDG_STATE_HOME");
}

TEST(types_that_hosts_share)
{
    assert_string_equal("nfs", path_shared_fs_name(NFS));
    assert_string_equal("lustre", path_shared_fs_name(0x0bd00bd0));
    assert_string_equal("cifs", path_shared_fs_name((long)(int)0xff534d42)); /* as a 32-bit f_type holds it */
    assert_null(path_shared_fs_name(EXT4));
    assert_null(path_shared_fs_name(0x58465342)); /* xfs */
    assert_null(path_shared_fs_name(0x01021994)); /* tmpfs */
    assert_null(path_shared_fs_name(0x794c7630)); /* overlayfs */
}

TEST(a_local_home_has_the_state)
{
    char dir[256], expected[256], note[1024];
    struct why why = {""};
    set_home(EXT4);
    snprintf(expected, sizeof(expected), "%s/.local/state/dtd", home);
    assert_ok(path_state_dir(NULL, dir, sizeof(dir), &why));
    assert_string_equal(expected, dir);
    assert_false(path_state_dir_note(dir, note, sizeof(note)));
}

TEST(a_shared_home_has_not)
{
    char dir[256], expected[256], note[1024], old[300];
    struct why why = {""};
    struct stat st;
    set_home(NFS);
    snprintf(expected, sizeof(expected), "/var/tmp/dtd-%u", (unsigned)geteuid());
    bool mine = lstat(expected, &st) != 0; /* else the user's own dtd may be in it */
    assert_ok(path_state_dir(NULL, dir, sizeof(dir), &why));
    assert_string_equal(expected, dir);
    assert_int_equal(0, lstat(dir, &st));
    assert_int_equal(S_IFDIR | 0700, st.st_mode);
    assert_true(path_state_dir_note(dir, note, sizeof(note)));
    assert_non_null(strstr(note, "is on nfs"));
    assert_null(strstr(note, "DTD_DIR="));
    snprintf(old, sizeof(old), "mkdir -p %s/.local/state/dtd/raft", home); /* what an earlier dtd has left */
    assert_int_equal(0, system(old));
    assert_true(path_state_dir_note(dir, note, sizeof(note)));
    snprintf(old, sizeof(old), "DTD_DIR=%s/.local/state/dtd selects", home);
    assert_non_null(strstr(note, old));
    if (mine)
        rmdir(dir);
}

TEST(a_given_shared_place_is_used_and_named)
{
    char dir[256], note[1024];
    struct why why = {""};
    set_home(NFS);
    setenv("DTD_DIR", home, 1);
    assert_ok(path_state_dir(NULL, dir, sizeof(dir), &why));
    assert_string_equal(home, dir);
    assert_true(path_state_dir_note(dir, note, sizeof(note)));
    assert_non_null(strstr(note, "only this host can use this dtd"));
}

/* Another user could have created the folder, in order to receive what clients send. */
TEST(a_folder_of_another_user_is_refused)
{
    char path[64], dir[256];
    struct why why = {""};
    struct stat st;
    const uid_t other = 64123; /* of no process, and not the real user of a developer's dtd */
    if (geteuid() != 0)
        TEST_SKIP("creating a folder of another user needs root");
    set_home(NFS);
    snprintf(path, sizeof(path), "/var/tmp/dtd-%u", (unsigned)other);
    assert_int_not_equal(0, lstat(path, &st));
    assert_int_equal(0, mkdir(path, 0700)); /* belongs to root */
    assert_int_equal(0, chmod(test_tmpdir(), 0755));
    assert_int_equal(0, seteuid(other));
    err_t err = path_state_dir(NULL, dir, sizeof(dir), &why);
    assert_int_equal(0, seteuid(0));
    assert_int_equal(0, chown(path, other, 0));
    assert_int_equal(0, chmod(path, 0770)); /* own, but the group may enter */
    assert_int_equal(0, seteuid(other));
    err_t open_to_group = path_state_dir(NULL, dir, sizeof(dir), NULL);
    assert_int_equal(0, seteuid(0));
    assert_int_equal(0, rmdir(path));
    assert_err(ERR_DENIED, err);
    assert_non_null(strstr(why.text, path));
    assert_err(ERR_DENIED, open_to_group);
}
