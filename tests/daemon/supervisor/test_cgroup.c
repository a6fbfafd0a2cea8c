/* The path of a process's own control group, from texts of /proc as proc(5) and cgroups(7) describe them; and groups in
 * the real cgroup v2 of this machine. tests/cluster/contain.sh and tests/systemd/limits.sh test the rest. */
#include "daemon/supervisor/cgroup.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOUNTS                                       \
    "22 1 0:21 / /proc rw,relatime - proc proc rw\n" \
    "30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"

static void expect_path(const char *mounts, const char *own, const char *want)
{
    char path[PATH_MAX] = "none";
    bool found = cgroup_own_path(mounts, own, path, sizeof(path));
    assert_int_equal(want != NULL, found);
    assert_string_equal(want ? want : "none", path);
}

/* The linker puts this in the place of openat: the file cgroup.kill may be missing. */
static bool has_no_kill_file;
static int refused_opens;
int __real_openat(int dir, const char *name, int flags, ...);
int __wrap_openat(int dir, const char *name, int flags, ...);

int __wrap_openat(int dir, const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (!has_no_kill_file || strcmp(name, "cgroup.kill") != 0)
        return __real_openat(dir, name, flags, mode);
    refused_opens++;
    errno = ENOENT;
    return -1;
}

TEST(own_path_is_found)
{
    static const char unified[] = MOUNTS "31 30 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    static const char bind[] = "31 30 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
    expect_path(unified, "0::/system.slice/dtd.service\n", "/sys/fs/cgroup/system.slice/dtd.service");
    expect_path(unified, "9:name=systemd:/\n3:cpu:/a\n0::/b c\n", "/sys/fs/cgroup/b c");
    expect_path(unified, "0::/\n", "/sys/fs/cgroup");
    expect_path(bind, "0::/docker/abc/d\n", "/sys/fs/cgroup/d");
    expect_path(bind, "0::/docker/abc\n", "/sys/fs/cgroup");
}

TEST(no_path)
{
    static const char unified[] = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    static const char bind[] = "31 30 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
    expect_path(MOUNTS, "0::/a\n", NULL);           /* only version 1 */
    expect_path(unified, "4:memory:/a\n", NULL);    /* the process is in no group of version 2 */
    expect_path(unified, "0::/../outside\n", NULL); /* of another namespace */
    expect_path(bind, "0::/other\n", NULL);         /* not below the mount */
    expect_path("31 30 0:27 / /a rw - cgroup cgroup rw\n", "0::/x\n", NULL); /* version 1 only looks like it */
}

TEST(a_required_limit_is_refused_without_its_controller)
{
    const struct cgroup_tree none = {.dir = -1};
    int fd = 7;
    assert_int_equal(EOPNOTSUPP, cgroup_job(&none, 1, &(struct channel_limits){.cores = 1}));
    assert_int_equal(EOPNOTSUPP,
                     cgroup_job(&none, 1, &(struct channel_limits){.memory_bytes = 1, .memory_required = 1}));
    assert_int_equal(0, cgroup_job(&none, 1, &(struct channel_limits){.memory_bytes = 1, .processes = 5}));
    assert_int_equal(0, cgroup_process(&none, 1, 0, &fd));
    assert_int_equal(0, fd);
    assert_true(cgroup_process_kill(&none, 1, 0));
    assert_int_equal(0, cgroup_process_oom(&none, 1, 0));
}

/* A process that enters a group, and its child in another session. */
static pid_t start_in(int procs, int pipe_to)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    bool entered = write(procs, "0", 1) == 1;
    pid_t child = fork();
    if (child == 0)
        setsid();
    else if (!entered || write(pipe_to, &child, sizeof(child)) < 0)
        _exit(1);
    for (;;)
        pause();
}

/* What a process in the group gets for a device of the NVIDIA driver that does not exist: ENXIO if the group may open
 * it, EPERM if not. */
