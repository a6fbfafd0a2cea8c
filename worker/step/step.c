/* What happens around a program: filling batches, refusing a step that is not a number, turning sums into means.
 *
 * Losses are float64 sums per microbatch; after the program's reduce every rank has all of them and adds them in the
 * order of the microbatches, so that the reported loss has the same bits for every number of workers. A step is looked
 * at before its first update: what is refused has changed nothing. */
#include "worker/step/engine.h"

#include "worker/step/run.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

struct pass {
    struct engine *engine;
    const struct program *program;
    const struct engine_feed *feed;
    int64_t first, end; /* samples of the feed: the batch begins at `first`; at `end` and after it there are none */
    struct why *why;
};

/* A microbatch's samples; beyond the end, tokens that no loss counts. */
static err_t fill_micro(const struct pass *ps, int micro)
{
    const struct program *p = ps->program;
    int32_t *ids = engine_buffer(ps->engine, p, p->ids_buffer);
    int32_t *targets = engine_buffer(ps->engine, p, p->targets_buffer);
    for (int64_t i = 0; i < p->micros[micro].samples; i++, ids += p->seq, targets += p->seq) {
        int64_t at = ps->first + p->micros[micro].first + i;
        if (at < ps->end) {
            err_t err = ps->feed->sample(ps->feed->arg, at, ids, targets);
            if (err)
                return why_set(ps->why, err, "sample %" PRId64 " cannot be read: %s", at, err_text(err));
        } else {
            memset(ids, 0, (size_t)p->seq * sizeof(*ids));
            memset(targets, 0xff, (size_t)p->seq * sizeof(*targets));
        }
    }
    return OK;
}

static double sum_losses(const struct engine *e, const struct program *p)
{
    const double *loss = engine_buffer(e, p, p->loss_buffer);
    double sum = 0.0;
    for (int i = 0; i < p->n_micros; i++)
        sum += loss[i];
    return sum;
}

/* printf would say "-nan", by the accident of a bit. */
static double unsigned_nan(double x)
{
    return isnan(x) ? (double)NAN : x;
}

static err_t refuse_nan(const struct pass *ps)
{
    const struct engine *e = ps->engine;
    double norm = *(const double *)engine_buffer(e, ps->program, ps->program->norm_buffer);
    double loss = sum_losses(e, ps->program) * ps->program->loss_scale;
    if (isfinite(norm) && isfinite(loss))
        return OK;
    return why_set(ps->why, ERR_INVALID,
                   "step %" PRId64
                   " was refused: the loss is %g and the gradient's norm %g. Parameters are those of step "
                   "%" PRId64 ". Resume from an earlier checkpoint with a smaller train.lr or train.clip",
                   e->step + 1, unsigned_nan(loss), unsigned_nan(norm), e->step);
}

static err_t before_action(void *arg, const struct action *a)
{
    const struct pass *ps = arg;
    if (a->kind == ACT_FORWARD)
        return fill_micro(ps, a->micro);
    return a->kind == ACT_UPDATE ? refuse_nan(ps) : OK;
}

static err_t say_canceled(err_t err, struct why *why)
{
    return err == ERR_CANCELED ? why_set(why, err, "the epoch has ended") : err;
}

err_t engine_step(struct engine *e, const struct engine_feed *feed, struct engine_result *ret, struct why *why)
{
    const struct job_train *t = &e->config.job->train;
    struct pass ps = {e, &e->train, feed, e->position, INT64_MAX, why};
    struct run r = {.engine = e,
                    .program = &e->train,
                    .groups = e->train_groups,
                    .lr = job_lr(t, e->step + 1),
                    .update = e->updates + 1};
    assert(e->has_train);
    err_t err = run_program(&r, before_action, &ps);
    if (err)
        return say_canceled(err, why);
    ret->loss = sum_losses(e, &e->train) * e->train.loss_scale;
    ret->grad_norm = *(const double *)engine_buffer(e, &e->train, e->train.norm_buffer);
    ret->lr = r.lr;
    e->position += t->global_batch;
    e->updates++;
    e->step++;
    return OK;
}

err_t engine_eval(struct engine *e, const struct engine_feed *feed, int64_t first, int64_t end, double *ret,
                  struct why *why)
{
    const int64_t batch = e->config.job->train.global_batch;
    struct pass ps = {e, &e->eval, feed, 0, end, why};
    struct run r = {.engine = e, .program = &e->eval, .groups = e->eval_groups};
    double sum = 0.0;
    assert(e->has_eval && end > first);
    for (ps.first = first; ps.first < end; ps.first += batch) {
        err_t err = run_program(&r, before_action, &ps);
        if (err)
            return say_canceled(err, why);
        sum += sum_losses(e, &e->eval);
    }
    *ret = sum / ((double)(end - first) * (double)e->eval.seq);
    return OK;
}

static err_t before_nothing(void *arg, const struct action *a)
{
    (void)arg, (void)a;
    return OK;
}

err_t engine_logits(struct engine *e, const int32_t *ids, int64_t n, const void **ret, struct why *why)
{
    const struct program *p = &e->eval;
    struct run r = {.engine = e, .program = p};
    int32_t *to = engine_buffer(e, p, p->ids_buffer);
    assert(e->config.generate && n >= 1 && n <= p->seq);
    memcpy(to, ids, (size_t)n * sizeof(*ids));
    memset(to + n, 0, (size_t)(p->seq - n) * sizeof(*ids));
    err_t err = run_program(&r, before_nothing, NULL);
    if (err)
        return why_set(why, err, "generation failed: %s", err_text(err));
    const struct graph_tensor *logits = &e->config.graph->tensors[e->config.graph->logits];
    *ret = (const uint8_t *)engine_buffer(e, p, p->logits_buffer) +
           (size_t)((n - 1) * logits->dim[1].factor) * dtype_bytes(p->dtype);
    return OK;
}
