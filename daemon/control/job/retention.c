/* Retention: the newest keep_last checkpoints and the keep_best with the lowest loss are kept; dtd-io removes the
 * rest. The newest is always kept, so the last complete one is never removed. A step leaves the catalog when dtd-io
 * reports that its folder is removed, so a repeated request is harmless and a lost one is repeated. */
#include "daemon/control/job/internal.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>

/* How many checkpoints have a lower loss than `c`; of equal ones the newer counts as better. */
static int better_than(const struct state_job *s, const struct state_checkpoint *c)
{
    int n = 0;
    for (int i = 0; i < s->n_checkpoints; i++) {
        const struct state_checkpoint *o = &s->checkpoints[i];
        if (!isnan(o->loss) && (isnan(c->loss) || o->loss < c->loss || (o->loss == c->loss && o->step > c->step)))
            n++;
    }
    return n;
}

static bool kept(const struct job *j, const struct state_job *s, int i)
{
    const struct job_checkpoint *rule = &j->spec.checkpoint;
    int newer = s->n_checkpoints - 1 - i;
    bool last = newer == 0 || newer < rule->keep_last;
    bool best = !isnan(s->checkpoints[i].loss) && better_than(s, &s->checkpoints[i]) < rule->keep_best;
    return last || best || s->checkpoints[i].step == j->resume_step;
}

void job_retention(struct job *j)
{
    const struct state_job *s = state_job_find(j->jobs->replica->state, j->id);
    const struct job_io *io = job_committer(j);
    if (!s || !io || !io->p.attend || io->epoch != j->epoch || !j->epoch)
        return;
    j->retention_due = false;
    for (int i = 0; i < s->n_checkpoints; i++) {
        if (kept(j, s, i))
            continue;
        log_info("checkpoint to be removed job=%" PRIu64 " step=%" PRId64, j->id, s->checkpoints[i].step);
        if (j->jobs->out->io_remove(io->p.attend, s->checkpoints[i].step)) {
            j->retention_due = true;
            return;
        }
    }
}
