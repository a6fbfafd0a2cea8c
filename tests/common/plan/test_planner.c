/* The closed form against the compiler, and properties that hold for every machine. The layouts are spread over the
 * axes; the compiler's memory is exact (test_memory), so it is the right value here. */
#include "common/plan/estimate/memory.h"
#include "common/plan/models/build.h"
#include "common/plan/search/draw.h"
#include "common/plan/search/search.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char gpt2[] = "{arch: gpt2, dim: 768, layers: 12, heads: 12, vocab: 50304}";
static const char llama[] = "{arch: llama, dim: 1024, layers: 16, heads: 16, kv_heads: 8, ffn: 2816, vocab: 32000}";
static const char mixture[] =
    "{arch: llama, dim: 512, layers: 16, heads: 8, ffn: 1024, vocab: 32000, experts: 8, experts_per_token: 2}";

static void job_make(const char *model, const char *dtype, const char *device, struct job_spec *ret)
{
    char text[1024];
    struct why why = {0};
    int n =
        snprintf(text, sizeof(text),
                 "name: j\nmodel: %s\ndata: {train: [x], tokenizer: words}\ntrain: {steps: 1, seq: 1024, global_batch: "
                 "64, micro_batch: 1, dtype: %s}\nrun: {device: %s}\n",
                 model, dtype, device);
    if (job_parse("job", text, (size_t)n, NULL, 0, ret, &why))
        fail_msg("%s", why.text);
}

static void machine_make(double link, double network, struct machine *ret)
{
    char text[512];
    struct why why = {0};
    int n = snprintf(text, sizeof(text),
                     "name: m\ndevice: {per_node: 8, units: 100, memory_gib: 40, bandwidth_gb: 2000, bf16_tflops: 300, "
                     "f32_tflops: 150}\nlink: {bandwidth_gb: %g}\nnetwork: {bandwidth_gb: %g}\n",
                     link, network);
    if (machine_parse("machine", text, (size_t)n, NULL, 0, ret, &why))
        fail_msg("%s", why.text);
}

/* {dp, fsdp, tp, cp, pp, ep, zero, chunks, micro_batch, sp, reshard, recompute, schedule} */
static const struct plan_layout layouts[] = {
    {1, 1, 1, 1, 1, 1, 0, 1, 1, false, true, RECOMPUTE_NONE, PIPE_1F1B},
    {4, 1, 1, 1, 1, 1, 0, 1, 4, false, true, RECOMPUTE_NONE, PIPE_1F1B},
    {1, 4, 1, 1, 1, 1, 1, 1, 2, false, true, RECOMPUTE_NONE, PIPE_1F1B},
    {1, 4, 1, 1, 1, 1, 2, 1, 2, false, true, RECOMPUTE_POINTWISE, PIPE_1F1B},
    {1, 4, 1, 1, 1, 1, 3, 1, 2, false, true, RECOMPUTE_NONE, PIPE_1F1B},
    {1, 4, 1, 1, 1, 1, 3, 1, 2, false, true, RECOMPUTE_FULL, PIPE_1F1B},
    {1, 1, 4, 1, 1, 1, 0, 1, 2, true, true, RECOMPUTE_NONE, PIPE_1F1B},
    {1, 1, 1, 4, 1, 1, 0, 1, 2, false, true, RECOMPUTE_ATTENTION, PIPE_1F1B},
    {1, 1, 1, 1, 4, 1, 0, 1, 2, false, true, RECOMPUTE_NONE, PIPE_1F1B},
    {1, 1, 1, 1, 4, 1, 0, 1, 2, false, true, RECOMPUTE_FULL, PIPE_1F1B},
    {1, 1, 1, 1, 4, 1, 0, 1, 2, false, true, RECOMPUTE_NONE, PIPE_GPIPE},
    {1, 1, 1, 1, 4, 1, 0, 1, 1, false, true, RECOMPUTE_NONE, PIPE_ZB_H1},
    {1, 1, 1, 1, 4, 1, 0, 1, 2, false, true, RECOMPUTE_NONE, PIPE_ZB_H2},
    {1, 1, 1, 1, 4, 1, 0, 2, 1, false, true, RECOMPUTE_NONE, PIPE_ZB_V},
    {1, 1, 1, 1, 4, 1, 0, 2, 2, false, true, RECOMPUTE_NONE, PIPE_DUALPIPE_V},
    {1, 1, 1, 1, 4, 1, 0, 2, 1, false, true, RECOMPUTE_NONE, PIPE_INTERLEAVED},
    {1, 2, 2, 1, 2, 1, 1, 1, 2, true, true, RECOMPUTE_NONE, PIPE_1F1B},
    {1, 2, 2, 1, 2, 1, 3, 1, 2, true, true, RECOMPUTE_FULL, PIPE_1F1B},
    {1, 2, 2, 2, 2, 1, 2, 1, 2, true, true, RECOMPUTE_POINTWISE, PIPE_1F1B},
};
#define N_LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))

