/* Nothing is remembered about files: each check finds the state of all of them, whichever process has written, cut or
 * truncated them, and a new control continues where the old one ended. The folder of jobs cannot be listed in a
 * system-wide dtd, so the files are looked up by their names. */
#include "daemon/control/local/log_watch.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/log_cut.h"
#include "common/base/paths.h"
#include "daemon/control/local/local.h"
#include "daemon/control/local/log_sizes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A process writes 1 to 2 GB/s, so between two looks a log grows by some 100 MB. */
#define LOOK_MS 100
/* The segments that the replicated log may need at once, as its mark for opening again (log/disk.c), and some space for
 * what a fast writer adds until the next look. */
#define LOW_MIB 32
#define FULL_BYTES ((int64_t)8 << 20)      /* two segments of the replicated log */
#define NOT_FULL_BYTES ((int64_t)16 << 20) /* twice as much, so that the state does not change all the time */
#define FULL_MS 2000                       /* by then the cuts have made space, if logs fill the disk */
#define MAX_LOGS 4096                      /* looked at on a low disk: those of the newest jobs; each costs some us */
#define MAX_JOBS 1024                      /* the same */
#define MAX_MISSING 8                      /* slots without a log, behind which no other one is expected */
#define SHOWN 3                            /* of the largest logs */
#define REPEAT_MS 60000 /* the same log may be cut ten times a second, and control's log is on the same disk */

struct look {
    struct pool_task task;
    struct local *local;
    char dir[PATH_STATE_DIR_MAX + 1];
    uint64_t newest_job;
    int64_t low_bytes;
    int64_t disk_free, disk_size;
    char largest[200];
    int n_limited, n;
    struct log_size *logs; /* first the n_limited running processes, with `keep` as their limit */
    struct log_cut *cuts;  /* of the same; to 0: none */
};

/* ---- on the thread ---- */

