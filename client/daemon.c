/* Whether a dtd runs is decided by its lock: the kernel releases the lock when the process ends for any reason. The
 * file's contents are only valid while the lock is held. The test takes the lock shared and releases it at once. A dtd
 * that starts within these microseconds would fail to take the lock, so no test runs while dtctl starts a dtd. */
#include "client/daemon.h"

#include "common/base/clock.h"
#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Only root may open the lock of a system-wide dtd, since any user who can open it could hold it. Its socket accepts
 * connections while it runs; the peer's pid comes from SO_PEERCRED. A full backlog also means that it runs. */
static bool socket_answers(const char *run_dir, pid_t *ret_pid)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct ucred peer = {.pid = 0};
    socklen_t len = sizeof(peer);
    if ((size_t)snprintf(a.sun_path, sizeof(a.sun_path), "%s/control.sock", run_dir) >= sizeof(a.sun_path))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool full = false, there = fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof(a)) == 0;
    if (fd >= 0 && !there)
        full = errno == EAGAIN;
    if (there && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0)
        *ret_pid = peer.pid;
    if (fd >= 0)
        close(fd);
    return there || full;
}

bool daemon_holder(const char *state_dir, struct holder *ret)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/dtd.lock", state_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *ret = (struct holder){0};
    if (fd < 0)
        return socket_answers(state_dir, &ret->pid);
    bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (held)
        holder_read(fd, ret);
    close(fd);
    return held;
}

bool daemon_running(const char *state_dir, pid_t *ret_pid)
{
    struct holder h;
    bool held = daemon_holder(state_dir, &h);
    *ret_pid = h.pid;
    return held;
}

/* A supervisor of this host writes the file and opens its socket within milliseconds after it has taken the lock. Until
 * then the file may be that of an earlier holder. */
#define HOST_LOOKS 4
#define HOST_LOOK_MS 100

/* The lock is held, and not by a dtd of this host: another kernel has written the file, or dtd 1.0, which does not
 * record the host. No process listens on the socket here, as a supervisor of this host would. */
static bool is_elsewhere(const char *state_dir, struct holder *ret)
{
    pid_t pid;
    return daemon_holder(state_dir, ret) && ret->pid && (holder_is_elsewhere(ret) || !ret->boot_id[0]) &&
           !socket_answers(state_dir, &pid);
}

err_t daemon_check_host(const char *state_dir, struct why *why)
{
    const struct timespec nap = {.tv_nsec = HOST_LOOK_MS * 1000000};
    char self[65] = "";
    struct holder h;
    for (int looks = 1; is_elsewhere(state_dir, &h); looks++) {
        if (looks == HOST_LOOKS) {
            (void)gethostname(self, sizeof(self) - 1);
            return why_set(why, ERR_INVALID,
                           "the dtd of %s runs on %s%s (pid %d there), and this is %s. Run dtctl on that host, or "
                           "set DTD_DIR to a local folder for a dtd of this host: docs/operate/shared-homes.md",
                           state_dir, h.host[0] ? "host " : "another host, which its older version does not record",
                           h.host, h.pid, self);
        }
        nanosleep(&nap, NULL);
    }
    return OK;
}

err_t daemon_program(const char *name, char *ret, size_t size, struct why *why)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n < 0)
        return why_set(why, err_from_errno(errno), "/proc/self/exe: %s", strerror(errno));
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    if ((size_t)snprintf(ret, size, "%s/%s", self, name) >= size)
        return why_set(why, ERR_LIMIT, "%s/%s: the path is too long", self, name);
    if (access(ret, X_OK))
        return why_set(why, ERR_IO, "%s: %s. It must be in the directory of dtctl: build or install all programs", ret,
                       strerror(errno));
    return OK;
}

static err_t log_open(const char *state_dir, int *ret_fd, struct why *why)
{
    char path[PATH_MAX];
    err_t err = file_make_dirs(state_dir, 0700);
    if (err)
        return why_set(why, err, "cannot create the state directory %s: %s", state_dir, strerror(errno));
    snprintf(path, sizeof(path), "%s/dtd.log", state_dir);
    *ret_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (*ret_fd < 0)
        return why_set(why, err_from_errno(errno), "cannot open %s: %s", path, strerror(errno));
    return OK;
}