static double exact_bytes(const struct job_spec *job, const struct graph *g, const struct plan_layout *l)
{
    struct job_spec with = *job;
    struct plan_memory ranks[64];
    struct why why = {0};
    double most = 0;
    plan_layout_apply(l, &with);
    assert_in_range(with.parallel.workers, 1, 64);
    if (plan_memory_of_ranks(&with, g, ranks, &why))
        fail_msg("%s", why.text);
    for (int r = 0; r < with.parallel.workers; r++) {
        double bytes = (double)(ranks[r].device_bytes ? ranks[r].device_bytes : ranks[r].host_bytes);
        most = fmax(most, bytes);
    }
    return most;
}

static void compare_memory(const char *model, const char *dtype, const char *device)
{
    struct job_spec job = {0};
    struct graph g = {0};
    struct plan_shape shape;
    struct why why = {0};
    double sum = 0;
    job_make(model, dtype, device, &job);
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    plan_shape_of(&job, &shape);
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        struct plan_bytes b;
        plan_step_bytes(&shape, &layouts[i], &b);
        double exact = exact_bytes(&job, &g, &layouts[i]), error = b.total / exact - 1;
        if (fabs(error) > 0.12)
            fail_msg("layout %zu of %s %s: %.0f MB, exact %.0f MB", i, model, dtype, b.total * 1e-6, exact * 1e-6);
        sum += fabs(error);
    }
    const size_t n = N_LAYOUTS;
    assert_true(sum / (double)n < 0.04);
    graph_fini(&g);
    job_fini(&job);
}

TEST(memory_of_gpt2_is_near_the_exact_one)
{
    compare_memory(gpt2, "bfloat16", "cuda");
    compare_memory(gpt2, "float32", "cpu");
}

TEST(memory_of_llama_is_near_the_exact_one)
{
    compare_memory(llama, "bfloat16", "cuda");
    compare_memory(llama, "float32", "cpu");
}

TEST(memory_of_a_mixture_is_near_the_exact_one)
{
    compare_memory(mixture, "bfloat16", "cuda");
}

TEST(parameters_are_those_of_the_model)
{
    struct job_spec job = {0};
    struct plan_shape shape;
    job_make("{arch: llama, dim: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}", "bfloat16",
             "cuda", &job);
    plan_shape_of(&job, &shape);
    assert_true(plan_shape_params(&shape, NULL) == 8030261248.0); /* Llama 3.1 8B */
    job_fini(&job);
}

/* ---- properties ---- */

static void every_time(const struct machine *m, struct plan_time ret[N_LAYOUTS])
{
    struct job_spec job = {0};
    struct plan_shape shape;
    const struct plan_overlap streams = {.gradients = true, .parameters = true, .messages = true};
    job_make(llama, "bfloat16", "cuda", &job);
    plan_shape_of(&job, &shape);
    for (size_t i = 0; i < N_LAYOUTS; i++)
        plan_step_time(&shape, &layouts[i], m, &streams, &ret[i]);
    job_fini(&job);
}

TEST(parts_sum_to_the_step)
{
    struct machine m;
    struct plan_time t[N_LAYOUTS];
    machine_make(200, 50, &m);
    every_time(&m, t);
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        double sum = t[i].compute + t[i].tp + t[i].cp + t[i].ep + t[i].pp + t[i].bubble + t[i].wait + t[i].params +
                     t[i].grads + t[i].update;
        assert_true(fabs(sum - t[i].seconds) <= 1e-12 * sum);
        assert_true(t[i].recompute <= t[i].compute && t[i].bubble >= 0 && t[i].grads >= 0 && t[i].params >= 0);
        assert_true(t[i].model_flops / t[i].seconds < 300e12); /* no worker is faster than its peak */
    }
    machine_fini(&m);
}

