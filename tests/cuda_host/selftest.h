/* Small kernels of the runner's own test: what each does stands in selftest.cu. x: memory of the device. */
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
    SELF_SHUFFLES,     /* x[i] = what the shuffles and votes of lane i gave, mixed */
    SELF_DYNAMIC,      /* as SELF_REVERSE through dynamic shared memory */
    SELF_OVERRUN,      /* one element behind dynamic shared memory */
    SELF_UNWRITTEN,    /* x = dynamic shared memory that nobody wrote */
    SELF_LEFT_OVER,    /* x = static shared memory that the thread's block did not write, but an earlier one did */
    SELF_HALF_BARRIER, /* half of the threads end before a barrier */
    SELF_HALF_SHUFFLE, /* lane 3 ends before a shuffle */
    SELF_MIXED_WARP,   /* lanes meet in different operations */
    SELF_CROSSED,      /* warp 0 waits at a barrier, warp 1 at a shuffle of which one lane waits at the barrier */
    SELF_ORDER,        /* block i adds x[0] to x[i]: right only if blocks ran in order */
};

/* The launch's own answer. */
cudaError_t selftest_launch(cudaStream_t s, enum selftest what, unsigned grid, unsigned block, size_t shared, int *x);
/* Asks for that much dynamic shared memory for the kernel. */
cudaError_t selftest_allow(enum selftest what, int bytes);

#ifdef __cplusplus
}
#endif

#endif