static void log_name(const struct look *k, const struct log_size *s, char ret[PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/jobs/%" PRIu64 "/rank-%d.log", k->dir, s->job, s->slot);
}

/* False: there is no such file, or it is not a regular one. */
static bool read_size(const struct look *k, struct log_size *s)
{
    char path[PATH_MAX];
    struct stat st;
    log_name(k, s, path);
    if (lstat(path, &st) || !S_ISREG(st.st_mode))
        return false;
    s->uid = st.st_uid;
    s->size = st.st_size;
    s->used = (int64_t)st.st_blocks * 512;
    return true;
}

static void find_cut(struct look *k, int i)
{
    char path[PATH_MAX];
    log_name(k, &k->logs[i], path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0 || !log_cut_find(fd, k->logs[i].size, k->logs[i].keep, &k->cuts[i]))
        k->cuts[i].to = 0;
    if (fd >= 0)
        close(fd);
}

static int by_use(const void *a, const void *b)
{
    int64_t x = ((const struct log_size *)a)->used, y = ((const struct log_size *)b)->used;
    return (x < y) - (x > y);
}

static void find_logs(struct look *k)
{
    k->n = 0;
    uint64_t oldest = k->newest_job > MAX_JOBS ? k->newest_job - MAX_JOBS : 0;
    for (uint64_t job = k->newest_job; job > oldest && k->n < MAX_LOGS; job--)
        for (int slot = 0, missing = 0; slot < CHANNEL_MAX_SLOTS && missing < MAX_MISSING && k->n < MAX_LOGS; slot++) {
            struct log_size *s = &k->logs[k->n];
            *s = (struct log_size){.job = job, .slot = slot};
            bool exists = read_size(k, s);
            missing = exists ? 0 : missing + 1;
            k->n += exists && s->used > 0;
        }
}

static void make_space(struct look *k)
{
    size_t at = 0;
    find_logs(k);
    qsort(k->logs, (size_t)k->n, sizeof(*k->logs), by_use);
    for (int i = 0; i < SHOWN && i < k->n && at < sizeof(k->largest); i++)
        at +=
            (size_t)snprintf(k->largest + at, sizeof(k->largest) - at, "%sjob %" PRIu64 " rank-%d.log %" PRId64 " MiB",
                             i ? ", " : "", k->logs[i].job, k->logs[i].slot, k->logs[i].used >> 20);
    log_sizes_choose(k->logs, k->n, k->low_bytes - k->disk_free);
    for (int i = 0; i < k->n; i++) {
        k->cuts[i].to = 0;
        if (k->logs[i].keep)
            find_cut(k, i);
    }
}

/* On a thread of the pool. */
static void look_run(struct pool_task *task)
{
    struct look *k = (struct look *)task;
    struct statvfs st;
    for (int i = 0; i < k->n_limited; i++) {
        int64_t limit = k->logs[i].keep;
        k->logs[i].keep = limit - limit / 4; /* so that the log is not cut again at once */
        if (read_size(k, &k->logs[i]) && k->logs[i].used > limit)
            find_cut(k, i);
    }
    k->n = k->n_limited;
    if (statvfs(k->dir, &st))
        return;
    k->disk_free = (int64_t)(st.f_bavail * st.f_frsize);
    k->disk_size = (int64_t)(st.f_blocks * st.f_frsize);
    if (k->disk_free < k->low_bytes)
        make_space(k);
}

/* ---- on the loop ---- */

static void update_full(struct local *l)
{
    struct log_watch *w = &l->log_watch;
    int64_t now = clock_mono_ms();
    bool was_full = w->is_full, is_first = !w->is_known;
    w->is_known = true;
    if (w->disk_free >= FULL_BYTES)
        w->short_since_ms = 0;
    else if (!w->short_since_ms)
        w->short_since_ms = is_first ? now - FULL_MS : now; /* a new control must not start what the last one did not */
    if (w->short_since_ms && now - w->short_since_ms >= FULL_MS)
        w->is_full = true;
    else if (w->disk_free >= NOT_FULL_BYTES)
        w->is_full = false;
    if (w->is_full == was_full)
        return;
    log_warn("%s, new jobs %s on this node dir=%s free_mib=%" PRId64 " size_mib=%" PRId64 " largest=\"%s\"",
             w->is_full ? "the disk is full" : "the disk has space again", w->is_full ? "do not start" : "start",
             l->dir, w->disk_free >> 20, w->disk_size >> 20, w->largest);
    l->events->facts_changed(l->owner);
}

static void order_cut(struct local *l, const struct log_size *s, const struct log_cut *cut)
{
    struct log_watch *w = &l->log_watch;
    int64_t now = clock_mono_ms();
    bool is_repeated = w->cut_job == s->job && w->cut_slot == s->slot && now - w->cut_ms < REPEAT_MS;
    log_at(is_repeated ? LOG_DEBUG : LOG_WARN,
           "the middle of a worker's log is left out job=%" PRIu64 " slot=%d used_mib=%" PRId64 " left_out=%" PRId64
           " disk_free_mib=%" PRId64,
           s->job, s->slot, s->used >> 20, cut->to - cut->from, w->disk_free >> 20);
    if (!is_repeated)
        w->cut_ms = now;
    w->cut_job = s->job;
    w->cut_slot = s->slot;
    if (supervisor_link_cut(&l->supervisor, s->job, s->slot, s->uid, cut->from, cut->to))
        log_error("the log is not cut: the request was not sent to the supervisor");
}

static void look_free(struct look *k)
{
    free(k->logs);
    free(k->cuts);
    free(k);
}

static void look_done(struct pool_task *task)
{
    struct look *k = (struct look *)task;
    struct local *l = k->local;
    struct log_watch *w = &l->log_watch;
    w->is_busy = false;
    if (k->disk_size) {
        w->disk_free = k->disk_free;
        w->disk_size = k->disk_size;
        memcpy(w->largest, k->largest, sizeof(w->largest));
        update_full(l);
    }
    for (int i = 0; i < k->n; i++)
        if (k->cuts[i].to)
            order_cut(l, &k->logs[i], &k->cuts[i]);
    look_free(k);
}

/* The limit of a process's log in bytes; 0: none. */
static int64_t limit_of(const struct local *l, const struct child *c)
{
    int64_t node = l->conf->disk.log_mib << 20, job = c->log_bytes;
    int64_t limit = job && (!node || job < node) ? job : node;
    return limit && limit < LOG_SIZES_LEAST_BYTES ? LOG_SIZES_LEAST_BYTES : limit;
}

static void add_log(struct look *k, uint64_t job, int slot, int64_t limit)
{
    if (k->n_limited < MAX_LOGS)
        k->logs[k->n_limited++] = (struct log_size){.job = job, .slot = slot, .keep = limit};
}

/* Returns the limit of the log; 0: it is not limited, or is no worker's. */
static int64_t worker_limit(const struct local *l, const struct child *c)
{
    return c->job == CHANNEL_JOB_PROBE || c->slot < 0 ? 0 : limit_of(l, c);
}

static void add_logs(struct local *l, struct look *k)
{
    struct log_watch *w = &l->log_watch;
    for (const struct child *c = l->children.head; c; c = c->next)
        if (child_runs(c) && worker_limit(l, c))
            add_log(k, c->job, c->slot, worker_limit(l, c));
    for (int i = 0; i < w->n_ended; i++)
        add_log(k, w->ended[i].job, w->ended[i].slot, w->ended[i].limit);
}

void log_watch_ended(struct local *l, const struct child *c)
{
    struct log_watch *w = &l->log_watch;
    int64_t limit = worker_limit(l, c);
    if (limit && w->n_ended < CHANNEL_MAX_WORKERS)
        w->ended[w->n_ended++] = (struct log_ended){c->job, c->slot, limit};
}

err_t log_watch_start(struct local *l, uv_loop_t *loop)
{
    const struct pool_config config = {.loop = loop, .threads = 1, .user_threads = 1, .user_waiting = 1};
    err_t err = pool_init(&l->log_watch.pool, &config);
    l->log_watch.is_started = !err;
    return err;
}

void log_watch_tick(struct local *l, uint64_t newest_job)
{
    struct log_watch *w = &l->log_watch;
    int64_t now = clock_mono_ms();
    if (!w->is_started || w->is_busy || now < w->due_ms)
        return;
    w->due_ms = now + LOOK_MS;
    struct look *k = calloc(1, sizeof(*k));
    if (!k)
        return;
    k->logs = calloc(MAX_LOGS, sizeof(*k->logs));
    k->cuts = calloc(MAX_LOGS, sizeof(*k->cuts));
    if (!k->logs || !k->cuts) {
        look_free(k); /* the next tick tries again */
        return;
    }
    k->task = (struct pool_task){.run = look_run, .done = look_done};
    k->local = l;
    k->newest_job = newest_job;
    k->low_bytes = (l->conf->disk.reserve_mib + LOW_MIB) << 20;
    snprintf(k->dir, sizeof(k->dir), "%s", l->dir);
    add_logs(l, k);
    w->is_busy = pool_add(&w->pool, &k->task, 0) == OK;
    if (w->is_busy)
        w->n_ended = 0;
    else
        look_free(k);
}
