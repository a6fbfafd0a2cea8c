/* libraft keeps two preallocated empty segments beside the one that it writes, so in steady state an append needs no
 * new space. New space is needed for the next segment, for a snapshot and at the start. The marks follow from that:
 *
 * - Closing gives back at most 3 segments and the reserve. It may begin with almost 1 segment free, so afterwards up to
 *   4 segments and the reserve are free.
 * - Opening needs 3 segments and the reserve. The reopen mark, 6 segments and the reserve, covers this and is more than
 *   closing alone can free. */
#include "daemon/control/log/disk.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LOW_SEGMENTS 1
#define REOPEN_SEGMENTS 6

static void path_of(const struct log_disk *disk, const char *name, char ret[PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/%s", disk->dir, name);
}

uint64_t log_disk_free(const struct log_disk *disk)
{
    struct statvfs st;
    return statvfs(disk->dir, &st) ? 0 : (uint64_t)st.f_bavail * st.f_frsize;
}

uint64_t log_disk_low_mark(const struct log_disk *disk)
{
    return LOW_SEGMENTS * disk->segment_bytes;
}

uint64_t log_disk_reopen_mark(const struct log_disk *disk)
{
    return REOPEN_SEGMENTS * disk->segment_bytes + disk->reserve_bytes;
}

bool log_disk_reserve(const struct log_disk *disk)
{
    char path[PATH_MAX];
    struct stat st;
    off_t bytes = (off_t)disk->reserve_bytes;
    path_of(disk, "reserve", path);
    if (stat(path, &st) == 0 && st.st_size == bytes && st.st_blocks * 512 >= bytes)
        return true;
    if (log_disk_free(disk) < log_disk_reopen_mark(disk))
        return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int errnum = fd < 0 ? errno : posix_fallocate(fd, 0, bytes);
    if (fd >= 0)
        close(fd);
    if (errnum) {
        log_warn("the reserve file cannot be created path=%s why=\"%s\"", path, strerror(errnum));
        unlink(path);
    }
    return !errnum;
}

void log_disk_release(const struct log_disk *disk)
{
    char path[PATH_MAX];
    path_of(disk, "reserve", path);
    unlink(path);
}

/* Closed segments are called FIRST-LAST, with 16 digits each. */
bool log_disk_has_entries(const struct log_disk *disk, uint64_t from)
{
    char path[PATH_MAX];
    uint64_t first, last;
    bool found = false;
    path_of(disk, "log", path);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        found |= sscanf(e->d_name, "%16" SCNu64 "-%16" SCNu64, &first, &last) == 2 && last >= from;
    if (dir)
        closedir(dir);
    return found;
}

static err_t probe_file(const struct log_disk *disk, int fd, const char **ret_what)
{
    char bytes[4096] = {0};
    *ret_what = "allocating a file";
    int errnum = posix_fallocate(fd, 0, (off_t)disk->segment_bytes);
    err_t err = errnum ? err_from_errno(errnum) : OK;
    errno = errnum;
    if (!err) {
        *ret_what = "writing a file";
        err = file_pwrite_all(fd, bytes, sizeof(bytes), 0);
    }
    if (!err) {
        *ret_what = "syncing a file";
        err = fsync(fd) ? err_from_errno(errno) : OK;
    }
    if (!err) {
        *ret_what = "syncing the folder";
        err = file_sync_dir(disk->dir);
    }
    return err;
}

err_t log_disk_probe(const struct log_disk *disk, struct why *why)
{
    char path[PATH_MAX];
    const char *what = "creating a file";
    path_of(disk, "probe", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    err_t err = fd < 0 ? err_from_errno(errno) : probe_file(disk, fd, &what);
    int errnum = errno;
    unlink(path);
    if (fd >= 0)
        close(fd);
    return err ? why_set(why, err, "%s: %s", what, strerror(errnum)) : OK;
}

/* Files are called snapshot-TERM-INDEX-TIME and snapshot-...meta; the newest one has the highest index. */
uint64_t log_disk_snapshot(const struct log_disk *disk)
{
    char path[PATH_MAX];
    uint64_t term, index, best = 0;
    path_of(disk, "log", path);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (sscanf(e->d_name, "snapshot-%" SCNu64 "-%" SCNu64, &term, &index) == 2 && index > best)
            best = index;
    if (dir)
        closedir(dir);
    return best;
}

bool log_disk_is_new(const struct log_disk *disk)
{
    char path[PATH_MAX];
    struct stat st;
    path_of(disk, "log", path);
    return stat(path, &st) != 0 && errno == ENOENT;
}

/* Removes what an interrupted first start has left, which is regular files only. */
static void empty_dir(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
}

err_t log_disk_make_new(const struct log_disk *disk)
{
    char path[PATH_MAX];
    path_of(disk, "log.new", path);
    empty_dir(path);
    return file_make_dirs(path, 0700);
}

err_t log_disk_commit_new(const struct log_disk *disk)
{
    char from[PATH_MAX], to[PATH_MAX];
    path_of(disk, "log.new", from);
    path_of(disk, "log", to);
    err_t err = file_sync_dir(from);
    if (!err && rename(from, to))
        err = err_from_errno(errno);
    if (!err)
        err = file_sync_dir(disk->dir);
    return err;
}
