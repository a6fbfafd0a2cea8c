/* Philox 4x32-10 (Salmon et al. 2011; common/base/rng.h) on a GPU. Private to kernels/cuda. */
#ifndef DTD_KERNELS_CUDA_PHILOX_H
#define DTD_KERNELS_CUDA_PHILOX_H

#include "kernels/cuda/cuda.h"

/* The four random words of the counter `c` with the key `seed`. */
static __device__ __forceinline__ uint4 philox(uint64_t seed, uint4 c)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c.x, p1 = (uint64_t)0xCD9E8D57u * c.z;
        c = make_uint4((uint32_t)(p1 >> 32) ^ c.y ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.w ^ k1, (uint32_t)p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

#endif
