/* Small kernels for the runner's own test, defined in selftest.cu. x: memory of the device. */
#ifndef DTD_TESTS_CUDA_HOST_SELFTEST_H
#define DTD_TESTS_CUDA_HOST_SELFTEST_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum selftest {
    SELF_INDEX,        /* x[global thread] = its number from all built-in variables */
    SELF_REVERSE,      /* a block's numbers backwards through 4096 bytes of static shared memory */
    SELF_NO_BARRIER,   /* the same without its barrier */
    SELF_SHUFFLES,     /* x[i] = the results of lane i's shuffles and votes, mixed */
    SELF_DYNAMIC,      /* as SELF_REVERSE through dynamic shared memory */
    SELF_OVERRUN,      /* writes one element past dynamic shared memory */
    SELF_UNWRITTEN,    /* x = dynamic shared memory that no thread wrote */
    SELF_LEFT_OVER,    /* x = static shared memory that the thread's block did not write, but an earlier one did */
    SELF_HALF_BARRIER, /* half of the threads end before a barrier */
    SELF_HALF_SHUFFLE, /* lane 3 ends before a shuffle */
    SELF_MIXED_WARP,   /* lanes meet in different operations */
    SELF_CROSSED,      /* warp 0 waits at a barrier, warp 1 at a shuffle of which one lane waits at the barrier */
    SELF_ORDER,        /* block i adds x[0] to x[i]: right only if blocks ran in order */
};

/* Returns the result of the launch. */
cudaError_t selftest_launch(cudaStream_t s, enum selftest what, unsigned grid, unsigned block, size_t shared, int *x);
/* Requests `bytes` of dynamic shared memory for the kernel. */
cudaError_t selftest_allow(enum selftest what, int bytes);

#ifdef __cplusplus
}
#endif

#endif
