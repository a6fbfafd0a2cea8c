/* The work around a program: filling batches, rejecting a step whose loss or norm is not a number, and computing means
 * from sums.
 *
 * Losses are float64 sums per microbatch. After the program's reduction every rank has all of them and adds them in the
 * order of the microbatches, so the reported loss has the same bits for every number of workers. When loss or norm is
 * not a number, the clip factor is NaN too, and an update with that factor changes nothing. Such a step is rejected
 * after it has run; the parameters are those before it. With post-validation a rank may have updated by then, and
 * ahead.c has restored what the update overwrote. */
#include "worker/step/engine.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/step/routing.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

struct pass {
    struct engine *engine;
    const struct program *program;
    const struct program_bindings *bindings;
    const struct engine_feed *feed;
    int64_t first, end; /* samples of the feed: the batch begins at `first`; samples from `end` on do not exist */
    struct why *why;
    int64_t step; /* its number */
};

/* Reads sample `index` of the feed as ids[seq], targets[seq], begins[seq]; beyond the end, tokens that the loss
 * ignores. */
static err_t read_sample(const struct pass *ps, int64_t index, int32_t *ids, int32_t *targets, int32_t *begins)
{
    const size_t n = (size_t)ps->program->seq;
    memset(begins, 0, n * sizeof(*begins));
    if (index < ps->end) {
        err_t err = ps->feed->sample(ps->feed->arg, index, ids, targets);
        if (!err && ps->feed->begins && ps->program->begin_buffer >= 0)
            err = ps->feed->begins(ps->feed->arg, index, begins);
        return err ? why_set(ps->why, err, "sample %" PRId64 " cannot be read: %s", index, err_text(err)) : OK;
    }
    memset(ids, 0, n * sizeof(*ids));
    memset(targets, 0xff, n * sizeof(*targets));
    return OK;
}

/* Counts the targets of samples [first, end) of the feed that count in the loss. */
static err_t count_targets(const struct pass *ps, int64_t first, int64_t end, int64_t *ret)
{
    int64_t sum = 0, one = ps->program->seq;
    const int64_t start = clock_mono_ns();
    for (int64_t i = first; i < end; i++) {
        err_t err = ps->feed->count ? ps->feed->count(ps->feed->arg, i, &one) : OK;
        if (err)
            return why_set(ps->why, err, "sample %" PRId64 " cannot be read: %s", i, err_text(err));
        sum += one;
    }
    ps->engine->spent.data_ns += clock_mono_ns() - start;
    *ret = sum;
    return OK;
}

/* All ranks compute the same scale without a message, so it has the same bits in every layout. */
static err_t scale_losses(const struct pass *ps, struct run *r, int64_t *ret_targets)
{
    const int64_t begin = profile_data_begin(ps->engine);
    err_t err = count_targets(ps, ps->first, ps->first + ps->engine->config.job->train.global_batch, ret_targets);
    profile_data_end(ps->engine, ps->step, begin);
    if (!err)
        r->loss_scale = *ret_targets > 0 ? 1.0 / (double)*ret_targets : 0;
    return err;
}

