/* Mixtures of experts: the compiled gradient against central differences of the loss, the router's own losses included;
 * layouts against one rank; numbers of routers. Float64 on the reference kernels. */
#include "common/base/rng.h"
#include "common/plan/check/plan_check.h"
#include "tests/common/plan/machine.h"
#include "tests/common/plan/world.h"

#include <math.h>

/* One setting of the router for each kind of model. */
static const struct setting {
    const char *name;
    int64_t experts, k, groups, kept, best, shared;
    enum router_kind router;
    bool norm, bias, gate;
    double scale, aux, z;
    enum aux_scope scope;
    double rate, capacity;
    enum drop_rule drop;
} settings[] = {
    {"mixtral", 4, 2, 1, 1, 1, 0, ROUTER_SOFTMAX_TOPK, false, false, false, 1, 0, 0, AUX_SAMPLE, 0, 0, DROP_POSITION},
    {"qwen2", 5, 2, 1, 1, 1, 2, ROUTER_SOFTMAX, false, false, true, 1, 0, 0, AUX_SAMPLE, 0, 0, DROP_POSITION},
    {"qwen3", 6, 3, 1, 1, 1, 0, ROUTER_SOFTMAX, true, false, false, 1, 0.5, 0, AUX_MICRO_BATCH, 0, 0, DROP_POSITION},
    {"deepseek_v2", 6, 2, 3, 2, 1, 1, ROUTER_SOFTMAX, false, false, false, 1.5, 0.25, 0.01, AUX_SAMPLE, 0.01, 0,
     DROP_POSITION},
    {"deepseek_v3", 8, 3, 4, 2, 2, 1, ROUTER_SIGMOID, true, false, false, 2.5, 0.5, 0.02, AUX_SAMPLE, 0.05, 0,
     DROP_POSITION},
    {"gpt_oss", 4, 2, 1, 1, 1, 0, ROUTER_SOFTMAX_TOPK, true, true, false, 1, 0, 0.01, AUX_SAMPLE, 0.125, 0,
     DROP_POSITION},
    {"sigmoid", 4, 2, 1, 1, 1, 0, ROUTER_SIGMOID, false, false, false, 1, 0.5, 0, AUX_MICRO_BATCH, 0.1, 0,
     DROP_POSITION},
    {"qwen3_batch", 5, 2, 1, 1, 1, 0, ROUTER_SOFTMAX, true, false, false, 1, 0.5, 0.01, AUX_BATCH, 0, 0, DROP_POSITION},
    {"deepseek_batch", 8, 3, 4, 2, 2, 1, ROUTER_SIGMOID, true, false, false, 2.5, 0.5, 0, AUX_BATCH, 0.05, 0,
     DROP_POSITION},
    {"switch", 3, 1, 1, 1, 1, 0, ROUTER_SWITCH, false, false, false, 1, 0.5, 0.01, AUX_MICRO_BATCH, 0.02, 0,
     DROP_POSITION},
    {"all", 3, 3, 1, 1, 1, 0, ROUTER_SOFTMAX, false, false, false, 1, 0, 0, AUX_SAMPLE, 0, 0, DROP_POSITION},
    {"switch_capacity", 3, 1, 1, 1, 1, 0, ROUTER_SWITCH, false, false, false, 1, 0.5, 0, AUX_SAMPLE, 0.02, 1,
     DROP_POSITION},
    {"capacity", 5, 2, 1, 1, 1, 1, ROUTER_SOFTMAX, true, false, false, 1, 0.5, 0.01, AUX_MICRO_BATCH, 0.05, 0.7,
     DROP_POSITION},
    {"probability", 6, 3, 3, 2, 1, 0, ROUTER_SIGMOID, true, false, false, 2.5, 0.25, 0, AUX_SAMPLE, 0, 0.8,
     DROP_PROBABILITY},
};
#define N_SETTINGS (sizeof(settings) / sizeof(settings[0]))

