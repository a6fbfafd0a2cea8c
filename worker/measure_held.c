/* Steps that are held out: of models of which the table has no times, in the usual layouts. The client forecasts each
 * of them with what was measured (client/planner/judge.c), so that a machine file has the distance of its forecasts
 * from steps of this machine.
 *
 * At most REPLAY_RANKS processes form a job; on a node with more cores several such jobs run at the same time, so that
 * memory is shared as in a job of all cores, and the first one counts. */
#include "worker/measure_part.h"

#include "common/base/clock.h"
#include "common/plan/models/build.h"
#include "worker/replay.h"

#include <stdlib.h>

#define GPT2_A "arch: gpt2, dim: 192, layers: 3, heads: 3, ffn: 768, vocab: 1000"
#define GPT2_B "arch: gpt2, dim: 448, layers: 2, heads: 7, ffn: 1792, vocab: 5000"
#define LLAMA_A "arch: llama, dim: 160, layers: 3, heads: 4, kv_heads: 2, ffn: 432, vocab: 1200"
#define LLAMA_B "arch: llama, dim: 416, layers: 2, heads: 8, kv_heads: 4, ffn: 1120, vocab: 4000"
#define EXPERTS_A "arch: llama, dim: 224, layers: 2, heads: 4, ffn: 384, vocab: 1500, experts: 4, experts_per_token: 2"

/* The first ones differ most, because a machine that is very busy measures only some. */
static const struct measure_model models[] = {
    {GPT2_A, 6, 96, 2, 2, "float32", "tp: 1", 1},
    {LLAMA_A, 6, 96, 2, 2, "float32", "tp: 2", 2},
    {GPT2_B, 4, 128, 2, 1, "float32", "fsdp: 2, zero: 2", 2},
    {GPT2_A, 6, 96, 1, 4, "float32", "pp: 2", 2},
    {EXPERTS_A, 6, 96, 2, 2, "float32", "fsdp: 2, zero: 1, ep: 2", 2},
    {LLAMA_B, 4, 128, 2, 1, "bfloat16", "fsdp: 2, zero: 3", 2},
    {GPT2_A, 6, 96, 2, 2, "float32", "fsdp: 2, zero: 3", 2},
    {GPT2_B, 4, 128, 2, 1, "float32", "tp: 1", 1},
    {GPT2_B, 4, 128, 2, 1, "bfloat16", "tp: 1", 1},
    {LLAMA_A, 6, 96, 2, 2, "float32", "fsdp: 2, zero: 1", 2},
    {LLAMA_A, 6, 96, 1, 4, "float32", "pp: 2, schedule: gpipe", 2},
    {LLAMA_B, 4, 128, 2, 1, "float32", "tp: 2, sp: false", 2},
    {LLAMA_B, 4, 128, 2, 1, "float32", "cp: 2", 2},
    {EXPERTS_A, 6, 96, 2, 2, "float32", "tp: 1", 1},
};
const int measure_held_turns = (int)(sizeof(models) / sizeof(models[0]));

#define CLOCK_STEPS 4 /* recording takes time, so that the clock has steps of its own */
#define HURRIED_STEPS 2

static int by_seconds(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- a process ---- */

/* The first step touches all memory for the first time. */
static err_t time_steps(struct measure *m, struct engine *e, const struct engine_feed *feed, double *ret)
{
    double took[CLOCK_STEPS] = {0};
    const int n = m->hurried ? HURRIED_STEPS : CLOCK_STEPS;
    struct engine_result result = {0};
    err_t err = engine_step(e, feed, &result, m->why);
    for (int i = 0; !err && i < n; i++) {
        const int64_t start = clock_mono_ns();
        err = engine_step(e, feed, &result, m->why);
        took[i] = (double)(clock_mono_ns() - start) * 1e-9;
    }
    qsort(took, (size_t)n, sizeof(took[0]), by_seconds);
    *ret = took[n / 4];
    return err;
}

static err_t take_events(struct measure *m, const struct measure_recording *r, int steps)
{
    if (r->program.n_calls > MEASURE_HELD_CALLS || r->record.lost)
        return why_set(m->why, ERR_LIMIT, "a step has %d operations, and at most %d are recorded", r->program.n_calls,
                       MEASURE_HELD_CALLS);
    for (int i = 0; m->held && i < r->record.n; i++) {
        const struct recorded_event *e = &r->record.events[i];
        m->held->seconds[e->call][e->step] = (float)((double)(e->to - e->from) * 1e-9);
    }
    if (m->held)
        m->held->steps = steps;
    return OK;
}

static err_t run_held(struct measure *m, struct engine *e, const struct engine_feed *feed)
{
    const int steps = m->hurried ? HURRIED_STEPS : models[m->turn].steps;
    struct measure_recording r = {.first_call = NULL};
    struct engine_result result = {0};
    double clock_s = 0;
    err_t err = time_steps(m, e, feed, &clock_s);
    err = err ? err : measure_recording_init(&r, e, steps);
    err = err ? err : engine_profile_start(e, &r.profile, m->why);
    for (int i = 0; !err && i < steps; i++)
        err = engine_step(e, feed, &result, m->why);
    err = err ? err : take_events(m, &r, steps);
    engine_profile_stop(e);
    measure_recording_fini(&r);
    if (m->held)
        m->held->clock_s = clock_s;
    return err;
}

err_t measure_held(struct measure *m)
{
    const struct measure_model *model = &models[m->turn];
    struct job_spec job = {0};
    struct buf yaml = {0};
    if (m->rank >= m->world / model->replica * model->replica)
        return OK; /* an odd number of cores leaves one without work */
    err_t err = measure_job(model, m->world, &yaml, &job, m->why);
    err = err ? err : measure_run_engine(m, &job, run_held);
    job_fini(&job);
    buf_fini(&yaml);
    return err;
}

/* ---- the parent ---- */

static err_t replay_job(const struct job_spec *job, const struct measure_held *held, const struct plan_rates *rates,
                        struct measure_layout *ret, struct why *why)
{
    struct replay r = {0};
    struct graph graph = {0};
    struct replay_times times = {.calls = MEASURE_HELD_CALLS, .stride = MEASURE_HELD_STEPS, .steps = held[0].steps};
    err_t err = graph_build(&job->model, job->train.seq, &graph, why);
    err = err ? err : replay_init(&r, job, &graph, why);
    for (int i = 0; !err && i < r.world; i++) {
        times.at[i] = &held[i].seconds[0][0];
        ret->clock_s = held[i].clock_s > ret->clock_s ? held[i].clock_s : ret->clock_s;
    }
    err = err ? err : replay_reduce(&r, &times, why);
    err = err ? err : replay_step(&r, rates, &ret->replay_s, why);
    replay_fini(&r);
    graph_fini(&graph);
    return err;
}

err_t measure_held_replay(int turn, int world, const struct measure_held *held, const struct plan_rates *rates,
                          struct measure_layout *ret, struct why *why)
{
    struct job_spec job = {0};
    struct measure_layout l = {.clock_s = 0};
    err_t err = measure_job(&models[turn], world, &l.yaml, &job, why);
    err = err ? err : replay_job(&job, held, rates, &l, why);
    err = err ? err : buf_append(&l.yaml, "", 1);
    job_fini(&job);
    if (err)
        buf_fini(&l.yaml);
    else
        *ret = l;
    return err;
}
