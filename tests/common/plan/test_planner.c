/* The closed form against the compiler, and properties that hold for every machine. The layouts are spread over the
 * axes; the compiler's memory is exact (test_memory), so it is the right value here. */
#include "common/plan/estimate/memory.h"
#include "common/plan/models/build.h"
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
    assert_true(sum / N_LAYOUTS < 0.04);
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
    const struct plan_overlap streams = {true, true, true};
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
        double sum =
            t[i].compute + t[i].tp + t[i].cp + t[i].ep + t[i].pp + t[i].bubble + t[i].params + t[i].grads + t[i].update;
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
    const struct plan_overlap streams = {true, true, true};
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
