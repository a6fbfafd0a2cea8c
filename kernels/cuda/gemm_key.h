/* A product from cuBLASLt's point of view: everything on which the choice of its algorithm may depend, including the
 * alignment of pointers and whether the product adds to the result. Every byte is set, so keys can be compared as
 * bytes. */
#ifndef DTD_KERNELS_CUDA_GEMM_KEY_H
#define DTD_KERNELS_CUDA_GEMM_KEY_H

#include <stdint.h>

struct gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t epilogue;    /* cublasLtEpilogue_t */
    int32_t type, c_type; /* cudaDataType_t */
    int32_t trans_a, trans_b, accumulate;
    uint32_t a_align, b_align, c_align, vector_align,
        aux_align; /* alignments in bytes, powers of two, as from gemm_alignment; 0: no such pointer */
    uint32_t zero;
};

#endif
