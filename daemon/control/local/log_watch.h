/* Watches the space of the state directory and the logs of the workers, which are written there. Ten times a second a
 * thread reads the sizes, because a disk may be slow; the supervisor cuts (common/base/log_cut.h), because the files
 * belong to the users of the jobs. A log is cut
 *
 * - when it is longer than its limit (run.log_bytes, disk.log_mib);
 * - while the disk has less than LOW_MIB free above the reserve of the replicated log: then the largest logs are cut to
 *   half, until there is as much, so that jobs of all users can be submitted and canceled.
 *
 * No new job is started on a node whose disk is full all the same (`is_full`). Embedded in struct local; loop thread.
 */
#ifndef DTD_DAEMON_CONTROL_LOCAL_LOG_WATCH_H
#define DTD_DAEMON_CONTROL_LOCAL_LOG_WATCH_H

#include "daemon/control/local/pool.h"
#include "daemon/supervisor/channel.h"

#include <stdbool.h>
#include <stdint.h>

struct child;
struct local;

/* A process that has ended since the last look, after which its log may have grown. */
struct log_ended {
    uint64_t job;
    int slot;
    int64_t limit;
};

struct log_watch {
    struct log_ended ended[CHANNEL_MAX_WORKERS];
    int n_ended;
    struct pool pool; /* one thread */
    bool is_started;  /* else nothing is watched, as in tests without a loop */
    bool is_busy;     /* the thread reads */
    int64_t due_ms;
    int64_t disk_free, disk_size; /* bytes; disk_size 0: not known yet */
    bool is_known;                /* the disk has been looked at */
    int64_t short_since_ms;       /* since when nearly nothing is free; 0: there is something */
    bool is_full;                 /* no new job may start on this node */
    uint64_t cut_job;             /* the last cut that was logged: job, slot, time */
    int cut_slot;
    int64_t cut_ms;
    char largest[200]; /* while the disk is low: "job 2 rank-0.log 70 MiB, ..", else "" */
};

NODISCARD err_t log_watch_start(struct local *l, uv_loop_t *loop);
/* Its log is looked at once more. */
void log_watch_ended(struct local *l, const struct child *c);
/* Call it on every tick of the loop. `newest_job`: the highest number of a job, whose logs may exist. */
void log_watch_tick(struct local *l, uint64_t newest_job);

#endif
