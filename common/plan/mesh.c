/* Which mesh a job asks for, and what this version can run of it. A refusal names the key, what was found, and the
 * value that is legal. */
#include "common/plan/program.h"

#include <stdbool.h>

#define MAX_WORKERS 4096

/* Keys that later versions give a meaning to; here each has one legal value. */
static err_t check_axes(const struct job_parallel *p, struct why *why)
{
    const struct {
        const char *key;
        int64_t value, legal;
    } rows[] = {
        {"parallel.zero", p->zero, 0}, {"parallel.fsdp", p->fsdp, 1}, {"parallel.tp", p->tp, 1},
        {"parallel.pp", p->pp, 1},     {"parallel.cp", p->cp, 1},     {"parallel.ep", p->ep, 1},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].value != rows[i].legal)
            return why_set(why, ERR_INVALID,
                           "%s is %lld, but this version trains with data parallelism only; set %s to %lld",
                           rows[i].key, (long long)rows[i].value, rows[i].key, (long long)rows[i].legal);
    if (p->recompute != RECOMPUTE_NONE || p->chunks > 1)
        return why_set(why, ERR_INVALID,
                       "parallel.recompute is full, but this version keeps all activations; set it to none");
    if (p->workers < 1 || p->workers > MAX_WORKERS)
        return why_set(why, ERR_INVALID, "parallel.workers is %lld; it must be 1 to %d; the nearest legal value is %d",
                       (long long)p->workers, MAX_WORKERS, p->workers < 1 ? 1 : MAX_WORKERS);
    return OK;
}

static err_t check_batch(const struct job_train *t, struct why *why)
{
    const int64_t max = 1 << 20;
    if (t->global_batch < 1 || t->global_batch > max)
        return why_set(why, ERR_INVALID, "train.global_batch is %lld; it must be 1 to %lld", (long long)t->global_batch,
                       (long long)max);
    if (t->micro_batch < 1 || t->micro_batch > t->global_batch)
        return why_set(
            why, ERR_INVALID,
            "train.micro_batch is %lld; it must be 1 to train.global_batch (%lld); the nearest legal value is %lld",
            (long long)t->micro_batch, (long long)t->global_batch,
            (long long)(t->micro_batch < 1 ? 1 : t->global_batch));
    if (t->seq < 1 || t->seq > 1 << 24)
        return why_set(why, ERR_INVALID, "train.seq is %lld; it must be 1 to %d", (long long)t->seq, 1 << 24);
    if (t->dtype != DT_F32 && t->dtype != DT_F64 && t->dtype != DT_BF16)
        return why_set(why, ERR_INVALID, "train.dtype is %s; this version computes in float32, bfloat16 and float64",
                       dtype_name((enum dtype)t->dtype));
    return OK;
}

err_t plan_mesh(const struct job_spec *job, struct mesh *ret, struct why *why)
{
    err_t e = check_axes(&job->parallel, why);
    if (!e)
        e = check_batch(&job->train, why);
    if (e)
        return e;
    *ret = (struct mesh){{1, (int)job->parallel.workers, 1, 1, 1}};
    return OK;
}
