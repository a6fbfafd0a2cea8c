/* The functions of kernels/cuda/ptx.h beside the PTX ISA's tables of fragments, on a GPU (tests/gpu) and on their host
 * twins (tests/cuda_host): the same cases and the same kernels. */
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
    PTX_ASYNC,          /* x: 16 bytes per lane; r: what lane 31 - l copied, nothing (zeros) from odd lanes */
};

#define PTX_WORDS 10 /* per lane, the most that a case takes */

/* Runs one warp; x and r are [32][PTX_WORDS] on the host. 0, or cudart's error. */
int ptx_probe_run(enum ptx_probe what, const uint32_t *x, uint32_t *r);
/* How many GPUs; 0 also when that cannot be asked. */
int ptx_probe_devices(void);

/* All cases; asserts by cmocka. */
void ptx_cases_run(void);

#ifdef __cplusplus
}
#endif

#endif