static void set_experts(struct job_model *m, const struct setting *s)
{
    m->experts = s->experts;
    m->experts_per_token = s->k;
    m->expert_ffn = 12;
    m->shared_experts = s->shared;
    m->shared_gate = s->gate;
    m->router = s->router;
    m->router_norm = s->norm;
    m->router_bias = s->bias;
    m->router_scale = s->scale;
    m->router_groups = s->groups;
    m->router_groups_kept = s->kept;
    m->router_group_best = s->best;
    m->aux_loss = s->aux;
    m->z_loss = s->z;
    m->aux_scope = s->scope;
    m->expert_bias = s->rate;
    m->expert_capacity = s->capacity;
    m->expert_drop = s->drop;
}

static struct job_spec job_of(const struct setting *s, int workers)
{
    struct job_spec job = job_small(ARCH_LLAMA, workers);
    set_experts(&job.model, s);
    job.train.global_batch = 5; /* three microbatches, the last short */
    job.train.numerics = NUMERICS_PROOF;
    job.train.dtype = DT_F64;
    return job;
}

#define BATCH (5 * 8)

static void fill_batch(int32_t ids[BATCH], int32_t targets[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        ids[i] = (int32_t)(rng_uniform(5, 1, (uint64_t)i) * 32);
        targets[i] = (int32_t)(rng_uniform(5, 2, (uint64_t)i) * 32);
    }
}

static void init_params(const struct machine *m, const struct graph *g)
{
    for (int t = 0; t < g->n_tensors; t++)
        for (int64_t i = 0; graph_is_stored(&g->tensors[t]) && i < tensor_elements(&g->tensors[t]); i++) {
            double x = 0.3 * rng_normal(4, rng_stream(g->tensors[t].name), (uint64_t)i);
            machine_set(m, m->p->param_buffer[t], i, (g->tensors[t].init == INIT_ONE ? 1 : 0) + x);
        }
}

/* The loss of the step with the routers' own losses: their formulas (kernels/kernels.h), from the step's totals, which
 * are those of one set if the whole batch is one microbatch and the set is a microbatch or the only sample. */
static double whole_loss(const struct machine *m, double loss)
{
    double sum = loss, tokens = 1 / m->p->loss_scale;
    int64_t at = 0;
    for (int i = 0; i < m->g->n_nodes; i++) {
        const struct graph_router *r = &m->g->nodes[i].router;
        double counts = 0, product = 0;
        if (m->g->nodes[i].op != GO_ROUTE)
            continue;
        for (int64_t e = 0; e < r->experts; e++) {
            double n = machine_get(m, m->p->number_buffer[NUMBER_TOTALS], at + e);
            counts += n;
            product += n * machine_get(m, m->p->number_buffer[NUMBER_TOTALS], at + r->experts + e);
        }
        double aux = r->aux * (double)r->experts / counts * product / tokens;
        if (r->aux > 0 && r->scope != AUX_BATCH &&
            !(fabs(machine_get(m, m->p->number_buffer[NUMBER_AUX], r->index) - aux) <= 1e-12 * aux))
            fail_msg("router %d: auxiliary loss %.17g, expected %.17g", r->index,
                     machine_get(m, m->p->number_buffer[NUMBER_AUX], r->index), aux);
        sum += aux;
        sum += r->z * machine_get(m, m->p->number_buffer[NUMBER_TOTALS], at + 2 * r->experts + 1) / tokens;
        at += 2 * r->experts + 2;
    }
    return sum;
}

static double difference(struct machine *m, int buffer, int64_t i, double step)
{
    double at = machine_get(m, buffer, i);
    machine_set(m, buffer, i, at + step);
    double above = whole_loss(m, machine_run(m));
    machine_set(m, buffer, i, at - step);
    double below = whole_loss(m, machine_run(m));
    machine_set(m, buffer, i, at);
    return (above - below) / (2 * step);
}

