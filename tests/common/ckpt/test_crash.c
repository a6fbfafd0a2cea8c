/* A process is killed between any two system calls of a commit, or any one of them fails. Afterwards the last complete
 * checkpoint opens, the new one is complete or absent, and the same commit succeeds when it is repeated.
 *
 * The linker redirects the calls that change files to the wrappers below (--wrap), so the tested code needs no hooks.
 */
#include "common/ckpt/shared.h"
#include "tests/common/ckpt/ckpt_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- the wrappers ---- */

static int calls, die_at, fail_at, fail_errno;

/* True if this call must fail. `torn`: does half of the work before the process exits. */
static bool injected(void (*torn)(void *), void *arg)
{
    calls++;
    if (calls == die_at) {
        if (torn)
            torn(arg);
        _exit(99);
    }
    if (calls != fail_at)
        return false;
    errno = fail_errno;
    return true;
}

struct write_call {
    int fd;
    const void *data;
    size_t len;
};

ssize_t __real_write(int fd, const void *data, size_t len);
ssize_t __wrap_write(int fd, const void *data, size_t len);
ssize_t __real_pwrite(int fd, const void *data, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t len, off_t at);
int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __real_unlinkat(int fd, const char *path, int flags);
int __wrap_unlinkat(int fd, const char *path, int flags);
int __real_ftruncate(int fd, off_t len);
int __wrap_ftruncate(int fd, off_t len);
int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __real_mkdirat(int fd, const char *path, mode_t mode);
int __wrap_mkdirat(int fd, const char *path, mode_t mode);
int __real_openat(int fd, const char *path, int flags, ...);
int __wrap_openat(int fd, const char *path, int flags, ...);
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_close(int fd);
int __wrap_close(int fd);

static void half_write(void *arg)
{
    const struct write_call *w = arg;
    (void)!__real_write(w->fd, w->data, w->len / 2);
}

ssize_t __wrap_write(int fd, const void *data, size_t len)
{
    struct write_call w = {fd, data, len};
    if (fd <= STDERR_FILENO)
        return __real_write(fd, data, len);
    if (injected(half_write, &w)) {
        half_write(&w);
        errno = fail_errno;
        return -1;
    }
    return __real_write(fd, data, len);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t len, off_t at)
{
    return injected(NULL, NULL) ? -1 : __real_pwrite(fd, data, len, at);
}

static void submit_torn(void *ring)
{
    (void)__real_io_uring_submit(ring); /* the process exits with the write in flight */
}

int __wrap_io_uring_submit(struct io_uring *ring)
{
    return injected(submit_torn, ring) ? -fail_errno : __real_io_uring_submit(ring);
}

int __wrap_fsync(int fd)
{
    return injected(NULL, NULL) ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    return injected(NULL, NULL) ? -1 : __real_rename(from, to);
}

int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return injected(NULL, NULL) ? -1 : __real_renameat(from_fd, from, to_fd, to);
}

int __wrap_mkdirat(int fd, const char *path, mode_t mode)
{
    return injected(NULL, NULL) ? -1 : __real_mkdirat(fd, path, mode);
}

int __wrap_openat(int fd, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return (flags & O_ACCMODE) != O_RDONLY && injected(NULL, NULL) ? -1 : __real_openat(fd, path, flags, mode);
}

int __wrap_unlinkat(int fd, const char *path, int flags)
{
    return injected(NULL, NULL) ? -1 : __real_unlinkat(fd, path, flags);
}

int __wrap_ftruncate(int fd, off_t len)
{
    return injected(NULL, NULL) ? -1 : __real_ftruncate(fd, len);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    return injected(NULL, NULL) ? -1 : __real_mkdir(path, mode);
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return (flags & O_ACCMODE) != O_RDONLY && injected(NULL, NULL) ? -1 : __real_open(path, flags, mode);
}

int __wrap_close(int fd)
{
    (void)injected(NULL, NULL); /* only a crash is tested here, not a failure */
    return __real_close(fd);
}

/* ---- the cases ---- */

static struct fixture model(void)
{
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&f, 2);
    return f;
}

static bool shared; /* rank 1's part is on another node and known by its index */

/* Prepares the directory and passes rank 1's index through it. */
static err_t index_go(const struct ckpt_shared_save *s, struct ckpt_part **part, struct why *why)
{
    err_t err = ckpt_prepare(s->root, &s->me, 1, why);
    if (!err)
        err = ckpt_index_put(s, *part, why);
    ckpt_part_free(*part);
    *part = NULL;
    return err ? err : ckpt_index_get(s, 1, part, why);
}