/* The slowest rank of a pipeline has at least the mean of all ranks to compute. */
static void expect_at_least_the_share(double layers, const struct plan_layout *l, const struct machine *m)
{
    struct job_spec job = {0};
    struct plan_shape shape;
    struct plan_time time, one_time;
    struct plan_layout one = *l;
    const struct plan_overlap streams = {.gradients = true, .parameters = true, .messages = true};
    job_make(llama, "bfloat16", "cuda", &job);
    plan_shape_of(&job, &shape);
    shape.layers = layers;
    one.pp = one.chunks = 1;
    one.schedule = PIPE_1F1B;
    plan_step_time(&shape, l, m, &streams, &time);
    plan_step_time(&shape, &one, m, &streams, &one_time);
    if (time.compute * (double)l->pp < one_time.compute * (1 - 1e-9))
        fail_msg("%.0f layers on %d ranks: %g s, less than a part of %g", layers, (int)l->pp, time.compute,
                 one_time.compute);
    assert_true(time.model_flops / time.seconds < 300e12);
    job_fini(&job);
}

TEST(no_pipeline_is_faster_than_its_share)
{
    static const struct {
        enum pipe_schedule schedule;
        int64_t chunks;
    } rows[] = {{PIPE_1F1B, 1}, {PIPE_INTERLEAVED, 2}, {PIPE_INTERLEAVED, 4}, {PIPE_ZB_H1, 1}, {PIPE_ZB_V, 2}};
    struct machine m;
    machine_make(200, 50, &m);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (double layers = 8; layers <= 80; layers += 3)
            for (int64_t pp = 2; (double)(pp * rows[i].chunks) <= layers; pp++)
                expect_at_least_the_share(layers,
                                          &(struct plan_layout){.dp = 1,
                                                                .fsdp = 1,
                                                                .tp = 1,
                                                                .cp = 1,
                                                                .pp = pp,
                                                                .ep = 1,
                                                                .chunks = rows[i].chunks,
                                                                .micro_batch = 1,
                                                                .schedule = rows[i].schedule},
                                          &m);
    machine_fini(&m);
}

TEST(more_bandwidth_is_never_slower)
{
    struct machine slow, fast;
    struct plan_time a[N_LAYOUTS], b[N_LAYOUTS];
    machine_make(100, 25, &slow);
    machine_make(200, 50, &fast);
    every_time(&slow, a);
    every_time(&fast, b);
    for (size_t i = 0; i < N_LAYOUTS; i++)
        assert_true(b[i].seconds <= a[i].seconds);
    machine_fini(&slow);
    machine_fini(&fast);
}

/* A ring all-reduce of n ranks moves 2 (n - 1) / n of the buffer over each link. */
TEST(a_collective_of_one_node_has_the_time_of_a_ring)
{
    struct machine m;
    machine_make(100, 50, &m);
    m.link.latency_us = 0;
    const double bytes = 8e9;
    assert_true(fabs(plan_collective_time(&m, PLAN_REDUCE, bytes, 8, 1) - 2 * 7.0 / 8 * bytes / 100e9) < 1e-9);
    assert_true(fabs(plan_collective_time(&m, PLAN_GATHER, bytes, 4, 1) - 3.0 / 4 * bytes / 100e9) < 1e-9);
    assert_true(fabs(plan_collective_time(&m, PLAN_ALL_TO_ALL, bytes, 4, 1) - 3.0 / 4 * bytes / 100e9) < 1e-9);
    assert_true(plan_collective_time(&m, PLAN_REDUCE, bytes, 1, 1) == 0);
    machine_fini(&m);
}

/* Measured of 8 H200: 362 GB/s on the bus in a ring, 473 in the switch, which NCCL uses from 5 ranks on, for reductions
 * only (stas00/ml-engineering). */
TEST(switches_sum_for_reductions_of_enough_ranks)
{
    struct machine m;
    const double bytes = 8e9;
    machine_make(362, 50, &m);
    m.link.latency_us = 0;
    m.link.switch_gb = 270;
    m.link.switch_ranks = 5;
    const double of_8 = plan_collective_time(&m, PLAN_REDUCE, bytes, 8, 1);
    assert_true(fabs(2 * 7.0 / 8 * bytes / of_8 * 1e-9 / 473 - 1) < 0.01);
    const double of_4 = plan_collective_time(&m, PLAN_REDUCE, bytes, 4, 1);
    assert_true(fabs(2 * 3.0 / 4 * bytes / of_4 * 1e-9 / 363 - 1) < 0.01);
    const double gather = plan_collective_time(&m, PLAN_GATHER, bytes, 8, 1);
    assert_true(fabs(7.0 / 8 * bytes / gather * 1e-9 / 361 - 1) < 0.01);
    machine_fini(&m);
}

