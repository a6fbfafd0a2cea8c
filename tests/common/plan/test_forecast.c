/* Forecasts against sums computed by hand. */
#include "common/plan/estimate/cost.h"
#include "common/plan/estimate/forecast.h"
#include "common/plan/estimate/memory.h"
#include "tests/common/plan/plan_fixture.h"

#include <math.h>

/* Only matmuls take time. */
static const struct plan_rates matmuls = {1e9, 1e30, 1e30, 0, false, false, NULL, 0, NULL, NULL};

static struct job_spec piped(int pp, int micros, enum pipe_schedule schedule, int chunks)
{
    struct job_spec job = job_small(ARCH_LLAMA, pp);
    job.model.layers = 8;
    job.model.vocab = 4; /* a light head, so that stages cost nearly the same */
    job.train.global_batch = micros;
    job.train.micro_batch = 1;
    job.parallel.pp = pp;
    job.parallel.schedule = schedule;
    job.parallel.chunks = chunks;
    return job;
}

static void forecast_of(const struct job_spec *job, const struct plan_rates *rates, struct fixture *f,
                        struct forecast *ret)
{
    fixture_init(f, job, MODE_TRAIN);
    if (plan_forecast(f->programs, f->n, rates, ret, &f->why) != OK)
        fail_msg("%s", f->why.text);
}

static double bubble_with(const struct job_spec *job, const struct plan_rates *rates)
{
    struct fixture f;
    struct forecast c;
    forecast_of(job, rates, &f, &c);
    double bubble = c.bubble;
    forecast_fini(&c);
    fixture_fini(&f);
    return bubble;
}

static double bubble_of(const struct job_spec *job)
{
    return bubble_with(job, &matmuls);
}

TEST(one_rank_never_waits)
{
    struct fixture f;
    struct forecast c;
    struct job_spec job = job_small(ARCH_GPT2, 1);
    double flops = 0;
    forecast_of(&job, &matmuls, &f, &c);
    const struct program *p = &f.programs[0];
    for (int a = 0; a < p->n_actions; a++)
        for (int i = 0; i < p->actions[a].n_ops; i++) {
            struct op_cost cost;
            int m = p->actions[a].micro;
            plan_op_cost(p, &p->ops[p->actions[a].first_op + i], m >= 0 ? p->micros[m].samples : p->max_samples, &cost);
            flops += cost.flops;
        }
    assert_true(fabs(c.seconds - flops / 1e9) < 1e-9 * c.seconds);
    assert_true(fabs(c.bubble) < 1e-9);
    for (int i = 0; i < FORECAST_AXES; i++)
        assert_int_equal(c.bytes[i], 0);
    forecast_fini(&c);
    fixture_fini(&f);
}

/* The formula is (p - 1) / (m + p - 1). Stages differ in cost because of the head, so the bubbles are only near it. */
TEST(bubbles_are_near_the_formulas)
{
    for (int p = 2; p <= 4; p += 2)
        for (int m = 4; m <= 32; m *= 2) {
            const struct job_spec gpipe = piped(p, m, PIPE_GPIPE, 1), one = piped(p, m, PIPE_1F1B, 1);
            const struct job_spec zb = piped(p, m, PIPE_ZB_H1, 1);
            double formula = (p - 1.0) / (m + p - 1), bubble = bubble_of(&one);
            if (fabs(bubble_of(&gpipe) - formula) > 0.01 || fabs(bubble - formula) > 0.01)
                fail_msg("p %d, m %d: bubbles %g (gpipe) and %g (1f1b), not %g", p, m, bubble_of(&gpipe), bubble,
                         formula);
            if (!(bubble_of(&zb) < bubble))
                fail_msg("p %d, m %d: bubble %g (zb-h1), 1f1b's is %g", p, m, bubble_of(&zb), bubble);
        }
}

/* Chunks shorten the ramps: (p - 1) / (v m + p - 1). Adjacent ranks compute forwards and backwards in turns, so this
 * holds only where no rank waits until its sends are received. */
TEST(bubbles_of_chunks_are_near_the_formula)
{
    for (int p = 2; p <= 4; p += 2)
        for (int m = 4; m <= 32; m *= 2) {
            const struct job_spec one = piped(p, m, PIPE_1F1B, 1), two = piped(p, m, PIPE_INTERLEAVED, 2);
            double bubble = bubble_of(&two), formula = (p - 1.0) / (2 * m + p - 1);
            if (fabs(bubble - formula) > 0.01 || bubble >= bubble_of(&one))
                fail_msg("p %d, m %d: bubble %g, not %g; with one chunk %g", p, m, bubble, formula, bubble_of(&one));
        }
}

