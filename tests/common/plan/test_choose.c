/* The choice of a layout for `parallel: auto`. Right values: the times and bytes of single layouts (plan_step_time,
 * plan_memory_of_ranks, which have tests of their own), looked at one after another. */
#include "common/plan/choose/choose.h"
#include "common/plan/estimate/memory.h"
#include "common/plan/models/build.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

static void job_make(const char *parallel, const char *train, struct job_spec *ret)
{
    char text[1024];
    struct why why = {0};
    int n = snprintf(text, sizeof(text),
                     "name: j\nmodel: {arch: llama, dim: 256, layers: 4, heads: 4, ffn: 512, vocab: 1000}\n"
                     "data: {train: [x], tokenizer: words}\ntrain: {steps: 1, seq: 128, global_batch: 8%s}\n"
                     "parallel: %s\n",
                     train, parallel);
    if (job_parse("job", text, (size_t)n, NULL, 0, ret, &why))
        fail_msg("%s", why.text);
}

/* Two cores a node. Without a network, so that plan_choose has to assume one. */
static void machine_make(double memory_gib, struct machine *ret)
{
    char text[512];
    struct why why = {0};
    int n = snprintf(text, sizeof(text),
                     "name: m\ndevice: {per_node: 2, memory_gib: %g, bandwidth_gb: 10, bf16_tflops: 0.1, f32_tflops: "
                     "0.05, product: 1, copy: 1, launch_us: 1, call_us: 0, one_thread: true}\n"
                     "link: {bandwidth_gb: 5, latency_us: 20}\nnetwork: {bandwidth_gb: 0}\n",
                     memory_gib);
    if (machine_parse("machine", text, (size_t)n, NULL, 0, ret, &why))
        fail_msg("%s", why.text);
}

static void choose(const struct job_spec *job, const struct machine *m, struct plan_place place,
                   struct plan_choice *ret)
{
    struct why why = {0};
    if (plan_choose(job, m, &place, ret, &why))
        fail_msg("%s", why.text);
}

static double exact_bytes(const struct job_spec *job)
{
    struct plan_memory ranks[16];
    struct graph g = {0};
    struct why why = {0};
    int64_t most = 0;
    assert_int_equal(graph_build(&job->model, job->train.seq, &g, &why), OK);
    if (plan_memory_of_ranks(job, &g, ranks, &why))
        fail_msg("%s", why.text);
    for (int r = 0; r < job->parallel.workers; r++)
        most = ranks[r].host_bytes > most ? ranks[r].host_bytes : most;
    graph_fini(&g);
    return (double)most;
}

/* No mesh of 4 workers whose parts divide the model, with any microbatch, has less time than the choice. */
TEST(the_choice_is_the_fastest_layout)
{
    struct job_spec job;
    struct machine m;
    struct plan_shape shape;
    struct plan_choice choice;
    const struct plan_place place = {.workers = 4, .nodes = 2, .per_node = 2};
    job_make("{auto: true, workers: 4}", "", &job);
    machine_make(8, &m);
    choose(&job, &m, place, &choice);
    struct machine shared = m;
    plan_machine_share(&job, &place, &shared);
    const struct plan_overlap overlap = planner_overlap(&shared);
    plan_shape_of(&job, &shape);
    int looked = 0;
    for (int64_t tp = 1; tp <= 4; tp *= 2)
        for (int64_t pp = 1; tp * pp <= 4; pp *= 2)
            for (int64_t fsdp = 1; tp * pp * fsdp <= 4; fsdp *= 2)
                for (int64_t zero = fsdp > 1; zero <= (fsdp > 1 ? 3 : 0); zero++)
                    for (int64_t micro = 1; micro * (4 / tp / pp) <= 8; micro *= 2) {
                        const struct plan_layout l = {.dp = 4 / (tp * pp * fsdp),
                                                      .fsdp = fsdp,
                                                      .tp = tp,
                                                      .cp = 1,
                                                      .pp = pp,
                                                      .ep = 1,
                                                      .zero = zero,
                                                      .chunks = 1,
                                                      .micro_batch = micro,
                                                      .sp = tp > 1,
                                                      .reshard = true,
                                                      .schedule = PIPE_1F1B};
                        struct plan_time t;
                        plan_step_time(&shape, &l, &shared, &overlap, &t);
                        assert_true(t.seconds >= choice.found.time.seconds);
                        looked++;
                    }
    assert_true(looked > 40);
    machine_fini(&m);
    job_fini(&job);
}

