/* What gemm.c needs beside products: rows that a product then adds to, and a vector of ones. */
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
/* n elements become 1. */
void KERN_FN(gemm_ones)(struct kern_stream *s, int64_t n, void *x);

#ifdef __cplusplus
}
#endif

#endif
