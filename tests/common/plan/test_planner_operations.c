/* Steps at the level of operations: time is conserved, without noise they take the time of the closed form, and what
 * ought to make a step slower does. */
#include "common/plan/search/operations.h"
#include "common/plan/search/simulate.h"
#include "tests/lib/test.h"

#include <math.h>

/* A model of 24 layers on nodes of 8 devices. Three nodes are a pod; the links between pods are a quarter. */
static const struct plan_shape shape = {.layers = 24,
                                        .dim = 4096,
                                        .heads = 32,
                                        .kv_heads = 8,
                                        .head_dim = 128,
                                        .ffn = 14336,
                                        .vocab = 32000,
                                        .seq = 4096,
                                        .ffn_matrices = 3,
                                        .fused_attention = true,
                                        .even_stages = true,
                                        .type_bytes = 2,
                                        .keep_bytes = 4,
                                        .state_bytes = 8,
                                        .grad_bytes = 4,
                                        .global_batch = 128};

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
    .network = {.bandwidth_gb = 400, .share = 0.8, .latency_us = 14, .oversubscription = 1}};

static const struct plan_layout plain = {.dp = 1,
                                         .fsdp = 1,
                                         .tp = 1,
                                         .cp = 1,
                                         .pp = 1,
                                         .ep = 1,
                                         .chunks = 1,
                                         .micro_batch = 1,
                                         .schedule = PIPE_1F1B,
                                         .recompute = RECOMPUTE_NONE};

static const struct plan_overlap all_beside = {.gradients = true, .parameters = true, .messages = true},
                                 none_beside = {0};
static const struct plan_noise quiet = {.seed = 1};
static const struct plan_noise noisy = {.spread = 0.02, .jitter = 0.01, .operation = 0.03, .seed = 5};

/* A simulation, and the closed form of the same layout. */
struct simulated {
    struct plan_step_result step;
    struct plan_time closed;
    double *ranks; /* [part][rank] */
    int64_t n_ranks;
};

struct setting {
    struct plan_shape shape;
    struct machine machine;
    struct plan_layout layout;
    struct plan_overlap overlap;
    struct plan_noise noise;
    int steps;
    bool slots_only;
};

static struct setting setting_of(struct plan_layout layout, struct plan_overlap overlap, struct plan_noise noise)
{
    return (struct setting){.shape = shape, .machine = machine, .layout = layout, .overlap = overlap, .noise = noise};
}

static struct simulated simulate(const struct setting *t)
{
    const struct plan_layout *l = &t->layout;
    struct simulated r = {.n_ranks = plan_layout_workers(l)};
    struct plan_operations o;
    struct schedule s;
    struct why why = {0};
    if (schedule_build((enum schedule_kind)l->schedule, (int)l->pp, (int)l->chunks,
                       (int)plan_layout_micros(&t->shape, l), &s, &why))
        fail_msg("%s", why.text);
    r.ranks = calloc((size_t)(PLAN_PARTS * r.n_ranks), sizeof(*r.ranks));
    assert_non_null(r.ranks);
    plan_step_time(&t->shape, l, &t->machine, &t->overlap, &r.closed);
    r.closed.seconds -= r.closed.wait; /* for slow devices */
    assert_ok(plan_operations_init(&t->shape, l, &t->machine, &t->overlap, &s, t->slots_only, &o));
    const double end = t->slots_only ? r.closed.params + r.closed.grads + r.closed.update
                                     : r.closed.update + (l->zero == 3 ? 0 : r.closed.params);
    struct plan_step step = {.schedule = &s,
                             .cost.last_scale = 1,
                             .replicas = l->dp * l->fsdp,
                             .peers = l->tp * l->cp,
                             .end_s = end,
                             .steps = t->steps,
                             .operations = &o,
                             .ranks = r.ranks};
    assert_ok(plan_simulate(&step, &t->noise, &r.step, &why));
    plan_operations_fini(&o);
    schedule_fini(&s);
    return r;
}

static double seconds_of(const struct setting *t)
{
    struct simulated r = simulate(t);
    free(r.ranks);
    return r.step.seconds;
}

