/* Whole training steps on the stand-ins. Their results must have the same bits in every order in which the streams run,
 * must be near the float64 run of the processor, and must leave nothing allocated, leaked or unwaited for. The tests
 * also check that this detects errors: programs from which a wait or a record was removed, and ranks that call
 * collectives in different orders. */
#include "common/plan/compile/compile.h"
#include "tests/cuda_host/train.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#define STEPS 3
#define BATCH "train.global_batch=5" /* three microbatches: one of four ranks has none */

/* The number of ranks, and of orders of the streams' work to try. Fewer under sanitizers, which are slow. */
static const struct {
    int workers;
    uint64_t seeds;
} layouts[] = {
#ifdef __SANITIZE_ADDRESS__
    {2, 2},
#else
    {1, 1},
    {2, 2},
    {4, 1},
#endif
};

static struct parity_model model(const char *yaml, const char *dtype, int workers)
{
    struct parity_model m;
    char t[40], w[40];
    snprintf(t, sizeof(t), "train.dtype=%s", dtype);
    snprintf(w, sizeof(w), "parallel.workers=%d", workers);
    parity_model_init(
        &m, yaml,
        (const char *[]){"train.numerics=fast", "run.device=cuda", "run.workers_per_gpu=4", BATCH, t, w, NULL});
    return m;
}

/* A vocabulary and a feed-forward size that no degree divides, on two ranks. */
#define ODD "model.vocab=301", "model.ffn=51"

static struct parity_model odd(const char *yaml, const char *dtype, int tp)
{
    struct parity_model m;
    char t[40], parts[40];
    snprintf(t, sizeof(t), "train.dtype=%s", dtype);
    snprintf(parts, sizeof(parts), "parallel.tp=%d", tp);
    parity_model_init(&m, yaml,
                      (const char *[]){"train.numerics=fast", "run.device=cuda", "run.workers_per_gpu=4", BATCH,
                                       "parallel.workers=2", ODD, t, parts, NULL});
    return m;
}

static const char mixture[] =
    "name: parity\n"
    "model: {arch: llama, dim: 48, layers: 2, heads: 6, kv_heads: 2, vocab: 300, experts: 5, experts_per_token: 2,\n"
    "        expert_ffn: 24, shared_experts: 1, shared_gate: true, router_norm: true, aux_loss: 0.1, z_loss: 0.01}\n"
    "data: {train: [/nothing], tokenizer: words}\n"
    "train: {steps: 40, seq: 12, global_batch: 7, micro_batch: 2, lr: 1.0e-2, warmup: 3, verify_every: 1,\n"
    "        schedule: cosine, clip: 0.5, numerics: proof}\n"
    "checkpoint: {dir: /nowhere}\n";

static int over_nccl; /* ranks so far in runs with NCCL */

static struct train_result *train(const struct parity_model *m, const struct train_options *o, uint64_t seed)
{
    cuda_host_seed(seed);
    over_nccl += strcmp(o->comm, "nccl") == 0 && m->job.parallel.workers > 1 ? (int)m->job.parallel.workers : 0;
    struct train_result *r = train_run(m, o);
    if (r->error[0])
        fail_msg("%s", r->error);
    return r;
}

/* ---- near the float64 result ---- */

/* The largest difference of a tensor's element relative to the tensor's largest element, in units of `eps`; parts that
 * are zero in theory are skipped. */
static double worst(const struct graph *g, const double *truth, const double *x, int64_t total, double eps)
{
    double rms = 0, ret = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < total; i++)
        rms += truth[i] * truth[i] / (double)total;
    for (int t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *s = &g->tensors[t];
        if (s->kind != GT_PARAM)
            continue;
        int64_t n = s->dim[0].factor * (s->ndim > 1 ? s->dim[1].factor : 1);
        double largest = sqrt(rms);
        for (int64_t i = 0; i < n; i++)
            largest = fmax(largest, fabs(truth[at + i]));
        for (int64_t i = 0; i < n; i++) {
            double d = fabs(truth[at + i] - x[at + i]) / largest / eps;
            if (!graph_grad_is_zero(s, i) && !(d <= ret))
                ret = isnan(d) ? INFINITY : d;
        }
        at += n;
    }
    return ret;
}

/* RMS of the difference relative to the RMS of the exact values. Single parameters cannot be compared: Adam's first
 * updates move by the sign of the gradient, which rounding decides where the gradient is almost zero. */
