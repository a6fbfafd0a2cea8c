/* The model's gradient compared with finite differences in float64, and a float32 step compared with the same step in
 * float64. */
#include "tests/parity/harness.h"

#include <math.h>
#include <sys/mman.h>

static struct comm *open_alone(const struct engine *e)
{
    int fd = memfd_create("twin", MFD_CLOEXEC);
    struct comm *c;
    const struct comm_config config = {
        .backend = "shm", .fd = fd, .world = 1, .epoch = 1, .shared_bytes = engine_shared_bytes(e), .timeout_ms = 1000};
    assert_ok(comm_open(&config, &c, NULL));
    return c;
}

static double loss_of(struct engine *e, const struct engine_feed *feed)
{
    double loss;
    struct why why;
    if (engine_eval(e, feed, 0, e->config.job->train.global_batch, &loss, &why))
        fail_msg("%s", why.text);
    return loss;
}

/* Compares a few elements of every tensor with central differences. */
static void check_tensor(struct engine *e, const struct engine_feed *feed, int t, const double *grad)
{
    double *x = engine_buffer(e, &e->train, e->train.param_buffer[t]);
    const struct graph_tensor *g = &e->config.graph->tensors[t];
    int64_t n = e->train.buffers[e->train.param_buffer[t]].bytes / 8;
    for (int k = 0; k < 4; k++) {
        int64_t i = (n - 1) * k / 3;
        double old = x[i], h = 1e-5;
        x[i] = old + h;
        double up = loss_of(e, feed);
        x[i] = old - h;
        double down = loss_of(e, feed);
        x[i] = old;
        double numeric = (up - down) / (2 * h);
        if (!(fabs(numeric - grad[i]) <= 1e-7 * (1e-2 + fabs(grad[i]))))
            fail_msg("%s[%lld]: gradient %.12g, finite difference %.12g", g->name, (long long)i, grad[i], numeric);
    }
}

static void finite_differences(const char *yaml)
{
    struct parity_model m;
    struct engine e;
    struct why why = {""};
    struct engine_result result;
    parity_model_init(&m, yaml, (const char *[]){"train.clip=0", NULL});
    const struct engine_config config = {.dev = test_cpu(), .job = &m.job, .graph = &m.graph, .world = 1, .eval = true};
    assert_ok(engine_init(&e, &config, &why));
    struct comm *comm = open_alone(&e);
    assert_ok(engine_start(&e, comm, &why));
    assert_ok(engine_fill_state(&e, &why));
    struct parity_feed data = {.seq = m.job.train.seq, .vocab = m.job.model.vocab};
    const struct engine_feed feed = {.sample = parity_sample, .arg = &data};
    void *params = malloc(e.space_bytes[SPACE_PARAM]), *grads = malloc(e.space_bytes[SPACE_GRAD]);
    memcpy(params, e.space[SPACE_PARAM], e.space_bytes[SPACE_PARAM]);
    assert_ok(engine_step(&e, &feed, &result, &why));
    memcpy(grads, e.space[SPACE_GRAD], e.space_bytes[SPACE_GRAD]);
    memcpy(e.space[SPACE_PARAM], params, e.space_bytes[SPACE_PARAM]);
    assert_true(fabs(loss_of(&e, &feed) - result.loss) < 1e-12);
    for (int t = 0; t < m.graph.n_tensors; t++)
        if (m.graph.tensors[t].kind == GT_PARAM)
            check_tensor(&e, &feed, t,
                         (const double *)(void *)((uint8_t *)grads + e.train.buffers[e.train.grad_buffer[t]].offset));
    free(params);
    free(grads);
    engine_fini(&e);
    comm_close(comm);
    parity_model_fini(&m);
}

TEST(llama_gradient_is_the_derivative_of_the_loss)
{
    finite_differences(parity_llama);
}

TEST(gpt2_gradient_is_the_derivative_of_the_loss)
{
    finite_differences(parity_gpt2);
}

/* K is the longest sum of the model's step: the tokens of the batch or the vocabulary. The factor covers the chain of
 * layers; 0.4 was measured for both models. */
#define TWIN_FACTOR 4.0
/* In bfloat16 the bound of the CUDA module's kernels (tests/cuda_host/test_train.c), which round at the same places. */
#define HALF_FACTOR 1.5

