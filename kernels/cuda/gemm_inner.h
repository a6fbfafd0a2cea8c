/* What gemm_product.c has in common with how it chooses (gemm_choose.c) and checks (gemm_gelu.c). */
#ifndef DTD_KERNELS_CUDA_GEMM_INNER_H
#define DTD_KERNELS_CUDA_GEMM_INNER_H

#include "kernels/cuda/gemm_cache.h"
#include "kernels/cuda/gemm_product.h"

/* Takes scratch, and lays p->vector behind the workspace where that is to be; NULL as cuda_scratch. */
void *gemm_workspace(struct kern_stream *s, struct gemm_product *p);
/* Queues d = alpha op(A) op(B) + beta c, with the entry's algorithm and the product's epilogue. */
NODISCARD cublasStatus_t gemm_queue(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry *e,
                                    float alpha, float beta, void *workspace);
/* The entry of p's key, whose vector is where it will be. */
NODISCARD err_t gemm_entry_of(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry **ret);
/* Whether cuBLASLt says that it does not do this after all. */
bool gemm_was_refused(cublasStatus_t status);
err_t gemm_blas_failed(struct kern_stream *s, const struct kern_gemm *g, cublasStatus_t status, const char *call,
                       const char *file, int line);

/* Chooses for the fresh entry *e of p, which may move: *e is then the entry again, and not fresh. */
NODISCARD err_t gemm_choose(struct kern_stream *s, struct gemm_product *p, struct gemm_entry **e);

/* Whether the entry's algorithm computes GELU or its gradient as exactly as float32 does, for an epilogue that has one
 * (else true). Waits for the stream; leaves what it likes in c. */
NODISCARD err_t gemm_gelu_is_exact(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry *e,
                                   bool *ret);

#endif