static double rms_off(const struct graph *g, const double *truth, const double *x, double eps)
{
    double off = 0, all = 0;
    int64_t at = 0;
    for (int t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *s = &g->tensors[t];
        if (s->kind != GT_PARAM)
            continue;
        int64_t n = s->dim[0].factor * (s->ndim > 1 ? s->dim[1].factor : 1);
        for (int64_t i = 0; i < n; i++) {
            bool zero = graph_grad_is_zero(s, i);
            off += zero ? 0 : (truth[at + i] - x[at + i]) * (truth[at + i] - x[at + i]);
            all += truth[at + i] * truth[at + i];
        }
        at += n;
    }
    return isnan(off) ? INFINITY : sqrt(off / all) / eps;
}

/* Bounds in units of eps sqrt(K), K the longest sum of a step. */
struct bounds {
    const char *dtype;
    double eps, loss, grad, param;
};
static const struct bounds f32 = {"float32", 0x1p-24, 0.2, 1, 40};
static const struct bounds bf16 = {"bfloat16", 0x1p-9, 0.1, 1.5, 1};

static void check_near(const struct parity_model *m, const struct parity_result *truth, const struct train_result *r,
                       const struct bounds *b)
{
    double k = sqrt(fmax((double)(m->job.train.global_batch * m->job.train.seq), (double)m->job.model.vocab));
    double grad = worst(&m->graph, truth->grad, r->grad, truth->n, b->eps * k);
    double param = rms_off(&m->graph, truth->param, r->param, b->eps * k), loss = 0;
    for (int i = 0; i < STEPS; i++)
        loss = fmax(loss, fabs(truth->loss[i] - r->loss[i]) / truth->loss[i] / (b->eps * k));
    printf("%s: errors %.2g (loss), %.2g (gradients), %.2g (parameters) eps sqrt(K)\n", b->dtype, loss, grad, param);
    assert_true(loss <= b->loss && grad <= b->grad && param <= b->param);
}

/* The initial parameters have the bits of the processor's. */
TEST(first_parameters_are_the_processors)
{
    static const char *const dtypes[] = {"float32", "bfloat16"}, *const yamls[] = {parity_llama, parity_gpt2};
    for (int i = 0; i < 4; i++) {
        struct parity_model m = model(yamls[i / 2], dtypes[i % 2], 1);
        const struct train_options o = {.comm = "staged"};
        struct train_result *r = train(&m, &o, 0);
        double *want = calloc((size_t)r->n_params, sizeof(double));
        assert_non_null(want);
        parity_first_params(&m, want);
        assert_memory_equal(r->param, want, (size_t)r->n_params * sizeof(double));
        free(want);
        train_result_free(r);
        parity_model_fini(&m);
    }
}

/* ---- created and leaked objects ---- */

static void check_steady(const struct train_result *r)
{
    const struct cuda_host_counts *a = &r->first, *b = &r->last;
    assert_true(b->launches > a->launches && b->products > a->products);
    assert_int_equal(a->allocations, b->allocations);
    assert_int_equal(a->streams, b->streams);
    assert_int_equal(a->events, b->events);
    assert_int_equal(a->live_handles, b->live_handles);
    assert_int_equal(r->replicas_differ, 0);
}

static void check_nothing_left(void)
{
    struct cuda_host_counts c;
    cuda_host_counts_read(&c);
    cuda_host_counts_print(&c, stdout);
    assert_int_equal(c.live_allocations + c.live_streams + c.live_events + c.live_handles + c.live_comms, 0);
    assert_int_equal(c.dropped_work, 0);
}

static void whole(const char *yaml, const struct bounds *b, const char *comm)
{
    struct parity_model proof;
    parity_model_init(&proof, yaml, (const char *[]){BATCH, NULL});
    struct parity_result *truth = parity_run(&proof, STEPS, NULL);
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        struct parity_model m = model(yaml, b->dtype, layouts[i].workers);
        const struct train_options o = {.comm = comm, .steps = STEPS, .snapshot = 2};
        struct train_result *first = train(&m, &o, 0);
        check_near(&m, truth, first, b);
        check_steady(first);
        for (uint64_t seed = 1; seed < layouts[i].seeds; seed++) {
            struct train_result *r = train(&m, &o, seed);
            assert_true(train_same_bits(first, r));
            check_steady(r);
            train_result_free(r);
        }
        train_result_free(first);
        parity_model_fini(&m);
    }
    parity_result_free(truth);
    parity_model_fini(&proof);
    check_nothing_left();
}

