/* A whole training step on the stand-ins, and what must hold of it: the same bits in whatever order the streams do
 * their work; near the float64 run of the processor; nothing made, leaked or unwaited for. And that this finds what it
 * is meant to find: programs with a wait or a record taken out, ranks that call collectives in different orders. */
#include "tests/cuda_host/train.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#define STEPS 4
#define SEEDS 4

static struct parity_model model(const char *yaml, const char *dtype, int workers)
{
    struct parity_model m;
    char t[40], w[40];
    snprintf(t, sizeof(t), "train.dtype=%s", dtype);
    snprintf(w, sizeof(w), "parallel.workers=%d", workers);
    parity_model_init(&m, yaml,
                      (const char *[]){"train.numerics=fast", "run.device=cuda", "run.workers_per_gpu=4", t, w, NULL});
    return m;
}

static struct train_result *train(const struct parity_model *m, const struct train_options *o, uint64_t seed)
{
    cuda_host_seed(seed);
    struct train_result *r = train_run(m, o);
    if (r->error[0])
        fail_msg("%s", r->error);
    return r;
}

/* ---- near the truth ---- */

/* Worst difference of a tensor's element over the tensor's largest, in units of `eps`; parts that are zero in theory
 * are left out. */
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
            if (!(i >= s->zero_lo && i < s->zero_hi) && !(d <= ret))
                ret = isnan(d) ? INFINITY : d;
        }
        at += n;
    }
    return ret;
}

/* In units of eps sqrt(K), K the longest sum of a step. */
struct bounds {
    const char *dtype;
    double eps, loss, grad, param;
};
static const struct bounds f32 = {"float32", 0x1p-24, 4, 8, 400};
static const struct bounds bf16 = {"bfloat16", 0x1p-9, 1, 2, 4};

static void check_near(const struct parity_model *m, const struct parity_result *truth, const struct train_result *r,
                       const struct bounds *b)
{
    double k = sqrt(fmax((double)(m->job.train.global_batch * m->job.train.seq), (double)m->job.model.vocab));
    double grad = worst(&m->graph, truth->grad, r->grad, truth->n, b->eps * k);
    double param = worst(&m->graph, truth->param, r->param, truth->n, b->eps * k), loss = 0;
    for (int i = 0; i < STEPS; i++)
        loss = fmax(loss, fabs(truth->loss[i] - r->loss[i]) / truth->loss[i] / (b->eps * k));
    printf("%s: off by %.2g (loss), %.2g (gradients), %.2g (parameters) eps sqrt(K)\n", b->dtype, loss, grad, param);
    assert_true(loss <= b->loss && grad <= b->grad && param <= b->param);
    assert_true(r->loss[STEPS - 1] < r->loss[0]);
}

/* ---- what is made, and what is left ---- */

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
    assert_int_equal(c.unwaited_events, 0);
    assert_int_equal(c.dropped_work, 0);
}

static void whole(const char *yaml, const struct bounds *b, const char *comm)
{
    struct parity_model proof;
    parity_model_init(&proof, yaml, NULL);
    struct parity_result *truth = parity_run(&proof, STEPS, NULL);
    for (int workers = 1; workers <= 4; workers *= 2) {
        struct parity_model m = model(yaml, b->dtype, workers);
        const struct train_options o = {.comm = comm, .steps = STEPS};
        struct train_result *first = train(&m, &o, 0);
        check_near(&m, truth, first, b);
        check_steady(first);
        for (uint64_t seed = 1; seed < SEEDS; seed++) {
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

TEST(gpt2_float32_over_the_host)
{
    whole(parity_gpt2, &f32, "staged");
}

TEST(llama_bfloat16_over_the_host)
{
    whole(parity_llama, &bf16, "staged");
}

/* ---- snapshots ---- */

/* One that is waited for at once, and one with two steps queued behind it. */
TEST(a_snapshot_is_of_its_step)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct parity_model m = model(parity_gpt2, "bfloat16", 2);
        const struct train_options now = {.comm = "nccl", .steps = 2, .snapshot = 2, .finish = true};
        const struct train_options later = {.comm = "nccl", .steps = 4, .snapshot = 2};
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
}
