/* See holder.h. A number in a file proves nothing: the file may come from another host, from before a reboot, or from
 * another container, and its process id may belong to any process here. Hence the start time and the boot id. */
#include "common/base/holder.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TEXT_MAX 256 /* of dtd.lock: two numbers of 20 digits, a host name and a boot id have 150 bytes */

static void read_text(const char *path, char *ret, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, ret, size - 1);
    ret[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

static void read_boot_id(char *ret, size_t size)
{
    read_text("/proc/sys/kernel/random/boot_id", ret, size);
    ret[strcspn(ret, "\n")] = '\0';
}

/* Field 22 of /proc/PID/stat; 0: there is no such process. Field 2 is the program's name in parentheses, which may
 * contain any character, so fields are counted from the last parenthesis. */
static uint64_t start_time_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    read_text(path, text, sizeof(text));
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* ---- the file ---- */

/* The new text replaces the old one in one write, because dtctl may read the file at any time. */
static err_t write_self(int fd)
{
    char text[TEXT_MAX], boot_id[40], host[65] = "";
    read_boot_id(boot_id, sizeof(boot_id));
    (void)gethostname(host, sizeof(host) - 1);
    int n = snprintf(text, sizeof(text), "%d\n%" PRIu64 "\n%s\n%s\n", getpid(), start_time_of(getpid()), host, boot_id);
    err_t err = file_pwrite_all(fd, text, (size_t)n, 0);
    return !err && ftruncate(fd, n) ? err_from_errno(errno) : err;
}

void holder_read(int fd, struct holder *ret)
{
    char text[TEXT_MAX], *rest = text;
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    *ret = (struct holder){0};
    const char *pid = strsep(&rest, "\n"), *start = strsep(&rest, "\n"), *host = strsep(&rest, "\n"),
               *boot_id = strsep(&rest, "\n");
    long value = strtol(pid, NULL, 10);
    ret->pid = value > 0 && value <= INT_MAX ? (pid_t)value : 0;
    ret->start_time = start ? strtoull(start, NULL, 10) : 0;
    snprintf(ret->host, sizeof(ret->host), "%s", host ? host : "");
    snprintf(ret->boot_id, sizeof(ret->boot_id), "%s", boot_id ? boot_id : "");
}

bool holder_is_elsewhere(const struct holder *h)
{
    char boot_id[40];
    read_boot_id(boot_id, sizeof(boot_id));
    return h->boot_id[0] && boot_id[0] && strcmp(h->boot_id, boot_id) != 0;
}

static err_t explain_busy(int fd, const char *dir, struct why *why)
{
    struct holder h;
    holder_read(fd, &h);
    if (holder_is_elsewhere(&h))
        return why_set(why, ERR_BUSY,
                       "another dtd (pid %d on host %s) serves %s; stop it there with `dtctl down`, or choose another "
                       "--state-dir for this host",
                       h.pid, h.host, dir);
    return why_set(why, ERR_BUSY,
                   "another dtd (pid %d) serves %s; stop it with `dtctl down`, or choose another --state-dir", h.pid,
                   dir);
}

/* systemd-tmpfiles removes files of /var/tmp that are old, but nothing from a folder on which a process has a lock. The
 * descriptor stays open as long as this process runs. */
static void keep_from_cleaners(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB))
        log_warn("no lock on the state directory, a cleaner of old files may remove files in it path=%s error=%s", dir,
                 strerror(errno));
}

err_t holder_take_lock(const char *dir, mode_t mode, int *ret, struct why *why)
{
    char path[PATH_MAX];
    err_t err = file_make_dirs(dir, mode);
    if (err)
        return why_set(why, err, "state directory %s: %s", dir, strerror(errno));
    snprintf(path, sizeof(path), "%s/dtd.lock", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        err = errno == EWOULDBLOCK ? explain_busy(fd, dir, why)
                                   : why_set(why, err_from_errno(errno), "flock %s: %s", path, strerror(errno));
        close(fd);
        return err;
    }
    if (write_self(fd))
        log_warn("holder not written to the lock path=%s error=%s", path, strerror(errno));
    const char *fs = path_shared_fs(dir);
    if (!fs)
        keep_from_cleaners(dir);
    else
        log_warn("the state directory is on a network file system; other hosts cannot use it path=%s type=%s", dir, fs);
    *ret = fd;
    return OK;
}

/* ---- signals ---- */

/* System calls, because glibc has functions for them only since 2.36 and deploy/bundle supports 2.34. */
err_t holder_signal(const struct holder *h, int sig, struct why *why)
{
    if (h->pid <= 1 || !h->start_time || !h->boot_id[0] || holder_is_elsewhere(h))
        return why_set(why, ERR_DENIED, "dtd.lock does not prove that process %d of this host is the dtd", h->pid);
    int fd = (int)syscall(SYS_pidfd_open, h->pid, 0);
    if (fd < 0)
        return why_set(why, err_from_errno(errno), "process %d, which dtd.lock names: %s", h->pid, strerror(errno));
    err_t err = OK;
    if (start_time_of(h->pid) != h->start_time)
        err = why_set(why, ERR_DENIED,
                      "process %d is not the dtd: it was started at another time than dtd.lock records", h->pid);
    else if (syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0))
        err = why_set(why, err_from_errno(errno), "signal to process %d: %s", h->pid, strerror(errno));
    close(fd);
    return err;
}
