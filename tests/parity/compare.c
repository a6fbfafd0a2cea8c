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

/* |a - b| <= bound max(largest |a| of the tensor, floor). */
struct bounds {
    const char *what;
    double bound, floor;
};

static bool tensors_differ(const struct graph *g, const double *a, const double *b, int64_t total,
                           const struct bounds *is, char *why, size_t size)
{
    int64_t at = 0;
    for (int t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *x = &g->tensors[t];
        if (x->kind != GT_PARAM)
            continue;
        int64_t n = x->dim[0].factor * (x->ndim > 1 ? x->dim[1].factor : 1);
        double largest = is->floor;
        for (int64_t i = 0; i < n; i++)
            largest = fmax(largest, fabs(a[at + i]));
        for (int64_t i = 0; i < n; i++) {
            if (graph_grad_is_zero(x, i))
                continue;
            if (!(fabs(a[at + i] - b[at + i]) <= is->bound * largest)) {
                snprintf(why, size, "%s of %s[%lld]: %.17g and %.17g, largest %g", is->what, x->name, (long long)i,
                         a[at + i], b[at + i], largest);
                return true;
            }
        }
        at += n;
    }
    assert_int_equal(at, total);
    return false;
}

bool parity_gradients_differ(const struct graph *g, const double *a, const double *b, int64_t total, double bound,
                             char *why, size_t size)
{
    return tensors_differ(g, a, b, total, &(struct bounds){"gradient", bound, rms(a, total)}, why, size);
}

void parity_check_zero(const struct graph *g, const double *grad, int64_t total)
{
    double global = rms(grad, total);
    int64_t at = 0;
    for (int t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *x = &g->tensors[t];
        if (x->kind != GT_PARAM)
            continue;
        const int64_t n = x->dim[0].factor * (x->ndim > 1 ? x->dim[1].factor : 1);
        for (int64_t i = 0; i < n; i++)
            if (graph_grad_is_zero(x, i) && !(fabs(grad[at + i]) <= 1e-12 * global))
                fail_msg("gradient of %s[%lld] is %g, not zero", x->name, (long long)i, grad[at + i]);
        at += n;
    }
}

static bool numbers_differ(const char *what, int step, double a, double b, char *why, size_t size)
{
    if (fabs(a - b) <= 1e-10 * fabs(a))
        return false;
    snprintf(why, size, "%s of step %d: %.17g and %.17g", what, step, a, b);
    return true;
}

/* States change by whole numbers: their bits are equal. */
static bool states_differ(const struct parity_result *a, const struct parity_result *b, char *why, size_t size)
{
    for (int i = 0; i < PARITY_MAX_STATES; i++)
        if (a->state[i] != b->state[i]) {
            snprintf(why, size, "element %d of all states: %.17g and %.17g", i, a->state[i], b->state[i]);
            return true;
        }
    return false;
}

bool parity_differ(const struct graph *g, const struct parity_result *a, const struct parity_result *b, int steps,
                   char *why, size_t size)
{
    const double global[] = {1e-3 * rms(a->grad, a->n), 1e-3 * rms(a->param, a->n)};
    for (int s = 0; s < steps; s++)
        if (numbers_differ("loss", s + 1, a->loss[s], b->loss[s], why, size) ||
            numbers_differ("norm", s + 1, a->norm[s], b->norm[s], why, size))
            return true;
    return states_differ(a, b, why, size) ||
           tensors_differ(g, a->grad, b->grad, a->n, &(struct bounds){"gradient", 1e-10, global[0]}, why, size) ||
           tensors_differ(g, a->param, b->param, a->n, &(struct bounds){"parameter", 1e-10, global[1]}, why, size) ||
           numbers_differ("evaluation", steps, a->valid, b->valid, why, size);
}

void parity_compare_bounds(const struct graph *g, const struct parity_result *a, const struct parity_result *b,
                           int steps)
{
    char why[256];
    if (parity_differ(g, a, b, steps, why, sizeof(why)))
        fail_msg("%s", why);
}

void parity_compare_bits(const struct parity_result *a, const struct parity_result *b, int steps)
{
    for (int s = 0; s < steps; s++) {
        if (a->loss[s] != b->loss[s] || a->norm[s] != b->norm[s])
            fail_msg("step %d: loss %.17g and %.17g, norm %.17g and %.17g", s + 1, a->loss[s], b->loss[s], a->norm[s],
                     b->norm[s]);
    }
    assert_memory_equal(a->state, b->state, sizeof(a->state));
    assert_memory_equal(&a->valid, &b->valid, sizeof(double));
    assert_memory_equal(a->grad, b->grad, (size_t)a->n * sizeof(double));
    assert_memory_equal(a->param, b->param, (size_t)a->n * sizeof(double));
}