/* Layouts of all kinds: dp, fsdp, tp, cp, pp, ep, zero, chunks, micro_batch, sp, reshard, recompute, schedule. */
static const struct plan_layout layouts[] = {
    {8, 1, 1, 1, 1, 1, 0, 1, 1, false, false, RECOMPUTE_NONE, PIPE_1F1B},
    {1, 8, 2, 1, 1, 1, 1, 1, 1, true, false, RECOMPUTE_NONE, PIPE_1F1B},
    {2, 4, 4, 1, 1, 1, 2, 1, 1, false, false, RECOMPUTE_NONE, PIPE_1F1B},
    {1, 16, 1, 1, 1, 1, 3, 1, 1, false, true, RECOMPUTE_FULL, PIPE_1F1B},
    {4, 1, 8, 1, 4, 1, 0, 1, 1, true, false, RECOMPUTE_FULL, PIPE_1F1B},
    {1, 4, 2, 2, 4, 1, 3, 1, 1, false, false, RECOMPUTE_NONE, PIPE_1F1B},
    {8, 1, 1, 1, 4, 1, 0, 2, 1, false, false, RECOMPUTE_ATTENTION, PIPE_INTERLEAVED},
    {1, 8, 1, 4, 2, 1, 1, 2, 1, false, false, RECOMPUTE_NONE, PIPE_ZB_V},
    {1, 8, 1, 1, 2, 8, 2, 1, 1, false, false, RECOMPUTE_NONE, PIPE_ZB_H1},
};
#define LAYOUTS ((int)(sizeof(layouts) / sizeof(layouts[0])))

static struct plan_shape mixture_shape(void)
{
    struct plan_shape s = shape;
    s.experts = 8;
    s.experts_per_token = 2;
    s.expert_ffn = 14336;
    s.expert_layers = s.layers;
    return s;
}

static struct setting setting_row(int i, struct plan_overlap overlap, struct plan_noise noise)
{
    struct setting t = setting_of(layouts[i], overlap, noise);
    if (t.layout.ep > 1)
        t.shape = mixture_shape();
    return t;
}

/* Each second of each rank is work, a transfer or a wait, and none of them is negative. */
TEST(all_time_of_all_ranks_is_accounted_for)
{
    for (int i = 0; i < 2 * LAYOUTS; i++) {
        struct setting t = setting_row(i / 2, i % 2 ? all_beside : none_beside, noisy);
        t.machine.network.pod = 1;
        t.machine.network.oversubscription = 4;
        t.machine.network.adapters = 2;
        t.steps = 3;
        struct simulated r = simulate(&t);
        double means = 0;
        for (int part = 0; part < PLAN_PARTS; part++)
            means += r.step.parts[part];
        assert_true(fabs(means - r.step.seconds) < 1e-9 * r.step.seconds);
        for (int64_t rank = 0; rank < r.n_ranks; rank++) {
            double sum = 0;
            for (int part = 0; part < PLAN_PARTS; part++) {
                const double one = r.ranks[part * r.n_ranks + rank];
                if (one < -1e-12)
                    fail_msg("layout %d, rank %d: %s %g s", i, (int)rank, plan_part_name((enum plan_part)part), one);
                sum += one;
            }
            if (fabs(sum - r.step.seconds) > 1e-9 * r.step.seconds)
                fail_msg("layout %d, rank %d: %.12g of %.12g s", i, (int)rank, sum, r.step.seconds);
        }
        free(r.ranks);
    }
}

/* Where ranks overlap nothing and have no pipeline, the closed form is exact. */
TEST(a_quiet_step_takes_the_time_of_the_closed_form)
{
    for (int zero = 0; zero <= 3; zero++)
        for (int tp = 1; tp <= 8; tp *= 2) {
            struct plan_layout l = plain;
            l.fsdp = 8;
            l.zero = zero;
            l.tp = tp;
            l.sp = tp == 4;
            l.cp = tp == 2 ? 2 : 1;
            l.reshard = true;
            l.recompute = zero % 2 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
            struct setting t = setting_of(l, none_beside, quiet);
            struct simulated r = simulate(&t);
            if (fabs(r.step.quiet / r.closed.seconds - 1) > 1e-6 || fabs(r.step.seconds / r.step.quiet - 1) > 1e-6)
                fail_msg("zero %d, tp %d: %.9g s, %.9g s without noise, closed form %.9g s", zero, tp, r.step.seconds,
                         r.step.quiet, r.closed.seconds);
            free(r.ranks);
        }
}