/* In a V the last forward and the first backward of a microbatch are on one rank, and the bubble is at least a third
 * smaller than ZB-H1's: I' instead of F + I - W. */
TEST(the_bubble_of_a_v_is_smaller)
{
    for (int p = 2; p <= 4; p += 2)
        for (int m = 2 * p; m <= 32; m *= 2) {
            const struct job_spec one = piped(p, m, PIPE_ZB_H1, 1), two = piped(p, m, PIPE_ZB_V, 2);
            if (!(bubble_of(&two) < bubble_of(&one) * 2 / 3))
                fail_msg("p %d, m %d: bubble %g (zb-v), zb-h1's is %g", p, m, bubble_of(&two), bubble_of(&one));
        }
}

/* Post-validation leaves nothing of zb-h2's bubble, which is (p - 1) / (3 m + p - 1) without it, and of zb-v's. Stages
 * differ in cost because of the head. */
TEST(post_validation_leaves_no_bubble)
{
    for (int p = 2; p <= 4; p += 2)
        for (int m = 2 * p; m <= 32; m *= 2)
            for (int v = 0; v < 2; v++) {
                struct job_spec job = piped(p, m, v ? PIPE_ZB_V : PIPE_ZB_H2, v + 1);
                const double waits = bubble_of(&job), formula = (p - 1.0) / ((v + 1) * 3 * m + p - 1);
                job.parallel.post_validation = true;
                const double early = bubble_of(&job);
                if (fabs(waits - formula) > 0.02 || early > 0.02)
                    fail_msg("p %d, m %d, v %d: bubbles %g and %g, not %g and 0", p, m, v + 1, waits, early, formula);
                const struct plan_rates pushes = {1e9, 1e30, 1e30, 0, false, true, NULL, 0, NULL, NULL};
                assert_true(bubble_with(&job, &pushes) < 1); /* no rank waits in a cycle */
            }
}

/* Where a push occupies the stream until its receiver arrives, adjacent ranks exchange values once for a forward and a
 * backward, so no rank waits for the slower of the two. */
TEST(chunks_lose_little_where_a_push_lasts)
{
    const struct plan_rates call = {1e9, 1e30, 1e30, 0, false, true, NULL, 0, NULL, NULL};
    for (int p = 2; p <= 8; p *= 2)
        for (int m = 8; m <= 32; m *= 2) {
            const struct job_spec one = piped(p, m, PIPE_1F1B, 1);
            if (fabs(bubble_with(&one, &call) - bubble_of(&one)) > 0.01)
                fail_msg("p %d, m %d: bubble %g, not %g", p, m, bubble_with(&one, &call), bubble_of(&one));
            if (p == 8)
                continue; /* the model has 8 layers */
            const struct job_spec two = piped(p, m, PIPE_INTERLEAVED, 2);
            double bubble = bubble_with(&two, &call);
            if (bubble > bubble_of(&two) + 0.015 || bubble >= bubble_of(&one))
                fail_msg("p %d, m %d: bubble %g, not %g; with one chunk %g", p, m, bubble, bubble_of(&two),
                         bubble_of(&one));
        }
}

/* Each of N ranks receives 2 n (N - 1) / N, for all gradients with their gaps and for the losses. */
TEST(traffic_of_data_parallelism_is_the_formula)
{
    struct fixture f;
    struct forecast c;
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    forecast_of(&job, &matmuls, &f, &c);
    int64_t losses = f.programs[0].n_micros * 8;
    assert_int_equal(c.bytes[1u << AXIS_DP], 2 * (f.programs[0].space_bytes[SPACE_GRAD] + losses));
    forecast_fini(&c);
    fixture_fini(&f);
}

/* Each boundary between stages passes an activation forward and its gradient back: for each microbatch twice seq x dim
 * elements. */
TEST(traffic_of_a_pipeline_is_the_formula)
{
    struct fixture f;
    struct forecast c;
    struct job_spec job = piped(4, 8, PIPE_1F1B, 1);
    forecast_of(&job, &matmuls, &f, &c);
    int64_t messages = (int64_t)3 * 8 * 2 * job.train.seq * job.model.dim * 4, once = c.bytes[1u << AXIS_PP] - messages;
    assert_true(once > 0 && once < 4 * 4096); /* losses and blocks of squares */
    forecast_fini(&c);
    fixture_fini(&f);
}

