/* Plumbing of the CUDA module: what its files share. Private to kernels/cuda.
 *
 * Host code is C (device.c, gemm.c, table.c), kernels are CUDA C (*.cu). Every file but device.c is compiled twice,
 * with KERN_CUDA_BITS 32 (elem float) and 16 (elem __nv_bfloat16), like the files of ref/: KERN_FN names the variant.
 * `wide` is float in both: parameters' gradients, optimizer, statistics. All arithmetic is float, sums that the
 * interface promises in float64 are double.
 *
 * Kernels are launched with CUDA_LAUNCH alone, shared memory is either static `__shared__` or cuda_shared(), PTX stands
 * in ptx.h and nowhere else, and warps are whole where they vote or shuffle: so that the same source also compiles for
 * the host, where threads are fibres (tests/cuda_host). No atomics on values: the same inputs give the same bits. */
#ifndef DTD_KERNELS_CUDA_CUDA_H
#define DTD_KERNELS_CUDA_CUDA_H

#include <cuda_runtime.h>

#include "kernels/device.h"
#include "kernels/kernels.h"

#if defined(KERN_CUDA_BITS) && KERN_CUDA_BITS == 32
#define KERN_FN(name) kern_cuda_f32_##name
#define CUDA_DTYPE DT_F32
#elif defined(KERN_CUDA_BITS) && KERN_CUDA_BITS == 16
#define KERN_FN(name) kern_cuda_bf16_##name
#define CUDA_DTYPE DT_BF16
#elif defined(KERN_CUDA_BITS)
#error "KERN_CUDA_BITS is 32 or 16"
#endif
#ifdef KERN_CUDA_BITS
#include "kernels/prototypes.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct cublasLtContext;

struct cuda_dev {
    struct dev base; /* first */
    int processors;  /* streaming multiprocessors */
    int major, minor;
    size_t shared_optin; /* dynamic shared memory that one block may ask for, bytes */
    struct cublasLtContext *blaslt;
    struct gemm_cache *gemms; /* heuristics by shape, gemm.c's */
};

struct cuda_stream {
    struct kern_stream base; /* first */
    cudaStream_t handle;
    void *scratch; /* grows in the first steps, then stays */
    size_t scratch_bytes;
    err_t err; /* the first failure of anything queued here, and its sentence */
    struct why why;
};

static inline struct cuda_stream *cuda_stream_of(struct kern_stream *s)
{
    return (struct cuda_stream *)s;
}

static inline struct cuda_dev *cuda_dev_of(const struct kern_stream *s)
{
    return (struct cuda_dev *)s->dev;
}

/* OK, or remembers the failure in the stream ("rmsnorm at kernels/cuda/norm.cu:71: an illegal ..."). */
err_t cuda_check(struct kern_stream *s, cudaError_t code, const char *call, const char *file, int line);
#define CUDA_CHECK(s, call) cuda_check((s), (call), #call, __FILE__, __LINE__)

/* At least `bytes` of 256-aligned device memory of the stream, valid until the next call of this function and for
 * whatever is queued before that; NULL after a failure, which the stream remembers. Split it yourself. */
void *cuda_scratch(struct kern_stream *s, size_t bytes);

#ifdef __cplusplus
}
#endif

/* ---- only in kernels ---- */

#if defined(__CUDACC__) || defined(CUDA_HOST)
#include <cuda_bf16.h>

#ifdef KERN_CUDA_BITS
#if KERN_CUDA_BITS == 32
typedef float elem;
#else
typedef __nv_bfloat16 elem;
#endif
typedef float wide;
#endif

/* CUDA_LAUNCH(kern_stream, kernel, grid, block, shared_bytes, arguments...); an error is the stream's. */
#ifndef CUDA_HOST
#define CUDA_LAUNCH(s, kernel, grid, block, shared, ...)                               \
    do {                                                                               \
        kernel<<<(grid), (block), (shared), cuda_stream_of(s)->handle>>>(__VA_ARGS__); \
        cuda_check((s), cudaGetLastError(), #kernel, __FILE__, __LINE__);              \
    } while (0)

/* The block's dynamic shared memory, 128-aligned. */
static __device__ __forceinline__ unsigned char *cuda_shared(void)
{
    extern __shared__ __align__(128) unsigned char cuda_shared_memory[];
    return cuda_shared_memory;
}
#endif

#define CUDA_WARP 32
#define CUDA_WARP_ALL 0xffffffffu
#endif

#endif
