/* Checks whether an algorithm's fused GELU is exact enough. The library does not document its accuracy, and some GPUs
 * have a tanh with only eleven correct bits. Where GELU is close to zero this violates the contract of kern_ops.gelu:
 * GELU uses 1 + tanh, and near -3 the error is a fifth of the value, which a test on the scale of a whole matrix does
 * not detect. So each algorithm runs once with values that show the error.
 *
 * These values are in the first row of the result. The product runs with an alpha that makes its terms negligible, and
 * x comes from the bias or from c. (With an alpha of zero the library might run another kernel.) Only bfloat16 has
 * fused forms. */
#include "kernels/cuda/gemm_inner.h"

#include <math.h>
#include <string.h>

/* bfloat16 represents each of them exactly. The most sensitive ones come first, for results with few columns. */
static const float points[] = {-3, -2.5f, -4, -2, -3.5f, -1.5f, -5, -1, -0.5f, 0.5f, -0.25f, 1, 0.125f, 2, 3.5f, 6};
#define POINTS ((int64_t)(sizeof(points) / sizeof(points[0])))
#define TINY 0x1p-100f /* alpha: even a term of 2^40 then changes none of the points */
/* Rounding to bfloat16 has an error of at most 2^-8 of a value; float32 arithmetic one of about 2^-22 where 1 + tanh is
 * almost 0, and a tanh of eleven bits one of 2^-11 there. */
#define RELATIVE 0x1p-8
#define ABSOLUTE 0x1p-18

static uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static double widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

/* The tanh form (kern_ops.gelu) and its derivative. */
static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

struct gelu_check {
    int64_t n; /* number of points */
    uint16_t points[sizeof(points) / sizeof(points[0])], ones[sizeof(points) / sizeof(points[0])],
        got[sizeof(points) / sizeof(points[0])];
};

static err_t copy(struct kern_stream *s, void *to, const void *from, int64_t n)
{
    return CUDA_CHECK(
        s, cudaMemcpyAsync(to, from, (size_t)n * sizeof(uint16_t), cudaMemcpyDefault, cuda_stream_of(s)->handle));
}

static err_t queue(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry *e, float beta, void *scratch)
{
    cublasStatus_t status = gemm_queue(s, p, e, TINY, beta, scratch);
    if (status == CUBLAS_STATUS_SUCCESS || gemm_was_refused(status))
        return OK;
    return gemm_blas_failed(s, p->g, status, "cublasLtMatmul", __FILE__, __LINE__);
}

/* Takes the points from a bias. */
static err_t through_bias(struct kern_stream *s, struct gemm_product *p, struct gemm_entry *e, struct gelu_check *probe,
                          void *scratch, void *vector)
{
    size_t bytes = (size_t)p->g->n * sizeof(uint16_t);
    err_t err = CUDA_CHECK(s, cudaMemsetAsync(vector, 0, bytes, cuda_stream_of(s)->handle));
    err = err ? err : copy(s, vector, probe->points, probe->n);
    p->vector = vector;
    return err ? err : queue(s, p, e, 0, scratch);
}

static err_t through_c(struct kern_stream *s, struct gemm_product *p, struct gemm_entry *e, struct gelu_check *probe,
                       void *scratch)
{
    err_t err = copy(s, p->g->c, probe->points, probe->n);
    return err ? err : queue(s, p, e, 1, scratch);
}

/* Sets x to 1 and temporarily replaces aux, which is still needed, by the points. */
static err_t through_aux(struct kern_stream *s, struct gemm_product *p, struct gemm_entry *e, struct gelu_check *probe,
                         void *scratch, void *saved)
{
    err_t err = copy(s, saved, p->aux, probe->n);
    err = err ? err : copy(s, p->aux, probe->points, probe->n);
    err = err ? err : copy(s, p->g->c, probe->ones, probe->n);
    err = err ? err : queue(s, p, e, 1, scratch);
    return err ? err : copy(s, p->aux, saved, probe->n);
}

static bool is_near(const struct gelu_check *probe, double (*f)(double x))
{
    bool ret = true;
    for (int64_t i = 0; i < probe->n; i++) {
        double y = f((double)points[i]);
        ret = ret && fabs(widen(probe->got[i]) - y) <= RELATIVE * fabs(y) + ABSOLUTE;
    }
    return ret;
}

err_t gemm_gelu_is_exact(struct kern_stream *s, const struct gemm_product *product, struct gemm_entry *e, bool *ret)
{
    struct gemm_product p = *product;
    struct gelu_check probe = {.n = p.g->n < POINTS ? p.g->n : POINTS};
    *ret = true;
    if (!p.aux)
        return OK;
    size_t room = (size_t)p.g->n * sizeof(uint16_t) + (size_t)GEMM_ALIGN_MOST;
    char *scratch = cuda_scratch(s, GEMM_WORKSPACE + room);
    if (!scratch)
        return cuda_stream_of(s)->err;
    char *vector =
        scratch + GEMM_WORKSPACE + (uintptr_t)p.vector % GEMM_ALIGN_MOST; /* with the alignment of the bias */
    for (int64_t i = 0; i < probe.n; i++) {
        probe.points[i] = narrow(points[i]);
        probe.ones[i] = narrow(1);
    }
    err_t err = p.epilogue == CUBLASLT_EPILOGUE_DGELU ? through_aux(s, &p, e, &probe, scratch, vector)
                : p.vector                            ? through_bias(s, &p, e, &probe, scratch, vector)
                                                      : through_c(s, &p, e, &probe, scratch);
    err = err ? err : copy(s, probe.got, p.g->c, probe.n);
    cudaError_t code = cudaStreamSynchronize(cuda_stream_of(s)->handle);
    err = err ? err : CUDA_CHECK(s, code);
    if (!err)
        *ret = is_near(&probe, p.epilogue == CUBLASLT_EPILOGUE_DGELU ? gelu_slope : gelu);
    return err;
}