/* With overlap and pipelines the simulation knows more: which transfer has a computation beside it, and how late each
 * message is. */
TEST(a_quiet_step_is_near_the_closed_form)
{
    for (int i = 0; i < LAYOUTS; i++) {
        struct setting t = setting_row(i, all_beside, quiet);
        struct simulated r = simulate(&t);
        printf("layout %d: %.4f s, closed form %.4f s (%+.1f %%)\n", i, r.step.quiet, r.closed.seconds,
               100 * (r.step.quiet / r.closed.seconds - 1));
        if (fabs(r.step.quiet / r.closed.seconds - 1) > 0.07)
            fail_msg("layout %d: %.4f s, closed form %.4f s", i, r.step.quiet, r.closed.seconds);
        free(r.ranks);
    }
}

/* Ranks that have the same part in the layout wait for no other rank if all are equally fast. */
TEST(equal_ranks_have_equal_times)
{
    for (int i = 0; i < 4; i++) {
        struct setting t = setting_row(i, all_beside, quiet);
        struct simulated r = simulate(&t);
        for (int part = 0; part < PLAN_PARTS; part++)
            for (int64_t rank = 0; rank < r.n_ranks; rank++) {
                assert_true(r.ranks[part * r.n_ranks + rank] == r.ranks[part * r.n_ranks]);
                assert_true(part < PLAN_WAIT_TP || part == PLAN_WAIT_LINKS || r.ranks[part * r.n_ranks + rank] < 1e-9);
            }
        free(r.ranks);
    }
}

/* The same replicas, whatever the axis is called. */
TEST(axes_that_mean_the_same_give_equal_times)
{
    struct plan_layout replicas = plain, shards = plain;
    replicas.dp = shards.fsdp = 8;
    replicas.pp = shards.pp = 2;
    struct setting a = setting_of(replicas, all_beside, noisy), b = setting_of(shards, all_beside, noisy);
    assert_true(seconds_of(&a) == seconds_of(&b));
}

TEST(a_seed_gives_the_same_steps)
{
    struct setting t = setting_row(5, all_beside, noisy);
    t.steps = 4;
    const double first = seconds_of(&t), again = seconds_of(&t);
    t.noise.seed++;
    assert_true(first == again && seconds_of(&t) != first);
}

/* Twice the bandwidth or half the latency: never slower, with the same draws. */
TEST(faster_links_make_no_step_slower)
{
    for (int i = 0; i < LAYOUTS; i++) {
        struct setting slow = setting_row(i, all_beside, noisy), link = slow, network = slow, latency = slow;
        link.machine.link.bandwidth_gb *= 2;
        network.machine.network.bandwidth_gb *= 2;
        latency.machine.network.latency_us /= 2;
        latency.machine.link.latency_us /= 2;
        const double most = seconds_of(&slow) * (1 + 5e-3); /* links take more of a device than the network does */
        if (seconds_of(&link) > most || seconds_of(&network) > most || seconds_of(&latency) > most)
            fail_msg("layout %d: %.6f s, with faster links %.6f, network %.6f, latencies %.6f s", i, seconds_of(&slow),
                     seconds_of(&link), seconds_of(&network), seconds_of(&latency));
    }
}

/* Without bandwidths and latencies, ranks only compute, and wait for other stages. */
TEST(infinitely_fast_links_leave_computation)
{
    for (int i = 0; i < LAYOUTS; i++) {
        struct setting t = setting_row(i, all_beside, quiet);
        t.machine.link.bandwidth_gb = t.machine.network.bandwidth_gb = 1e15;
        t.machine.link.latency_us = t.machine.link.ramp_us = t.machine.network.latency_us = 0;
        struct simulated r = simulate(&t);
        for (int part = PLAN_TP; part < PLAN_PARTS; part++)
            if (part != PLAN_UPDATE && part != PLAN_WAIT_PIPELINE && part != PLAN_WAIT_REPLICAS)
                assert_true(r.step.quiet_parts[part] < 1e-6 * r.step.quiet);
        if (t.layout.pp == 1)
            assert_true(fabs(r.step.quiet_parts[PLAN_COMPUTE] / r.closed.compute - 1) < 1e-6);
        free(r.ranks);
    }
}