/* Less memory, another layout; each fits by the bytes of its programs. Then none does, and the message reports it. */
TEST(the_choice_fits_into_memory)
{
    struct job_spec job, chosen;
    struct machine m;
    struct plan_choice roomy, tight;
    struct why why = {0};
    const struct plan_place place = {.workers = 4, .nodes = 1, .per_node = 4};
    struct buf yaml = {0};
    job_make("{auto: true, workers: 4}", "", &job);
    machine_make(8, &m);
    choose(&job, &m, place, &roomy);
    machine_fini(&m);
    assert_int_equal(job_print(&job, &yaml), OK);
    assert_int_equal(buf_append(&yaml, "", 1), OK);
    assert_int_equal(plan_choice_apply((const char *)yaml.data, roomy.layout, 4, &chosen, &why), OK);
    const double needs = exact_bytes(&chosen), less = 0.9 * needs;
    job_fini(&chosen);
    /* Two cores' memory for four workers, of which nine tenths may be used. */
    machine_make(2 * less / 0.9 / (1 << 30), &m);
    choose(&job, &m, place, &tight);
    machine_fini(&m);
    assert_string_not_equal(tight.layout, roomy.layout);
    assert_int_equal(plan_choice_apply((const char *)yaml.data, tight.layout, 4, &chosen, &why), OK);
    assert_true(exact_bytes(&chosen) <= less);
    job_fini(&chosen);
    machine_make(0.001, &m);
    assert_int_equal(plan_choose(&job, &m, &place, &tight, &why), ERR_LIMIT);
    assert_non_null(strstr(why.text, "GiB per worker on 4 workers: the layout that needs least needs"));
    machine_fini(&m);
    buf_fini(&yaml);
    job_fini(&job);
}

/* The estimate of these layouts is too low, and the fastest variants of all meshes fit by it but not by the bytes of
 * their programs; slower variants fit. */
TEST(smaller_variants_are_looked_at)
{
    static const char text[] =
        "name: j\nmodel: {arch: llama, dim: 8192, layers: 32, heads: 64, kv_heads: 8, ffn: 28672, vocab: 128256}\n"
        "data: {train: [x], tokenizer: words}\n"
        "train: {steps: 1, seq: 4096, global_batch: 512, dtype: bfloat16}\n"
        "parallel: {auto: true, workers: 32}\nrun: {device: cuda}\n";
    static const char machine[] =
        "name: m\ndevice: {per_node: 8, units: 132, memory_gib: 80, bandwidth_gb: 3350, bf16_tflops: 989, "
        "f32_tflops: 67}\nlink: {bandwidth_gb: 450}\nnetwork: {bandwidth_gb: 400}\n";
    struct job_spec job;
    struct machine m;
    struct plan_choice choice;
    struct graph g = {0};
    struct why why = {0};
    double bytes;
    if (job_parse("job", text, strlen(text), NULL, 0, &job, &why) ||
        machine_parse("machine", machine, strlen(machine), NULL, 0, &m, &why))
        fail_msg("%s", why.text);
    choose(&job, &m, (struct plan_place){.workers = 32, .nodes = 4, .per_node = 8}, &choice);
    assert_int_equal(graph_build(&job.model, job.train.seq, &g, &why), OK);
    assert_int_equal(planner_exact(&job, &g, &choice.found.layout, &bytes, &why), OK);
    assert_true(bytes <= planner_memory(&m));
    graph_fini(&g);
    machine_fini(&m);
    job_fini(&job);
}

/* Fixed keys hold in the layout, also those that the search would not try: 3 samples are no power of two. */
TEST(fixed_keys_hold)
{
    static const struct {
        const char *parallel, *train, *has[3];
    } cases[] = {
        {"{auto: true, workers: 4, tp: 2}", "", {"parallel.tp=2 "}},
        {"{auto: true, workers: 4, pp: 2, schedule: 1f1b}", "", {"parallel.pp=2 ", "parallel.schedule=1f1b "}},
        {"{auto: true, workers: 4, fsdp: 4, zero: 2}", "", {"parallel.fsdp=4 ", "parallel.zero=2 "}},
        {"{auto: true, workers: 2}", ", micro_batch: 3", {"train.micro_batch=3"}},
        {"{auto: true, workers: 4, recompute: full, cp: 2}", "", {"parallel.recompute=full ", "parallel.cp=2 "}},
        {"{auto: true, workers: 4, tp: 1, sp: false}", "", {"parallel.tp=1 "}},
        {"{auto: true, workers: 4, sp: false}", "", {"parallel.tp=1 "}}};
    struct machine m;
    machine_make(8, &m);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_spec job, chosen;
        struct plan_choice choice;
        struct buf yaml = {0};
        struct why why = {0};
        job_make(cases[i].parallel, cases[i].train, &job);
        const int64_t n = job.parallel.workers;
        choose(&job, &m, (struct plan_place){.workers = n, .nodes = 1, .per_node = n}, &choice);
        for (int k = 0; cases[i].has[k]; k++)
            if (!strstr(choice.layout, cases[i].has[k]))
                fail_msg("%s: %s lacks %s", cases[i].parallel, choice.layout, cases[i].has[k]);
        assert_int_equal(job_print(&job, &yaml), OK);
        assert_int_equal(buf_append(&yaml, "", 1), OK);
        if (plan_choice_apply((const char *)yaml.data, choice.layout, n, &chosen, &why))
            fail_msg("%s", why.text);
        assert_false(chosen.parallel.automatic);
        assert_int_equal(chosen.parallel.workers, n);
        assert_int_equal(chosen.parallel.sp, job.parallel.sp);
        assert_int_equal(chosen.parallel.workers % job_replica_workers(&chosen), 0);
        job_fini(&chosen);
        buf_fini(&yaml);
        job_fini(&job);
    }
    machine_fini(&m);
}