/* The batch is one microbatch, and one sample where the setting balances samples. */
static void check_gradient(const struct setting *s, enum recompute recompute)
{
    struct job_spec job = job_of(s, 1);
    struct fixture f;
    struct machine m;
    int32_t ids[BATCH], targets[BATCH];
    job.train.global_batch = job.train.micro_batch = s->aux > 0 && s->scope == AUX_SAMPLE ? 1 : 3;
    job.parallel.recompute = recompute;
    job.model.expert_bias = s->rate > 0 ? 1e-30 : 0; /* the biases stay, so the loss is a function of the parameters */
    fill_batch(ids, targets);
    fixture_init(&f, &job, MODE_TRAIN);
    if (plan_check(&f.graph, f.programs, 1, &f.why) != OK)
        fail_msg("%s: %s", s->name, f.why.text);
    machine_init(&m, &f.programs[0], &f.graph, ids, targets);
    init_params(&m, &f.graph);
    machine_run(&m);
    machine_update(
        &m); /* with a rate of 0: only keeps the numbers, so those of the step before are of the same batch */
    double loss = machine_run(&m);
    assert_true(loss > 1 && loss < 1000);
    if (s->capacity > 0) /* of both routers */
        assert_true(machine_get(&m, m.p->number_buffer[NUMBER_DROPPED], 0) +
                        machine_get(&m, m.p->number_buffer[NUMBER_DROPPED], 1) >
                    0);
    double closest = fmax(machine_get(&m, m.p->number_buffer[NUMBER_CLOSENESS], 0),
                          machine_get(&m, m.p->number_buffer[NUMBER_CLOSENESS], 1));
    if (s->k < s->experts)
        assert_true(closest > 1 && closest < 1e4); /* no choice changes within the differences */
    else
        assert_true(closest == 0);
    for (int t = 0; t < f.graph.n_tensors; t++) {
        const struct graph_tensor *g = &f.graph.tensors[t];
        int64_t n = g->kind == GT_PARAM ? tensor_elements(g) : 0;
        for (int64_t i = 0; i<n; i += n> 40 ? n / 23 : 3) {
            double grad = machine_get(&m, m.p->grad_buffer[t], i);
            double want = difference(&m, m.p->param_buffer[t], i, 1e-6);
            machine_run(&m);
            if (!(fabs(grad - want) <= 1e-8 + 1e-6 * fabs(want)))
                fail_msg("%s, %s[%lld]: gradient %.12g, difference %.12g", s->name, g->name, (long long)i, grad, want);
        }
    }
    machine_fini(&m);
    fixture_fini(&f);
}

TEST(gradients_are_those_of_the_losses)
{
    for (size_t i = 0; i < N_SETTINGS; i++)
        check_gradient(&settings[i], RECOMPUTE_NONE);
}

TEST(gradients_are_the_same_with_recomputation)
{
    for (enum recompute r = RECOMPUTE_FULL; r <= RECOMPUTE_EXPERTS; r++)
        for (size_t i = 0; i < N_SETTINGS; i += 3)
            check_gradient(&settings[i], r);
}

/* ---- layouts ---- */

