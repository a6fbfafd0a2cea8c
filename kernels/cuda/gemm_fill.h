/* What gemm.c needs beside cuBLASLt: rows that a product then adds to, and products that cuBLASLt does not do. */
#ifndef DTD_KERNELS_CUDA_GEMM_FILL_H
#define DTD_KERNELS_CUDA_GEMM_FILL_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each of c's `rows` rows of `columns` elements, `ld` apart, becomes `bias`, or zero without one. c is of the wide type
 * when `wide_c`. */
void KERN_FN(gemm_fill)(struct kern_stream *s, int64_t rows, int64_t columns, int64_t ld, const void *bias, bool wide_c,
                        void *c);
/* c = op(A) op(B), or with `add` c += op(A) op(B), whatever the alignment; bias, act, aux and the sums of `g` are not
 * looked at. m, n > 0. */
void KERN_FN(gemm_own)(struct kern_stream *s, const struct kern_gemm *g, bool add);

#ifdef __cplusplus
}
#endif

#endif
