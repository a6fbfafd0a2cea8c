/* See device.h. */
#include "worker/device.h"

#include "common/base/log.h"

static const char *const kinds[] = {[DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"};

err_t worker_device_need(struct worker_device *d, const struct job_spec *job, struct why *why)
{
    struct dev_facts facts;
    if (d->dev && d->kind == job->run.device)
        return OK;
    worker_device_close(d);
    d->kind = job->run.device;
    err_t err = dev_open(kinds[d->kind], d->kind == DEVICE_CPU ? 0 : d->index, &d->dev, why);
    if (err)
        return err;
    err = dev_facts(d->dev, &facts, why);
    if (err) {
        worker_device_close(d);
        return err;
    }
    log_info("device kind=%s index=%d model=\"%s\" uuid=%s memory=%lld", kinds[d->kind], d->dev->index, facts.model,
             facts.uuid[0] ? facts.uuid : "-", (long long)facts.memory_bytes);
    return OK;
}

void worker_device_close(struct worker_device *d)
{
    dev_close(d->dev);
    d->dev = NULL;
}

bool worker_device_lost(const struct worker_device *d)
{
    struct dev_facts facts;
    struct why why = {""};
    if (!d->dev || dev_facts(d->dev, &facts, &why) == OK)
        return false;
    log_error("device_lost kind=%s index=%d why=\"%s\"", kinds[d->kind], d->dev->index, why.text);
    return true;
}

err_t worker_device_fits(const struct worker_device *d, const struct engine *e, struct why *why)
{
    struct dev_facts facts;
    if (d->dev->ops->host_memory)
        return OK; /* the node's memory was looked at when the job was submitted */
    err_t err = dev_facts(d->dev, &facts, why);
    return err ? err : plan_fits_device(e->config.job, &e->train, facts.memory_bytes, why);
}

/* NCCL refuses two ranks on one GPU, and one rank alone needs nothing of it. */
const char *worker_device_comm(const struct job_spec *job)
{
    static const char *const names[] = {[COMM_SHM] = "shm",
                                        [COMM_NCCL] = "nccl",
                                        [COMM_STAGED] = "staged",
                                        [COMM_STREAM] = "stream",
                                        [COMM_UCX] = "ucx"};
    if (job->run.comm != COMM_AUTO)
        return names[job->run.comm];
    if (job->run.device == DEVICE_CPU)
        return names[COMM_STREAM];
    return job->parallel.workers > 1 && job->run.workers_per_gpu == 1 ? names[COMM_NCCL] : names[COMM_STAGED];
}
