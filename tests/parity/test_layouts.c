/* One job on 1, 2, 3, 4 and 5 workers: the same losses, gradients and parameters. The batch of 7 samples in
 * microbatches of 2 divides by nothing; with 5 workers one has no work. */
#include "tests/parity/harness.h"

#include <math.h>

#define STEPS 20

static struct parity_result *run(const char *yaml, const char *numerics, int workers, struct parity_model *m)
{
    char w[32], n[48];
    snprintf(w, sizeof(w), "parallel.workers=%d", workers);
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    const char *sets[] = {w, n, NULL};
    parity_model_init(m, yaml, sets);
    return parity_run(m, STEPS, NULL);
}

static double rms(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)n);
}

/* |a - b| <= 1e-10 max(largest |a| of the tensor, 1e-3 RMS over all tensors). */
static void compare(const struct graph *g, const double *a, const double *b, int64_t total, const char *what)
{
    double global = rms(a, total);
    int64_t at = 0;
    for (int t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *x = &g->tensors[t];
        if (x->kind != GT_PARAM)
            continue;
        int64_t n = x->dim[0].factor * (x->ndim > 1 ? x->dim[1].factor : 1);
        double largest = 1e-3 * global;
        for (int64_t i = 0; i < n; i++)
            largest = fmax(largest, fabs(a[at + i]));
        for (int64_t i = 0; i < n; i++) {
            if (i >= x->zero_lo && i < x->zero_hi)
                continue;
            if (!(fabs(a[at + i] - b[at + i]) <= 1e-10 * largest))
                fail_msg("%s of %s[%lld]: %.17g and %.17g, largest %g", what, x->name, (long long)i, a[at + i],
                         b[at + i], largest);
        }
        at += n;
    }
    assert_int_equal(at, total);
}

/* What is exactly zero in theory is nothing but rounding. */
static void check_zero(const struct graph *g, const double *grad, int64_t total)
{
    double global = rms(grad, total);
    int64_t at = 0;
    for (int t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *x = &g->tensors[t];
        if (x->kind != GT_PARAM)
            continue;
        for (int64_t i = x->zero_lo; i < x->zero_hi; i++)
            if (!(fabs(grad[at + i]) <= 1e-12 * global))
                fail_msg("gradient of %s[%lld] is %g, not zero", x->name, (long long)i, grad[at + i]);
        at += x->dim[0].factor * (x->ndim > 1 ? x->dim[1].factor : 1);
    }
}

static void check_learns(const struct parity_result *r)
{
    assert_true(r->loss[STEPS - 1] < r->loss[0] - 0.2); /* else the comparison would compare nothing */
    assert_true(isfinite(r->valid) && r->valid > 0);
}

static void proof_matrix(const char *yaml)
{
    struct parity_model one, many;
    struct parity_result *a = run(yaml, "proof", 1, &one);
    check_learns(a);
    check_zero(&one.graph, a->grad, a->n);
    for (int workers = 2; workers <= 5; workers++) {
        struct parity_result *b = run(yaml, "proof", workers, &many);
        for (int s = 0; s < STEPS; s++) {
            assert_true(fabs(a->loss[s] - b->loss[s]) <= 1e-10 * fabs(a->loss[s]));
            assert_true(fabs(a->norm[s] - b->norm[s]) <= 1e-10 * fabs(a->norm[s]));
        }
        assert_true(fabs(a->valid - b->valid) <= 1e-10 * a->valid);
        compare(&one.graph, a->grad, b->grad, a->n, "gradient");
        compare(&one.graph, a->param, b->param, a->n, "parameter");
        parity_result_free(b);
        parity_model_fini(&many);
    }
    parity_result_free(a);
    parity_model_fini(&one);
}

TEST(llama_in_proof_mode)
{
    proof_matrix(parity_llama);
}

TEST(gpt2_in_proof_mode)
{
    proof_matrix(parity_gpt2);
}

static void canonical_matrix(const char *yaml)
{
    struct parity_model one, many;
    struct parity_result *a = run(yaml, "canonical", 1, &one);
    check_learns(a);
    for (int workers = 2; workers <= 5; workers++) {
        struct parity_result *b = run(yaml, "canonical", workers, &many);
        for (int s = 0; s < STEPS; s++) {
            if (a->loss[s] != b->loss[s] || a->norm[s] != b->norm[s])
                fail_msg("%d workers, step %d: loss %.17g and %.17g, norm %.17g and %.17g", workers, s + 1, a->loss[s],
                         b->loss[s], a->norm[s], b->norm[s]);
        }
        assert_memory_equal(&a->valid, &b->valid, sizeof(double));
        assert_memory_equal(a->grad, b->grad, (size_t)a->n * sizeof(double));
        assert_memory_equal(a->param, b->param, (size_t)a->n * sizeof(double));
        parity_result_free(b);
        parity_model_fini(&many);
    }
    parity_result_free(a);
    parity_model_fini(&one);
}

TEST(llama_in_canonical_numerics_bit_for_bit)
{
    canonical_matrix(parity_llama);
}

TEST(gpt2_in_canonical_numerics_bit_for_bit)
{
    canonical_matrix(parity_gpt2);
}

/* Fast numerics promise no bits, but the same training. */
TEST(fast_numerics_agree_to_rounding)
{
    struct parity_model one, many;
    struct parity_result *a = run(parity_llama, "fast", 1, &one), *b = run(parity_llama, "fast", 3, &many);
    check_learns(a);
    for (int s = 0; s < STEPS; s++)
        assert_true(fabs(a->loss[s] - b->loss[s]) <= 1e-4 * a->loss[s]);
    parity_result_free(a);
    parity_result_free(b);
    parity_model_fini(&one);
    parity_model_fini(&many);
}
