/* The memory that is available on this node. In a container, MemAvailable counts the whole machine. Therefore the
 * limits of our control groups count too, and the smallest value is returned. */
#include "common/base/meminfo.h"

#include "common/base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool number_read(const char *path, int64_t *ret)
{
    struct buf text = {0};
    char *end;
    bool good = file_read(path, 4096, &text) == OK && buf_append(&text, "", 1) == OK;
    if (good) {
        errno = 0;
        *ret = strtoll((const char *)text.data, &end, 10);
        good = end != (const char *)text.data && !errno;
    }
    buf_fini(&text);
    return good;
}

/* The page cache counts as used memory, but the kernel reclaims it on demand. */
static int64_t group_cache(const char *folder)
{
    static const char *const keys[] = {"\ninactive_file ", "\nactive_file "};
    char path[PATH_MAX + 32];
    struct buf text = {0};
    int64_t ret = 0;
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    if (file_read(path, 65536, &text) == OK && buf_append(&text, "", 1) == OK)
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
            const char *line = strstr((const char *)text.data, keys[i]);
            ret += line ? strtoll(line + strlen(keys[i]), NULL, 10) : 0;
        }
    buf_fini(&text);
    return ret;
}

/* Lowers *bytes to what the group's limit leaves. "max" and a missing file mean that there is no limit. */
static void group_limit(const char *folder, int64_t *bytes)
{
    char path[PATH_MAX + 32];
    int64_t limit, used;
    snprintf(path, sizeof(path), "%s/memory.max", folder);
    if (!number_read(path, &limit))
        return;
    snprintf(path, sizeof(path), "%s/memory.current", folder);
    if (!number_read(path, &used))
        return;
    used -= group_cache(folder);
    int64_t left = limit > used ? limit - used : 0;
    *bytes = left < *bytes ? left : *bytes;
}

/* Applies the limits of our own group and of every group above it. */
static void groups_limit(int64_t *bytes)
{
    struct buf text = {0};
    char folder[PATH_MAX];
    if (file_read("/proc/self/cgroup", 65536, &text) == OK && buf_append(&text, "", 1) == OK) {
        const char *line = strstr((const char *)text.data, "0::/");
        int len = line ? (int)strcspn(line + 3, "\n") : 0;
        snprintf(folder, sizeof(folder), "/sys/fs/cgroup%.*s", len, line ? line + 3 : "");
        for (char *slash; strlen(folder) >= strlen("/sys/fs/cgroup") && (slash = strrchr(folder, '/')); *slash = '\0')
            group_limit(folder, bytes);
    }
    buf_fini(&text);
}

err_t meminfo_available(int64_t *ret, struct why *why)
{
    struct buf text = {0};
    err_t err = file_read("/proc/meminfo", 65536, &text);
    if (!err)
        err = buf_append(&text, "", 1);
    const char *line = err ? NULL : strstr((const char *)text.data, "MemAvailable:");
    if (line) {
        int64_t bytes = strtoll(line + strlen("MemAvailable:"), NULL, 10) * 1024;
        groups_limit(&bytes);
        *ret = bytes;
    }
    buf_fini(&text);
    return line ? OK : why_set(why, err ? err : ERR_UNSUPPORTED, "/proc/meminfo has no line MemAvailable");
}
