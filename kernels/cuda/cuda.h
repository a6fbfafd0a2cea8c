/* Plumbing of the CUDA module: what its files share. Private to kernels/cuda.
 *
 * Host code is C, kernels are CUDA C (*.cu). gemm.c, table.c and the kernels are compiled twice, with KERN_CUDA_BITS 32
 * (elem float) and 16 (elem __nv_bfloat16), like the files of ref/: KERN_FN names the variant.
 * `wide` is float in both: parameters' gradients, optimizer, statistics. All arithmetic is float, sums that the
 * interface promises in float64 are double.
 *
 * Kernels are launched with CUDA_LAUNCH alone, shared memory is either CUDA_SHARED or cuda_shared(), PTX stands
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
    struct gemm_cache *gemms;     /* products by shape, gemm_cache.h */
    struct gemm_file *algorithms; /* which algorithms they use, gemm_file.h; NULL: what cuBLASLt proposes first */
    err_t err;                    /* what broke the context, and its sentence: nothing works afterwards */
    struct why why;
};

struct cuda_stream {
    struct kern_stream base; /* first */
    cudaStream_t handle;
    void *scratch; /* grows in the first steps, then stays */
    size_t scratch_bytes;
    err_t err; /* the first failure of anything queued here, and its sentence */
    struct why why;
    const char *call, *file; /* the newest thing queued here; NULL before the first */
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

/* OK, or remembers the failure in the stream ("rmsnorm at kernels/cuda/norm.cu:71: an illegal ..."). */
err_t cuda_check(struct kern_stream *s, cudaError_t code, const char *call, const char *file, int line);
#define CUDA_CHECK(s, call) cuda_check((s), (call), #call, __FILE__, __LINE__)
/* The same for a library's failure that `what` tells in words; returns `err`. */
err_t cuda_fail(struct kern_stream *s, err_t err, const char *call, const char *file, int line, const char *what);
/* For calls that have no stream: the sentence goes into `why`. */
err_t cuda_why(struct cuda_dev *d, cudaError_t code, const char *call, const char *file, int line, struct why *why);
#define CUDA_WHY(d, call, why) cuda_why((d), (call), #call, __FILE__, __LINE__, (why))
/* Makes the device the calling thread's current one; false when its context is broken, which the stream then says. */
bool cuda_enter(struct kern_stream *s);
/* Why there is no CUDA here: a sentence that says what is missing, from what the first call of cudart answered. */
err_t cuda_absent(cudaError_t code, struct why *why);

extern const struct dev_ops cuda_device_ops;

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
#define CUDA_LAUNCH(s, kernel, grid, block, shared, ...)                                   \
    do {                                                                                   \
        if (cuda_enter(s)) {                                                               \
            kernel<<<(grid), (block), (shared), cuda_stream_of(s)->handle>>>(__VA_ARGS__); \
            cuda_check((s), cudaGetLastError(), #kernel, __FILE__, __LINE__);              \
        }                                                                                  \
    } while (0)

/* CUDA_SHARED(type[n], name): static shared memory of the block, with nothing in it when the block begins.
 * It and the dynamic shared memory of a launch share CUDA_SHARED_PLAIN bytes unless the kernel was given more. */
template <class T> using cuda_shared_type = T;
#define CUDA_SHARED(type, name) __shared__ cuda_shared_type<type> name

/* The block's dynamic shared memory, 128-aligned. */
static __device__ __forceinline__ unsigned char *cuda_shared(void)
{
    extern __shared__ __align__(128) unsigned char cuda_shared_memory[];
    return cuda_shared_memory;
}
#endif

#define CUDA_SHARED_PLAIN (48 << 10) /* what every device gives a block that did not ask for more, bytes */
#define CUDA_WARP 32
#define CUDA_WARP_ALL 0xffffffffu
#endif

#endif
