/* Switching to a user needs root; lookups do not. */
#include "common/base/user.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>

TEST(lookups)
{
    struct user u, same;
    struct why why = {""};
    assert_ok(user_by_name("daemon", &u, &why));
    assert_ok(user_by_uid(u.uid, &same, &why));
    assert_string_equal("daemon", same.name);
    assert_int_equal(u.gid, same.gid);
    assert_err(ERR_NOTFOUND, user_by_name("no-such-user", &u, &why));
    assert_non_null(strstr(why.text, "no-such-user"));
    assert_err(ERR_NOTFOUND, user_by_uid(3999999999u, &u, &why));
    assert_non_null(strstr(why.text, "3999999999"));
}

static int become(const struct user *u)
{
    gid_t groups[64];
    const gid_t roots[] = {0, 4};
    uid_t r, e, s;
    if (setgroups(2, roots) || user_become(u))
        return 1;
    if (getresuid(&r, &e, &s) || r != u->uid || e != u->uid || s != u->uid || getgid() != u->gid)
        return 2;
    for (int i = getgroups(64, groups); i-- > 0;)
        if (groups[i] == 0 || groups[i] == 4)
            return 3; /* still in root's groups */
    if (setuid(0) == 0 || setgid(0) == 0 || setgroups(0, groups) == 0)
        return 4;
    if (strcmp(getenv("HOME"), u->home) != 0 || strcmp(getenv("USER"), "daemon") != 0)
        return 5;
    return open("/etc/shadow", O_RDONLY) >= 0 ? 6 : 0;
}

TEST(there_is_no_way_back)
{
    struct user u;
    struct why why = {""};
    int status;
    if (geteuid() != 0)
        TEST_SKIP("only root can become somebody else");
    assert_ok(user_by_name("daemon", &u, &why));
    pid_t pid = fork();
    if (pid == 0)
        _exit(become(&u));
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_int_equal(0, status);
}

TEST(files_are_opened_as_the_user)
{
    struct user u;
    struct why why = {""};
    char path[256];
    struct stat st;
    if (geteuid() != 0)
        TEST_SKIP("only root can become somebody else");
    assert_ok(user_by_name("daemon", &u, &why));
    snprintf(path, sizeof(path), "%s/f", test_tmpdir());
    assert_int_equal(0, chmod(test_tmpdir(), 0777));
    user_files_as(u.uid);
    assert_int_equal(-1, open("/etc/shadow", O_RDONLY));
    assert_int_equal(EACCES, errno);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    user_files_as(0);
    assert_int_equal(0, fstat(fd, &st));
    assert_int_equal(u.uid, st.st_uid);
    fd = open("/etc/shadow", O_RDONLY);
    assert_true(fd >= 0);
    close(fd);
}
