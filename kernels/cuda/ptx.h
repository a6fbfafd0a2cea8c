/* PTX instructions that CUDA C does not provide, one small function each, with the layout of its fragments as the PTX
 * ISA documents it. Only kernels include this. On the host, tests/cuda_host/ptx_host.h implements the same functions by
 * gathering over the fibres of a warp; it is written from the same documentation and from nothing else.
 * tests/gpu/ptx_cases.c checks both.
 *
 * All 32 lanes of a warp must call a function with "warp" in its comment together. */
#ifndef DTD_KERNELS_CUDA_PTX_H
#define DTD_KERNELS_CUDA_PTX_H

#include <stdint.h>

#ifdef CUDA_HOST
#include <ptx_host.h> /* in tests/cuda_host */
#else

/* Returns p and hides from the compiler how it was computed, so that the compiler keeps this one pointer in a register
 * and no second expression for the same address. No instruction. */
template <class T> static __device__ __forceinline__ T *ptx_opaque(T *p)
{
    asm volatile("" : "+l"(p));
    return p;
}

/* Warp. Loads four 8x8 matrices of 16-bit elements (or 8x4 of 32-bit ones) from shared memory: lane l passes the
 * address of row l % 8, 16 bytes aligned to 16, of matrix l / 8. r[j] of lane l is bytes 4 (l % 4) .. +4 of row l / 4
 * of matrix j: its elements 2 (l % 4) and 2 (l % 4) + 1, the lower one in the lower half. */
static __device__ __forceinline__ void ptx_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Warp. The same with each matrix transposed as it is loaded: r[j] of lane l holds column l / 4 of matrix j, rows
 * 2 (l % 4) and 2 (l % 4) + 1, the first in the lower half. 16-bit elements only. */
static __device__ __forceinline__ void ptx_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Warp. d[16,8] += a[16,16] b[16,8], bfloat16 factors, float sums. With g = lane / 4, t = lane % 4, lower half first:
 * a[0] = rows g, columns 2t, 2t+1; a[1] = row g+8, same columns; a[2] = row g, columns 2t+8, 2t+9; a[3] = row g+8,
 * columns 2t+8, 2t+9. b[0] = rows 2t, 2t+1 of column g; b[1] = rows 2t+8, 2t+9. d[0], d[1] = row g, columns 2t, 2t+1;
 * d[2], d[3] = row g+8. */
static __device__ __forceinline__ void ptx_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Warp. d[16,8] += a[16,8] b[8,8], tf32 factors (as ptx_tf32 makes them), float sums. With g = lane / 4, t = lane % 4:
 * a[0] = row g, column t; a[1] = row g+8, column t; a[2] = row g, column t+4; a[3] = row g+8, column t+4. b[0] = row t
 * of column g; b[1] = row t+4 of column g. d as in ptx_mma_bf16. */
static __device__ __forceinline__ void ptx_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* x rounded to tf32 (float's exponent, 10 bits of fraction), to nearest, ties away from zero. The result is the bits of
 * a float whose lower 13 bits are undefined. */
static __device__ __forceinline__ uint32_t ptx_tf32(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

/* Two floats rounded to nearest even bfloat16, `low` in the lower half. */
static __device__ __forceinline__ uint32_t ptx_pack_bf16(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* 2^x with a relative error of at most 2^-22; subnormal results and arguments count as zero; 2^-inf = 0, a NaN stays a
 * NaN. */
static __device__ __forceinline__ float ptx_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Copies the first `bytes` (0 or 16) of 16 bytes from global to shared memory and zeros the others; both addresses are
 * aligned to 16. For this thread, complete after ptx_async_wait. With 0 bytes `from` is not read. */
static __device__ __forceinline__ void ptx_async_copy16(void *to, const void *from, int bytes)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(__cvta_generic_to_global(from)),
                 "r"(bytes)
                 : "memory");
}

/* Waits for all ptx_async_copy16 of this thread; other threads see the bytes after a barrier that follows. */
static __device__ __forceinline__ void ptx_async_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif
#endif
