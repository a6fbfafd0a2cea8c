/* Compares the functions of kernels/cuda/ptx.h with the PTX ISA's tables of fragments, on a GPU (tests/gpu) and in
 * their host implementation (tests/cuda_host), with the same cases and kernels. */
#ifndef DTD_TESTS_GPU_PTX_CASES_H
#define DTD_TESTS_GPU_PTX_CASES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ptx_probe {
    PTX_LDMATRIX,       /* x: 32 rows of 16 bytes; r: 4 words per lane; lane l names row l */
    PTX_LDMATRIX_TRANS, /* the same */
    PTX_MMA_BF16,       /* x: per lane a[4], b[2], d[4]; r: d[4] per lane */
    PTX_MMA_TF32,       /* the same */
    PTX_TF32,           /* x, r: a word per lane */
    PTX_PACK_BF16,      /* x: two floats per lane; r: a word */
    PTX_EXP2,           /* x, r: a word per lane */
    PTX_ASYNC,          /* x: 16 bytes per lane; r: the bytes that lane 31 - l copied; odd lanes copy nothing (zeros) */
};

#define PTX_WORDS 10 /* words per lane, the largest number of all cases */

/* Runs one warp; x and r are [32][PTX_WORDS] on the host. 0, or cudart's error. */
int ptx_probe_run(enum ptx_probe what, const uint32_t *x, uint32_t *r);
/* The number of GPUs; 0 also when it cannot be determined. */
int ptx_probe_devices(void);

/* Runs all cases; asserts with cmocka. */
void ptx_cases_run(void);

#ifdef __cplusplus
}
#endif

#endif