/* dp, fsdp, zero, cp, tp, sp, pp; chosen so that each axis meets each other. */
static const struct cell {
    int64_t dp, fsdp, zero, cp, tp, sp, pp;
    enum pipe_schedule schedule;
    int64_t ep; /* 0: 1 */
} cells[] = {
    {2, 1, 0, 1, 1, 1, 1, PIPE_1F1B, 0},
    {5, 1, 0, 1, 1, 1, 1, PIPE_1F1B, 0},
    {1, 2, 1, 1, 1, 1, 1, PIPE_1F1B, 0},
    {2, 2, 2, 1, 1, 1, 1, PIPE_1F1B, 0},
    {1, 3, 3, 1, 1, 1, 1, PIPE_1F1B, 0},
    {1, 1, 0, 2, 1, 1, 1, PIPE_1F1B, 0},
    {1, 1, 0, 1, 2, 0, 1, PIPE_1F1B, 0},
    {1, 1, 0, 1, 2, 1, 1, PIPE_1F1B, 0},
    {1, 1, 0, 1, 3, 1, 1, PIPE_1F1B, 0},
    {1, 1, 0, 2, 2, 1, 1, PIPE_1F1B, 0},
    {1, 2, 3, 1, 2, 1, 1, PIPE_1F1B, 0},
    {1, 2, 2, 1, 2, 0, 1, PIPE_1F1B, 0},
    {1, 1, 0, 1, 1, 1, 2, PIPE_1F1B, 0},
    {1, 1, 0, 1, 1, 1, 2, PIPE_ZB_H1, 0},
    {2, 1, 0, 1, 1, 1, 2, PIPE_GPIPE, 0},
    {1, 2, 3, 1, 1, 1, 2, PIPE_1F1B, 0},
    {1, 1, 0, 1, 2, 1, 2, PIPE_ZB_H1, 0},
    {1, 1, 0, 2, 1, 1, 2, PIPE_1F1B, 0},
    {1, 2, 1, 2, 2, 1, 1, PIPE_1F1B, 0},
    {2, 1, 0, 1, 2, 0, 2, PIPE_1F1B, 0},
    {1, 1, 0, 1, 2, 1, 1, PIPE_1F1B, 2},
    {1, 1, 0, 1, 3, 1, 1, PIPE_1F1B, 3},
    {1, 1, 0, 2, 1, 1, 1, PIPE_1F1B, 2},
    {2, 1, 0, 1, 2, 1, 1, PIPE_1F1B, 2},
    {1, 2, 3, 1, 2, 1, 1, PIPE_1F1B, 2},
    {1, 2, 1, 2, 1, 1, 1, PIPE_1F1B, 2},
    {1, 1, 0, 1, 2, 1, 2, PIPE_ZB_H1, 2},
    {2, 1, 0, 1, 2, 1, 2, PIPE_1F1B, 2},
    {1, 1, 0, 2, 1, 1, 2, PIPE_1F1B, 2},
    {1, 2, 2, 1, 2, 1, 2, PIPE_GPIPE, 2},
    {1, 3, 0, 1, 1, 1, 1, PIPE_1F1B, 3},
    {1, 3, 0, 1, 1, 1, 2, PIPE_ZB_H1, 3},
    {1, 3, 0, 1, 1, 1, 2, PIPE_1F1B, 3},
    {1, 1, 0, 3, 1, 1, 1, PIPE_1F1B, 3},
    {2, 2, 1, 1, 2, 1, 1, PIPE_1F1B, 2},
    /* ZeRO with experts over all of fsdp, over parts of an axis, and over one axis and a part of the next */
    {1, 3, 1, 1, 1, 1, 1, PIPE_1F1B, 3},
    {1, 3, 2, 1, 1, 1, 1, PIPE_1F1B, 3},
    {1, 3, 3, 1, 1, 1, 1, PIPE_1F1B, 3},
    {1, 3, 2, 1, 1, 1, 2, PIPE_ZB_H1, 3},
    {1, 3, 3, 1, 1, 1, 2, PIPE_1F1B, 3},
    {1, 1, 0, 1, 4, 1, 1, PIPE_1F1B, 2},
    {2, 1, 0, 1, 4, 1, 1, PIPE_1F1B, 2},
    {1, 1, 0, 4, 1, 1, 1, PIPE_1F1B, 2},
    {1, 1, 0, 2, 4, 1, 1, PIPE_1F1B, 2},
    {1, 1, 0, 4, 2, 1, 1, PIPE_1F1B, 4},
    {1, 2, 1, 4, 1, 1, 1, PIPE_1F1B, 2},
    {1, 2, 3, 1, 4, 1, 1, PIPE_1F1B, 2},
    {1, 1, 0, 1, 2, 1, 2, PIPE_ZB_V, 2},
    {2, 1, 0, 1, 1, 1, 3, PIPE_ZB_V, 0},
    {1, 2, 3, 1, 2, 1, 2, PIPE_ZB_V, 2},
    {1, 3, 0, 1, 1, 1, 2, PIPE_ZB_V, 3},
    /* ranks without a microbatch in a turn, or in the whole step; three microbatches */
    {1, 2, 0, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 2, 1, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 2, 2, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 2, 3, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 4, 0, 1, 1, 1, 1, PIPE_1F1B, 4},
    {1, 4, 3, 1, 1, 1, 1, PIPE_1F1B, 4},
    {1, 4, 0, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 4, 1, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 4, 2, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 4, 3, 1, 1, 1, 1, PIPE_1F1B, 2},
    {2, 2, 0, 1, 1, 1, 1, PIPE_1F1B, 2},
    {2, 2, 3, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 2, 0, 1, 1, 1, 2, PIPE_ZB_H1, 2},
    {1, 2, 3, 1, 1, 1, 2, PIPE_1F1B, 2},
    {1, 2, 2, 1, 2, 1, 2, PIPE_ZB_H1, 4},
    {1, 4, 2, 1, 1, 1, 2, PIPE_GPIPE, 2},
    {1, 2, 0, 2, 2, 1, 1, PIPE_1F1B, 8},
    {1, 2, 3, 2, 2, 1, 1, PIPE_1F1B, 8},
    {2, 4, 3, 1, 1, 1, 1, PIPE_1F1B, 2},
    {1, 6, 0, 1, 1, 1, 1, PIPE_1F1B, 3},
    {1, 6, 3, 1, 1, 1, 1, PIPE_1F1B, 3},
    /* tp ranks that all have all tokens, and send a part of them */
    {1, 1, 0, 1, 2, 0, 1, PIPE_1F1B, 2},
    {1, 1, 0, 1, 3, 0, 1, PIPE_1F1B, 3},
    {1, 1, 0, 1, 4, 0, 1, PIPE_1F1B, 2},
    {1, 1, 0, 2, 2, 0, 1, PIPE_1F1B, 4},
    {1, 2, 0, 1, 2, 0, 1, PIPE_1F1B, 4},
    {1, 2, 2, 1, 2, 0, 1, PIPE_1F1B, 2},
    {1, 2, 3, 1, 2, 0, 1, PIPE_1F1B, 4},
    {1, 1, 0, 1, 2, 0, 2, PIPE_ZB_H1, 2},
    {2, 1, 0, 1, 2, 0, 2, PIPE_1F1B, 2},
    {1, 2, 1, 2, 2, 0, 1, PIPE_1F1B, 8},
    {1, 2, 3, 1, 2, 1, 2, PIPE_ZB_H2, 2},
    {1, 2, 3, 1, 2, 1, 2, PIPE_DUALPIPE_V, 2},
};
#define N_CELLS (sizeof(cells) / sizeof(cells[0]))