/* Each kind of noise costs time, more of it more, and no noise nothing. */
TEST(more_noise_makes_steps_slower)
{
    for (int i = 0; i < LAYOUTS; i++)
        for (int kind = 0; kind < 4; kind++) {
            double before = 0;
            for (int level = 0; level < 4; level++) {
                struct setting t = setting_row(i, all_beside, quiet);
                double *const keys[] = {&t.noise.spread, &t.noise.jitter, &t.noise.operation, &t.noise.slowdown};
                t.noise.stragglers = kind == 3 ? 0.25 : 0;
                *keys[kind] = 0.02 * level;
                const double now = seconds_of(&t);
                if (now <= before)
                    fail_msg("layout %d, noise %d: %.9g s at level %d, %.9g s before", i, kind, now, level, before);
                before = now;
            }
        }
}

/* Without noise of slots and operations, both levels add the same numbers: an operation takes as long as its part of
 * the slot, and the slowest rank of a group is the same one. In a pipeline a fast rank may begin with its operations
 * before the first collective while slow ones of its group still wait for their message. */
TEST(both_levels_agree_about_slow_devices)
{
    for (int pp = 1; pp <= 4; pp *= 2) {
        struct plan_layout l = plain;
        l.pp = pp;
        l.tp = 4;
        l.dp = 4;
        struct setting fine = setting_of(l, none_beside, (struct plan_noise){.spread = 0.03, .seed = 9}), coarse = fine;
        coarse.slots_only = true;
        struct simulated a = simulate(&fine), b = simulate(&coarse);
        const double ratio = a.step.slowest / b.step.slowest;
        if (ratio > 1 + 1e-6 || ratio < 1 - (pp > 1 ? 0.005 : 1e-6))
            fail_msg("pp %d: %.9g s, slots %.9g s", pp, a.step.slowest, b.step.slowest);
        assert_true(a.step.seconds > 1.01 * a.step.quiet);
        assert_true(a.step.operations > 40 * b.step.operations);
        free(a.ranks);
        free(b.ranks);
    }
}

/* Ranks that gather parameters of each other wait for each other in every slot. A gather ahead lets them differ by a
 * layer, so that slots make them wait somewhat longer. */
TEST(both_levels_agree_about_zero_3)
{
    struct plan_layout l = plain;
    l.fsdp = 64;
    l.zero = 3;
    l.reshard = true;
    struct setting fine = setting_of(l, all_beside, (struct plan_noise){.jitter = 0.02, .seed = 9}), coarse = fine;
    coarse.slots_only = true;
    fine.shape.global_batch = coarse.shape.global_batch = 512;
    struct simulated a = simulate(&fine), b = simulate(&coarse);
    const double tax = a.step.seconds / a.step.quiet - 1, most = b.step.seconds / b.step.quiet - 1;
    if (tax < 0.7 * most || tax > 1.05 * most)
        fail_msg("jitter costs %.2f %%, at the level of slots %.2f %%", 100 * tax, 100 * most);
    free(a.ranks);
    free(b.ranks);
}

/* Between two collectives of tp 8, the slowest of 8 ranks takes 1.4236 standard deviations longer than the mean (tables
 * of order statistics). The deviation of some operations is the root of the sum of their squares. */
TEST(ranks_wait_at_collectives_as_order_statistics_have_it)
{
    struct plan_layout l = plain;
    struct plan_operations o;
    struct schedule s;
    struct why why = {0};
    double squares = 0, wait = 0;
    l.tp = 8;
    struct setting t = setting_of(l, none_beside, (struct plan_noise){.operation = 0.05, .seed = 3});
    t.shape.global_batch = 8;
    t.steps = 20;
    assert_ok(schedule_build(SCHEDULE_1F1B, 1, 1, 8, &s, &why));
    assert_ok(plan_operations_init(&t.shape, &l, &machine, &none_beside, &s, false, &o));
    for (int kind = SLOT_FORWARD; kind <= SLOT_BACKWARD; kind++) {
        const struct plan_slot *slot = plan_operations_slot(&o, 0, (enum slot_kind)kind, false);
        for (int i = 0; i < slot->n; i++) {
            squares += slot->ops[i].kind == PLAN_OP_RUN ? slot->ops[i].seconds * slot->ops[i].seconds : 0;
            if (slot->ops[i].kind == PLAN_OP_MEET) {
                wait += 8 * 1.4236 * 0.05 * sqrt(squares);
                squares = 0;
            }
        }
    }
    plan_operations_fini(&o);
    schedule_fini(&s);
    struct simulated r = simulate(&t);
    if (fabs(r.step.parts[PLAN_WAIT_TP] / wait - 1) > 0.02)
        fail_msg("ranks wait %.6f s, expected %.6f s", r.step.parts[PLAN_WAIT_TP], wait);
    free(r.ranks);
}