/* A step with `sets`, whose type rounds by at most eps. */
static void compare_twin(const char *yaml, const char *const *sets, double eps, double factor)
{
    struct parity_model a, b;
    parity_model_init(&a, yaml, NULL);
    parity_model_init(&b, yaml, sets);
    struct parity_result *exact = parity_run(&a, 1, NULL), *fast = parity_run(&b, 1, NULL);
    double k = fmax((double)(a.job.train.global_batch * a.job.train.seq), (double)a.job.model.vocab);
    double bound = factor * eps * sqrt(k), worst = 0, rms = 0;
    for (int64_t i = 0; i < exact->n; i++)
        rms += exact->grad[i] * exact->grad[i] / (double)exact->n;
    rms = sqrt(rms);
    int64_t at = 0;
    for (int t = 0; t < a.graph.n_tensors; t++) {
        const struct graph_tensor *g = &a.graph.tensors[t];
        if (g->kind != GT_PARAM)
            continue;
        int64_t n = g->dim[0].factor * (g->ndim > 1 ? g->dim[1].factor : 1);
        double largest = rms;
        for (int64_t i = 0; i < n; i++)
            largest = fmax(largest, fabs(exact->grad[at + i]));
        for (int64_t i = 0; i < n; i++)
            worst = fmax(worst, fabs(exact->grad[at + i] - fast->grad[at + i]) / largest);
        at += n;
    }
    printf("worst gradient difference: %.2g eps sqrt(K); loss: %.2g eps\n", worst / (eps * sqrt(k)),
           fabs(exact->loss[0] - fast->loss[0]) / exact->loss[0] / eps);
    assert_true(worst > 0 && worst <= bound);
    assert_true(fabs(exact->loss[0] - fast->loss[0]) <= bound * exact->loss[0]);
    parity_result_free(exact);
    parity_result_free(fast);
    parity_model_fini(&a);
    parity_model_fini(&b);
}

TEST(float32_llama_step_is_near_its_float64_twin)
{
    compare_twin(parity_llama, (const char *[]){"train.numerics=fast", NULL}, 0x1p-24, TWIN_FACTOR);
}

TEST(float32_gpt2_step_is_near_its_float64_twin)
{
    compare_twin(parity_gpt2, (const char *[]){"train.numerics=fast", NULL}, 0x1p-24, TWIN_FACTOR);
}

#define HALF "train.numerics=fast", "train.dtype=bfloat16"

static void compare_halves(const char *yaml)
{
    const char *const layouts[][6] = {
        {HALF, NULL},
        {HALF, "parallel.workers=2", NULL},
        {HALF, "parallel.workers=2", "parallel.fsdp=2", "parallel.zero=3", NULL},
        {HALF, "parallel.workers=2", "parallel.tp=2", NULL},
        {HALF, "parallel.workers=2", "parallel.cp=2", NULL},
        {HALF, "parallel.workers=2", "parallel.pp=2", NULL},
    };
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        compare_twin(yaml, layouts[i], 0x1p-9, HALF_FACTOR);
}

TEST(bfloat16_llama_step_is_near_its_float64_twin)
{
    compare_halves(parity_llama);
}

TEST(bfloat16_gpt2_step_is_near_its_float64_twin)
{
    compare_halves(parity_gpt2);
}

/* ---- evaluation ---- */

TEST(an_evaluation_is_the_mean_over_its_samples)
{
    struct parity_model m;
    struct engine e;
    struct why why = {""};
    double together, one, sum = 0;
    parity_model_init(&m, parity_llama, NULL);
    const struct engine_config config = {.dev = test_cpu(), .job = &m.job, .graph = &m.graph, .world = 1, .eval = true};
    assert_ok(engine_init(&e, &config, &why));
    struct comm *comm = open_alone(&e);
    assert_ok(engine_start(&e, comm, &why));
    assert_ok(engine_fill_state(&e, &why));
    struct parity_feed data = {.seq = m.job.train.seq, .vocab = m.job.model.vocab};
    const struct engine_feed feed = {.sample = parity_sample, .arg = &data};
    const int64_t first = 5, end = 5 + 2 * m.job.train.global_batch - 3; /* the second batch is not full */
    assert_ok(engine_eval(&e, &feed, first, end, &together, &why));
    for (int64_t i = first; i < end; i++) {
        assert_ok(engine_eval(&e, &feed, i, i + 1, &one, &why));
        sum += one;
    }
    assert_true(fabs(together - sum / (double)(end - first)) < 1e-12);
    engine_fini(&e);
    comm_close(comm);
    parity_model_fini(&m);
}

/* ---- the update ---- */

struct moments {
    double p, m, v;
};

/* AdamW of Loshchilov and Hutter (2019) with bias correction: one element, update `step`. */
static double adamw(struct moments *x, double g, const struct job_train *t, double lr, double decay, int step)
{
    x->m = t->beta1 * x->m + (1 - t->beta1) * g;
    x->v = t->beta2 * x->v + (1 - t->beta2) * g * g;
    double m = x->m / (1 - pow(t->beta1, step)), v = x->v / (1 - pow(t->beta2, step));
    x->p = x->p * (1 - lr * decay) - lr * m / (sqrt(v) + t->eps);
    return x->p;
}