static struct job_spec cell_job(const struct setting *s, const struct cell *c)
{
    struct job_spec job = job_of(s, (int)(c->dp * c->fsdp * c->cp * c->tp * c->pp));
    job.parallel.fsdp = c->fsdp;
    job.parallel.zero = c->zero;
    job.parallel.cp = c->cp;
    job.parallel.tp = c->tp;
    job.parallel.sp = c->sp;
    job.parallel.pp = c->pp;
    job.parallel.schedule = c->schedule;
    job.parallel.chunks = job_schedule_row(c->schedule)->fewest;
    job.model.layers = c->pp * job.parallel.chunks > job.model.layers ? c->pp * job.parallel.chunks : job.model.layers;
    job.parallel.ep = c->ep ? c->ep : 1;
    return job;
}

/* A setting with at least as many experts as the cell cuts them into. */
static const struct setting *setting_for(const struct cell *c, size_t i)
{
    const struct setting *s = &settings[i % N_SETTINGS];
    return s->experts < c->ep ? &settings[4] : s;
}

TEST(every_layout_is_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i++)
        for (size_t s = i % 3; s < N_SETTINGS; s += 3) {
            struct job_spec job = cell_job(setting_for(&cells[i], s), &cells[i]);
            world_compare(&job);
        }
}

