/* See device.h. */
#include "worker/device.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/plan/estimate/memory.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {[DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"};

/* "" : there is none. Numbers of canonical numerics depend on no time, nor on a file that others write. */
static const char *algorithms_path(const struct job_spec *job, char ret[PATH_MAX])
{
    const char *path = job->run.algorithms;
    if (job->train.numerics != NUMERICS_FAST || strcmp(path, JOB_NO_ALGORITHMS) == 0)
        return "";
    if (path[0] || !job->data.cache[0])
        return path;
    int n = snprintf(ret, PATH_MAX, "%s/algorithms", job->data.cache);
    return n < PATH_MAX ? ret : "";
}

/* Without the file the job goes on with what the library proposes, which is the same at each start. */
static void choose_algorithms(const struct worker_device *d, const struct job_spec *job)
{
    char room[PATH_MAX];
    struct why why = {""};
    const char *path = algorithms_path(job, room);
    if (d->kind == DEVICE_CPU)
        return;
    err_t err = path == room ? file_make_dirs(path, 0755) : OK;
    if (err)
        why_set(&why, err, "%s cannot be made: %s", path, err_text(err));
    if (dev_algorithms(d->dev, path[0] && !err ? path : NULL, &why) || err)
        log_warn("algorithms none are kept and products are not timed why=\"%s\"", why.text);
}

err_t worker_device_need(struct worker_device *d, const struct job_spec *job, struct why *why)
{
    struct dev_facts facts;
    if (d->dev && d->kind == job->run.device) {
        choose_algorithms(d, job);
        return OK;
    }
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
    choose_algorithms(d, job);
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
        return OK; /* the node's memory was checked when the job was submitted */
    err_t err = dev_facts(d->dev, &facts, why);
    return err ? err : plan_fits_device(e->config.job, &e->train, facts.memory_bytes, why);
}

/* NCCL refuses two ranks on one GPU, and a single rank does not need it. */
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
