/* Products in float32. The bias is written to C before the product, which then adds to it: beta = 1 costs oneDNN
 * nothing. */
#include "kernels/cpu/cpu.h"

struct prefill_args {
    int64_t n, ldc;
    const float *bias;
    float *c;
};

static void prefill_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct prefill_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        float *row = a->c + i * a->ldc;
        int64_t j = 0;
        for (; j + VF <= a->n; j += VF) {
            v_expect_store(row + j);
            v_store(row + j, v_load(a->bias + j));
        }
        v_store_n(row + j, v_load_n(a->bias + j, a->n - j), a->n - j);
    }
}

err_t KERN_FN(product)(struct kern_stream *s, const struct kern_gemm *g, void *x)
{
    if (g->bias) {
        struct prefill_args a = {g->n, g->ldc, g->bias, x};
        kern_stream_run(s, g->m, 16, prefill_rows, &a);
    }
    kern_stream_limit(kern_stream_threads(s));
    return KERN_FN(sgemm)(g->trans_a, g->trans_b, g->m, g->n, g->k, 1, g->a, g->lda, g->b, g->ldb,
                          g->accumulate || g->bias ? 1 : 0, x, g->ldc);
}