TEST(layouts_with_recomputation_are_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i += 2) {
        struct job_spec job = cell_job(setting_for(&cells[i], i / 2), &cells[i]);
        static const enum recompute kinds[] = {RECOMPUTE_FULL, RECOMPUTE_EXPERTS, RECOMPUTE_POINTWISE};
        job.parallel.recompute = kinds[i / 2 % 3];
        world_compare(&job);
    }
}

/* Every rank computes equally many rows; with recomputation it borrows experts once more. */
TEST(balanced_experts_are_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i++)
        for (size_t s = i % 5; s < N_SETTINGS && cells[i].ep; s += 5) {
            struct job_spec job = cell_job(setting_for(&cells[i], s), &cells[i]);
            job.parallel.expert_load = EXPERT_LOAD_BALANCED;
            job.parallel.recompute = s % 2 ? RECOMPUTE_EXPERTS : RECOMPUTE_NONE;
            world_compare(&job);
        }
}

/* A half backward cannot keep the rows of all rounds for the other half. */
static bool splits(const struct cell *c)
{
    return c->schedule == PIPE_ZB_H1 || c->schedule == PIPE_ZB_H2 || c->schedule == PIPE_ZB_V ||
           c->schedule == PIPE_DUALPIPE_V;
}

/* From the fewest rows that a rank may have room for, so that there are most rounds, to one round for all. */
TEST(experts_in_rounds_are_one_worker)
{
    int most = 1, one = 0;
    for (size_t i = 0; i < N_CELLS; i++)
        for (size_t s = i % 4; s < N_SETTINGS && cells[i].ep && !splits(&cells[i]); s += 4) {
            struct job_spec job = cell_job(setting_for(&cells[i], s), &cells[i]);
            struct fixture f;
            job.parallel.recompute = s % 2 ? RECOMPUTE_EXPERTS : RECOMPUTE_FULL;
            job.parallel.expert_rows = 1 + (double)(i % 5) * 0.375;
            world_compare(&job);
            fixture_init(&f, &job, MODE_TRAIN);
            most = f.programs[0].rounds > most ? f.programs[0].rounds : most;
            one += f.programs[0].rounds == 1;
            fixture_fini(&f);
        }
    assert_in_range(most, 3, 8);
    assert_true(one > 0);
}

TEST(evaluation_in_rounds_is_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i += 3) {
        struct job_spec job = cell_job(setting_for(&cells[i], i), &cells[i]);
        job.parallel.recompute = RECOMPUTE_EXPERTS;
        job.parallel.expert_rows = 1.1;
        if (cells[i].ep && !splits(&cells[i]))
            world_compare_passes(&job);
    }
}

TEST(a_half_backward_refuses_rounds)
{
    struct job_spec job = cell_job(&settings[4], &cells[26]);
    struct fixture f = {0};
    struct program p;
    assert_true(splits(&cells[26]) && cells[26].ep == 2);
    job.parallel.recompute = RECOMPUTE_EXPERTS;
    job.parallel.expert_rows = 1;
    assert_ok(graph_build(&job.model, job.train.seq, &f.graph, &f.why));
    assert_int_equal(plan_compile(&job, &f.graph, MODE_TRAIN, 0, &p, &f.why), ERR_INVALID);
    assert_string_equal(f.why.text,
                        "parallel.expert_rows computes rows of experts in rounds, and the second half of a backward "
                        "that parallel.schedule splits would need the rows of all of them: write parallel.expert_rows "
                        "0, or parallel.schedule 1f1b");
    graph_fini(&f.graph);
}

/* With every way to keep rows, also where ranks have no microbatch in a turn. */
TEST(layouts_that_gather_tokens_are_one_worker)
{
    static const enum recompute kinds[] = {RECOMPUTE_NONE, RECOMPUTE_EXPERTS, RECOMPUTE_FULL};
    for (size_t i = 0; i < N_CELLS; i++) {
        struct job_spec job = cell_job(setting_for(&cells[i], i), &cells[i]);
        job.parallel.recompute = kinds[i % 3];
        job.parallel.dispatch = DISPATCH_ALL_GATHER;
        job.model.expert_capacity = 0;
        if (cells[i].ep > 1)
            world_compare(&job);
    }
}

