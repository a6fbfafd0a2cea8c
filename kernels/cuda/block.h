/* Sums over the threads of a warp and of a block. All lanes get the result. The order is a fixed tree, so the bits
 * depend only on the block's size and the values. Blocks consist of whole warps, at most 32, and every thread of a
 * block must call. */
#ifndef DTD_KERNELS_CUDA_BLOCK_H
#define DTD_KERNELS_CUDA_BLOCK_H

#include "kernels/cuda/cuda.h"

template <typename T> static __device__ __forceinline__ T warp_sum(T x)
{
#pragma unroll
    for (int step = CUDA_WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(CUDA_WARP_ALL, x, step);
    return x;
}

template <typename T> static __device__ __forceinline__ T block_sum(T x)
{
    CUDA_SHARED(T[CUDA_WARP], part);
    unsigned lane = threadIdx.x % CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    x = warp_sum(x);
    if (lane == 0)
        part[threadIdx.x / CUDA_WARP] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? part[lane] : (T)0);
    __syncthreads(); /* before any thread writes `part` again */
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int step = CUDA_WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(CUDA_WARP_ALL, x, step));
    return x;
}

/* NaNs are ignored. */
static __device__ __forceinline__ float block_max(float x)
{
    CUDA_SHARED(float[CUDA_WARP], part);
    unsigned lane = threadIdx.x % CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    x = warp_max(x);
    if (lane == 0)
        part[threadIdx.x / CUDA_WARP] = x;
    __syncthreads();
    x = warp_max(part[lane < warps ? lane : 0]);
    __syncthreads();
    return x;
}

/* Two sums with a single barrier. Takes BLOCK_SUM2_SHARED bytes of static shared memory, once per kernel. */
#define BLOCK_SUM2_SHARED (CUDA_WARP * 2 * (int)sizeof(float))
static __device__ __forceinline__ float2 block_sum2(float2 x)
{
    CUDA_SHARED(float2[CUDA_WARP], part);
    static_assert(sizeof(part) == BLOCK_SUM2_SHARED);
    unsigned lane = threadIdx.x % CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    x = make_float2(warp_sum(x.x), warp_sum(x.y));
    if (lane == 0)
        part[threadIdx.x / CUDA_WARP] = x;
    __syncthreads();
    x = lane < warps ? part[lane] : make_float2(0, 0);
    x = make_float2(warp_sum(x.x), warp_sum(x.y));
    __syncthreads();
    return x;
}

#endif
