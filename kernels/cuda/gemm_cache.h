/* The data that cuBLASLt needs for a product of one shape: descriptors, and the algorithm once it has been chosen
 * (gemm_product.h). Kept with the device and used on the device's thread.
 *
 * The cache is bounded and is emptied when full. A program's products have some dozens of shapes, so after the first
 * step every lookup is a hit and nothing is allocated. */
#ifndef DTD_KERNELS_CUDA_GEMM_CACHE_H
#define DTD_KERNELS_CUDA_GEMM_CACHE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm_key.h"

#include <cublasLt.h>

#define GEMM_WORKSPACE ((size_t)32 << 20)
/* The number of cuBLASLt's proposals that are timed. The heuristics order them by estimated time, and later ones are
 * hardly ever the fastest. */
#define GEMM_CANDIDATES 8

enum gemm_state {
    GEMM_FRESH, /* not chosen yet */
    GEMM_ALGO,  /* cuBLASLt uses `algo` */
    GEMM_NONE,  /* cuBLASLt is not used in this form: it cannot, or the other form is faster or more exact */
};

struct gemm_entry {
    struct gemm_key key;
    bool used;
    enum gemm_state state;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* layouts of cuBLASLt's first and second operand and of the result, column-major */
    cublasLtMatmulAlgo_t algo;
};

struct gemm_candidates {
    int n;
    cublasLtMatmulAlgo_t algo[GEMM_CANDIDATES]; /* in the order of the heuristics, the fastest estimate first */
};

struct gemm_cache;
struct gemm_cache *gemm_cache_new(void);     /* NULL: out of memory */
void gemm_cache_free(struct gemm_cache *c);  /* NULL is legal */
void gemm_cache_clear(struct gemm_cache *c); /* discards all choices */

/* Finds or creates the entry of a key; a new entry is GEMM_FRESH. `vector` (the bias, or the destination of a sum) and
 * `aux` are the pointers that the product will use. Valid until the next call. */
NODISCARD cublasStatus_t gemm_cache_find(struct cuda_dev *d, const struct gemm_key *key, const void *vector,
                                         const void *aux, struct gemm_entry **ret);
/* cuBLASLt's proposals for the entry, in the order of its heuristics, which is always the same for one key, GPU and
 * version. No proposal is a valid result, not a failure. */
NODISCARD cublasStatus_t gemm_cache_propose(struct cuda_dev *d, const struct gemm_entry *e,
                                            struct gemm_candidates *ret);
/* Whether an algorithm that was read from a file can compute this product, under the same limits as a proposed one. */
bool gemm_cache_accepts(struct cuda_dev *d, const struct gemm_entry *e, const cublasLtMatmulAlgo_t *algo);

#endif
