/* What communication is for, in programs of layouts that have one kind of it. */
#include "common/plan/estimate/traffic_part.h"
#include "tests/common/plan/plan_fixture.h"

#include "common/plan/estimate/forecast.h"

#include <string.h>

struct traffic_sum {
    const struct fixture *f;
    int64_t bytes[TRAFFIC_COUNT];
};

static void add_op(void *arg, int rank, int action, const struct op *op, double start, double end)
{
    struct traffic_sum *t = arg;
    const struct program *p = &t->f->programs[rank];
    const int micro = p->actions[action].micro;
    if (op->group < 0)
        return;
    t->bytes[traffic_part_of(p, p->actions[action].kind, op)] +=
        plan_op_wire(p, op, micro >= 0 ? p->micros[micro].samples : p->max_samples);
}

/* All bytes of a step by their parts. */
static struct traffic_sum traffic_of(const struct job_spec *job)
{
    struct fixture f;
    fixture_init(&f, job, MODE_TRAIN);
    struct traffic_sum t = {.f = &f};
    const struct plan_rates rates = plan_rates_of(job);
    const struct forecast_watch watch = {add_op, &t};
    struct forecast forecast = {0};
    struct why why = {""};
    assert_int_equal(OK, plan_forecast_watched(f.programs, f.n, &rates, &watch, &forecast, &why));
    int64_t all = 0, parts = 0;
    for (unsigned i = 0; i < FORECAST_AXES; i++)
        all += forecast.bytes[i];
    for (int i = 0; i < TRAFFIC_COUNT; i++)
        parts += t.bytes[i];
    assert_int_equal(all, parts);
    forecast_fini(&forecast);
    fixture_fini(&f);
    return t;
}

static void assert_parts(const struct job_spec *job, unsigned expected)
{
    const struct traffic_sum t = traffic_of(job);
    for (int i = 0; i < TRAFFIC_COUNT; i++)
        if ((t.bytes[i] > 0) != ((expected & 1u << i) != 0))
            fail_msg("part %d has %ld bytes", i, (long)t.bytes[i]);
}

#define SET(part) (1u << TRAFFIC_##part)

TEST(data_parallelism_reduces_gradients)
{
    const struct job_spec job = job_small(ARCH_LLAMA, 2);
    assert_parts(&job, SET(GRADS));
}

/* Every element of every gradient once to each of two ranks (float32), and some numbers of losses. */
TEST(gradients_have_their_bytes)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture f;
    fixture_init(&f, &job, MODE_TRAIN);
    const int64_t bytes = 2 * 4 * f.graph.n_params;
    fixture_fini(&f);
    const struct traffic_sum t = traffic_of(&job);
    assert_true(t.bytes[TRAFFIC_GRADS] >= bytes && t.bytes[TRAFFIC_GRADS] < bytes + 1024);
}

TEST(zero_3_gathers_parameters)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    job.parallel.fsdp = 2;
    job.parallel.zero = 3;
    assert_parts(&job, SET(PARAMS) | SET(GRADS));
}

TEST(zero_1_gathers_parameters_once)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    job.parallel.fsdp = 2;
    job.parallel.zero = 1;
    job.train.dtype = DT_BF16;
    assert_parts(&job, SET(PARAMS) | SET(GRADS));
}

/* Norm and losses are over tp, too. */
TEST(tensor_parallelism_is_in_layers)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    job.parallel.tp = 2;
    assert_parts(&job, SET(TP) | SET(GRADS));
}

TEST(a_ring_is_context_parallelism)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    job.parallel.cp = 2;
    assert_parts(&job, SET(CP) | SET(GRADS));
}

TEST(a_pipeline_has_messages)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    job.parallel.pp = 2;
    assert_parts(&job, SET(PP) | SET(GRADS));
}

TEST(experts_exchange_rows)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    job.model.experts = 4;
    job.model.experts_per_token = 2;
    job.model.moe_every = 1;
    job.model.router_scale = 1;
    job.parallel.fsdp = 2;
    job.parallel.zero = 3;
    job.parallel.ep = 2;
    assert_parts(&job, SET(EP) | SET(PARAMS) | SET(GRADS));
}