/* Runs in the child process; never returns. */
static void daemon_exec(const char *program, const char *state_dir, int log_fd)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setsid();
    signal(SIGPIPE, SIG_DFL);
    if (null >= 0 && dup2(null, 0) == 0 && dup2(log_fd, 1) == 1 && dup2(log_fd, 2) == 2) {
        close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
        execl(program, "dtd", "--state-dir", state_dir, (char *)NULL);
        dprintf(2, "%s: %s\n", program, strerror(errno));
    }
    _exit(127);
}

err_t daemon_start(const char *state_dir, pid_t *ret_pid, struct why *why)
{
    char program[PATH_MAX];
    int log_fd = -1;
    err_t err = daemon_program("dtd", program, sizeof(program), why);
    if (err)
        return err;
    err = log_open(state_dir, &log_fd, why);
    if (err)
        return err;
    pid_t pid = fork();
    if (pid == 0)
        daemon_exec(program, state_dir, log_fd);
    if (pid < 0)
        err = why_set(why, err_from_errno(errno), "cannot start %s: %s", program, strerror(errno));
    else
        *ret_pid = pid;
    close(log_fd);
    return err;
}

/* Reads the last bytes of `<state dir>/name`, at most size - 1 of them and none before `from`; "" if there are none. */
static void read_log_end(const char *state_dir, const char *name, off_t from, char *ret, size_t size)
{
    char path[PATH_MAX];
    struct stat st;
    ssize_t n = 0;
    snprintf(path, sizeof(path), "%s/%s", state_dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0) {
        off_t window = st.st_size - (off_t)size + 1;
        n = pread(fd, ret, size - 1, window > from ? window : from);
    }
    if (fd >= 0)
        close(fd);
    ret[n > 0 ? n : 0] = '\0';
}

/* 16 KiB hold at least eight lines, since a log line has at most 2 KiB. */
#define LOG_END_BYTES 16384

void daemon_log_tail(const char *state_dir, int lines)
{
    char text[LOG_END_BYTES];
    read_log_end(state_dir, "dtd.log", 0, text, sizeof(text));
    size_t n = strlen(text), start;
    for (start = n; start > 0; start--)
        if (start < n && text[start - 1] == '\n' && lines-- == 1)
            break;
    for (size_t i = start; i < n; i++) {
        if (i == start || text[i - 1] == '\n')
            fputs("  ", stderr);
        fputc(text[i], stderr);
    }
}

off_t daemon_control_log_size(const char *state_dir)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/control.log", state_dir);
    return stat(path, &st) ? 0 : st.st_size;
}

/* The message of a line: behind "error dtd-control[PID]: " of the log, or behind "dtd-control: " of an error at the
 * start.
 */
static const char *control_message(const char *line, size_t len)
{
    static const char plain[] = "dtd-control: ", mark[] = " error dtd-control[", end[] = "]: ";
    if (len > strlen(plain) && strncmp(line, plain, strlen(plain)) == 0)
        return line + strlen(plain);
    const char *found = memmem(line, len, mark, strlen(mark));
    found = found ? memmem(found, len - (size_t)(found - line), end, strlen(end)) : NULL;
    return found ? found + strlen(end) : NULL;
}

bool daemon_control_error(const char *state_dir, off_t from, char *ret, size_t size)
{
    char text[LOG_END_BYTES];
    bool found = false;
    read_log_end(state_dir, "control.log", from, text, sizeof(text));
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        const char *message = control_message(line, (size_t)(end - line));
        if (message)
            snprintf(ret, size, "%.*s", (int)(end - message), message);
        found |= message != NULL;
    }
    return found;
}

bool daemon_wait_gone(const char *state_dir, int timeout_ms)
{
    const struct timespec nap = {.tv_nsec = 20 * 1000000};
    int64_t deadline = clock_mono_ms() + timeout_ms;
    pid_t pid;
    while (daemon_running(state_dir, &pid)) {
        if (clock_mono_ms() >= deadline)
            return false;
        nanosleep(&nap, NULL);
    }
    return true;
}