/* Fewer tokens in a microbatch than ranks of tp: some have none of their own. */
TEST(ranks_without_own_tokens_are_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i++) {
        struct job_spec job = cell_job(setting_for(&cells[i], i), &cells[i]);
        if (cells[i].tp < 3)
            continue;
        job.train.micro_batch = 1;
        job.train.seq = cells[i].cp > 1 ? 2 * cells[i].cp : 2;
        world_compare(&job);
    }
}

/* Some layers without experts, sizes that nothing divides. */
TEST(layers_without_experts_and_uneven_sizes_are_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i += 3) {
        struct job_spec job = cell_job(setting_for(&cells[i], i), &cells[i]);
        job = job_uneven(job);
        job.train.seq = cells[i].cp > 3 ? 9 : 7;
        job.model.layers = job.model.layers > 4 ? job.model.layers : 4;
        job.model.expert_ffn = 13;
        job.model.dense_layers = i % 2;
        job.model.moe_every = 2;
        world_compare(&job);
    }
}

TEST(evaluation_and_generation_are_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i += 2) {
        struct job_spec job = cell_job(setting_for(&cells[i], i), &cells[i]);
        world_compare_passes(&job);
    }
}

TEST(canonical_numerics_are_one_worker_bit_for_bit)
{
    for (size_t i = 0; i < 5; i++) {
        struct job_spec job = cell_job(&settings[i], &cells[i]);
        job.train.numerics = NUMERICS_CANONICAL;
        job.train.dtype = DT_F32;
        world_compare_exact(&job);
    }
}

/* Bytes of the values that a microbatch keeps from its forward for its backward; `arrived`: of rows that arrived. */
static int64_t kept_bytes(const struct program *p, bool arrived)
{
    int64_t n = 0;
    for (int b = 0; b < p->n_buffers; b++) {
        const struct buffer *x = &p->buffers[b];
        if (x->slots > 1 && x->slot_index == SLOT_ACTION && x->space == SPACE_WORK)
            n += arrived && x->dim[0].sym != SYM_ARRIVED ? 0 : x->bytes;
    }
    return n;
}

/* With `recompute: experts` a microbatch in flight keeps no rows of experts, so what it keeps does not depend on how
 * many may arrive, while the workspace has room for all. The first stage of two keeps two microbatches. */
TEST(recomputed_experts_keep_no_rows)
{
    for (size_t i = 0; i < N_CELLS; i++) {
        struct job_spec job = cell_job(&settings[4], &cells[i]);
        struct fixture f, g;
        const bool whole = cells[i].schedule == PIPE_1F1B || cells[i].schedule == PIPE_GPIPE;
        if (cells[i].pp < 2 || cells[i].ep < 2 || !whole) /* a half backward keeps rows for the other half */
            continue;
        job.train.global_batch = 8 * cells[i].dp * cells[i].fsdp;
        fixture_init(&f, &job, MODE_TRAIN);
        assert_true(kept_bytes(&f.programs[0], true) > 0);
        fixture_fini(&f);
        job.parallel.recompute = RECOMPUTE_EXPERTS;
        fixture_init(&f, &job, MODE_TRAIN);
        assert_int_equal(kept_bytes(&f.programs[0], true), 0);
        job.model.experts_per_token = 1; /* a third of the rows */
        fixture_init(&g, &job, MODE_TRAIN);
        assert_true(f.programs[0].max_arrived == 3 * g.programs[0].max_arrived);
        int64_t chosen = kept_bytes(&f.programs[0], false) - kept_bytes(&g.programs[0], false);
        assert_in_range(chosen, 1, 3 * 8 * 64); /* numbers and weights of the choices */
        fixture_fini(&f);
        fixture_fini(&g);
    }
}

/* Experts over ranks with the same samples: leaves are those of one worker, and the sums of tp and cp stay within the
 * bounds. */