/* By hand from the constants of NCCL's tuner for 64 nodes with a rank each, 50 GB/s, 14 us a step: microseconds. */
TEST(between_nodes_the_fastest_way_counts)
{
    static const struct {
        enum plan_collective op;
        double bytes, us;
    } rows[] = {
        {PLAN_REDUCE, 1e3, 2 * 6 * 5 + 2e3 / (0.92 * 50e3 / 3.8)},         /* tree, LL */
        {PLAN_REDUCE, 1e7, 2 * 6 * 8.5 + 2e7 / (0.92 * 120 / 128 * 50e3)}, /* tree, LL128 */
        {PLAN_REDUCE, 50e9, 2 * 63 * 14 + 2 * 63 / 64.0 * 50e9 / 50e3},    /* ring, Simple */
        {PLAN_GATHER, 1e3, 63 * 2.7 + 63 / 64.0 * 1e3 / 20e3},             /* ring, LL, which has 20 GB/s */
        {PLAN_GATHER, 1e8, 63 * 4 + 63 / 64.0 * 1e8 / (0.92 * 50e3)},      /* ring, LL128 */
        {PLAN_GATHER, 50e9, 63 * 14 + 63 / 64.0 * 50e9 / 50e3},            /* ring, Simple */
    };
    struct machine m;
    machine_make(1e6, 400, &m);
    m.link.latency_us = 0;
    m.network.share = 1;
    m.network.latency_us = 14;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_true(fabs(plan_collective_time(&m, rows[i].op, rows[i].bytes, 64, 8) * 1e6 / rows[i].us - 1) < 1e-9);
    /* Long steps: PAT has log2 of them. */
    m.network.latency_us = 140;
    double t = plan_collective_time(&m, PLAN_GATHER, 1e3, 64, 8);
    assert_true(fabs(t * 1e6 - (1e3 / (0.75 * 50e3) + 6 * 140 / 3.5 + 64 * 2.8)) < 1e-6);
    /* A ring of 4 nodes with 8 ranks each: the node's bandwidth, which hides what happens inside. */
    m.network.latency_us = 14;
    t = plan_collective_time(&m, PLAN_REDUCE, 50e9, 32, 1);
    assert_true(fabs(t - (2 * 31.0 / 32 * 50e9 / 400e9 + 2 * 3 * 14e-6)) < 1e-6);
    machine_fini(&m);
}

/* 16 nodes in pods of 4, one to 7 between them. */
TEST(oversubscription_counts_where_a_group_leaves_its_pod)
{
    struct machine m, wide;
    machine_make(1e6, 400, &wide);
    wide.link.latency_us = wide.network.latency_us = 0;
    m = wide;
    m.network.pod = 4;
    m.network.oversubscription = 7;
    const double bytes = 1e9;
    /* in one pod */
    assert_true(plan_collective_time(&m, PLAN_REDUCE, bytes, 4, 8) ==
                plan_collective_time(&wide, PLAN_REDUCE, bytes, 4, 8));
    /* 16 ranks, 4 in each pod: one of 4 nodes' traffic leaves, over a seventh of the bandwidth */
    assert_true(fabs(plan_collective_time(&m, PLAN_GATHER, bytes, 16, 8) /
                         plan_collective_time(&wide, PLAN_GATHER, bytes, 16, 8) -
                     7.0 / 4) < 1e-9);
    /* 4 ranks, each in another pod */
    assert_true(fabs(plan_collective_time(&m, PLAN_GATHER, bytes, 4, 32) /
                         plan_collective_time(&wide, PLAN_GATHER, bytes, 4, 32) -
                     7) < 1e-9);
    /* three quarters of an all-to-all leave */
    assert_true(fabs(plan_collective_time(&m, PLAN_ALL_TO_ALL, bytes, 128, 1) /
                         plan_collective_time(&wide, PLAN_ALL_TO_ALL, bytes, 128, 1) -
                     7 * 0.75) < 0.01);
    machine_fini(&wide);
}

