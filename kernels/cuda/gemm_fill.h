/* Kernels that gemm.c uses besides cuBLASLt: filling rows that a product then adds to, and products that cuBLASLt
 * cannot compute. */
#ifndef DTD_KERNELS_CUDA_GEMM_FILL_H
#define DTD_KERNELS_CUDA_GEMM_FILL_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets each of c's `rows` rows of `columns` elements, `ld` apart, to `bias`, or to zero without one. c has the wide
 * type if `wide_c`. */
void KERN_FN(gemm_fill)(struct kern_stream *s, int64_t rows, int64_t columns, int64_t ld, const void *bias, bool wide_c,
                        void *c);
/* c = op(A) op(B), or with `add` c += op(A) op(B), for any alignment; ignores bias, act, aux and the sums of `g`. m, n
 * > 0. */
void KERN_FN(gemm_own)(struct kern_stream *s, const struct kern_gemm *g, bool add);

#ifdef __cplusplus
}
#endif

#endif