/* Rows of logits have gaps between them, and new memory is full of NaNs. */
static void odd_sizes(const struct bounds *b, int tp)
{
    struct parity_model proof, m = odd(parity_llama, b->dtype, tp);
    const struct train_options o = {.comm = "nccl", .steps = STEPS};
    parity_model_init(&proof, parity_llama, (const char *[]){BATCH, ODD, NULL});
    struct parity_result *truth = parity_run(&proof, STEPS, NULL);
    struct train_result *first = train(&m, &o, 0), *again = train(&m, &o, 1);
    check_near(&m, truth, first, b);
    assert_true(train_same_bits(first, again));
    train_result_free(first);
    train_result_free(again);
    parity_result_free(truth);
    parity_model_fini(&m);
    parity_model_fini(&proof);
    check_nothing_left();
}

TEST(odd_sizes_float32)
{
    odd_sizes(&f32, 1);
}

TEST(odd_sizes_bfloat16)
{
    odd_sizes(&bf16, 1);
}

TEST(odd_sizes_bfloat16_in_two_parts)
{
    odd_sizes(&bf16, 2);
}

/* A head of five rows, of which two ranks have two and three, and one target for each sample. */
static void labels(const char *yaml, const struct bounds *b, const char *layout)
{
    struct parity_model proof, m;
    const struct train_options o = {.comm = "nccl", .steps = STEPS};
    char t[40];
    snprintf(t, sizeof(t), "train.dtype=%s", b->dtype);
    parity_model_init(&proof, yaml, (const char *[]){BATCH, "model.labels=5", NULL});
    parity_model_init(&m, yaml,
                      (const char *[]){"train.numerics=fast", "run.device=cuda", "run.workers_per_gpu=4", BATCH,
                                       "parallel.workers=2", "model.labels=5", t, layout, NULL});
    struct parity_result *truth = parity_run(&proof, STEPS, NULL);
    struct train_result *first = train(&m, &o, 0), *again = train(&m, &o, 1);
    check_near(&m, truth, first, b);
    assert_true(train_same_bits(first, again));
    train_result_free(first);
    train_result_free(again);
    parity_result_free(truth);
    parity_model_fini(&m);
    parity_model_fini(&proof);
    check_nothing_left();
}

TEST(labels_float32)
{
    labels(parity_gpt2, &f32, "parallel.fsdp=2");
}

TEST(labels_bfloat16)
{
    labels(parity_gpt2, &bf16, "parallel.fsdp=2");
}

TEST(labels_bfloat16_in_two_parts)
{
    labels(parity_llama, &bf16, "parallel.tp=2");
}

TEST(llama_float32_over_nccl)
{
    whole(parity_llama, &f32, "nccl");
}

TEST(llama_bfloat16_over_nccl)
{
    whole(parity_llama, &bf16, "nccl");
}

TEST(gpt2_float32_over_nccl)
{
    whole(parity_gpt2, &f32, "nccl");
}

TEST(gpt2_bfloat16_over_nccl)
{
    whole(parity_gpt2, &bf16, "nccl");
}

/* In bfloat16 some tokens choose other experts than in float64, which is a difference of order 1. */
TEST(experts_float32_over_nccl)
{
    whole(mixture, &f32, "nccl");
}

/* Experts cut over every axis. Ranks have different numbers of experts and of tokens, and one has no microbatch. */
static const struct {
    const char *layout, *dispatch;
    uint64_t seeds;
} parts[] = {
    {"parallel={workers: 2, fsdp: 2, zero: 0, ep: 2}", "all_to_all", 2},
    {"parallel={workers: 2, tp: 2, ep: 2, recompute: experts}", "all_gather", 1},
    {"parallel={workers: 4, fsdp: 4, zero: 0, ep: 4}", "all_to_all", 1},
    {"parallel={workers: 4, fsdp: 2, tp: 2, sp: true, zero: 3, ep: 4}", "all_to_all", 1},
    {"parallel={workers: 4, fsdp: 2, cp: 2, zero: 1, ep: 2}", "all_to_all", 1},
    {"parallel={workers: 4, pp: 2, fsdp: 2, zero: 0, ep: 2}", "all_gather", 1},
};

static struct parity_model cut_mixture(const char *dtype, const char *layout, const char *dispatch)
{
    struct parity_model m;
    char t[40], d[40];
    snprintf(t, sizeof(t), "train.dtype=%s", dtype);
    snprintf(d, sizeof(d), "parallel.dispatch=%s", dispatch);
    parity_model_init(
        &m, mixture,
        (const char *[]){"train.numerics=fast", "run.device=cuda", "run.workers_per_gpu=4", BATCH, t, layout, d, NULL});
    return m;
}