/* Draws the rank of each token's expert and returns the largest number of a rank over the mean. */
static double drawn_load(int ranks, int draws, int repeats)
{
    uint64_t state = draw_start(7);
    double sum = 0;
    for (int r = 0; r < repeats; r++) {
        int count[64] = {0}, most = 0;
        for (int i = 0; i < draws; i++)
            count[(draw_bits(&state) >> 32) % (uint64_t)ranks]++;
        for (int i = 0; i < ranks; i++)
            most = count[i] > most ? count[i] : most;
        sum += most / ((double)draws / ranks);
    }
    return sum / repeats;
}

TEST(experts_wait_for_the_rank_with_most_tokens)
{
    struct job_spec job = {0};
    struct plan_shape shape;
    struct plan_time even, uneven;
    struct machine m;
    const struct plan_overlap none = {0};
    struct plan_layout l = {
        .dp = 1, .fsdp = 8, .tp = 1, .cp = 1, .pp = 1, .ep = 8, .zero = 1, .chunks = 1, .micro_batch = 1};
    job_make(mixture, "bfloat16", "cuda", &job);
    plan_shape_of(&job, &shape);
    assert_true(!shape.even_experts);
    machine_make(1e6, 50, &m);
    m.link.latency_us = 0;
    m.noise.spread = 0;
    m.device.call_us = m.device.launch_us = 0;
    m.device.units = 1; /* times in proportion to rows */
    m.device.bandwidth_gb = 1e6;
    plan_step_time(&shape, &l, &m, &none, &uneven);
    shape.even_experts = true;
    plan_step_time(&shape, &l, &m, &none, &even);
    shape.experts_per_token = 0; /* what is left is not of experts */
    struct plan_time rest;
    plan_step_time(&shape, &l, &m, &none, &rest);
    const double load = (uneven.compute - rest.compute) / (even.compute - rest.compute);
    assert_true(fabs((load - 1) / (drawn_load(8, 8 * 1024 * 2, 400) - 1) - 1) < 0.1);
    job.parallel.expert_load = EXPERT_LOAD_BALANCED;
    plan_shape_of(&job, &shape);
    assert_true(shape.even_experts);
    machine_fini(&m);
    job_fini(&job);
}

static double compute_seconds(const struct plan_shape *s, const struct machine *m)
{
    const struct plan_overlap none = {0};
    const struct plan_layout l = {
        .dp = 1, .fsdp = 1, .tp = 1, .cp = 1, .pp = 1, .ep = 1, .chunks = 1, .micro_batch = 1};
    struct plan_time t;
    plan_step_time(s, &l, m, &none, &t);
    return t.compute;
}

/* Forward 4 operations for each pair of a query and a key, of which the mask leaves half, and dimension of a head;
 * backward 2.5 times as many. */
TEST(attention_has_the_rate_of_its_program)
{
    struct job_spec job = {0};
    struct plan_shape shape;
    struct machine m;
    job_make(llama, "bfloat16", "cuda", &job);
    machine_make(200, 50, &m);
    plan_shape_of(&job, &shape);
    shape.seq = 65536;
    const double flops = 3.5 * 4 * shape.seq * shape.seq / 2 * shape.head_dim * shape.heads;
    const double of_step = flops * shape.layers * shape.global_batch, peak = 300e12;
    const double own = compute_seconds(&shape, &m);
    shape.attention_rate = 0.4;
    const double fast = compute_seconds(&shape, &m);
    shape.attention_rate = 0.1;
    const double slow = compute_seconds(&shape, &m);
    assert_true(fabs((slow - fast) / (of_step / peak * (1 / 0.1 - 1 / 0.4)) - 1) < 1e-9);
    assert_true(fabs((fast - own) / (of_step / peak * (1 / 0.4 - 1 / (0.75 * m.device.product))) - 1) < 1e-9);
    machine_fini(&m);
    job_fini(&job);
}

/* A device that is busy longer than the program needs to issue its operations hides that time, unless the program waits
 * for each of them. */
