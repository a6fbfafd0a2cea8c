/* The job's checkpoints: the folders that dtd-io found, and the catalog of them in the log. The folder is
 * authoritative, the catalog is its index. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdlib.h>

void job_scan_forget(struct job *j)
{
    for (int i = 0; i < j->n_folders; i++)
        free((char *)j->folders[i].c.path);
    free(j->folders);
    j->folders = NULL;
    j->n_folders = 0;
}

static bool in_catalog(const struct state_job *s, int64_t step)
{
    for (int i = 0; s && i < s->n_checkpoints; i++)
        if (s->checkpoints[i].step == step)
            return true;
    return false;
}

static bool in_folders(const struct job *j, int64_t step)
{
    for (int i = 0; i < j->n_folders; i++)
        if (j->folders[i].c.step == step)
            return true;
    return false;
}

/* A folder without a record belongs to this job if it was committed after the job was submitted. Before its first epoch
 * the job has written nothing, and at that epoch dtd-io moves away folders of other jobs at later steps. */
static void adopt_folders(struct job *j, const struct state_job *s)
{
    for (int i = 0; i < j->n_folders; i++) {
        struct job_folder *f = &j->folders[i];
        bool known = in_catalog(s, f->c.step);
        f->own = known || (j->epoch > 0 && f->c.committed_ms >= j->submitted_ms);
        if (known || !f->own)
            continue;
        log_info("checkpoint adopted job=%" PRIu64 " step=%" PRId64 " path=%s", j->id, f->c.step, f->c.path);
        const struct record r = {
            .kind = RECORD_CHECKPOINT, .wall_ms = clock_wall_ms(), .job = j->id, .checkpoint = f->c};
        if (outbox_add(&j->jobs->outbox, &r, NULL))
            log_error("checkpoint not logged job=%" PRIu64 " step=%" PRId64, j->id, f->c.step);
    }
}

static void drop_records(struct job *j, const struct state_job *s)
{
    for (int i = 0; s && i < s->n_checkpoints; i++) {
        int64_t step = s->checkpoints[i].step;
        if (in_folders(j, step))
            continue;
        log_warn("checkpoint folder is missing, its record is removed job=%" PRIu64 " step=%" PRId64, j->id, step);
        const struct record r = {
            .kind = RECORD_CHECKPOINT_REMOVED, .wall_ms = clock_wall_ms(), .job = j->id, .removed = {.step = step}};
        if (outbox_add(&j->jobs->outbox, &r, NULL))
            log_error("removal not logged job=%" PRIu64 " step=%" PRId64, j->id, step);
    }
}

void job_catalog_scanned(struct job *j)
{
    const struct state_job *s = state_job_find(j->jobs->replica->state, j->id);
    adopt_folders(j, s);
    drop_records(j, s);
}

int64_t job_io_step(const struct job *j)
{
    int64_t step = j->resume_step;
    for (int i = 0; i < j->n_folders; i++)
        if (j->folders[i].own && j->folders[i].c.epoch == j->epoch && j->folders[i].c.step > step)
            step = j->folders[i].c.step;
    return step;
}
