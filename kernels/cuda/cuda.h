/* Common definitions of the CUDA module. Private to kernels/cuda.
 *
 * Host code is C, kernels are CUDA C (*.cu). gemm.c, table.c and the kernels are compiled twice, with KERN_CUDA_BITS 32
 * (elem float) and 16 (elem __nv_bfloat16), like the files of ref/; KERN_FN names the variant. `wide` is float in both:
 * gradients of parameters, optimizer state, statistics. All arithmetic is float; sums that the interface specifies as
 * float64 are double.
 *
 * The same source also compiles for the host, where threads are fibres (tests/cuda_host). This requires that kernels
 * are launched only with CUDA_LAUNCH, that shared memory is either CUDA_SHARED or cuda_shared(), that PTX occurs only
 * in ptx.h, and that warps are whole where they vote or shuffle. There are no atomics on values: the same inputs give
 * the same bits. */
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
#error "KERN_CUDA_BITS must be 32 or 16"
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
    int processors;  /* number of streaming multiprocessors */
    int major, minor;
    size_t shared_optin; /* maximum dynamic shared memory of one block, bytes */
    struct cublasLtContext *blaslt;
    struct gemm_cache *gemms;     /* prepared products by shape, gemm_cache.h */
    struct gemm_file *algorithms; /* the algorithm file, gemm_file.h; NULL: products use cuBLASLt's first proposal */
    err_t err;                    /* the error that broke the context, and its sentence; no call works afterwards */
    struct why why;
};

struct cuda_stream {
    struct kern_stream base; /* first */
    cudaStream_t handle;
    void *scratch; /* grows in the first steps, then keeps its size */
    size_t scratch_bytes;
    err_t err; /* the first failure of this stream's work, and its sentence */
    struct why why;
    const char *call, *file; /* the newest call queued here; NULL: none yet */
    int line;
};

static inline struct cuda_stream *cuda_stream_of(struct kern_stream *s)
{
    return (struct cuda_stream *)s;
}

static inline struct cuda_dev *cuda_dev_of(const struct kern_stream *s)
{
    return (struct cuda_dev *)s->dev;
}

/* ---- failures (error.c) ---- */

/* Returns OK, or records the failure in the stream ("rmsnorm at kernels/cuda/norm.cu:71: an illegal ..."). */
err_t cuda_check(struct kern_stream *s, cudaError_t code, const char *call, const char *file, int line);
#define CUDA_CHECK(s, call) cuda_check((s), (call), #call, __FILE__, __LINE__)
/* The same for a library's failure, described by `what`; returns `err`. */
err_t cuda_fail(struct kern_stream *s, err_t err, const char *call, const char *file, int line, const char *what);
/* For calls without a stream; writes the sentence to `why`. */
err_t cuda_why(struct cuda_dev *d, cudaError_t code, const char *call, const char *file, int line, struct why *why);
#define CUDA_WHY(d, call, why) cuda_why((d), (call), #call, __FILE__, __LINE__, (why))
/* Makes the device the calling thread's current one. False when its context is broken; the stream then has that
 * failure. */
bool cuda_enter(struct kern_stream *s);
/* Describes in `why` which part of CUDA is missing, given the result of the first call of the CUDA runtime. */
err_t cuda_absent(cudaError_t code, struct why *why);

extern const struct dev_ops cuda_device_ops;

/* At least `bytes` of the stream's device memory, aligned to 256 bytes, valid until the next call of this function and
 * for work queued before that. NULL after a failure, which is recorded in the stream. The caller divides the memory
 * itself. */
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

/* CUDA_LAUNCH(kern_stream, kernel, grid, block, shared_bytes, arguments...); an error is recorded in the stream. */
#ifndef CUDA_HOST
#define CUDA_LAUNCH(s, kernel, grid, block, shared, ...)                                   \
    do {                                                                                   \
        if (cuda_enter(s)) {                                                               \
            kernel<<<(grid), (block), (shared), cuda_stream_of(s)->handle>>>(__VA_ARGS__); \
            cuda_check((s), cudaGetLastError(), #kernel, __FILE__, __LINE__);              \
        }                                                                                  \
    } while (0)

/* CUDA_SHARED(type[n], name): static shared memory of the block, undefined when the block starts. Static and dynamic
 * shared memory of a launch together have CUDA_SHARED_PLAIN bytes unless the kernel was given more. */
template <class T> using cuda_shared_type = T;
#define CUDA_SHARED(type, name) __shared__ cuda_shared_type<type> name

/* The block's dynamic shared memory, aligned to 128 bytes. */
static __device__ __forceinline__ unsigned char *cuda_shared(void)
{
    extern __shared__ __align__(128) unsigned char cuda_shared_memory[];
    return cuda_shared_memory;
}
#endif

#define CUDA_SHARED_PLAIN (48 << 10) /* bytes that every device gives a block without a request */
#define CUDA_WARP 32
#define CUDA_WARP_ALL 0xffffffffu
#endif

#endif