TEST(a_program_that_waits_for_calls_adds_them)
{
    struct job_spec job = {0};
    struct plan_shape shape;
    struct machine m;
    job_make(llama, "bfloat16", "cuda", &job);
    machine_make(200, 50, &m);
    plan_shape_of(&job, &shape);
    m.device.call_us = 0;
    const double busy = compute_seconds(&shape, &m);
    m.device.call_us = 1;
    assert_true(compute_seconds(&shape, &m) == busy);
    shape.waits_for_calls = true;
    const double one = compute_seconds(&shape, &m) - busy;
    m.device.call_us = 2;
    const double two = compute_seconds(&shape, &m) - busy;
    /* at least the products of a layer, three passes each */
    assert_true(one > 1e-6 * shape.layers * shape.global_batch * 4 * 3);
    assert_true(fabs(two / one - 2) < 1e-9);
    machine_fini(&m);
    job_fini(&job);
}

/* 1F1B: (pp - 1) / m of the stages' own time (Narayanan et al. 2021), when messages take none and no head counts. */
TEST(the_bubble_is_that_of_the_schedule)
{
    struct machine m;
    struct plan_time t;
    const struct plan_overlap none = {0};
    struct plan_shape s = {.layers = 16,
                           .dim = 1024,
                           .heads = 16,
                           .kv_heads = 16,
                           .head_dim = 64,
                           .ffn = 4096,
                           .ffn_matrices = 2,
                           .vocab = 8,
                           .seq = 512,
                           .fused_attention = true,
                           .even_stages = true,
                           .type_bytes = 2,
                           .keep_bytes = 4,
                           .state_bytes = 8,
                           .grad_bytes = 4,
                           .global_batch = 8};
    struct plan_layout l = {1, 1, 1, 1, 4, 1, 0, 1, 1, false, true, RECOMPUTE_NONE, PIPE_1F1B};
    machine_make(1e6, 1e6, &m);
    m.link.latency_us = m.network.latency_us = m.device.launch_us = m.device.call_us = 0;
    plan_step_time(&s, &l, &m, &none, &t);
    assert_true(fabs(t.bubble / t.compute - 3.0 / 8) < 0.01);
    l.schedule = PIPE_INTERLEAVED;
    l.chunks = 2;
    plan_step_time(&s, &l, &m, &none, &t);
    assert_true(fabs(t.bubble / t.compute - 3.0 / 8 / 2) < 0.01);
    l.schedule = PIPE_ZB_V;
    plan_step_time(&s, &l, &m, &none, &t);
    assert_true(t.bubble / t.compute < 0.01);
    machine_fini(&m);
}

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

/* E[max] of n numbers is the integral of 1 - F^n above 0, less that of F^n below. */
static double largest_of(double n)
{
    double sum = 0;
    for (double x = -9.9995; x < 10; x += 1e-3) {
        double f = pow(normal_cdf(x), n);
        sum += 1e-3 * (x > 0 ? 1 - f : -f);
    }
    return sum;
}

TEST(all_wait_for_the_slowest_device)
{
    struct machine m;
    struct plan_time even[N_LAYOUTS], uneven[N_LAYOUTS];
    assert_true(plan_slowest(1) == 0);
    for (double n = 2; n <= 1 << 20; n *= 2)
        assert_true(fabs(plan_slowest(n) / largest_of(n) - 1) < 1e-3);
    for (double n = 3; n <= 1 << 18; n *= 2)
        assert_true(fabs(plan_slowest(n) / largest_of(n) - 1) < 0.03);
    machine_make(200, 50, &m);
    m.noise.spread = 0;
    every_time(&m, even);
    m.noise.spread = 0.02;
    every_time(&m, uneven);
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        double most = 0.02 * largest_of((double)plan_layout_workers(&layouts[i]));
        assert_true(fabs((uneven[i].seconds - even[i].seconds) / (even[i].compute + even[i].bubble) - most) < 1e-4);
    }
    machine_fini(&m);
}

/* The first microbatch passes 3 borders forward and backward, and a rank sends and receives each of 8 microbatches. */
TEST(a_cut_message_takes_its_part_of_the_time)
{
    struct machine m;
    struct plan_time whole, cut;
    struct job_spec job = {0};
    struct plan_shape shape;
    const struct plan_overlap none = {0}, parts = {.cut_messages = true};
    struct plan_layout l = {.dp = 1, .fsdp = 1, .tp = 8, .cp = 1, .pp = 4, .ep = 1, .chunks = 1, .micro_batch = 8};
    job_make(llama, "bfloat16", "cuda", &job);
    plan_shape_of(&job, &shape);
    machine_make(1e6, 50, &m);
    m.link.latency_us = m.network.latency_us = 0;
    l.schedule = PIPE_1F1B;
    plan_step_time(&shape, &l, &m, &none, &whole);
    plan_step_time(&shape, &l, &m, &parts, &cut);
    assert_true(fabs(whole.pp / cut.pp - 8) < 0.01);
    machine_fini(&m);
    job_fini(&job);
}