static void experts_in_parts(const char *comm, size_t from, size_t to)
{
    struct parity_model proof;
#ifdef __SANITIZE_ADDRESS__
    to = to > 2 ? from : to; /* four ranks are too slow here */
#endif
    parity_model_init(&proof, mixture, (const char *[]){BATCH, NULL});
    struct parity_result *truth = parity_run(&proof, STEPS, NULL);
    for (size_t i = from; i < to; i++) {
        struct parity_model m = cut_mixture("float32", parts[i].layout, parts[i].dispatch);
        const struct train_options o = {.comm = comm, .steps = STEPS};
        printf("%s\n", parts[i].layout);
        struct train_result *first = train(&m, &o, 0);
        check_near(&m, truth, first, &f32);
        check_steady(first);
        for (uint64_t seed = 1; seed < parts[i].seeds; seed++) {
            struct train_result *again = train(&m, &o, seed);
            assert_true(train_same_bits(first, again));
            train_result_free(again);
        }
        train_result_free(first);
        parity_model_fini(&m);
    }
    parity_result_free(truth);
    parity_model_fini(&proof);
    check_nothing_left();
}

TEST(experts_on_two_gpus_over_nccl)
{
    experts_in_parts("nccl", 0, 2);
}

TEST(experts_on_four_gpus_over_nccl)
{
    experts_in_parts("nccl", 2, 4);
}

TEST(experts_on_four_gpus_in_rings_and_stages)
{
    experts_in_parts("nccl", 4, 6);
}

/* Rows and their order are the same, so no bit depends on how tokens get to experts. */
TEST(gathered_tokens_give_the_same_bits)
{
    static const char *const dtypes[] = {"float32", "bfloat16"};
    for (int i = 0; i < 4; i++) {
        const struct train_options o = {.comm = "nccl", .steps = STEPS};
        struct parity_model rows = cut_mixture(dtypes[i % 2], parts[i / 2].layout, "all_to_all");
        struct parity_model tokens = cut_mixture(dtypes[i % 2], parts[i / 2].layout, "all_gather");
        struct train_result *a = train(&rows, &o, 0), *b = train(&tokens, &o, 1);
        assert_true(train_same_bits(a, b));
        check_steady(b);
        train_result_free(a);
        train_result_free(b);
        parity_model_fini(&rows);
        parity_model_fini(&tokens);
    }
    check_nothing_left();
}

TEST(experts_on_two_gpus_over_the_host)
{
    experts_in_parts("staged", 0, 1);
}

TEST(gpt2_float32_over_the_host)
{
    whole(parity_gpt2, &f32, "staged");
}

TEST(llama_bfloat16_over_the_host)
{
    whole(parity_llama, &bf16, "staged");
}

/* ---- snapshots ---- */

/* One snapshot that is waited for at once, and one with two steps queued after it. */
TEST(a_snapshot_is_of_its_step)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct parity_model m = model(parity_gpt2, "bfloat16", 2);
        const struct train_options now = {.comm = "nccl", .steps = 2, .snapshot = 2, .finish = true};
        const struct train_options later = {.comm = "nccl", .steps = 3, .snapshot = 2};
        struct train_result *a = train(&m, &now, seed), *b = train(&m, &later, seed + 100);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(a->arena_bytes[i], b->arena_bytes[i]);
            assert_memory_equal(a->arena[i], b->arena[i], a->arena_bytes[i]);
        }
        assert_true(memcmp(a->param, b->param, (size_t)a->n_params * sizeof(double)) != 0);
        train_result_free(a);
        train_result_free(b);
        parity_model_fini(&m);
    }
    check_nothing_left();
    /* Each rank over NCCL has one event that marks the start of an agreement on a number (nccl_agree). No rank agreed
     * on one, so no rank waited for that event. */
    struct cuda_host_counts c;
    cuda_host_counts_read(&c);
    assert_true(c.unwaited_events <= over_nccl);
}

/* ---- planted ---- */

/* Selects the `index`-th wait or record between streams, in the order of ops. */
struct plant {
    bool record; /* a record; false: a wait */
    int index;
};

/* Some are also ordered by other operations, so removing them has no effect here. The sum of the losses precedes that
 * of the gradients on its stream, and the end of a step, where the host waits, precedes a snapshot. */