static void check_update(struct engine *e, struct moments *x, int step, const struct engine_result *r)
{
    const struct job_train *t = &e->config.job->train;
    double clip = r->grad_norm > t->clip ? t->clip / r->grad_norm : 1;
    assert_true(clip < 1); /* otherwise clipping is not tested */
    assert_true(r->lr == job_lr(t, step));
    for (int k = 0; k < e->config.graph->n_tensors; k++) {
        const struct graph_tensor *g = &e->config.graph->tensors[k];
        if (g->kind != GT_PARAM)
            continue;
        const double *p = engine_buffer(e, &e->train, e->train.param_buffer[k]);
        const double *grad = engine_buffer(e, &e->train, e->train.grad_buffer[k]);
        int64_t n = e->train.buffers[e->train.param_buffer[k]].bytes / 8;
        for (int64_t i = 0; i < n; i++, x++) {
            double want = adamw(x, grad[i] * clip, t, r->lr, g->decay ? t->weight_decay : 0, step);
            if (!(fabs(want - p[i]) <= 1e-12 * (1e-3 + fabs(want))))
                fail_msg("%s[%lld] after update %d: got %.17g, expected %.17g", g->name, (long long)i, step, p[i],
                         want);
        }
    }
}

TEST(the_update_is_adamw_with_clipping)
{
    struct parity_model m;
    struct engine e;
    struct why why = {""};
    struct engine_result r;
    parity_model_init(&m, parity_gpt2, (const char *[]){"train.weight_decay=0.3", "train.clip=0.1", NULL});
    const struct engine_config config = {.dev = test_cpu(), .job = &m.job, .graph = &m.graph, .world = 1};
    assert_ok(engine_init(&e, &config, &why));
    struct comm *comm = open_alone(&e);
    assert_ok(engine_start(&e, comm, &why));
    assert_ok(engine_fill_state(&e, &why));
    struct moments *x = calloc((size_t)m.graph.n_params, sizeof(*x)), *at = x;
    for (int k = 0; k < m.graph.n_tensors; k++)
        if (m.graph.tensors[k].kind == GT_PARAM)
            for (int64_t i = 0, n = e.train.buffers[e.train.param_buffer[k]].bytes / 8; i < n; i++)
                (at++)->p = ((double *)engine_buffer(&e, &e.train, e.train.param_buffer[k]))[i];
    struct parity_feed data = {.seq = m.job.train.seq, .vocab = m.job.model.vocab};
    const struct engine_feed feed = {.sample = parity_sample, .arg = &data};
    for (int step = 1; step <= 4; step++) {
        assert_ok(engine_step(&e, &feed, &r, &why));
        check_update(&e, x, step, &r);
    }
    free(x);
    engine_fini(&e);
    comm_close(comm);
    parity_model_fini(&m);
}

static void check_refused_step(const char *const *sets)
{
    struct parity_model m;
    struct engine e;
    struct why why = {""};
    struct engine_result result;
    parity_model_init(&m, parity_llama, sets);
    const struct engine_config config = {.dev = test_cpu(), .job = &m.job, .graph = &m.graph, .world = 1};
    assert_ok(engine_init(&e, &config, &why));
    struct comm *comm = open_alone(&e);
    assert_ok(engine_start(&e, comm, &why));
    assert_ok(engine_fill_state(&e, &why));
    struct parity_feed data = {.seq = m.job.train.seq, .vocab = m.job.model.vocab};
    const struct engine_feed feed = {.sample = parity_sample, .arg = &data};
    assert_ok(engine_step(&e, &feed, &result, &why));
    int last = m.graph.n_tensors - 1;
    while (m.graph.tensors[last].kind != GT_PARAM)
        last--;
    *(double *)engine_buffer(&e, &e.train, e.train.param_buffer[last]) = NAN; /* of the head or the last norm */
    void *before = malloc(e.space_bytes[SPACE_PARAM]);
    memcpy(before, e.space[SPACE_PARAM], e.space_bytes[SPACE_PARAM]);
    assert_err(ERR_INVALID, engine_step(&e, &feed, &result, &why));
    assert_non_null(strstr(why.text, "step 2 was rejected"));
    assert_int_equal(e.step, 1);
    assert_int_equal(e.position, m.job.train.global_batch);
    assert_memory_equal(before, e.space[SPACE_PARAM], e.space_bytes[SPACE_PARAM]);
    free(before);
    engine_fini(&e);
    comm_close(comm);
    parity_model_fini(&m);
}

TEST(a_step_that_is_not_a_number_is_refused_and_changes_nothing)
{
    check_refused_step(NULL);
}

TEST(a_step_that_is_not_a_number_leaves_the_biases_of_experts)
{
    check_refused_step((const char *const[]){"model.experts=5", "model.expert_ffn=24", "model.expert_bias=0.5", NULL});
}