TEST(a_stream_does_one_thing_after_another)
{
    static const struct plan_rates slow = {1e9, 1e9, 1e8, 1e-6, false, false, NULL, 0, NULL, NULL};
    struct fixture f;
    struct forecast c;
    struct job_spec job = piped(4, 8, PIPE_ZB_H1, 1);
    forecast_of(&job, &slow, &f, &c);
    for (int r = 0; r < c.n; r++) {
        double end[STREAM_COUNT] = {0};
        assert_true(c.ranks[r].n > 16);
        for (int i = 0; i < c.ranks[r].n; i++) {
            const struct forecast_box *b = &c.ranks[r].boxes[i];
            assert_true(b->start >= end[b->stream] - 1e-12 && b->end > b->start && b->end <= c.seconds + 1e-12);
            end[b->stream] = b->end;
        }
    }
    forecast_fini(&c);
    fixture_fini(&f);
}

/* On one thread nothing is computed while something is sent. */
TEST(on_one_thread_all_communication_is_exposed)
{
    struct plan_rates rates = {1e9, 1e30, 1e9, 1e-6, false, false, NULL, 0, NULL, NULL};
    struct job_spec job = job_small(ARCH_LLAMA, 4);
    struct fixture f;
    struct forecast overlapped, serial;
    job.parallel.tp = 2;
    forecast_of(&job, &rates, &f, &overlapped);
    rates.one_thread = true;
    assert_ok(plan_forecast(f.programs, f.n, &rates, &serial, &f.why));
    assert_true(serial.seconds > overlapped.seconds && serial.exposed > overlapped.exposed);
    for (int r = 0; r < f.n; r++) {
        const struct forecast_rank *k = &serial.ranks[r];
        double comm = 0;
        for (int i = 0; i < k->n; i++)
            comm += k->boxes[i].stream == STREAM_COMM ? k->boxes[i].end - k->boxes[i].start : 0;
        assert_true(comm > 0 && fabs(k->exposed - comm) < 1e-12);
        for (int i = 1; i < k->n; i++)
            assert_true(k->boxes[i].start >= k->boxes[i - 1].end - 1e-12);
    }
    assert_memory_equal(overlapped.bytes, serial.bytes, sizeof(overlapped.bytes));
    forecast_fini(&overlapped);
    forecast_fini(&serial);
    fixture_fini(&f);
}

TEST(a_communication_thread_is_forecast)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    assert_true(plan_rates_of(&job).one_thread && !plan_rates_of(&job).one_call);
    job.run.comm_thread = COMM_THREAD_ON;
    assert_true(!plan_rates_of(&job).one_thread && !plan_rates_of(&job).one_call);
    job.run.device = DEVICE_CUDA;
    assert_true(!plan_rates_of(&job).one_thread && plan_rates_of(&job).one_call);
}

/* AVX512_BF16 multiplies 32 pairs where AVX-512 multiplies 16 in float32 and 8 in float64. A step gains less: the
 * update is in float32. */
TEST(a_type_of_half_the_size_is_forecast_as_faster)
{
    static const enum dtype dtypes[] = {DT_F64, DT_F32, DT_BF16};
    double seconds[3];
    for (int i = 0; i < 3; i++) {
        struct job_spec job = job_small(ARCH_LLAMA, 1);
        struct fixture f;
        struct forecast c;
        job.train.dtype = dtypes[i];
        const struct plan_rates rates = plan_rates_of(&job);
        assert_true(rates.flops == 30e9 * (1 << i));
        forecast_of(&job, &rates, &f, &c);
        seconds[i] = c.seconds;
        forecast_fini(&c);
        fixture_fini(&f);
    }
    assert_true(seconds[1] < seconds[0] && seconds[2] < seconds[1]);
}

static void check_memory_of_ranks(struct job_spec *job)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        struct plan_memory all[MAX_RANKS], m;
        job->train.dtype = dtypes[i];
        fixture_init(&f, job, MODE_TRAIN);
        assert_ok(plan_memory_of_ranks(job, &f.graph, all, &f.why));
        for (int r = 0; r < f.n; r++) {
            plan_memory(&f.programs[r], DEVICE_CPU, &m);
            assert_memory_equal(&m, &all[r], sizeof(m));
        }
        fixture_fini(&f);
    }
}

