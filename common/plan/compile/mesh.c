/* The mesh of a job. dp is derived: the number of workers divided by the sizes of all other axes. An error names the
 * key, its value, and the nearest legal value. */
#include "common/plan/compile/internal.h"

#include <stdbool.h>
#include <string.h>

#define MAX_WORKERS 4096

static err_t check_sizes(const struct job_parallel *p, struct why *why)
{
    const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"parallel.fsdp", p->fsdp}, {"parallel.tp", p->tp}, {"parallel.pp", p->pp}, {"parallel.cp", p->cp}};
    int64_t unit = 1;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].value < 1 || rows[i].value > MAX_WORKERS)
            return why_set(why, ERR_INVALID, "%s is %lld; it must be 1 to %d; the nearest legal value is %d",
                           rows[i].key, (long long)rows[i].value, MAX_WORKERS, rows[i].value < 1 ? 1 : MAX_WORKERS);
        unit = unit > MAX_WORKERS ? unit : unit * rows[i].value;
    }
    if (p->workers < 1 || p->workers > MAX_WORKERS)
        return why_set(why, ERR_INVALID, "parallel.workers is %lld; it must be 1 to %d; the nearest legal value is %d",
                       (long long)p->workers, MAX_WORKERS, p->workers < 1 ? 1 : MAX_WORKERS);
    if (unit > p->workers || p->workers % unit)
        return why_set(why, ERR_INVALID,
                       "parallel.workers is %lld, not a multiple of fsdp x tp x pp x cp, which is %s%lld; the nearest "
                       "legal value is %lld",
                       (long long)p->workers, unit > MAX_WORKERS ? "at least " : "", (long long)unit,
                       (long long)(unit > p->workers ? unit : p->workers / unit * unit));
    return OK;
}

static err_t check_choices(const struct job_spec *job, struct why *why)
{
    const struct job_parallel *p = &job->parallel;
    if (p->zero < 0 || p->zero > 3)
        return why_set(why, ERR_INVALID, "parallel.zero is %lld; it must be 0 to 3", (long long)p->zero);
    if (p->zero > 0 && p->fsdp < 2)
        return why_set(why, ERR_INVALID,
                       "parallel.zero is %lld, but parallel.fsdp is 1, so there is no rank to shard over; the "
                       "nearest legal value is 0",
                       (long long)p->zero);
    if (p->async_tp && (p->tp < 2 || !p->sp))
        return why_set(
            why, ERR_INVALID,
            "parallel.async_tp is true, but parallel.tp is %lld and parallel.sp %s, so there is no collective "
            "of own tokens to overlap; the nearest legal value is false",
            (long long)p->tp, p->sp ? "true" : "false");
    const struct job_schedule_row *row = job_schedule_row(p->schedule);
    if (p->pp < 2 && p->chunks > 1)
        return why_set(why, ERR_INVALID, "parallel.chunks is %lld, but parallel.pp is 1; the nearest legal value is 1",
                       (long long)p->chunks);
    if (p->pp > 1 && (p->chunks < row->fewest || p->chunks > row->most))
        return why_set(why, ERR_INVALID,
                       "parallel.chunks is %lld, but the schedule %s has %d chunks per rank; the nearest legal value "
                       "is %d",
                       (long long)p->chunks, row->name, row->most, p->chunks < row->fewest ? row->fewest : row->most);
    if (job->train.seq < 2 * p->cp && p->cp > 1)
        return why_set(why, ERR_INVALID,
                       "parallel.cp is %lld, but a sequence of %lld tokens cannot be cut into two pieces for each; the "
                       "nearest legal value is %lld",
                       (long long)p->cp, (long long)job->train.seq,
                       (long long)(job->train.seq < 2 ? 1 : job->train.seq / 2));
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
    const int64_t tokens = t->global_batch * t->seq;
    if (t->global_batch > INT32_MAX / t->seq) /* a token's index in the batch is an i32: program.rows_buffer */
        return why_set(why, ERR_INVALID,
                       "train.global_batch x train.seq is %lld tokens; it must be below 2^31; the nearest legal "
                       "train.global_batch is %lld",
                       (long long)tokens, (long long)INT32_MAX / t->seq);
    if (t->dtype != DT_F32 && t->dtype != DT_F64 && t->dtype != DT_BF16)
        return why_set(why, ERR_INVALID, "train.dtype is %s; this version computes in float32, bfloat16 and float64",
                       dtype_name((enum dtype)t->dtype));
    return OK;
}

/* A schedule from a file is checked here, so that plan_mesh reports its errors before anything is compiled. */
static err_t check_schedule(const struct job_spec *job, const struct mesh *m, struct why *why)
{
    struct schedule s = {0};
    if (m->size[AXIS_PP] == 1)
        return OK;
    err_t e = pipeline_schedule(job, m, MODE_TRAIN, &s, why);
    schedule_fini(&s);
    return e;
}

static err_t check_experts(const struct job_spec *job, const struct mesh *m, struct why *why)
{
    const struct job_parallel *p = &job->parallel;
    int64_t near;
    struct mesh_fold fold;
    if (p->ep == 1)
        return OK;
    if (!job->model.experts)
        return why_set(why, ERR_INVALID,
                       "parallel.ep is %lld, but the model has no experts; the nearest legal value is 1",
                       (long long)p->ep);
    if (!mesh_fold_init(m, p->ep, &fold, &near))
        return why_set(why, ERR_INVALID,
                       "parallel.ep is %lld, but experts are cut over tp, then cp, then fsdp: of the last one over a "
                       "part that divides it, of the others over all; the nearest legal value is %lld",
                       (long long)p->ep, (long long)near);
    if (p->ep > job->model.experts)
        return why_set(why, ERR_INVALID,
                       "parallel.ep is %lld, but the model has only %lld experts; the nearest legal value is %lld",
                       (long long)p->ep, (long long)job->model.experts, (long long)job->model.experts);
    if (fold.axes >> AXIS_FSDP & 1 && job->train.numerics == NUMERICS_CANONICAL)
        return why_set(why, ERR_INVALID,
                       "parallel.ep is %lld, over ranks with other samples, whose sums train.numerics canonical keeps "
                       "apart; the nearest legal value is %lld",
                       (long long)job->parallel.ep, (long long)(job->parallel.tp * job->parallel.cp));
    return OK;
}

struct sharding_choice plan_sharding_choice(const struct job_spec *job, const struct pipeline_order *order)
{
    struct sharding_choice c = {.zero = (int)job->parallel.zero,
                                .chunks = job->parallel.chunks > 1 ? (int)job->parallel.chunks : 1,
                                .placement = order->schedule.placement};
    if (job->parallel.ep > 1)
        (void)mesh_fold_init(&order->mesh, job->parallel.ep, &c.ep, NULL);
    return c;
}

err_t plan_mesh(const struct job_spec *job, struct mesh *ret, struct why *why)
{
    const struct job_parallel *p = &job->parallel;
    err_t e = check_sizes(p, why);
    e = e ? e : check_batch(&job->train, why);
    e = e ? e : check_choices(job, why);
    if (e)
        return e;
    struct mesh m = {{0}};
    m.size[AXIS_PP] = (int)p->pp;
    m.size[AXIS_FSDP] = (int)p->fsdp;
    m.size[AXIS_CP] = (int)p->cp;
    m.size[AXIS_TP] = (int)p->tp;
    m.size[AXIS_DP] = (int)(p->workers / (p->pp * p->fsdp * p->cp * p->tp));
    e = check_schedule(job, &m, why);
    e = e ? e : check_experts(job, &m, why);
    if (!e)
        *ret = m;
    return e;
}
