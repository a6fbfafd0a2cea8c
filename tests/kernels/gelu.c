#include "tests/kernels/gelu.h"
#include "tests/kernels/values.h"
#include "tests/lib/test.h"

#include <math.h>

enum { M = 64, N = 16, K = 8 };
/* The bound of float32 arithmetic where 1 + tanh is almost 0; a tanh of eleven bits has a hundred times that error. */
#define ABSOLUTE 0x1p-18

struct gelu_array {
    double at[M * N];
    int n;
};

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double slope(double x)
{
    const double d = 1e-6;
    return (gelu(x + d) - gelu(x - d)) / (2 * d);
}

static void *to_device(struct dev *d, struct kern_stream *s, const struct gelu_array *x)
{
    uint16_t host[M * N];
    void *p;
    for (int i = 0; i < x->n; i++)
        element_put(DT_BF16, &host[i], x->at[i]);
    assert_ok(dev_alloc(d, sizeof(host), "a test", &p, NULL));
    assert_ok(dev_copy(s, p, host, (size_t)x->n * sizeof(host[0])));
    assert_ok(dev_stream_sync(s, NULL));
    return p;
}

/* The only term that is not zero. Its factors, (row / 8 - 4) and (1 + column / 16) / 2, are exact in bfloat16, so the
 * term is exact in float32. */
static double x_of(int i)
{
    int row = i / N, column = i % N;
    return ((double)row / 8 - 4) * (1 + (double)column / 16) / 2;
}

static double aux_of(int i)
{
    int k = i % M - M / 2;
    return (double)k / 8;
}

static double off(double got, int i, enum kern_act act)
{
    double x = x_of(i), want = act == KERN_ACT_GELU ? gelu(x) : x * slope(aux_of(i));
    double before =
        act == KERN_ACT_GELU ? x * slope(x) : want; /* the rounding error of a stored x, as f propagates it */
    return fabs(got - want) / (0x1p-8 * (fabs(want) + fabs(before)) + ABSOLUTE);
}

double gelu_worst(struct dev *d, enum kern_act act)
{
    struct gelu_array side[4] = {{.n = M * K}, {.n = K * N}, {.n = M * N}, {.n = M * N}}; /* A, B, c, aux */
    struct kern_stream *s;
    uint16_t c[M * N];
    void *p[4];
    double worst = 0;
    for (int i = 0; i < M; i++)
        side[0].at[(size_t)i * K] = i / 8.0 - 4;
    for (int j = 0; j < N; j++)
        side[1].at[j] = (1 + j / 16.0) / 2;
    for (int i = 0; i < M * N; i++)
        side[3].at[i] = aux_of(i);
    assert_ok(dev_stream_new(d, 0, false, &s, NULL));
    for (int i = 0; i < 4; i++)
        p[i] = to_device(d, s, &side[i]);
    const struct kern_gemm g = {
        .act = act, .m = M, .n = N, .k = K, .lda = K, .ldb = N, .ldc = N, .a = p[0], .b = p[1], .c = p[2], .aux = p[3]};
    assert_ok(dev_kernels(d, DT_BF16)->gemm(s, &g));
    assert_ok(dev_copy(s, c, p[2], sizeof(c)));
    assert_ok(dev_stream_sync(s, NULL));
    for (int i = 0; i < M * N; i++)
        worst = fmax(worst, off(element_get(DT_BF16, &c[i]), i, act));
    for (int i = 0; i < 4; i++)
        dev_free(d, p[i], sizeof(c));
    dev_stream_free(s);
    return worst;
}