/* The same with experts, whose number `ep` divides or not, on folds over whole axes and parts of them, where ranks have
 * different numbers of microbatches, or none. */
TEST(memory_of_ranks_with_experts_is_that_of_their_programs)
{
    static const struct {
        int pp, dp, fsdp, cp, tp, zero, ep, experts, batch;
    } rows[] = {{1, 1, 4, 1, 1, 0, 4, 8, 6}, {1, 1, 8, 1, 1, 3, 2, 8, 10}, {1, 1, 8, 1, 1, 0, 2, 8, 10},
                {1, 2, 4, 1, 1, 2, 4, 8, 6}, {1, 2, 4, 1, 1, 0, 2, 8, 6},  {1, 1, 4, 1, 1, 1, 4, 7, 6},
                {2, 1, 4, 1, 1, 3, 2, 8, 6}, {1, 1, 2, 2, 2, 1, 8, 8, 4},  {1, 1, 1, 2, 4, 0, 4, 9, 4},
                {1, 1, 1, 1, 8, 0, 4, 8, 4}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job_spec job = job_small(ARCH_LLAMA, rows[i].pp * rows[i].dp * rows[i].fsdp * rows[i].cp * rows[i].tp);
        job.model.experts = rows[i].experts;
        job.model.experts_per_token = 2;
        job.model.expert_ffn = 12;
        job.model.heads = job.model.kv_heads = 8;
        job.parallel.pp = rows[i].pp;
        job.parallel.fsdp = rows[i].fsdp;
        job.parallel.cp = rows[i].cp;
        job.parallel.tp = rows[i].tp;
        job.parallel.zero = rows[i].zero;
        job.parallel.ep = rows[i].ep;
        job.train.global_batch = rows[i].batch;
        check_memory_of_ranks(&job);
        job.parallel.recompute = RECOMPUTE_EXPERTS;
        job.parallel.expert_rows = 1.1;
        check_memory_of_ranks(&job);
    }
}

/* The memory of every rank equals that of its own program. */
TEST(memory_of_ranks_is_that_of_their_programs)
{
    static const struct {
        int pp, fsdp, cp, tp, zero;
        bool async;
    } rows[] = {{1, 1, 1, 3, 0, false}, {2, 2, 1, 2, 3, false}, {1, 4, 2, 1, 1, false}, {4, 1, 1, 2, 0, false},
                {2, 1, 2, 2, 0, false}, {1, 1, 1, 3, 0, true},  {1, 1, 2, 4, 0, true}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job_spec job = job_small(ARCH_LLAMA, rows[i].pp * rows[i].fsdp * rows[i].cp * rows[i].tp);
        job.model.layers = 4;
        job.parallel.pp = rows[i].pp;
        job.parallel.fsdp = rows[i].fsdp;
        job.parallel.cp = rows[i].cp;
        job.parallel.tp = rows[i].tp;
        job.parallel.zero = rows[i].zero;
        job.parallel.sp = rows[i].tp > 1;
        job.parallel.async_tp = rows[i].async;
        job.train.seq = rows[i].async ? 7 : job.train.seq; /* some tp ranks have one token more */
        job.parallel.chunks = 1;
        check_memory_of_ranks(&job);
    }
}

/* Data sheets: H100 SXM 989 TFLOP/s in bfloat16, A100 19.5 in float32. */
TEST(peak_rates_are_found_by_the_name_of_the_gpu)
{
    static const struct {
        const char *gpu;
        enum dtype dtype;
        double flops;
    } cases[] = {{"NVIDIA H100 80GB HBM3", DT_BF16, 989e12}, {"NVIDIA H100 PCIe", DT_BF16, 756e12},
                 {"NVIDIA A100-SXM4-80GB", DT_F32, 19.5e12}, {"NVIDIA L4", DT_BF16, 121e12},
                 {"NVIDIA L40S", DT_BF16, 362e12},           {"NVIDIA RTX A4000", DT_BF16, 0},
                 {"NVIDIA GeForce GT 710", DT_BF16, 0},      {"NVIDIA H100 80GB HBM3", DT_F64, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_spec job = {.train.dtype = cases[i].dtype};
        const double flops = plan_peak_flops(&job, cases[i].gpu);
        if (fabs(flops - cases[i].flops) > 1e-6 * cases[i].flops)
            fail_msg("%s: expected %g, is %g", cases[i].gpu, cases[i].flops, flops);
    }
}
