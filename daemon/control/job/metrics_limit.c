/* The loop appends to the old file while the thread thins out what the file had before, so that a line is on the disk
 * before it is acknowledged. When the thread is done, the loop copies the lines that have come since, and renames. */
#include "daemon/control/job/metrics_limit.h"

#include "common/base/log.h"
#include "common/conf/node.h"
#include "daemon/control/job/internal.h"
#include "daemon/control/job/metrics_thin.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_BYTES ((int64_t)256 << 10) /* a user's files are added up when one of them has grown by so much */
#define LEAST_BYTES ((int64_t)64 << 10) /* a smaller file is not thinned out for the sake of others */

struct metrics_thinning {
    struct pool_task task; /* first */
    struct jobs *jobs;
    uint64_t job;
    int64_t size; /* of the file when it began */
    err_t err;
    struct metrics_thinned n;
    char path[PATH_MAX], thinned[PATH_MAX];
};

/* ---- which file ---- */

static bool may_thin(const struct metrics *m, int64_t limit)
{
    return m->size > limit && m->size >= m->thin_at && m->size > LEAST_BYTES;
}

static struct job *above_limit_of_job(struct jobs *jobs)
{
    const int64_t limit = jobs->local->conf->disk.metrics_mib << 20;
    for (struct job *j = jobs->head; j && limit; j = j->next)
        if (may_thin(&j->metrics, limit))
            return j;
    return NULL;
}

/* The user's largest file, if all of them have more than `limit` together. */
static struct job *largest_of(struct jobs *jobs, uint32_t uid, int64_t limit)
{
    struct job *largest = NULL;
    int64_t sum = 0;
    for (struct job *j = jobs->head; j; j = j->next) {
        if (j->uid != uid)
            continue;
        sum += j->metrics.size;
        if (may_thin(&j->metrics, largest ? largest->metrics.size : 0))
            largest = j;
    }
    return sum > limit ? largest : NULL;
}

static struct job *above_limit_of_user(struct jobs *jobs)
{
    const int64_t limit = jobs->local->conf->users.metrics_mib << 20;
    for (struct job *j = jobs->head; j && jobs->local->system; j = j->next) {
        if (j->metrics.size < j->metrics.looked_at + LOOK_BYTES)
            continue;
        struct job *largest = largest_of(jobs, j->uid, limit);
        if (largest)
            return largest; /* the next look begins with `j` again */
        j->metrics.looked_at = j->metrics.size;
    }
    return NULL;
}

/* ---- one file ---- */

static void thinning_run(struct pool_task *task)
{
    struct metrics_thinning *t = (struct metrics_thinning *)task;
    int from = open(t->path, O_RDONLY | O_CLOEXEC);
    int to = from < 0 ? -1 : open(t->thinned, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    t->err = to < 0 ? err_from_errno(errno) : metrics_thin(from, t->size, to, &t->n);
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
}

/* The job may have been forgotten meanwhile, or this node no longer leads. */
static void thinning_done(struct pool_task *task)
{
    struct metrics_thinning *t = (struct metrics_thinning *)task;
    struct job *j = jobs_find(t->jobs, t->job);
    if (!t->err)
        t->err = j ? metrics_replace(&j->metrics, t->thinned, t->size) : ERR_CANCELED;
    if (!t->err)
        log_info("metrics of older steps are thinned out (disk.metrics_mib, users.metrics_mib) job=%" PRIu64
                 " rows=%" PRId64 " kept=%" PRId64 " from_mib=%" PRId64 " to_mib=%" PRId64,
                 t->job, t->n.rows, t->n.kept, t->size >> 20, t->n.bytes >> 20);
    else if (t->err != ERR_CANCELED)
        log_warn("metrics not thinned out path=%s error=%s", t->path, err_text(t->err));
    if (t->err)
        (void)unlink(t->thinned);
    if (t->err && j)
        j->metrics.thin_at = t->size + t->size / 8; /* not every second again */
    t->jobs->thinning = NULL;
    free(t);
}

static void thinning_begin(struct jobs *jobs, const struct job *j)
{
    struct metrics_thinning *t = calloc(1, sizeof(*t));
    if (!t)
        return;
    *t = (struct metrics_thinning){
        .task = {.run = thinning_run, .done = thinning_done}, .jobs = jobs, .job = j->id, .size = j->metrics.size};
    snprintf(t->path, sizeof(t->path), "%s", j->metrics.path);
    if (snprintf(t->thinned, sizeof(t->thinned), "%s.tmp", j->metrics.path) >= (int)sizeof(t->thinned) ||
        pool_add(jobs->parses, &t->task, j->uid)) {
        free(t); /* the next tick tries again */
        return;
    }
    jobs->thinning = t;
}

void metrics_limit_tick(struct jobs *jobs)
{
    if (jobs->thinning || !jobs->parses)
        return;
    struct job *j = above_limit_of_job(jobs);
    j = j ? j : above_limit_of_user(jobs);
    if (j)
        thinning_begin(jobs, j);
}