/* Two devices of a hundred take half as long again. When all of them are replaced, a step takes as long as without
 * them; one of them is not enough. */
TEST(replaced_devices_slow_nobody_down)
{
    struct plan_layout l = plain;
    l.dp = 64;
    l.tp = 4;
    struct setting slow =
        setting_of(l, all_beside, (struct plan_noise){.stragglers = 0.02, .slowdown = 0.5, .jitter = 0.01, .seed = 2});
    struct setting one = slow, all = slow, none = slow;
    one.noise.replaced = 0.5 / 256;
    all.noise.replaced = 0.1;
    none.noise.stragglers = 0;
    struct simulated r = simulate(&all);
    assert_true(r.step.replaced == 26);
    assert_true(fabs(r.step.seconds / seconds_of(&none) - 1) < 0.002);
    assert_true(seconds_of(&slow) > 1.1 * r.step.seconds && seconds_of(&one) > 1.1 * r.step.seconds);
    free(r.ranks);
}

TEST(quantiles_of_steps_are_in_order)
{
    struct setting t = setting_row(1, all_beside, noisy);
    t.steps = 50;
    struct simulated r = simulate(&t);
    assert_true(r.step.p50 < r.step.p99 && r.step.p99 <= r.step.longest);
    assert_true(r.step.p50 > 0.99 * r.step.seconds && r.step.longest < 1.05 * r.step.seconds);
    free(r.ranks);
}

/* A rank that waits for others does not make a transfer longer: what noise costs are waits. A wait may hide a transfer
 * that was exposed without it. */
TEST(noise_is_found_in_waits)
{
    for (int i = 0; i < LAYOUTS; i++) {
        struct setting t = setting_row(i, all_beside, noisy);
        t.steps = 10;
        struct simulated r = simulate(&t);
        double waits = 0, quiet_waits = 0;
        for (int part = PLAN_TP; part < PLAN_GRADS; part++)
            if (r.step.parts[part] > r.step.quiet_parts[part] + 0.001 * r.step.quiet)
                fail_msg("layout %d: %s %.4f s, without noise %.4f s", i, plan_part_name((enum plan_part)part),
                         r.step.parts[part], r.step.quiet_parts[part]);
        for (int part = PLAN_WAIT_TP; part < PLAN_PARTS; part++) {
            waits += r.step.parts[part];
            quiet_waits += r.step.quiet_parts[part];
        }
        const double more = r.step.seconds - r.step.quiet;
        if (more <= 0 || waits - quiet_waits < 0.75 * more)
            fail_msg("layout %d: %.4f s more, %.4f s of waits", i, more, waits - quiet_waits);
        free(r.ranks);
    }
}

/* ---- links ---- */

/* Eight nodes, two of them a pod, and a quarter of the bandwidth between pods. A ring leaves a pod with the traffic of
 * one node of two, so links between pods are half as fast as it needs. Without a pipeline all parts of the model are
 * reduced at the same time: the closed form's case. */
TEST(reductions_that_cross_pods_share_their_links)
{
    struct plan_layout l = plain;
    l.tp = 8;
    l.dp = 8;
    struct setting t = setting_of(l, none_beside, quiet), wide = t;
    t.machine.network.pod = 2;
    t.machine.network.oversubscription = 4;
    struct simulated shared = simulate(&t), free_links = simulate(&wide);
    const double more = shared.closed.grads - free_links.closed.grads;
    assert_true(fabs(shared.step.quiet / shared.closed.seconds - 1) < 1e-6);
    assert_true(more > 0.5 * free_links.closed.grads);
    assert_true(fabs(shared.step.quiet_parts[PLAN_WAIT_LINKS] / more - 1) < 1e-6);
    assert_true(free_links.step.quiet_parts[PLAN_WAIT_LINKS] == 0);
    free(shared.ranks);
    free(free_links.ranks);
}

