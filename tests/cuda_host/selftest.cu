#include "tests/cuda_host/selftest.h"

static __global__ void kernel_index(int *x)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    x[i] = i + 1000 * (int)gridDim.x + (int)(threadIdx.y + blockIdx.y);
}

static __global__ void kernel_reverse(int *x)
{
    CUDA_SHARED(int[1024], s);
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

static __global__ void kernel_no_barrier(int *x)
{
    CUDA_SHARED(int[1024], s);
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
    s[threadIdx.x] = -7;
}

/* Digits, lowest first: the value of the lane whose bit 1 differs, of lane 5 of the half, of the lane 3 lower, of the
 * lane 2 higher in the quarter, then the folded ballot of odd lanes. */
static __global__ void kernel_shuffles(int *x)
{
    int lane = (int)threadIdx.x % 32;
    int r = __shfl_xor_sync(0xffffffffu, lane, 2);
    r += 100 * __shfl_sync(0xffffffffu, lane, 5, 16);
    r += 10000 * __shfl_up_sync(0xffffffffu, lane, 3);
    r += 1000000 * __shfl_down_sync(0xffffffffu, lane, 2, 8);
    if (__ballot_sync(0xffffffffu, lane & 1) != 0xaaaaaaaau || !__any_sync(0xffffffffu, lane == 3) ||
        __all_sync(0xffffffffu, lane != 3))
        r = -1;
    double d = __shfl_xor_sync(0xffffffffu, (double)lane, 16);
    x[threadIdx.x] = d == (double)(lane ^ 16) ? r : -2;
}

static __global__ void kernel_dynamic(int *x)
{
    int *s = (int *)(void *)cuda_shared();
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

static __global__ void kernel_overrun(int *x)
{
    int *s = (int *)(void *)cuda_shared();
    s[threadIdx.x + 1] = x[threadIdx.x];
}

static __global__ void kernel_unwritten(int *x)
{
    x[threadIdx.x] = ((int *)(void *)cuda_shared())[threadIdx.x];
}

static __global__ void kernel_left_over(int *x)
{
    CUDA_SHARED(int[1024], s);
    x[blockIdx.x * blockDim.x + threadIdx.x] = s[threadIdx.x];
    s[threadIdx.x] = 7;
}

static __global__ void kernel_half_barrier(int *x)
{
    if (threadIdx.x < blockDim.x / 2)
        return;
    __syncthreads();
    x[0] = 1;
}

static __global__ void kernel_half_shuffle(int *x)
{
    if (threadIdx.x == 3)
        return;
    x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}

static __global__ void kernel_mixed_warp(int *x)
{
    if (threadIdx.x < 16)
        x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
    else
        x[threadIdx.x] = __any_sync(0xffffffffu, 1);
}

static __global__ void kernel_crossed(int *x)
{
    if (threadIdx.x <= 32)
        __syncthreads();
    else
        x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}

static __global__ void kernel_order(int *x)
{
    if (blockIdx.x)
        x[blockIdx.x] = x[blockIdx.x - 1] + 1;
}

static void (*const kernels[])(int *) = {
    kernel_index,      kernel_reverse,   kernel_no_barrier, kernel_shuffles,     kernel_dynamic,
    kernel_overrun,    kernel_unwritten, kernel_left_over,  kernel_half_barrier, kernel_half_shuffle,
    kernel_mixed_warp, kernel_crossed,   kernel_order,
};

cudaError_t selftest_launch(cudaStream_t s, enum selftest what, unsigned grid, unsigned block, size_t shared, int *x)
{
    return cuda_host_launch_kernel(s, "selftest", kernels[what], grid, block, shared, x);
}

cudaError_t selftest_allow(enum selftest what, int bytes)
{
    return cudaFuncSetAttribute(kernels[what], cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