static int open_in(int procs, int major_number, int minor_number)
{
    char path[512];
    int status;
    snprintf(path, sizeof(path), "%s/device-%d-%d", test_tmpdir(), major_number, minor_number);
    unlink(path);
    if (mknod(path, S_IFCHR | 0600, makedev((unsigned)major_number, (unsigned)minor_number)))
        TEST_SKIP("no device files can be made here");
    pid_t pid = fork();
    if (pid == 0) {
        bool entered = write(procs, "0", 1) == 1;
        int fd = entered ? open(path, O_RDWR) : -1;
        _exit(!entered ? 255 : fd >= 0 ? 0 : errno);
    }
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The rows: a set of minor numbers, and what the kernel answers for 0, 1, 5, 63, and for others that are no GPUs. */
TEST(a_job_opens_only_its_gpus)
{
    static const struct {
        uint64_t minors;
        int want[4];
    } cases[] = {{UINT64_C(1) << 1, {EPERM, ENXIO, EPERM, EPERM}},
                 {UINT64_C(1) << 63 | 1, {ENXIO, EPERM, EPERM, ENXIO}},
                 {UINT64_C(1) << 5 | 2, {EPERM, ENXIO, ENXIO, EPERM}},
                 {0, {EPERM, EPERM, EPERM, EPERM}},
                 {UINT64_MAX, {ENXIO, ENXIO, ENXIO, ENXIO}}};
    static const int minors[] = {0, 1, 5, 63};
    struct cgroup_tree t;
    int procs;
    if (geteuid() != 0)
        TEST_SKIP("only root attaches programs to control groups");
    cgroup_start(&t, true, test_tmpdir());
    if (!cgroup_exists(&t))
        TEST_SKIP("%s", t.missing);
    assert_int_equal(0, cgroup_job(&t, 3, &(struct channel_limits){.workers = 1}));
    assert_int_equal(0, cgroup_process(&t, 3, 0, &procs));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int e = cgroup_job_guard(&t, 3, cases[i].minors);
        if (e == EPERM || e == ENOSYS || e == EINVAL) {
            cgroup_stop(&t);
            TEST_SKIP("this kernel or container allows no BPF programs of control groups: %s", strerror(e));
        }
        assert_int_equal(0, e);
        for (int k = 0; k < 4; k++)
            assert_int_equal(cases[i].want[k], open_in(procs, 195, minors[k]));
        assert_int_equal(ENXIO, open_in(procs, 195, 64));
        assert_int_equal(ENXIO, open_in(procs, 195, 255)); /* nvidiactl */
        assert_int_equal(0, open_in(procs, 1, 3));         /* /dev/null */
    }
    close(procs);
    cgroup_stop(&t);
}

static void kill_one_of_two_groups(void)
{
    struct cgroup_tree t;
    pid_t pid[2], child[2];
    int procs, ends[2], status;
    if (geteuid() != 0)
        TEST_SKIP("root is in a group in which it may make others");
    cgroup_start(&t, true, test_tmpdir());
    if (!cgroup_exists(&t))
        TEST_SKIP("%s", t.missing);
    assert_int_equal(0, pipe(ends));
    assert_int_equal(0, cgroup_job(&t, 7, &(struct channel_limits){.workers = 2}));
    for (int slot = 0; slot < 2; slot++) {
        assert_int_equal(0, cgroup_process(&t, 7, slot, &procs));
        assert_true(procs > 0);
        pid[slot] = start_in(procs, ends[1]);
        assert_int_equal(sizeof(child[slot]), read(ends[0], &child[slot], sizeof(child[slot])));
        close(procs);
    }
    for (int i = 0; i < 500 && !cgroup_process_kill(&t, 7, 0); i++)
        usleep(10000);
    assert_true(cgroup_process_kill(&t, 7, 0));
    assert_int_equal(pid[0], waitpid(pid[0], &status, 0));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(0, kill(pid[1], 0));
    assert_int_equal(0, kill(child[1], 0));
    assert_int_equal(0, waitpid(pid[1], &status, WNOHANG));
    cgroup_process_remove(&t, 7, 0);
    cgroup_stop(&t); /* ends the other one */
    assert_int_equal(pid[1], waitpid(pid[1], &status, 0));
    assert_int_not_equal(0, access(t.path, F_OK));
}

TEST(kills_what_is_in_a_group_and_nothing_else)
{
    kill_one_of_two_groups();
    assert_int_equal(0, refused_opens);
}

/* As on a kernel before 5.14: the processes are killed one by one. */
TEST(kills_the_same_without_the_kernels_help)
{
    has_no_kill_file = true;
    kill_one_of_two_groups();
    assert_true(refused_opens > 0);
}
