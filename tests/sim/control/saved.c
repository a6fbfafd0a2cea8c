#include "tests/sim/control/saved.h"

#include "common/base/file.h"
#include "tests/sim/disk.h"
#include "tests/sim/world.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_FD 900 /* of the file of the clock, while it is open; above all real descriptors of the process */

static struct saved_file files[MAX_HOSTS + 1][SAVED_FILES];
static bool has_boots;
static int boots[MAX_HOSTS + 1];

err_t __wrap_file_read(const char *path, size_t max, struct buf *ret);
err_t __wrap_file_replace(const char *path, const void *data, size_t len, mode_t mode);
err_t __wrap_file_write_all(int fd, const void *data, size_t len);
err_t __real_file_write_all(int fd, const void *data, size_t len);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __wrap_open(const char *path, int flags, ...);

struct saved_file *saved_files(int id)
{
    return files[id];
}

struct saved_file *saved_find(int id, const char *path)
{
    for (int i = 0; i < SAVED_FILES; i++)
        if (strcmp(files[id][i].path, path) == 0)
            return &files[id][i];
    return NULL;
}

void saved_put(struct saved_file *f, const void *data, size_t len)
{
    void *copy = malloc(len + 1);
    assert(copy);
    memcpy(copy, data, len);
    free(f->data);
    f->data = copy;
    f->len = len;
}

void saved_remove(struct saved_file *f)
{
    free(f->data);
    free(f->before);
    *f = (struct saved_file){.path = ""};
}

void saved_keep_clocks(void)
{
    has_boots = true;
}

void saved_boot(int id)
{
    boots[id]++;
}

/* ---- reading and writing ---- */

err_t __wrap_file_read(const char *path, size_t max, struct buf *ret)
{
    int id = world.current->on->id;
    const struct saved_file *f = saved_find(id, path);
    char boot[40];
    (void)max;
    if (f)
        return buf_append(ret, f->data, f->len);
    if (!has_boots || strcmp(path, "/proc/sys/kernel/random/boot_id") != 0)
        return ERR_NOTFOUND;
    snprintf(boot, sizeof(boot), "boot-%d-%d\n", id, boots[id]);
    return buf_append(ret, boot, strlen(boot));
}

static void save(int id, const char *path, const void *data, size_t len)
{
    struct saved_file *f = saved_find(id, path);
    f = f ? f : saved_find(id, "");
    assert(f && strlen(path) < sizeof(f->path));
    strcpy(f->path, path);
    if (f->data && (!f->before || len % 3 == 0)) { /* some file of some time ago */
        free(f->before);
        f->before = f->data;
        f->before_len = f->len;
        f->data = NULL;
    }
    world.hosts[id].use.files++;
    world.hosts[id].use.file_bytes += len;
    saved_put(f, data, len);
}

err_t __wrap_file_replace(const char *path, const void *data, size_t len, mode_t mode)
{
    int id = world.current->on->id;
    (void)mode;
    if (disks[id].is_full)
        return ERR_NOSPACE;
    if (host_acts(world.current))
        save(id, path, data, len);
    return OK;
}

static bool is_clock(const char *path)
{
    const char *name = strrchr(path, '/');
    return name && strcmp(name, "/clock") == 0;
}

/* Only the clock is written so. Metrics, logs of jobs, and /proc do not exist. */
int __wrap_open(const char *path, int flags, ...)
{
    (void)flags;
    if (has_boots && is_clock(path) && !disks[world.current->on->id].is_full)
        return CLOCK_FD;
    errno = ENOENT;
    return -1;
}

err_t __wrap_file_write_all(int fd, const void *data, size_t len)
{
    char path[64];
    int id = world.current->on->id;
    if (fd != CLOCK_FD)
        return __real_file_write_all(fd, data, len);
    snprintf(path, sizeof(path), "/node-%d/raft/log/clock", id);
    if (host_acts(world.current))
        save(id, path, data, len);
    return OK;
}

/* ---- names ---- */

/* Only the folder of the log is renamed, with the clock. */
int __wrap_rename(const char *from, const char *to)
{
    char path[64];
    const char *name = strrchr(from, '/');
    int id = world.current->id;
    (void)to;
    assert(name && strcmp(name, "/log") == 0);
    if (!host_acts(world.current))
        return 0;
    disks[id].log = disks[id].fresh = (struct files){.exists = false};
    snprintf(path, sizeof(path), "/node-%d/raft/log/clock", id);
    struct saved_file *clock = saved_find(id, path);
    if (clock)
        saved_remove(clock);
    return 0;
}

/* Removing a file that is not here succeeds. */
int __wrap_unlink(const char *path)
{
    struct saved_file *f = saved_find(world.current->on->id, path);
    const char *name = strrchr(path, '/');
    if (name && strcmp(name, "/witness") == 0)
        log_disk_forget_witness(world.current);
    if (f && host_acts(world.current))
        saved_remove(f);
    return 0;
}
