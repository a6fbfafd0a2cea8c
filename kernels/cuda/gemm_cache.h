/* How each shape of product is done, decided when it first comes up and kept with the device: descriptors of cuBLASLt,
 * the algorithm that its heuristics chose, and which epilogue is fused. Used on the device's thread.
 *
 * The cache is bounded; a program's products are some dozens of shapes, so after the first step every lookup is a hit
 * and nothing is allocated. When it is full it is emptied. */
#ifndef DTD_KERNELS_CUDA_GEMM_CACHE_H
#define DTD_KERNELS_CUDA_GEMM_CACHE_H

#include "kernels/cuda/cuda.h"

#include <cublasLt.h>

#define GEMM_WORKSPACE ((size_t)32 << 20)

/* A product as cuBLASLt sees it. Everything that its choice may depend on is here, the alignment of pointers included,
 * and every byte is set: keys are compared as bytes. */
struct gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t epilogue;    /* cublasLtEpilogue_t */
    int32_t type, c_type; /* cudaDataType_t */
    int32_t trans_a, trans_b, accumulate;
    uint32_t a_align, b_align, c_align, vector_align,
        aux_align; /* bytes, powers of two up to 256; 0: no such pointer */
    uint32_t zero;
};

/* `supported` false: cuBLASLt has no algorithm for this key. */
struct gemm_entry {
    struct gemm_key key;
    bool used, supported;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* of cuBLASLt's first and second operand and of the result, column-major */
    cublasLtMatmulAlgo_t algo;
};

struct gemm_cache;
struct gemm_cache *gemm_cache_new(void);    /* NULL: out of memory */
void gemm_cache_free(struct gemm_cache *c); /* NULL is legal */

/* The entry of a key, made if need be. `vector` (bias, or where a sum goes) and `aux` are pointers as they will be
 * used. Valid until the next call. */
NODISCARD cublasStatus_t gemm_cache_find(struct cuda_dev *d, const struct gemm_key *key, const void *vector,
                                         const void *aux, struct gemm_entry **ret);

#endif
