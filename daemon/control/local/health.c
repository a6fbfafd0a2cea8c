/* The kernel counts the processes that it kills for lack of memory, in all control groups together, in /proc/vmstat. It
 * names them only in its log, which an unprivileged process often may not read. Then a SIGKILL while the count grows
 * may have been the kernel's or a user's. */
#include "daemon/control/local/health.h"
#include "daemon/control/local/log_watch.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TICK_MS 5000 /* space and memory run out over minutes, and each check reads files of /proc */
/* A process may take seconds to end after the kernel has counted it: its memory is freed first. */
#define OOM_MS 5000
#define RECORD_MAX 1024                   /* bytes; the part that we need is at the beginning of a record */
#define INITIAL_PID_NAMESPACE 0xeffffffcu /* inode of /proc/self/ns/pid, fixed by the kernel (PROC_PID_INIT_INO) */
#define PROC_MAX (256u << 10)             /* bytes of one file; /proc/vmstat has about 4 KiB */
/* A disk is low below both limits: 5 % of a large disk are enough, and a small disk may be mostly free below 1 GiB. */
#define LOW_PERCENT 5
#define LOW_DISK_BYTES ((int64_t)1 << 30)

int64_t health_number(const char *text, const char *key)
{
    size_t len = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, len) == 0 && (line[len] == ' ' || line[len] == ':'))
            return strtoll(line + len + 1, NULL, 10);
    return -1;
}

static bool is_low(int64_t free, int64_t size)
{
    return size > 0 && free >= 0 && free < size / 100 * LOW_PERCENT;
}

void health_warn(int64_t disk_free, int64_t disk_size, int64_t memory_free, int64_t memory_size, char *ret, size_t size)
{
    bool disk = is_low(disk_free, disk_size) && disk_free < LOW_DISK_BYTES, memory = is_low(memory_free, memory_size);
    int at = 0;
    ret[0] = '\0';
    if (disk)
        at = snprintf(ret, size, "the state directory's disk is low: %" PRId64 " MiB free of %" PRId64, disk_free >> 20,
                      disk_size >> 20);
    if (memory && (size_t)at < size)
        snprintf(ret + at, size - (size_t)at, "%smemory is low: %" PRId64 " MiB available of %" PRId64, at ? "; " : "",
                 memory_free >> 20, memory_size >> 20);
}

/* Reads the numbers of `n` keys from a file of /proc; -1: not there, or the file cannot be read. */
static void read_numbers(const char *path, const char *const *keys, int n, int64_t *ret)
{
    struct buf text = {0};
    bool ok = file_read(path, PROC_MAX, &text) == OK && buf_append(&text, "", 1) == OK;
    for (int i = 0; i < n; i++)
        ret[i] = ok ? health_number((const char *)text.data, keys[i]) : -1;
    buf_fini(&text);
}

static int64_t count_oom(void)
{
    int64_t ret;
    read_numbers("/proc/vmstat", (const char *const[]){"oom_kill"}, 1, &ret);
    return ret;
}

/* The kernel's log has process ids of the initial namespace. */
static int open_kernel_log(void)
{
    struct stat st;
    if (stat("/proc/self/ns/pid", &st) || st.st_ino != INITIAL_PID_NAMESPACE)
        return -1;
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && lseek(fd, 0, SEEK_END) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void health_init(struct health *h)
{
    *h = (struct health){.oom_kills = count_oom(), .kernel_log = open_kernel_log()};
}

/* "Out of memory: Killed process 42 (name) ..." or "Memory cgroup out of memory: Killed process 42 (name) ...", behind
 * "priority,number,time,flags;". */
pid_t health_killed_pid(const char *record)
{
    static const char *const begins[] = {";Out of memory: Killed process ",
                                         ";Memory cgroup out of memory: Killed process "};
    const char *text = strchr(record, ';');
    for (size_t i = 0; text && i < sizeof(begins) / sizeof(begins[0]); i++)
        if (strncmp(text, begins[i], strlen(begins[i])) == 0)
            return (pid_t)strtol(text + strlen(begins[i]), NULL, 10);
    return 0;
}

/* Each read returns one record. EPIPE: records were overwritten before we read them. */
static void read_kernel_log(struct health *h)
{
    char record[RECORD_MAX + 1];
    for (;;) {
        ssize_t n = read(h->kernel_log, record, RECORD_MAX);
        if (n < 0 && (errno == EPIPE || errno == EINVAL || errno == EINTR))
            continue;
        if (n <= 0)
            return;
        record[n] = '\0';
        pid_t pid = health_killed_pid(record);
        if (pid > 0)
            h->killed[h->n_killed++ % HEALTH_KILLED_MAX] = pid;
    }
}

static bool take_killed(struct health *h, pid_t pid)
{
    for (int i = 0; i < HEALTH_KILLED_MAX; i++)
        if (h->killed[i] == pid) {
            h->killed[i] = 0; /* the number may be used again */
            return true;
        }
    return false;
}

/* Whether the kernel's count has grown within OOM_MS. */
static bool count_grew(struct health *h)
{
    int64_t kills = count_oom(), now = clock_mono_ms();
    if (kills > h->oom_kills)
        h->oom_ms = now;
    h->oom_kills = kills;
    return h->oom_ms && now - h->oom_ms <= OOM_MS;
}

enum health_oom health_oom(struct health *h, pid_t pid)
{
    bool grew = count_grew(h);
    if (h->kernel_log < 0)
        return grew ? HEALTH_OOM_MAYBE : HEALTH_OOM_NO;
    read_kernel_log(h);
    return take_killed(h, pid) ? HEALTH_OOM_YES : HEALTH_OOM_NO;
}

/* The folder, its space and the largest logs, while logs are cut for lack of space. */
static void write_disk(const struct log_watch *disk, const char *dir, char *ret, size_t size)
{
    ret[0] = '\0';
    if (disk->is_full || disk->largest[0])
        snprintf(ret, size, "the disk of %.250s %s: %" PRId64 " MiB free%s%s%s", dir,
                 disk->is_full ? "is full" : "is nearly full", disk->disk_free >> 20,
                 disk->is_full ? "; new jobs do not start on this node" : "",
                 disk->largest[0] ? "; largest logs: " : "", disk->largest);
}

void health_tick(struct health *h, const char *dir, const struct log_watch *disk)
{
    char low[200], logs[700];
    bool before = h->warning[0];
    int64_t memory[2], now = clock_mono_ms();
    if (now < h->due_ms)
        return;
    h->due_ms = now + TICK_MS;
    (void)count_grew(h);
    if (h->kernel_log >= 0)
        read_kernel_log(h);
    bool is_known = disk->disk_size > 0;
    read_numbers("/proc/meminfo", (const char *const[]){"MemAvailable", "MemTotal"}, 2, memory);
    health_warn(is_known ? disk->disk_free : -1, is_known ? disk->disk_size : -1, memory[0] * 1024, memory[1] * 1024,
                low, sizeof(low));
    write_disk(disk, dir, logs, sizeof(logs));
    snprintf(h->warning, sizeof(h->warning), "%s%s%s%s%s", low, low[0] && logs[0] ? "; " : "", logs,
             (low[0] || logs[0]) && h->limit[0] ? "; " : "", h->limit);
    if (h->warning[0] && !before)
        log_warn("%s", h->warning);
}
