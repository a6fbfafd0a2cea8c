/* A product as cuBLASLt sees it: everything that the choice of its algorithm may depend on, the alignment of pointers
 * and whether the result is added to included. Every byte is set, so that keys are compared as bytes. */
#ifndef DTD_KERNELS_CUDA_GEMM_KEY_H
#define DTD_KERNELS_CUDA_GEMM_KEY_H

#include <stdint.h>

struct gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t epilogue;    /* cublasLtEpilogue_t */
    int32_t type, c_type; /* cudaDataType_t */
    int32_t trans_a, trans_b, accumulate;
    uint32_t a_align, b_align, c_align, vector_align,
        aux_align; /* bytes, powers of two, as gemm_alignment; 0: no such pointer */
    uint32_t zero;
};

#endif