/* 16 stages of a node each, in pods of 2 nodes with one to 7 between them: half of a pod sends at its border, through a
 * seventh of the bandwidth. */
TEST(messages_between_pods_share_their_switches)
{
    struct machine m;
    struct plan_time in, across;
    struct job_spec job = {0};
    struct plan_shape shape;
    const struct plan_overlap none = {0};
    struct plan_layout l = {.dp = 1, .fsdp = 1, .tp = 8, .cp = 1, .pp = 16, .ep = 1, .chunks = 1, .micro_batch = 8};
    l.schedule = PIPE_1F1B;
    job_make(llama, "bfloat16", "cuda", &job);
    plan_shape_of(&job, &shape);
    machine_make(1e6, 50, &m);
    m.link.latency_us = m.network.latency_us = 0;
    plan_step_time(&shape, &l, &m, &none, &in);
    m.network.pod = 2;
    m.network.oversubscription = 7;
    plan_step_time(&shape, &l, &m, &none, &across);
    assert_true(fabs(across.pp / in.pp - 7.0 / 2) < 1e-9);
    machine_fini(&m);
    job_fini(&job);
}

/* Two stages, each cut over 8 nodes; either messages or gathers fit beside the computation, but not both. */
TEST(flows_on_an_adapter_take_turns)
{
    struct machine m;
    struct plan_time alone, messages, gathers, both;
    struct job_spec job = {0};
    struct plan_shape shape;
    const struct plan_overlap none = {0}, one = {.messages = true}, other = {.parameters = true},
                              two = {.messages = true, .parameters = true};
    struct plan_layout l = {
        .dp = 1, .fsdp = 8, .tp = 1, .cp = 1, .pp = 2, .ep = 1, .zero = 3, .chunks = 1, .micro_batch = 64};
    l.schedule = PIPE_1F1B;
    job_make(llama, "bfloat16", "cuda", &job);
    plan_shape_of(&job, &shape);
    shape.global_batch = 64 * 8 * 4;
    machine_make(100, 0.4, &m);
    m.device.per_node = 1;
    m.network.latency_us = 0;
    plan_step_time(&shape, &l, &m, &none, &alone);
    m.network.bandwidth_gb = 0.4 * (alone.params / alone.compute) / 0.7; /* gathers take 0.7 of the computation */
    plan_step_time(&shape, &l, &m, &none, &alone);
    plan_step_time(&shape, &l, &m, &one, &messages);
    plan_step_time(&shape, &l, &m, &other, &gathers);
    plan_step_time(&shape, &l, &m, &two, &both);
    const double sum = alone.pp + alone.params;
    assert_true(alone.pp < alone.compute && alone.params < alone.compute && sum > alone.compute);
    assert_true(fabs(messages.pp / alone.pp - 0.02) < 1e-9 && fabs(gathers.params / alone.params - 0.02) < 1e-9);
    assert_true(fabs(both.pp + both.params - (sum - alone.compute + 0.02 * alone.compute)) < 1e-9);
    machine_fini(&m);
    job_fini(&job);
}

/* Each microbatch's backward pass hides the sums of its gradients, if they take less time than it. */
TEST(zero_2_sums_beside_each_backward_pass)
{
    struct machine m;
    struct plan_time one, four;
    struct job_spec job = {0};
    struct plan_shape shape;
    const struct plan_overlap streams = {.gradients = true};
    struct plan_layout l = {
        .dp = 1, .fsdp = 8, .tp = 1, .cp = 1, .pp = 1, .ep = 1, .zero = 2, .chunks = 1, .micro_batch = 2};
    job_make(llama, "bfloat16", "cuda", &job);
    plan_shape_of(&job, &shape);
    machine_make(100, 50, &m);
    m.link.latency_us = 0;
    shape.global_batch = 16;
    plan_step_time(&shape, &l, &m, &streams, &one);
    shape.global_batch = 64;
    plan_step_time(&shape, &l, &m, &streams, &four);
    const double sum = one.grads / 0.15; /* Calculon's share, of what is hidden */
    assert_true(sum < one.compute / 2 && 4 * sum > one.compute);
    assert_true(fabs(four.grads / one.grads - 4) < 1e-9);
    machine_fini(&m);
    job_fini(&job);
}