static bool covered(const struct program *p, const struct op *op, bool record)
{
    if (!record || op->kind == OP_SNAPSHOT) /* the engine itself queries its event */
        return op->kind == OP_CLIP || op->kind == OP_SNAPSHOT;
    for (int i = 0; i < p->n_ops; i++)
        for (int w = 0; w < OP_MAX_WAITS; w++)
            if (p->ops[i].wait[w] == op->event && !covered(p, &p->ops[i], false))
                return op->kind == OP_ZERO;
    return true;
}

static int *place(struct program *p, const struct plant *plant)
{
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) {
        struct op *op = &p->ops[i];
        for (int w = 0; w < (plant->record ? 1 : OP_MAX_WAITS); w++) {
            int *event = plant->record ? &op->event : &op->wait[w];
            if (*event >= 0 && !covered(p, op, plant->record) && n++ == plant->index)
                return event;
        }
    }
    return NULL;
}

static void take_out(struct engine *e, const void *arg)
{
    int *event = place(&e->train, arg);
    if (event)
        *event = -1;
}

static int places(const struct parity_model *m, bool record)
{
    struct program p;
    struct why why;
    int n = 0;
    if (plan_compile(&m->job, &m->graph, MODE_TRAIN, 0, &p, &why))
        fail_msg("%s", why.text);
    while (place(&p, &(struct plant){record, n}))
        n++;
    program_fini(&p);
    return n;
}

/* Whether any of many orders gives different bits from those of the unchanged program. Most removed operations show in
 * the first few orders; a copy that a whole step must overtake shows in one of thirty. */
static bool found(const struct parity_model *m, const struct train_result *good, const struct plant *plant)
{
    const struct train_options o = {.comm = "nccl", .steps = 3, .snapshot = 2, .plant = take_out, .plant_arg = plant};
    bool differs = false;
    for (uint64_t seed = 0; seed < 400 && !differs; seed++) {
        struct train_result *r = train(m, &o, seed);
        differs = !train_same_bits(good, r);
        train_result_free(r);
    }
    return differs;
}

/* Small enough to try all of them. An error must change the bits, not stop the run. */
static struct parity_model small(void)
{
    struct parity_model m;
    parity_model_init(&m, parity_gpt2,
                      (const char *[]){"train.numerics=fast", "run.device=cuda", "parallel.workers=2", "model.dim=8",
                                       "model.heads=1", "model.layers=1", "model.vocab=16", "train.seq=4",
                                       "train.global_batch=2", "train.micro_batch=1", "train.dtype=bfloat16",
                                       "train.verify_every=0", NULL});
    return m;
}

static void all_places(bool record)
{
    struct parity_model m = small();
    const struct train_options o = {.comm = "nccl", .steps = 3, .snapshot = 2};
    struct train_result *good = train(&m, &o, 0);
    int n = places(&m, record), missed = 0;
    assert_true(n > 4);
    for (int i = 0; i < n; i++)
        if (!found(&m, good, &(struct plant){record, i})) {
            printf("%s %d of %d: not detected\n", record ? "record" : "wait", i, n);
            missed++;
        }
    printf("%d of %d detected\n", n - missed, n);
    train_result_free(good);
    parity_model_fini(&m);
    assert_true(missed == 0);
}

static void swap_collectives(struct engine *e, const void *arg)
{
    struct program *p = &e->train;
    struct op *first = NULL;
    if (e->config.rank != 1)
        return;
    for (int i = 0; i < p->n_ops; i++) {
        struct op *op = &p->ops[i];
        if (op->kind != OP_ALL_REDUCE)
            continue;
        if (first) {
            struct op x = *first;
            *first = *op;
            *op = x;
            return;
        }
        first = op;
    }
}

/* The stand-in for NCCL ends the process and names both collectives. */
TEST(collectives_in_another_order_are_named)
{
    struct parity_model m = small();
    const struct train_options o = {.comm = "nccl", .steps = 1, .plant = swap_collectives};
    int fd[2], status;
    char text[4096] = "";
    size_t n = 0;
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(fd[1], 2);
        train_run(&m, &o);
        _exit(0);
    }
    close(fd[1]);
    for (ssize_t k; n < sizeof(text) - 1 && (k = read(fd[0], text + n, sizeof(text) - 1 - n)) > 0;)
        n += (size_t)k;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || !strstr(text, "ranks call different collectives"))
        fail_msg("status %x: %s", status, text);
    close(fd[0]);
    parity_model_fini(&m);
}

TEST(a_wait_left_out_gives_other_bits)
{
    all_places(false);
}

TEST(a_record_left_out_gives_other_bits)
{
    all_places(true);
}