/* The auxiliary loss over microbatches makes them a part of the model. */
TEST(a_loss_over_microbatches_keeps_them)
{
    static const char text[] =
        "name: j\nmodel: {arch: llama, dim: 64, layers: 2, heads: 4, ffn: 128, vocab: 100, experts: 4, "
        "experts_per_token: 2, aux_scope: %s}\ndata: {train: [x], tokenizer: words}\n"
        "train: {steps: 1, seq: 32, global_batch: 16}\nparallel: {auto: true, workers: 2}\n";
    static const struct {
        const char *scope;
        bool same;
    } cases[] = {{"micro_batch", true}, {"sample", false}};
    struct machine m;
    machine_make(8, &m);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_spec job;
        struct plan_choice choice;
        struct why why = {0};
        char file[600];
        const int n = snprintf(file, sizeof(file), text, cases[i].scope);
        if (job_parse("job", file, (size_t)n, NULL, 0, &job, &why))
            fail_msg("%s", why.text);
        choose(&job, &m, (struct plan_place){.workers = 2, .nodes = 1, .per_node = 2}, &choice);
        assert_int_equal(choice.found.layout.micro_batch == job.train.micro_batch, cases[i].same);
        job_fini(&job);
    }
    machine_fini(&m);
}

/* Canonical results are equal on any number of workers, so nothing changes that their sums depend on. */
TEST(canonical_numerics_keep_their_sums)
{
    struct machine m;
    machine_make(8, &m);
    for (int64_t n = 2; n <= 4; n++) {
        struct job_spec job;
        struct plan_choice choice;
        job_make("{auto: true, workers: 4}", ", numerics: canonical", &job);
        choose(&job, &m, (struct plan_place){.workers = n, .nodes = 1, .per_node = n}, &choice);
        assert_int_equal(choice.found.layout.micro_batch, 4); /* the default */
        assert_int_equal(choice.found.layout.tp, 1);
        assert_int_equal(choice.found.layout.cp, 1);
        job_fini(&job);
    }
    machine_fini(&m);
}

/* One worker on a node of two cores has both, and four share them. */
TEST(workers_share_their_node)
{
    static const struct {
        int64_t workers, nodes, per_node;
        double share, network;
    } cases[] = {{1, 1, 1, 2, 0}, {2, 1, 2, 1, 0}, {4, 1, 4, 0.5, 0}, {2, 2, 1, 2, 1.25}};
    struct job_spec job;
    job_make("{auto: true, workers: 4}", "", &job);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct machine m;
        machine_make(8, &m);
        plan_machine_share(&job, &(struct plan_place){cases[i].workers, cases[i].nodes, cases[i].per_node}, &m);
        assert_float_equal(m.device.memory_gib, 8 * cases[i].share, 1e-6);
        assert_float_equal(m.device.f32_tflops, 0.05 * cases[i].share, 1e-6);
        assert_float_equal(m.network.bandwidth_gb, cases[i].network, 1e-6);
        machine_fini(&m);
    }
    job_fini(&job);
}

/* The reason names the layout and the next best one with their times. */
TEST(the_reason_compares_two_layouts)
{
    struct job_spec job;
    struct machine m;
    struct plan_choice choice;
    char text[160], wanted[300];
    job_make("{auto: true, workers: 2}", "", &job);
    machine_make(8, &m);
    choose(&job, &m, (struct plan_place){.workers = 2, .nodes = 1, .per_node = 2}, &choice);
    snprintf(wanted, sizeof(wanted), "%s: %.3g s a step; next best ",
             planner_layout_text(&choice.found.layout, text, sizeof(text)), choice.found.time.seconds);
    if (strncmp(choice.why, wanted, strlen(wanted)) != 0)
        fail_msg("%s\nwanted %s", choice.why, wanted);
    machine_fini(&m);
    job_fini(&job);
}
