/* Shared by gemm_product.c, the choice of algorithms (gemm_choose.c) and the check of GELU (gemm_gelu.c). */
#ifndef DTD_KERNELS_CUDA_GEMM_INNER_H
#define DTD_KERNELS_CUDA_GEMM_INNER_H

#include "kernels/cuda/gemm_cache.h"
#include "kernels/cuda/gemm_product.h"

/* Allocates scratch memory, and places p->vector after the workspace if it belongs there; NULL as cuda_scratch. */
void *gemm_workspace(struct kern_stream *s, struct gemm_product *p);
/* Queues d = alpha op(A) op(B) + beta c, with the entry's algorithm and the product's epilogue. */
NODISCARD cublasStatus_t gemm_queue(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry *e,
                                    float alpha, float beta, void *workspace);
/* Finds the entry of p's key; p->vector must have its final address. */
NODISCARD err_t gemm_entry_of(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry **ret);
/* Whether cuBLASLt reports that it cannot run the algorithm after all. */
bool gemm_was_refused(cublasStatus_t status);
err_t gemm_blas_failed(struct kern_stream *s, const struct kern_gemm *g, cublasStatus_t status, const char *call,
                       const char *file, int line);

/* Chooses for the new entry *e of p. The entry may move: *e then points to it again, and it is no longer GEMM_FRESH. */
NODISCARD err_t gemm_choose(struct kern_stream *s, struct gemm_product *p, struct gemm_entry **e);

/* Whether the entry's algorithm computes GELU or its gradient as exactly as float32 does; true for epilogues without
 * either. Waits for the stream; overwrites c. */
NODISCARD err_t gemm_gelu_is_exact(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry *e,
                                   bool *ret);

#endif
