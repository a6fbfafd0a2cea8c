/* Operations as steps run them: a few steps of small models in several layouts, by the engine and over a comm, with
 * every operation recorded. So each finds its operands where the operation before it has left them, in a cache or not,
 * and is disturbed by the other ranks as in a job. The models cover three widths, so that a size of another model lies
 * between measured ones.
 *
 * Times are processor time, which programs on the same cores disturb little. Ranks that wait for each other spin, so
 * that it includes the waits of a collective whose ranks all run. */
#include "worker/measure_part.h"

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/plan/models/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_STEPS 1 /* touches all memory for the first time */

/* Steps of small models are many, because other programs disturb some of them. */
static const struct measure_model turns[] = {
#define GPT2_S "arch: gpt2, dim: 96, layers: 2, heads: 2, ffn: 384, vocab: 512"
#define GPT2_M "arch: gpt2, dim: 320, layers: 2, heads: 5, ffn: 1280, vocab: 3000"
#define GPT2_L "arch: gpt2, dim: 640, layers: 2, heads: 10, ffn: 2560, vocab: 10000"
#define LLAMA_S "arch: llama, dim: 64, layers: 2, heads: 2, ffn: 160, vocab: 300"
#define LLAMA_M "arch: llama, dim: 288, layers: 2, heads: 6, kv_heads: 2, ffn: 800, vocab: 2500"
#define LLAMA_L "arch: llama, dim: 704, layers: 2, heads: 11, ffn: 1900, vocab: 7000"
#define EXPERTS_S "arch: llama, dim: 96, layers: 2, heads: 2, ffn: 256, vocab: 600, experts: 4, experts_per_token: 2"
#define EXPERTS_M "arch: llama, dim: 352, layers: 2, heads: 4, ffn: 600, vocab: 3000, experts: 8, experts_per_token: 2"
    {GPT2_S, 20, 64, 1, 2, "float32", "tp: 1", 1},
    {GPT2_M, 6, 128, 2, 2, "float32", "tp: 1", 1},
    {GPT2_L, 3, 256, 2, 1, "float32", "tp: 1", 1},
    {GPT2_S, 20, 64, 1, 2, "float32", "tp: 2", 2},
    {GPT2_M, 6, 128, 2, 2, "float32", "fsdp: 2, zero: 1", 2},
    {GPT2_L, 3, 256, 1, 1, "float32", "fsdp: 2, zero: 2", 2},
    {LLAMA_S, 20, 64, 2, 2, "float32", "fsdp: 2, zero: 3", 2},
    {LLAMA_M, 6, 128, 2, 2, "float32", "fsdp: 2, zero: 3", 2},
    {LLAMA_L, 3, 256, 2, 1, "float32", "fsdp: 2, zero: 3", 2},
    {LLAMA_S, 20, 64, 2, 2, "float32", "tp: 2, sp: false", 2},
    {LLAMA_S, 20, 64, 2, 2, "float32", "tp: 2", 2},
    {LLAMA_M, 6, 256, 1, 2, "float32", "tp: 2", 2},
    {LLAMA_M, 6, 256, 1, 2, "float32", "tp: 2, sp: false", 2},
    {LLAMA_S, 20, 128, 1, 2, "float32", "cp: 2", 2},
    {LLAMA_M, 6, 512, 1, 1, "float32", "cp: 2", 2},
    {EXPERTS_S, 20, 64, 2, 2, "float32", "tp: 1", 1},
    {EXPERTS_M, 6, 128, 2, 2, "float32", "tp: 1", 1},
    {EXPERTS_S, 20, 64, 2, 2, "float32", "fsdp: 2, zero: 1, ep: 2", 2},
    {EXPERTS_M, 6, 128, 2, 2, "float32", "fsdp: 2, zero: 1, ep: 2", 2},
    {GPT2_S, 20, 64, 1, 2, "bfloat16", "tp: 1", 1},
    {GPT2_M, 6, 128, 2, 2, "bfloat16", "fsdp: 2, zero: 1", 2},
    {LLAMA_S, 20, 64, 2, 2, "bfloat16", "tp: 2", 2},
    {LLAMA_M, 6, 256, 1, 2, "bfloat16", "fsdp: 2, zero: 3", 2},
    {EXPERTS_S, 20, 64, 2, 2, "bfloat16", "tp: 1", 1},
};
const int measure_steps_turns = (int)(sizeof(turns) / sizeof(turns[0]));

