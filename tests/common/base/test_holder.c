/* A process gets a signal only if it is certain that it wrote the lock file. */
#include "common/base/holder.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

static pid_t sleeper_start(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sleep(600);
        _exit(0);
    }
    return pid;
}

static bool ended_by_sigterm(pid_t pid)
{
    int status;
    const struct timespec t = {.tv_nsec = 50 * 1000000};
    nanosleep(&t, NULL);
    if (waitpid(pid, &status, WNOHANG) == pid)
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return false;
}

/* A child takes the lock and pauses; *ret is what it has recorded. */
static pid_t holder_start(struct holder *ret)
{
    char dir[256], path[300];
    int ready[2], fd;
    snprintf(dir, sizeof(dir), "%s/state", test_tmpdir());
    snprintf(path, sizeof(path), "%s/dtd.lock", dir);
    assert_int_equal(0, pipe(ready));
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (holder_take_lock(dir, 0700, &fd, NULL))
            _exit(1);
        close(ready[0]);
        close(ready[1]);
        pause();
    }
    close(ready[1]);
    assert_int_equal(0, read(ready[0], path + sizeof(path) - 1, 1));
    fd = open(path, O_RDONLY);
    holder_read(fd, ret);
    close(fd);
    return pid;
}

TEST(the_file_has_the_holder)
{
    struct holder h;
    struct why why = {""};
    char host[65] = "", boot[40] = "", dir[256];
    int fd;
    pid_t pid = holder_start(&h);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    assert_int_equal(1, fscanf(f, "%39s", boot));
    fclose(f);
    gethostname(host, sizeof(host) - 1);
    assert_int_equal(pid, h.pid);
    assert_string_equal(host, h.host);
    assert_string_equal(boot, h.boot_id);
    assert_false(holder_is_elsewhere(&h));
    snprintf(dir, sizeof(dir), "%s/state", test_tmpdir());
    assert_err(ERR_BUSY, holder_take_lock(dir, 0700, &fd, &why));
    assert_ok(holder_signal(&h, SIGTERM, &why));
    assert_true(ended_by_sigterm(pid));
    assert_err(ERR_NOTFOUND, holder_signal(&h, SIGTERM, &why));
}

TEST(another_process_with_the_number_gets_no_signal)
{
    struct holder h;
    struct why why = {""};
    const struct timespec tick = {.tv_nsec = 30 * 1000000}; /* start times have a resolution of 10 ms */
    pid_t holder = holder_start(&h);
    nanosleep(&tick, NULL);
    pid_t other = sleeper_start();
    h.pid = other; /* as if the holder had ended and its number had been used again */
    assert_err(ERR_DENIED, holder_signal(&h, SIGTERM, &why));
    assert_non_null(strstr(why.text, "started at another time"));
    assert_false(ended_by_sigterm(other));
    kill(holder, SIGKILL);
}

TEST(a_file_without_proof_gives_no_signal)
{
    struct holder h;
    pid_t holder = holder_start(&h);
    struct holder old = {.pid = h.pid}, elsewhere = h, earlier = h;
    strcpy(elsewhere.boot_id, "00000000-1111-4222-8333-444444444444");
    earlier.start_time++;
    assert_true(holder_is_elsewhere(&elsewhere));
    assert_false(holder_is_elsewhere(&old));
    assert_err(ERR_DENIED, holder_signal(&old, SIGTERM, NULL));
    assert_err(ERR_DENIED, holder_signal(&elsewhere, SIGTERM, NULL));
    assert_err(ERR_DENIED, holder_signal(&earlier, SIGTERM, NULL));
    assert_false(ended_by_sigterm(holder));
}

/* The text comes from a file of another host, so it may be anything. */
TEST(damaged_files)
{
    static const char *const texts[] = {"", "\n\n\n\n\n", "-5\n1\nh\nb\n", "99999999999999\n1\nh\nb\n", "abc", "0\n"};
    char path[300];
    struct holder h;
    snprintf(path, sizeof(path), "%s/lock", test_tmpdir());
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        assert_int_equal(strlen(texts[i]), write(fd, texts[i], strlen(texts[i])));
        holder_read(fd, &h);
        assert_int_equal(0, h.pid);
        assert_err(ERR_DENIED, holder_signal(&h, 0, NULL));
        close(fd);
    }
}