/* The calls of dtd-io for a save: both parts, then the commit. */
static err_t save_step(const struct fixture *f, int64_t step, struct why *why)
{
    struct ckpt_part *parts[2] = {NULL, NULL};
    char dir[PATH_MAX];
    const struct ckpt_shared_save at = {.root = test_tmpdir(),
                                        .me = {.job = "7", .submitted_ms = 1, .epoch = 1, .writer = 1},
                                        .step = step,
                                        .world = 2};
    const struct ckpt_commit commit = {.root = test_tmpdir(),
                                       .step = step,
                                       .epoch = 1,
                                       .job_yaml = "name: x\n",
                                       .loss = 1,
                                       .me = shared ? &at.me : NULL};
    err_t err = shared ? ckpt_partial_dir_of(test_tmpdir(), step, &at.me, dir, sizeof(dir))
                       : ckpt_partial_dir(test_tmpdir(), step, 1, dir, sizeof(dir));
    for (int r = 0; r < 2 && !err; r++) {
        struct ckpt_piece mine[FIXTURE_MAX_PIECES];
        int n = 0;
        for (int i = 0; i < f->n_pieces; i++)
            if (f->pieces[i].rank == r)
                mine[n++] = f->pieces[i].piece;
        err = ckpt_part_write(dir, r, mine, n, fixture_scalars, r ? 0 : fixture_n_scalars, &parts[r], why);
    }
    if (!err && shared)
        err = index_go(&at, &parts[1], why);
    if (!err)
        err = ckpt_commit(&commit, parts, 2, why);
    if (!err && shared)
        err = ckpt_index_remove(&at, why);
    ckpt_part_free(parts[0]);
    ckpt_part_free(parts[1]);
    return err;
}

static err_t verify_step(int64_t step, struct why *why)
{
    char dir[PATH_MAX];
    err_t err = ckpt_step_dir(test_tmpdir(), step, dir, sizeof(dir));
    return err ? err : ckpt_verify(dir, NULL, NULL, why);
}

/* Step 1 is complete, and so is step 2 if a scan or an open finds it. */
static void check_after(const char *what, int k)
{
    struct why why = {{0}};
    struct ckpt_info *infos;
    int n;
    if (verify_step(1, &why))
        fail_msg("%s at call %d: the last checkpoint is damaged: %s", what, k, why.text);
    assert_ok(ckpt_scan(test_tmpdir(), &infos, &n, &why));
    assert_true(n == 1 || n == 2);
    err_t err = verify_step(2, &why);
    if (n == 2 ? err != OK : err != ERR_NOTFOUND)
        fail_msg("%s at call %d: step 2 is seen by half: %s %s", what, k, err_name(err), why.text);
    free(infos);
}

static void check_again(const struct fixture *f, const char *what, int k)
{
    struct why why = {{0}};
    err_t err = save_step(f, 2, &why);
    if (err != OK && err != ERR_EXISTS)
        fail_msg("%s at call %d: trying again: %s %s", what, k, err_name(err), why.text);
    if (verify_step(2, &why))
        fail_msg("%s at call %d: after trying again: %s", what, k, why.text);
    assert_ok(ckpt_remove(test_tmpdir(), 2, &why));
    assert_ok(ckpt_collect(test_tmpdir(), 2, 0, &why));
}

static void kill_at_all(void)
{
    struct fixture f = model();
    struct why why = {{0}};
    assert_ok(save_step(&f, 1, &why));
    int k = 1, status = 0;
    for (;; k++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            calls = 0;
            die_at = k;
            _exit(save_step(&f, 2, NULL) == OK ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 0)
            break;
        assert_int_equal(WEXITSTATUS(status), 99);
        check_after("killed", k);
        check_again(&f, "killed", k);
    }
    print_message("%d places\n", k - 1);
    assert_true(k > 25);
    fixture_free(&f);
}

TEST(killed_at_every_call)
{
    kill_at_all();
}

TEST(shared_killed_at_every_call)
{
    shared = true;
    kill_at_all();
}

/* Each call fails once, as on a full disk and as on a broken disk. */
static void refuse_all(int errnum, err_t expected)
{
    struct fixture f = model();
    struct why why = {{0}};
    assert_ok(save_step(&f, 1, &why));
    for (int k = 1;; k++) {
        calls = 0;
        fail_at = k;
        fail_errno = errnum;
        why.text[0] = '\0';
        err_t err = save_step(&f, 2, &why);
        bool reached = calls >= k;
        fail_at = 0;
        if (!reached)
            break;
        if (err && (err != expected || !why.text[0]))
            fail_msg("call %d refused: %s (%s), expected %s", k, err_name(err), why.text, err_name(expected));
        check_after("refused", k);
        check_again(&f, "refused", k);
    }
    fixture_free(&f);
}

TEST(disk_full_at_every_call)
{
    refuse_all(ENOSPC, ERR_NOSPACE);
}

TEST(disk_broken_at_every_call)
{
    refuse_all(EIO, ERR_IO);
}

TEST(shared_disk_full_at_every_call)
{
    shared = true;
    refuse_all(ENOSPC, ERR_NOSPACE);
}
