/* bench_planner_run [ROUNDS]: how fast steps of all ranks and runs of weeks are simulated, on one core. One JSON line
 * each: a step of 100,352 ranks (784 replicas of 16 stages of 8, 64 microbatches each, of a model with 405e9
 * parameters) at the level of slots and of operations, the rates of max-min sharing, and a run of ten years of 12,544
 * nodes. The best of ROUNDS (3) counts. */
#include "common/plan/search/goodput.h"
#include "common/plan/search/operations.h"
#include "common/plan/search/simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DAY 86400.0

static const struct plan_shape shape = {.layers = 126,
                                        .dim = 16384,
                                        .heads = 128,
                                        .kv_heads = 8,
                                        .head_dim = 128,
                                        .ffn = 53248,
                                        .vocab = 128256,
                                        .seq = 8192,
                                        .ffn_matrices = 3,
                                        .fused_attention = true,
                                        .type_bytes = 2,
                                        .keep_bytes = 4,
                                        .state_bytes = 8,
                                        .grad_bytes = 4,
                                        .global_batch = 784 * 64};

static const struct machine machine = {
    .device = {.per_node = 8,
               .units = 132,
               .memory_gib = 80,
               .bandwidth_gb = 3350,
               .bf16_tflops = 989,
               .f32_tflops = 494,
               .product = 0.6,
               .copy = 0.8,
               .launch_us = 4,
               .call_us = 4},
    .link = {.bandwidth_gb = 480, .latency_us = 35, .ramp_us = 8.7},
    .network = {.bandwidth_gb = 400, .share = 0.8, .latency_us = 20, .pod = 3072, .oversubscription = 7}};

static const struct plan_layout layout = {.dp = 1,
                                          .fsdp = 784,
                                          .tp = 8,
                                          .cp = 1,
                                          .pp = 16,
                                          .ep = 1,
                                          .zero = 1,
                                          .chunks = 1,
                                          .micro_batch = 1,
                                          .sp = true,
                                          .schedule = PIPE_1F1B,
                                          .recompute = RECOMPUTE_NONE};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static err_t bench_step(bool slots_only, int rounds, struct why *why)
{
    const struct plan_overlap overlap = {.gradients = true, .parameters = true, .messages = true};
    const struct plan_noise noise = {.spread = 0.015, .jitter = 0.01, .operation = slots_only ? 0 : 0.02, .seed = 1};
    struct plan_operations o;
    struct schedule s;
    struct plan_step_result r = {0};
    double best = 1e30;
    err_t err = schedule_build(SCHEDULE_1F1B, 16, 1, 64, &s, why);
    if (err)
        return err;
    err = plan_operations_init(&shape, &layout, &machine, &overlap, &s, slots_only, &o);
    for (int i = 0; !err && i < rounds; i++) {
        const struct plan_step step = {
            .schedule = &s, .cost.last_scale = 1, .replicas = 784, .peers = 8, .operations = &o};
        const double start = now_s();
        err = plan_simulate(&step, &noise, &r, why);
        best = now_s() - start < best ? now_s() - start : best;
    }
    if (!err) {
        const double n = (double)(slots_only ? r.slots : r.operations);
        printf("{\"bench\": \"planner\", \"what\": \"step\", \"level\": \"%s\", \"ranks\": 100352, \"%s\": %.0f, "
               "\"seconds\": "
               "%.3f, \"per_second\": %.3g, \"step_s\": %.4f, \"quiet_s\": %.4f}\n",
               slots_only ? "slots" : "operations", slots_only ? "slots" : "operations", n, best, n / best, r.seconds,
               r.quiet);
        plan_operations_fini(&o);
    }
    schedule_fini(&s);
    return err;
}

/* Transfers that begin at different times and share some of 16 links. */
#define FLOWS 2000
#define LINKS 16

static err_t bench_flows(int rounds)
{
    static struct flow flows[FLOWS];
    static struct flow_use uses[LINKS];
    double capacities[LINKS], best = 1e30;
    err_t err = OK;
    for (int k = 0; k < LINKS; k++) {
        capacities[k] = 1;
        uses[k] = (struct flow_use){k, 0.1};
    }
    for (int round = 0; !err && round < rounds; round++) {
        for (int i = 0; i < FLOWS; i++)
            flows[i] = (struct flow){.ready = i * 0.01,
                                     .after = -1,
                                     .work = 0.2 + i % 7 * 0.05,
                                     .most = 1,
                                     .uses = &uses[i % (LINKS - 1)],
                                     .n_uses = 2};
        const double start = now_s();
        err = flows_simulate(flows, FLOWS, capacities, LINKS);
        best = now_s() - start < best ? now_s() - start : best;
    }
    if (!err)
        printf(
            "{\"bench\": \"planner\", \"what\": \"flows\", \"flows\": %d, \"seconds\": %.4f, \"per_second\": %.3g}\n",
            FLOWS, best, FLOWS / best);
    return err;
}

static err_t bench_run(int rounds)
{
    const struct plan_run run = {.length = 3650 * DAY,
                                 .nodes = 12544,
                                 .node_failures = 3.8 / (1000 * DAY),
                                 .restart = 180,
                                 .stall = 1,
                                 .save = 97,
                                 .taken = 0.8,
                                 .repair = DAY,
                                 .spares = 60,
                                 .waits = true};
    struct plan_goodput exact, drawn = {0};
    double best = 1e30;
    err_t err = OK;
    plan_goodput(&run, &exact);
    for (int i = 0; !err && i < rounds; i++) {
        const double start = now_s();
        err = plan_goodput_simulate(&run, 1, 1, &drawn);
        best = now_s() - start < best ? now_s() - start : best;
    }
    if (!err)
        printf("{\"bench\": \"planner\", \"what\": \"run\", \"days\": 3650, \"nodes\": 12544, \"failures\": %.0f, "
               "\"seconds\": %.4f, "
               "\"goodput\": %.4f, \"closed_form\": %.4f}\n",
               drawn.failures, best, drawn.share, exact.share);
    return err;
}

int main(int argc, char **argv)
{
    struct why why = {0};
    const int rounds = argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : 3;
    err_t err = bench_step(true, rounds, &why);
    err = err ? err : bench_step(false, rounds, &why);
    err = err ? err : bench_flows(rounds);
    err = err ? err : bench_run(rounds);
    if (err)
        return fprintf(stderr, "bench_planner_run: %s %s\n", err_text(err), why.text), 1;
    return 0;
}
