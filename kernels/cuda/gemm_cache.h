/* What cuBLASLt needs to do a product of one shape, kept with the device: descriptors, and the algorithm once it has
 * been chosen (gemm_product.h). Used on the device's thread.
 *
 * The cache is bounded; a program's products are some dozens of shapes, so after the first step every lookup is a hit
 * and nothing is allocated. When it is full it is emptied. */
#ifndef DTD_KERNELS_CUDA_GEMM_CACHE_H
#define DTD_KERNELS_CUDA_GEMM_CACHE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm_key.h"

#include <cublasLt.h>

#define GEMM_WORKSPACE ((size_t)32 << 20)
/* How many of cuBLASLt's proposals are timed. The heuristics order them by estimated time; what comes later than this
 * is hardly ever the fastest. */
#define GEMM_CANDIDATES 8

enum gemm_state {
    GEMM_FRESH, /* nothing is chosen */
    GEMM_ALGO,  /* `algo` does it */
    GEMM_NONE,  /* cuBLASLt does not do it in this form: it cannot, or the other form is faster or more exact */
};

struct gemm_entry {
    struct gemm_key key;
    bool used;
    enum gemm_state state;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* of cuBLASLt's first and second operand and of the result, column-major */
    cublasLtMatmulAlgo_t algo;
};

struct gemm_candidates {
    int n;
    cublasLtMatmulAlgo_t algo[GEMM_CANDIDATES]; /* the likeliest to be fast first */
};

struct gemm_cache;
struct gemm_cache *gemm_cache_new(void);     /* NULL: out of memory */
void gemm_cache_free(struct gemm_cache *c);  /* NULL is legal */
void gemm_cache_clear(struct gemm_cache *c); /* everything is to be chosen again */

/* The entry of a key, made if need be: then it is fresh. `vector` (bias, or where a sum goes) and `aux` are pointers as
 * they will be used. Valid until the next call. */
NODISCARD cublasStatus_t gemm_cache_find(struct cuda_dev *d, const struct gemm_key *key, const void *vector,
                                         const void *aux, struct gemm_entry **ret);
/* What cuBLASLt proposes for the entry, in the order of its heuristics: always the same for one key, GPU and version.
 * None is an answer, not a failure. */
NODISCARD cublasStatus_t gemm_cache_propose(struct cuda_dev *d, const struct gemm_entry *e,
                                            struct gemm_candidates *ret);
/* Whether an algorithm that was read from a file does this product under the same limits as a proposed one. */
bool gemm_cache_accepts(struct cuda_dev *d, const struct gemm_entry *e, const cublasLtMatmulAlgo_t *algo);

#endif