/* Writes `n` tokens of the sample, from token `from` on, to `to`: the value that the part holds for each. */
static void put_tokens(enum batch_part part, const struct pass *ps, int64_t sample, int64_t from, int64_t n,
                       int32_t *to)
{
    const int64_t seq = ps->program->seq;
    const int32_t *whole = ps->engine->host.sample + (part == BATCH_TARGETS ? seq : part == BATCH_BEGIN ? 2 * seq : 0);
    if (part != BATCH_ROWS) {
        memcpy(to, whole + from, (size_t)n * sizeof(*to));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = (int32_t)(sample * seq + from + i);
}

/* Writes sample i of microbatch m: this rank's segments of the sequence, [segment][sample][token]. */
static void place_sample(const struct pass *ps, const struct micro *m, int64_t i, const struct host_batch *b)
{
    const struct program *p = ps->program;
    for (int s = 0; s < p->n_segments; s++) {
        const struct segment *g = &p->segments[s];
        int64_t at = g->before * m->samples + i * g->len;
        for (enum batch_part part = 0; part < BATCH_PARTS; part++)
            if (b->part[part])
                put_tokens(part, ps, m->first + i, g->pos0, g->len, b->part[part] + at);
    }
}

static err_t fill_micro(const struct pass *ps, const struct action *a)
{
    struct engine *e = ps->engine;
    const struct program *p = ps->program;
    const struct micro *m = &p->micros[a->micro];
    struct host_batch b;
    err_t err = host_batch(e, p, ps->bindings, a, &b, ps->why);
    const int64_t start = clock_mono_ns();
    for (int64_t i = 0; !err && ps->bindings->reads[a->chunk] && i < m->samples; i++) {
        err = read_sample(ps, ps->first + m->first + i, e->host.sample, e->host.sample + p->seq,
                          e->host.sample + 2 * p->seq);
        if (!err)
            place_sample(ps, m, i, &b);
    }
    e->spent.data_ns += clock_mono_ns() - start;
    return err ? err : host_batch_written(e, p, a, &b, m->samples * p->own_seq);
}

static double sum_losses(const struct engine *e, const struct program *p)
{
    const double *loss = engine_host_buffer(e, p, p->loss_buffer);
    double sum = 0.0;
    for (int i = 0; i < p->n_micros; i++)
        sum += loss[i];
    return sum;
}

/* The auxiliary loss of the whole batch, by the numbers of this step. */
static double aux_of_batch(const struct graph_router *r, const double *totals, double tokens)
{
    double choices = 0, product = 0;
    for (int64_t e = 0; e < r->experts; e++) {
        choices += totals[e];
        product += totals[e] * totals[r->experts + e];
    }
    return choices > 0 ? r->aux * (double)r->experts / choices * product / tokens : 0;
}

/* Adds the numbers of one router, for a batch of `tokens` tokens. */
static void add_router(const struct graph_router *r, const double *totals, double tokens, struct engine_routers *ret)
{
    double sum = 0, most = 0;
    for (int64_t e = 0; e < r->experts; e++) {
        sum += totals[e];
        most = totals[e] > most ? totals[e] : most;
    }
    double load = sum > 0 ? most * (double)r->experts / sum : 0;
    double even = r->experts > 1 ? log((double)r->experts) : 1;
    ret->load = load > ret->load ? load : ret->load;
    ret->entropy += totals[2 * r->experts] / tokens / even;
    ret->aux += r->scope == AUX_BATCH ? aux_of_batch(r, totals, tokens) : 0;
    ret->z += r->z * totals[2 * r->experts + 1] / tokens;
    ret->n++;
}

static void sum_routers(const struct engine *e, struct engine_routers *ret)
{
    const struct program *p = &e->train;
    const struct graph *g = e->config.graph;
    if (p->number_buffer[NUMBER_TOTALS] < 0)
        return;
    const double *totals = engine_host_buffer(e, p, p->number_buffer[NUMBER_TOTALS]);
    const double *closeness = engine_host_buffer(e, p, p->number_buffer[NUMBER_CLOSENESS]);
    const double *aux =
        p->number_buffer[NUMBER_AUX] >= 0 ? engine_host_buffer(e, p, p->number_buffer[NUMBER_AUX]) : NULL;
    const double *dropped =
        p->number_buffer[NUMBER_DROPPED] >= 0 ? engine_host_buffer(e, p, p->number_buffer[NUMBER_DROPPED]) : NULL;
    const double *rounds =
        p->number_buffer[NUMBER_ROUNDS] >= 0 ? engine_host_buffer(e, p, p->number_buffer[NUMBER_ROUNDS]) : NULL;
    double closest = 0;
    ret->rounds = rounds ? 0 : -1;
    for (int i = 0; i < g->n_nodes; i++) {
        const struct graph_router *r = &g->nodes[i].router;
        if (g->nodes[i].op != GO_ROUTE)
            continue;
        add_router(r, totals, 1 / p->loss_scale, ret);
        totals += 2 * r->experts + 2;
        closest = closeness[r->index] > closest ? closeness[r->index] : closest;
        ret->aux += aux ? aux[r->index] : 0;
        ret->dropped += dropped ? llround(dropped[r->index]) : 0;
        ret->rounds = rounds && llround(rounds[r->index]) > ret->rounds ? llround(rounds[r->index]) : ret->rounds;
    }
    ret->entropy /= ret->n > 0 ? ret->n : 1;
    ret->gap = 1 / closest;
}

/* Avoids "-nan", which printf prints when the sign bit happens to be set. */
static double unsigned_nan(double x)
{
    return isnan(x) ? (double)NAN : x;
}

static double scalar(const struct engine *e, const struct program *p, int buffer)
{
    return *(const double *)engine_host_buffer(e, p, buffer);
}

static bool is_number(const struct engine *e)
{
    return isfinite(scalar(e, &e->train, e->train.clip_buffer));
}

static err_t reject_step(const struct engine *e, const struct engine_result *r, struct why *why)
{
    char skips[64] = "";
    if (e->skipped_in_row)
        snprintf(skips, sizeof(skips), ", after %" PRId64 " skipped steps in a row (train.nan_limit)",
                 e->skipped_in_row);
    return why_set(why, ERR_INVALID,
                   "step %" PRId64
                   " was rejected: the loss is %g and the gradient's norm %g%s. Parameters are those of step "
                   "%" PRId64 ". Resume from an earlier checkpoint with a smaller train.lr or train.clip",
                   e->step + 1, unsigned_nan(r->loss), unsigned_nan(r->grad_norm), skips, e->step);
}

/* The program has changed nothing. Decides whether the job continues without this batch. */
static err_t skip_or_reject_step(struct engine *e, struct engine_result *r, struct why *why)
{
    const struct job_train *t = &e->config.job->train;
    if (t->nan == NAN_STOP || e->skipped_in_row >= t->nan_limit)
        return reject_step(e, r, why);
    r->skipped = true;
    e->skipped++;
    e->skipped_in_row++;
    if (e->config.rank == 0)
        log_warn("step_skipped step=%" PRId64 " loss=%g norm=%g in_a_row=%" PRId64 " in_all=%" PRId64, e->step + 1,
                 unsigned_nan(r->loss), unsigned_nan(r->grad_norm), e->skipped_in_row, e->skipped);
    return OK;
}

static err_t before_action(void *arg, const struct action *a)
{
    const struct pass *ps = arg;
    if (a->kind != ACT_FORWARD || a->micro < 0)
        return OK; /* -1: the action only takes part in collectives */
    const int64_t begin = profile_data_begin(ps->engine);
    err_t err = fill_micro(ps, a);
    if (ps->program == &ps->engine->train)
        profile_data_end(ps->engine, ps->step, begin);
    return err;
}

/* Consumes the owner's promise that the next call is a step. */
static err_t run_step(struct run *r, struct pass *ps, struct why *why)
{
    struct engine *e = r->engine;
    struct run next = *r;
    struct pass next_pass = *ps;
    const struct run_host host = {before_action, ps}, next_host = {before_action, &next_pass};
    const bool goes_on = e->next_is_step;
    e->next_is_step = false;
    if (!e->train.validate)
        return run_program(r, &host, why);
    next.step++;
    next_pass.step++;
    next_pass.first += e->config.job->train.global_batch;
    int64_t targets = 0;
    err_t err = goes_on ? scale_losses(&next_pass, &next, &targets) : OK;
    return err ? err : ahead_step(r, goes_on ? &next : NULL, &host, &next_host, why);
}

err_t engine_step(struct engine *e, const struct engine_feed *feed, struct engine_result *ret, struct why *why)
{
    const struct job_train *t = &e->config.job->train;
    struct pass ps = {e, &e->train, &e->train_bindings, feed, e->position, INT64_MAX, why, e->step + 1};
    struct run r = {.engine = e,
                    .program = &e->train,
                    .bindings = &e->train_bindings,
                    .lr = job_lr(t, e->step + 1),
                    .step = e->step + 1,
                    .update = e->updates + 1,
                    .axis_bytes = ret->axis_bytes};
    assert(e->has_train);
    *ret = (struct engine_result){0};
    err_t err = routing_begin(e, why);
    e->moments_untouched = false;
    err = err ? err : scale_losses(&ps, &r, &ret->targets);
    err = err ? err : run_step(&r, &ps, why);
    if (err)
        return err;
    ret->loss = sum_losses(e, &e->train) * r.loss_scale;
    ret->grad_norm = scalar(e, &e->train, e->train.norm_buffer);
    ret->lr = r.lr;
    sum_routers(e, &ret->routers);
    if (!is_number(e))
        err = skip_or_reject_step(e, ret, why);
    err = err ? err : routing_end(e, why);
    if (err)
        return err;
    e->position += t->global_batch;
    e->step++;
    if (!ret->skipped) {
        e->updates++;
        e->skipped_in_row = 0;
    }
    const int64_t start = clock_mono_ns();
    if (t->verify_every && e->step % t->verify_every == 0)
        err = engine_verify(e, why); /* waits for the other ranks */
    e->spent.comm_ns += clock_mono_ns() - start;
    return err;
}

err_t engine_eval(struct engine *e, const struct engine_feed *feed, int64_t first, int64_t end, double *ret,
                  struct why *why)
{
    const int64_t batch = e->config.job->train.global_batch;
    struct pass ps = {e, &e->eval, &e->eval_bindings, feed, 0, end, why, e->step};
    struct run r = {.engine = e, .program = &e->eval, .bindings = &e->eval_bindings, .step = e->step + 1};
    const struct run_host host = {before_action, &ps};
    double sum = 0.0;
    int64_t targets = 0;
    assert(e->has_eval && end > first);
    err_t err = ahead_discard(e);
    if (err)
        return why_set(why, err, "the messages of a discarded step cannot be completed: %s", err_text(err));
    err = count_targets(&ps, first, end, &targets);
    if (err)
        return err;
    for (ps.first = first; ps.first < end; ps.first += batch) {
        err = run_program(&r, &host, why);
        if (err)
            return err;
        sum += sum_losses(e, &e->eval);
    }
    *ret = sum / (double)targets;
    return OK;
}

/* ---- generation ---- */

struct prompt {
    struct engine *engine;
    const int32_t *ids;
    int64_t n;
    struct why *why;
};

/* Fills one sample in the layout of a batch: this rank's segments, and for each token the parts that its chunks read.
 */
static err_t fill_prompt(void *arg, const struct action *a)
{
    const struct prompt *pr = arg;
    struct engine *e = pr->engine;
    const struct program *p = &e->eval;
    const struct pass ps = {.engine = e, .program = p, .bindings = &e->eval_bindings, .why = pr->why};
    struct host_batch b;
    if (a->kind != ACT_FORWARD || a->micro < 0)
        return OK;
    err_t err = host_batch(e, p, &e->eval_bindings, a, &b, pr->why);
    if (err || !e->eval_bindings.reads[a->chunk])
        return err;
    memcpy(e->host.sample, pr->ids, (size_t)pr->n * sizeof(*pr->ids));
    memset(e->host.sample + pr->n, 0, (size_t)(3 * p->seq - pr->n) * sizeof(*pr->ids));
    place_sample(&ps, &(struct micro){.first = 0, .samples = 1}, 0, &b);
    return host_batch_written(e, p, a, &b, p->own_seq);
}

/* Rows of the logits, where the host can read them; NULL on a rank that has no logits. */
static err_t find_rows(struct engine *e, int64_t first, int64_t n, const void **ret, struct why *why)
{
    const struct program *p = &e->eval;
    *ret = NULL;
    if (p->logits_buffer < 0)
        return OK;
    const struct buffer *logits = &p->buffers[p->logits_buffer];
    const size_t each = (size_t)buffer_row(logits) * dtype_bytes(p->dtype), bytes = (size_t)n * each;
    const uint8_t *row = engine_buffer(e, p, p->logits_buffer);
    row += (size_t)first * each;
    *ret = e->host.row ? e->host.row : row;
    if (!e->host.row)
        return OK;
    err_t err = dev_copy(e->stream[STREAM_COMPUTE], e->host.row, row, bytes);
    return err ? err : dev_stream_sync(e->stream[STREAM_COMPUTE], why);
}

err_t engine_logits(struct engine *e, const int32_t *ids, int64_t n, const void **ret, struct why *why)
{
    struct prompt prompt = {e, ids, n, why};
    struct run r = {.engine = e, .program = &e->eval, .bindings = &e->eval_bindings};
    const struct run_host host = {fill_prompt, &prompt};
    assert(e->config.generate && n >= 1 && n <= e->eval.seq);
    err_t err = run_program(&r, &host, why);
    err = err ? err : find_rows(e, n - 1, 1, ret, why);
    return err ? why_prefix(why, err, "generation failed") : OK;
}

/* ---- generation with a cache ---- */

struct token_runs {
    struct engine *engine;
    const struct engine_run *runs;
    int n;
    int64_t tokens;
    struct why *why;
};

static void fill_run(const struct engine_run *run, const struct host_batch *b, int64_t at)
{
    if (b->part[BATCH_IDS])
        memcpy(b->part[BATCH_IDS] + at, run->ids, (size_t)run->n * sizeof(*run->ids));
    for (int64_t i = 0; b->part[BATCH_ROWS] && i < run->n; i++)
        b->part[BATCH_ROWS][at + i] = (int32_t)(run->first + i);
}

static err_t fill_runs(void *arg, const struct action *a)
{
    const struct token_runs *t = arg;
    struct engine *e = t->engine;
    struct host_batch b;
    int64_t at = 0;
    if (a->kind != ACT_FORWARD || a->micro < 0)
        return OK;
    err_t err = host_batch(e, &e->eval, &e->eval_bindings, a, &b, t->why);
    if (err || !e->eval_bindings.reads[a->chunk])
        return err;
    for (int i = 0; i < t->n; at += t->runs[i++].n)
        fill_run(&t->runs[i], &b, at);
    return host_batch_written(e, &e->eval, a, &b, t->tokens);
}

err_t engine_decode(struct engine *e, const struct engine_run *runs, int n, const void **ret, int64_t *ret_stride,
                    struct why *why)
{
    const struct program *p = &e->eval;
    struct token_runs t = {e, runs, n, 0, why};
    const struct run_host host = {fill_runs, &t};
    assert(e->config.decode && n >= 1 && n <= p->sequences);
    for (int i = 0; i < n; i++) {
        assert(runs[i].n >= 1 && runs[i].sequence < p->sequences && runs[i].first + runs[i].n <= p->seq);
        t.tokens += runs[i].n;
    }
    assert(t.tokens <= p->max_samples);
    struct run r = {
        .engine = e, .program = p, .bindings = &e->eval_bindings, .runs = runs, .n_runs = n, .tokens = t.tokens};
    err_t err = run_program(&r, &host, why);
    err = err ? err : find_rows(e, 0, n, ret, why);
    if (err)
        return why_prefix(why, err, "generation failed");
    *ret_stride = *ret ? buffer_row(&p->buffers[p->logits_buffer]) : 0;
    return OK;
}
