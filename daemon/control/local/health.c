/* See health.h. The kernel counts what it kills for memory, in every control group, in /proc/vmstat; whom, it says to
 * its log only. So a SIGKILL that is not ours, while that count grows, is taken for it. */
#include "daemon/control/local/health.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define TICK_MS 5000
#define OOM_MS 5000 /* from the kernel's count to the word of the end */
#define PROC_MAX (256u << 10)
#define LOW_PERCENT 5
#define LOW_DISK_BYTES ((int64_t)1 << 30) /* less than both: much of a small disk may be free */

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

/* Numbers of a file of /proc: -1 where it cannot be read. */
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

void health_init(struct health *h)
{
    *h = (struct health){.oom_kills = count_oom()};
}

bool health_oom(struct health *h)
{
    int64_t kills = count_oom(), now = clock_mono_ms();
    if (kills > h->oom_kills)
        h->oom_ms = now;
    h->oom_kills = kills;
    return h->oom_ms && now - h->oom_ms <= OOM_MS;
}

void health_tick(struct health *h, const char *dir)
{
    char before[sizeof(h->warning)];
    int64_t memory[2], now = clock_mono_ms();
    struct statvfs st;
    if (now < h->due_ms)
        return;
    h->due_ms = now + TICK_MS;
    (void)health_oom(h);
    bool disk = statvfs(dir, &st) == 0;
    read_numbers("/proc/meminfo", (const char *const[]){"MemAvailable", "MemTotal"}, 2, memory);
    memcpy(before, h->warning, sizeof(before));
    health_warn(disk ? (int64_t)(st.f_bavail * st.f_frsize) : -1, disk ? (int64_t)(st.f_blocks * st.f_frsize) : -1,
                memory[0] * 1024, memory[1] * 1024, h->warning, sizeof(h->warning));
    if (h->warning[0] && !before[0])
        log_warn("%s", h->warning);
}