/* What reductions at the rate of adapters need the network for. */
static double network_seconds(const struct setting *t)
{
    struct machine wide = t->machine, twice;
    struct plan_time one, fast;
    wide.network.pod = 0;
    twice = wide;
    twice.network.bandwidth_gb *= 2;
    plan_step_time(&t->shape, &t->layout, &wide, &none_beside, &one);
    plan_step_time(&t->shape, &t->layout, &twice, &none_beside, &fast);
    return 2 * (one.grads - fast.grads);
}

/* Four stages of four nodes in pods of three, whose links have the rate of three quarters of a node. Each stage leaves
 * a pod with the traffic of one node: alone it takes 4/3 of the time, and that is the closed form. Two stages have
 * nodes in the second pod, and in the third: together they take up to 8/3. */
TEST(stages_that_share_pods_share_their_links)
{
    struct plan_layout l = plain;
    l.tp = 2;
    l.dp = 16;
    l.pp = 4;
    struct setting t = setting_of(l, none_beside, quiet);
    t.shape.global_batch = 32;
    const struct setting wide = t;
    t.machine.network.pod = 3;
    t.machine.network.oversubscription = 4;
    struct simulated shared = simulate(&t), free_links = simulate(&wide);
    const double bytes_s = network_seconds(&t);
    if (fabs((shared.closed.grads - free_links.closed.grads) / bytes_s - 1.0 / 3) > 0.03)
        fail_msg("the closed form has %.4f s more of %.4f s", shared.closed.grads - free_links.closed.grads, bytes_s);
    const double *waits = shared.ranks + PLAN_WAIT_LINKS * shared.n_ranks;
    const int64_t stage = shared.n_ranks / 4;
    if (waits[stage] < 1.1 * bytes_s || waits[stage] > 1.7 * bytes_s || waits[3 * stage] > 0.36 * bytes_s ||
        waits[3 * stage] < 0.3 * bytes_s)
        fail_msg("stages 1 and 3 wait %.4f and %.4f s of %.4f s", waits[stage], waits[3 * stage], bytes_s);
    free(shared.ranks);
    free(free_links.ranks);
}

/* Four stages of three nodes, in pods of four nodes whose links have the rate of one node. The first stage and the last
 * one are in one pod. The others both have two nodes in the second pod, and half of its links each while both reduce.
 * The closed form does not know where stages are. */
TEST(stages_across_pods_wait_for_links)
{
    struct plan_layout l = plain;
    l.tp = 8;
    l.dp = 3;
    l.pp = 4;
    struct setting t = setting_of(l, none_beside, quiet);
    t.shape.global_batch = 12;
    t.machine.network.pod = 4;
    t.machine.network.oversubscription = 4;
    struct simulated r = simulate(&t);
    const double *waits = r.ranks + PLAN_WAIT_LINKS * r.n_ranks, bytes_s = network_seconds(&t);
    const int64_t stage = r.n_ranks / 4;
    assert_true(waits[0] < 1e-9 && waits[3 * stage] < 1e-9);
    for (int i = 1; i <= 2; i++)
        if (waits[i * stage] < 0.4 * bytes_s || waits[i * stage] > bytes_s * (1 + 1e-9))
            fail_msg("stage %d waits %.5f s for links, bytes take %.5f s", i, waits[i * stage], bytes_s);
    free(r.ranks);
}

/* With one adapter for eight devices, each alone would have all of it. */
TEST(devices_that_share_an_adapter_wait_for_each_other)
{
    struct plan_layout l = plain;
    l.tp = 8;
    l.dp = 4;
    struct setting t = setting_of(l, none_beside, quiet), own = t;
    t.machine.network.adapters = 1;
    struct simulated shared = simulate(&t), alone = simulate(&own);
    assert_true(fabs(shared.step.quiet / alone.step.quiet - 1) < 1e-9);
    assert_true(shared.step.quiet_parts[PLAN_WAIT_LINKS] > 0.8 * alone.step.quiet_parts[PLAN_GRADS]);
    assert_true(alone.step.quiet_parts[PLAN_WAIT_LINKS] == 0);
    free(shared.ranks);
    free(alone.ranks);
}