/* ---- a job ---- */

err_t measure_job(const struct measure_model *model, int world, struct buf *ret_yaml, struct job_spec *ret,
                  struct why *why)
{
    const int replicas = world / model->replica;
    const int shards = strstr(model->layout, "fsdp") ? replicas * model->replica : replicas;
    err_t err = buf_printf(
        ret_yaml,
        "name: measure\nmodel: {%s}\ndata: {train: [/nothing], tokenizer: words}\n"
        "train: {steps: 1000, seq: %d, global_batch: %d, micro_batch: %d, lr: 1.0e-4, clip: 1.0, dtype: %s}\n"
        "parallel: {workers: %d, %s}\ncheckpoint: {dir: /nowhere}\nrun: {device: cpu, threads: 1}\n",
        model->model, model->seq, model->each * model->micros * shards, model->each, model->dtype,
        replicas * model->replica, model->layout);
    return err ? err
               : job_parse("a job that is measured", (const char *)ret_yaml->data, ret_yaml->len, NULL, 0, ret, why);
}

/* Any tokens will do, if each run has the same ones. */
static err_t any_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct job_spec *job = arg;
    for (int64_t i = 0; i < job->train.seq; i++) {
        const uint64_t at = (uint64_t)(index * job->train.seq + i);
        ret_ids[i] = (int32_t)(rng_uniform(1, 1, at) * (double)job->model.vocab);
        ret_targets[i] = (int32_t)(rng_uniform(1, 1, at + 1) * (double)job->model.vocab);
    }
    return OK;
}

/* ---- what was recorded ---- */

err_t measure_recording_init(struct measure_recording *r, const struct engine *e, int steps)
{
    const size_t room = (size_t)engine_record_room(e) * (size_t)steps;
    *r = (struct measure_recording){.record.cap = (int)room};
    r->record.events = calloc(room + 1, sizeof(*r->record.events));
    if (!r->record.events)
        return ERR_NOMEM;
    err_t err = recorded_program(&e->train, &r->program, &r->first_call);
    r->record.first_call = r->first_call;
    r->record.origin_ns = clock_mono_ns();
    r->record.first = e->step + 1;
    r->profile.record = &r->record;
    r->profile.processor_time = true;
    return err;
}

void measure_recording_fini(struct measure_recording *r)
{
    recorded_fini(&r->program);
    free(r->first_call);
    free(r->record.events);
}

/* A number for the k-th collective of a group, the same on its members. */
static uint64_t call_number(const struct measure *m, const struct group *g, int group, int k)
{
    return (uint64_t)(m->turn + 1) << 48 | (uint64_t)g->ranks[0] << 36 | (uint64_t)(group & 0xff) << 28 |
           (uint64_t)(k & 0xfffffff);
}

/* Sizes that are not on a grid of measure_kernels.c would leave holes in it, so products and attention are skipped. */
static bool is_gridded(enum op_kind kind)
{
    return kind == OP_GEMM || kind == OP_GROUPED_GEMM || kind == OP_ATTENTION || kind == OP_ATTENTION_GRAD;
}

