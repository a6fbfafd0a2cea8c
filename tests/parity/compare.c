/* See compare.h. */
#include "tests/parity/compare.h"

#include <math.h>

static double rms(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)n);
}

/* |a - b| <= 1e-10 max(largest |a| of the tensor, 1e-3 RMS over all tensors). */
static void compare_tensors(const struct graph *g, const double *a, const double *b, int64_t total, const char *what)
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

void parity_check_zero(const struct graph *g, const double *grad, int64_t total)
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

void parity_compare_bounds(const struct graph *g, const struct parity_result *a, const struct parity_result *b,
                           int steps)
{
    for (int s = 0; s < steps; s++) {
        assert_true(fabs(a->loss[s] - b->loss[s]) <= 1e-10 * fabs(a->loss[s]));
        assert_true(fabs(a->norm[s] - b->norm[s]) <= 1e-10 * fabs(a->norm[s]));
    }
    assert_true(fabs(a->valid - b->valid) <= 1e-10 * a->valid);
    compare_tensors(g, a->grad, b->grad, a->n, "gradient");
    compare_tensors(g, a->param, b->param, a->n, "parameter");
}

void parity_compare_bits(const struct parity_result *a, const struct parity_result *b, int steps)
{
    for (int s = 0; s < steps; s++) {
        if (a->loss[s] != b->loss[s] || a->norm[s] != b->norm[s])
            fail_msg("step %d: loss %.17g and %.17g, norm %.17g and %.17g", s + 1, a->loss[s], b->loss[s], a->norm[s],
                     b->norm[s]);
    }
    assert_memory_equal(&a->valid, &b->valid, sizeof(double));
    assert_memory_equal(a->grad, b->grad, (size_t)a->n * sizeof(double));
    assert_memory_equal(a->param, b->param, (size_t)a->n * sizeof(double));
}