/* Seconds of a model of one layer. */
static double head_seconds(const struct machine *m, double vocab)
{
    struct plan_time t;
    struct job_spec job = {0};
    struct plan_shape shape;
    const struct plan_overlap none = {0};
    const struct plan_layout l = {
        .dp = 1, .fsdp = 1, .tp = 1, .cp = 1, .pp = 1, .ep = 1, .chunks = 1, .micro_batch = 64};
    job_make(llama, "bfloat16", "cuda", &job);
    plan_shape_of(&job, &shape);
    shape.layers = 1;
    shape.vocab = vocab;
    plan_step_time(&shape, &l, m, &none, &t);
    job_fini(&job);
    return t.compute;
}

/* What a head of twice the size takes longer depends on the memory by its results, [rows, vocabulary] and the gradient
 * [dim, vocabulary] of 2 bytes, and by 16 bytes a logit in the loss. */
TEST(results_are_written_after_the_products)
{
    const double vocab = 1 << 19, rows = 64 * 1024, dim = 1024;
    struct machine m;
    machine_make(200, 50, &m);
    const double slow = head_seconds(&m, 2 * vocab) - head_seconds(&m, vocab);
    m.device.bandwidth_gb *= 2;
    const double fast = head_seconds(&m, 2 * vocab) - head_seconds(&m, vocab);
    const double bytes = vocab * (2 * rows + 2 * dim + 16 * rows), rate = 2000e9 * m.device.copy;
    assert_true(fabs((slow - fast) / (bytes / rate / 2) - 1) < 1e-6);
    machine_fini(&m);
}

/* ---- search ---- */

static bool is_legal(const struct plan_layout *l, int64_t workers)
{
    return plan_layout_workers(l) == workers && (l->fsdp > 1) == (l->zero > 0) && 16 % l->tp == 0 && 8 % l->tp == 0 &&
           l->pp * l->chunks <= 16 && l->micro_batch * l->dp * l->fsdp <= 64;
}

TEST(results_are_legal_sorted_and_fit)
{
    struct job_spec job = {0};
    struct machine m;
    struct plan_shape shape;
    struct plan_results r;
    job_make(llama, "bfloat16", "cuda", &job);
    machine_make(200, 50, &m);
    plan_shape_of(&job, &shape);
    struct plan_search search = {.shape = &shape, .machine = &m, .workers = 16, .memory = 3e9};
    assert_ok(plan_search(&search, &r));
    assert_true(r.n_fit > 10 && r.n_unfit > 0);
    for (int i = 0; i < r.n_fit; i++) {
        assert_true(is_legal(&r.fit[i].layout, 16));
        assert_true(r.fit[i].bytes.total <= search.memory);
        assert_true(i == 0 || r.fit[i - 1].time.seconds <= r.fit[i].time.seconds);
    }
    for (int i = 0; i < r.n_unfit; i++)
        assert_true(r.unfit[i].bytes.total > search.memory);
    plan_results_fini(&r);
    machine_fini(&m);
    job_fini(&job);
}

/* With slow links between nodes and all the memory, tensor parallelism never pays; with little memory it must. */
TEST(the_best_layout_follows_from_the_machine)
{
    struct job_spec job = {0};
    struct machine m;
    struct plan_shape shape;
    struct plan_results r;
    job_make(llama, "bfloat16", "cuda", &job);
    machine_make(20, 5, &m);
    plan_shape_of(&job, &shape);
    struct plan_search search = {.shape = &shape, .machine = &m, .workers = 16, .memory = 80e9};
    assert_ok(plan_search(&search, &r));
    assert_int_equal(r.fit[0].layout.tp, 1);
    plan_results_fini(&r);
    search.memory = 1.5e9;
    search.goal = PLAN_MEMORY;
    assert_ok(plan_search(&search, &r));
    assert_true(r.n_fit > 0 && r.fit[0].layout.tp * r.fit[0].layout.pp * r.fit[0].layout.fsdp > 1);
    plan_results_fini(&r);
    machine_fini(&m);
    job_fini(&job);
}