TEST(canonical_numerics_go_with_folds_over_tp_and_cp)
{
    for (size_t i = 0; i < N_CELLS; i++) {
        struct job_spec job = cell_job(setting_for(&cells[i], i), &cells[i]);
        if (cells[i].ep < 2 || cells[i].ep > cells[i].tp * cells[i].cp)
            continue;
        job.train.numerics = NUMERICS_CANONICAL;
        job.train.dtype = DT_F32;
        world_compare(&job);
    }
}

/* Whether the rank has turns: its own, or those of ranks with which it exchanges rows or gathers parameters. */
static bool works_in_step(const struct fixture *f, const struct program *p)
{
    const int fold = p->sharding.ep.share[AXIS_FSDP];
    const int share = fold > 1 && p->sharding.zero > 1 ? p->mesh.size[AXIS_FSDP] : fold;
    bool works = false;
    for (int r = 0; r < f->n; r++) {
        const struct program *q = &f->programs[r];
        const int *a = p->sharding.coord, *b = q->sharding.coord;
        works |=
            a[AXIS_DP] == b[AXIS_DP] && a[AXIS_FSDP] / share == b[AXIS_FSDP] / share && q->first_micro < q->end_micro;
    }
    return works;
}

/* States are of the wide type or float64 beside copies in the compute type, with every stage of ZeRO. */
TEST(programs_in_bfloat16_are_legal)
{
    for (size_t i = 0; i < N_CELLS; i++)
        for (size_t s = 0; s < N_SETTINGS; s++) {
            struct job_spec job = cell_job(setting_for(&cells[i], s), &cells[i]);
            struct fixture f;
            job.train.numerics = NUMERICS_FAST;
            job.train.dtype = DT_BF16;
            if (s % 2 && cells[i].ep > 1 && !(job.model.expert_capacity > 0))
                job.parallel.dispatch = DISPATCH_ALL_GATHER;
            fixture_init(&f, &job, MODE_TRAIN);
            if (plan_check(&f.graph, f.programs, f.n, &f.why) != OK)
                fail_msg("layout %zu, %s: %s", i, setting_for(&cells[i], s)->name, f.why.text);
            for (int t = 0; t < f.graph.n_tensors; t++)
                for (int r = 0; f.graph.tensors[t].kind == GT_STATE && r < f.n; r++) {
                    const struct program *p = &f.programs[r];
                    if (p->param_buffer[t] >= 0)
                        assert_int_equal(p->buffers[p->param_buffer[t]].dtype,
                                         f.graph.tensors[t].exact ? DT_F64 : DT_F32);
                }
            fixture_fini(&f);
        }
}

/* A rank holds its experts only, exchanges rows four times for each layer, microbatch and direction, and no expert's
 * gradient is summed over the axes of expert parallelism. */
TEST(expert_parallelism_divides_the_experts)
{
    for (size_t i = 0; i < N_CELLS; i++) {
        struct job_spec job = cell_job(&settings[4], &cells[i]); /* eight experts */
        struct fixture f;
        int64_t rows = 0;
        fixture_init(&f, &job, MODE_TRAIN);
        const int t = fixture_tensor(&f, "layers.1.moe.experts.w1");
        for (int r = 0; r < f.n; r++) {
            const struct program *p = &f.programs[r];
            int exchanges = 0, mine = p->sharding.param[t].held;
            for (int k = 0; k < p->n_ops; k++)
                exchanges += p->ops[k].kind == OP_EXCHANGE && p->ops[k].layer == 1;
            bool works = mine && works_in_step(&f, p);
            assert_true((exchanges > 0) == (works && cells[i].ep > 1));
            rows += mine && p->sharding.coord[AXIS_DP] == 0 ? p->sharding.param[t].rows : 0;
        }
        int64_t copies = cells[i].tp * cells[i].cp * cells[i].fsdp / (cells[i].ep ? cells[i].ep : 1);
        assert_int_equal(rows, 8 * 12 * copies);
        fixture_fini(&f);
    }
}
