/* Common definitions of the fast CPU backend. Every file of cpu/ is compiled once per instruction set and type, named
 * by KERN_CPU_ISA; KERN_CPU_BITS is the size of an element, 32 or 16. */
#ifndef DTD_KERNELS_CPU_CPU_H
#define DTD_KERNELS_CPU_CPU_H

#define CPU_JOIN(isa, name) kern_cpu_##isa##_##name
#define CPU_EXPAND(isa, name) CPU_JOIN(isa, name)
#define KERN_FN(name) CPU_EXPAND(KERN_CPU_ISA, name)

#include "kernels/cpu/elem.h"
#include "kernels/prototypes.h"
#include "kernels/stream.h"

/* oneDNN's product, row-major, C = alpha op(A) op(B) + beta C. Converts and logs oneDNN's status. It may be called from
 * a part of a parallel region and then stays on the calling thread. */
NODISCARD err_t KERN_FN(sgemm)(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* x = op(A) op(B) + bias, or with `accumulate` x +=, of a product with k > 0; x is the g->c or g->aux to write. */
NODISCARD err_t KERN_FN(product)(struct kern_stream *s, const struct kern_gemm *g, void *x);

/* The same for a product with few rows, k > 0 and without `accumulate`, which few_rows.c computes itself. */
bool KERN_FN(has_few_rows)(const struct kern_gemm *g);
void KERN_FN(few_rows)(struct kern_stream *s, const struct kern_gemm *g, void *x);

/* gelu and gelu_grad of a matrix with `stride` elements between rows; dx may be dy. */
void KERN_FN(gelu_rows)(struct kern_stream *s, int64_t rows, int64_t n, int64_t stride, const elem *x, elem *y);
void KERN_FN(gelu_grad_rows)(struct kern_stream *s, int64_t rows, int64_t n, int64_t stride, const elem *x,
                             const elem *dy, elem *dx);

#endif