static void add_event(struct measure *m, const struct program *p, const struct measure_recording *r,
                      const struct recorded_event *e, int *calls)
{
    const int action = r->program.calls[e->call].action;
    const struct action *a = &p->actions[action];
    const struct op *op = &p->ops[a->first_op + e->call - r->first_call[action]];
    const int64_t samples = a->micro >= 0 ? p->micros[a->micro].samples : p->max_samples;
    struct table_row row;
    double parts;
    if (!plan_table_shape(p, op, samples, &row, &parts) || is_gridded(op->kind))
        return;
    struct measure_sample s = {.key = row.key, .seconds = (double)(e->to - e->from) * 1e-9};
    memcpy(s.size, row.size, sizeof(s.size));
    if (op->group >= 0)
        s.call = call_number(m, &p->groups[op->group], op->group, calls[op->group]++);
    if (s.size[0] > 0 && s.seconds > 0)
        measure_add(m, &s);
}

static err_t add_events(struct measure *m, const struct engine *e, const struct measure_recording *r)
{
    int *calls = calloc((size_t)e->train.n_groups + 1, sizeof(*calls));
    if (!calls)
        return ERR_NOMEM;
    for (int i = 0; i < r->record.n; i++)
        add_event(m, &e->train, r, &r->record.events[i], calls);
    free(calls);
    return OK;
}

/* ---- the steps ---- */

/* On a machine that is late a quarter of the steps must do, but a step alone has no median. */
#define LEAST_STEPS 2

static err_t run_steps(struct measure *m, struct engine *e, const struct engine_feed *feed)
{
    const int few = turns[m->turn].steps / 4 > LEAST_STEPS ? turns[m->turn].steps / 4 : LEAST_STEPS;
    const int steps = m->hurried ? few : turns[m->turn].steps;
    struct measure_recording r = {.first_call = NULL};
    struct engine_result result = {0};
    err_t err = OK;
    for (int i = 0; !err && i < WARM_STEPS; i++)
        err = engine_step(e, feed, &result, m->why);
    err = err ? err : measure_recording_init(&r, e, steps);
    err = err ? err : engine_profile_start(e, &r.profile, m->why);
    for (int i = 0; !err && i < steps; i++)
        err = engine_step(e, feed, &result, m->why);
    err = err ? err : add_events(m, e, &r);
    engine_profile_stop(e);
    measure_recording_fini(&r);
    return err;
}

static err_t run_graph(struct measure *m, const struct job_spec *job, const struct graph *g, measure_engine_fn *fn)
{
    struct engine e = {0};
    struct comm *comm = NULL;
    const struct engine_feed feed = {.sample = any_sample, .arg = (void *)job};
    const struct engine_config config = {
        .dev = m->dev, .job = job, .graph = g, .rank = m->rank, .world = (int)job->parallel.workers, .threads = 1};
    err_t err = engine_init(&e, &config, m->why);
    const struct comm_config cc = {.backend = "shm",
                                   .fd = m->fd,
                                   .rank = m->rank,
                                   .world = config.world,
                                   .numa_node = -1,
                                   .epoch = 1,
                                   .shared_bytes = err ? 0 : engine_shared_bytes(&e),
                                   .timeout_ms = 30000};
    err = err ? err : comm_open(&cc, &comm, m->why);
    err = err ? err : engine_start(&e, comm, m->why);
    err = err ? err : engine_fill_state(&e, m->why);
    err = err ? err : fn(m, &e, &feed);
    if (err && comm)
        comm_abort(comm);
    engine_fini(&e);
    comm_close(comm);
    return err;
}

err_t measure_run_engine(struct measure *m, const struct job_spec *job, measure_engine_fn *fn)
{
    struct graph graph = {0};
    err_t err = graph_build(&job->model, job->train.seq, &graph, m->why);
    err = err ? err : run_graph(m, job, &graph, fn);
    graph_fini(&graph);
    return err;
}

err_t measure_steps(struct measure *m)
{
    const struct measure_model *t = &turns[m->turn];
    struct job_spec job = {0};
    struct buf yaml = {0};
    if (m->rank >= m->world / t->replica * t->replica)
        return OK; /* an odd number of cores leaves one without work */
    err_t err = measure_job(t, m->world, &yaml, &job, m->why);
    err = err ? err : measure_run_engine(m, &job, run_steps);
    job_fini(&job);
    buf_fini(&yaml);
    return err;
}
