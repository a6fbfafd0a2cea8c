/* Room for a job on this node: slots and cores for its workers, GPUs for those that compute on them. A job has all of
 * it or nothing, and what it waits for stands in its reason. */
#include "daemon/control/job.h"

#include "common/base/log.h"
#include "daemon/control/node.h"

#include <inttypes.h>
#include <stdio.h>

int job_gpus(const struct job_spec *spec)
{
    bool cuda = spec->run.device == DEVICE_CUDA;
    return cuda ? gpus_needed((int)spec->parallel.workers, (int)spec->run.workers_per_gpu) : 0;
}

bool job_take_gpus(struct job *j)
{
    int device[CHANNEL_MAX_SLOTS];
    struct gpus *g = &j->node->gpus;
    if (!job_gpus(&j->spec))
        return true;
    for (int k = 0; k < j->n_workers; k++)
        device[k] = j->workers[k].device;
    if (!g->known || !gpus_take(g, j->id, j->n_workers, (int)j->spec.run.workers_per_gpu, device))
        return false;
    for (int k = 0; k < j->n_workers; k++)
        j->workers[k].device = device[k];
    return true;
}

void job_place(struct job *j)
{
    struct slots *s = &j->node->slots;
    j->placed = true;
    if (j->n_workers > s->n_cores)
        log_warn("more workers than cores, they are not bound job=%" PRIu64 " workers=%d cores=%d", j->id, j->n_workers,
                 s->n_cores);
    for (int k = 0; k < j->n_workers; k++)
        slots_bind(s, j->n_workers, (int)j->spec.run.threads, j->workers[k].cpus);
}

void job_unplace(struct job *j)
{
    if (!j->placed)
        return;
    j->placed = false;
    slots_give(&j->node->slots, j->n_workers);
    gpus_give(&j->node->gpus, j->id);
    for (int k = 0; k < j->n_workers; k++) {
        slots_unbind(&j->node->slots, j->workers[k].cpus);
        j->workers[k].device = -1;
    }
}

bool job_take_room(struct job *j)
{
    struct slots *s = &j->node->slots;
    const struct gpus *g = &j->node->gpus;
    int gpus = job_gpus(&j->spec);
    if (gpus && !g->known) {
        snprintf(j->reason, sizeof(j->reason), "waits until it is known which GPUs this node has");
        return false;
    }
    if (gpus > gpus_count(g)) {
        job_stop(j, END_FAILED, false, "needs %d GPUs, this node has %d%s%s; see `dtctl node`", gpus, gpus_count(g),
                 gpus_count(g) ? "" : ": ", g->missing);
        return false;
    }
    if (j->node->stopping || !slots_take(s, j->n_workers)) {
        snprintf(j->reason, sizeof(j->reason),
                 "waits for %d of this node's %d slots (%d are in use); see `dtctl status`", j->n_workers, s->limit,
                 s->used);
        return false;
    }
    if (!job_take_gpus(j)) {
        slots_give(s, j->n_workers);
        snprintf(j->reason, sizeof(j->reason),
                 "waits for %d of this node's %d GPUs (%d are in use); see `dtctl status`", gpus, gpus_count(g),
                 gpus_count(g) - gpus_free(g));
        return false;
    }
    return true;
}
