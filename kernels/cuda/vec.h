/* Reads and writes elements between memory and registers. Everything is float in registers. A run of N contiguous
 * elements moves in 16-byte accesses if it is aligned, else one element at a time.
 *
 * There are two kinds of loops. Where elements are independent (activations, AdamW), a `span` has 16-byte vectors
 * between an unaligned beginning and an unaligned end. Where a row is summed, thread i of the row owns the elements [i
 * N, (i+1) N), then those one row of threads further on, whether or not they can be read in one access: the order of a
 * sum, and so its bits, must not depend on where the row lies in memory. For the same reason, sums and products that
 * the compiler could contract are written as fmaf. */
#ifndef DTD_KERNELS_CUDA_VEC_H
#define DTD_KERNELS_CUDA_VEC_H

#include "kernels/cuda/cuda.h"

#define VEC_BYTES 16
#define VEC (VEC_BYTES / (int)sizeof(elem))      /* elements per access */
#define VEC_WIDE (VEC_BYTES / (int)sizeof(wide)) /* elements of type `wide` per access */

static __device__ __forceinline__ float vec_widen(float x)
{
    return x;
}

static __device__ __forceinline__ float vec_widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ void vec_narrow(float x, float *ret)
{
    *ret = x;
}

static __device__ __forceinline__ void vec_narrow(float x, __nv_bfloat16 *ret)
{
    *ret = __float2bfloat16_rn(x);
}

/* x as rounded by a store. */
static __device__ __forceinline__ float vec_rounded(float x)
{
    elem e;
    vec_narrow(x, &e);
    return vec_widen(e);
}

/* The compiler loads or stores a value of this type in as few accesses as its alignment allows. */
template <int N, typename T> struct alignas(N * sizeof(T) < VEC_BYTES ? N * sizeof(T) : VEC_BYTES) vec_pack {
    T at[N];
};

/* N contiguous elements at p, which is aligned to their size or to 16 bytes, whichever is less. */
template <int N, typename T> static __device__ __forceinline__ void vec_load(const T *p, float (&x)[N])
{
    vec_pack<N, T> v = *(const vec_pack<N, T> *)p;
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] = vec_widen(v.at[k]);
}

template <int N, typename T> static __device__ __forceinline__ void vec_store(T *p, const float (&x)[N])
{
    vec_pack<N, T> v;
#pragma unroll
    for (int k = 0; k < N; k++)
        vec_narrow(x[k], &v.at[k]);
    *(vec_pack<N, T> *)p = v;
}

/* Elements [j, j + N) of a row of n; zeros beyond its end. WHOLE: n is a multiple of N and the row is aligned. */
template <bool WHOLE, int N, typename T>
static __device__ __forceinline__ void row_load(const T *row, int64_t j, int64_t n, float (&x)[N])
{
    if (WHOLE) {
        vec_load(row + j, x);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = j + k < n ? vec_widen(row[j + k]) : 0;
    }
}

template <bool WHOLE, int N, typename T>
static __device__ __forceinline__ void row_store(T *row, int64_t j, int64_t n, const float (&x)[N])
{
    if (WHOLE) {
        vec_store(row + j, x);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            if (j + k < n)
                vec_narrow(x[k], &row[j + k]);
    }
}

static inline bool vec_aligned(const void *p)
{
    return (uintptr_t)p % VEC_BYTES == 0;
}

static inline bool vec_all_aligned(int n, const void *const *p)
{
    bool good = true;
    for (int i = 0; i < n; i++)
        good = good && vec_aligned(p[i]); /* NULL counts as aligned */
    return good;
}

/* The number of threads of a block for a row of n elements: one per vector, whole warps, at most `most`. */
static inline int row_threads(int64_t n, int most)
{
    int64_t vectors = (n + VEC - 1) / VEC, threads = (vectors + CUDA_WARP - 1) / CUDA_WARP * CUDA_WARP;
    return (int)(threads < most ? threads : most);
}

/* ---- loops over the whole grid ---- */

static __device__ __forceinline__ int64_t grid_index(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ int64_t grid_threads(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* The number of blocks for `blocks` pieces of work: no more than the device runs at once, and at least one. */
static inline unsigned grid_blocks(const struct kern_stream *s, int64_t blocks, int threads)
{
    int64_t most = (int64_t)cuda_dev_of(s)->processors * (threads > 64 ? 2048 / threads : 32);
    int64_t n = blocks < most ? blocks : most;
    return (unsigned)(n > 1 ? n : 1);
}

static inline unsigned grid_for(const struct kern_stream *s, int64_t items, int threads)
{
    return grid_blocks(s, (items + threads - 1) / threads, threads);
}

/* ---- ranges of elements that do not meet ---- */

/* [0, head) one by one, then `vectors` runs of `per` elements, then the rest one by one. */
struct span {
    int64_t n, head, vectors;
    int per;
};

/* One of the arrays that a kernel visits together. */
struct span_array {
    const void *p; /* NULL: absent */
    size_t size;   /* size of an element */
};

/* Vectors begin where all arrays are aligned to 16 bytes at once; if there is no such element, there are no vectors. */
static inline struct span span_of(int64_t n, int per, int arrays, const struct span_array *a)
{
    for (int64_t head = 0; head < per && head < n; head++) {
        bool good = true;
        for (int i = 0; i < arrays; i++)
            good = good && (!a[i].p || vec_aligned((const char *)a[i].p + (size_t)head * a[i].size));
        if (good)
            return span{n, head, (n - head) / per, per};
    }
    return span{n, n, 0, per};
}

/* The number of elements outside of vectors, and the position of the i-th of them. */
static __device__ __forceinline__ int64_t span_singles(const struct span &s)
{
    return s.n - s.vectors * s.per;
}

static __device__ __forceinline__ int64_t span_single(const struct span &s, int64_t i)
{
    return i < s.head ? i : i + s.vectors * s.per;
}

#define SPAN_THREADS 256

static inline unsigned span_grid(const struct kern_stream *s, const struct span &p)
{
    int64_t singles = p.n - p.vectors * p.per;
    return grid_for(s, p.vectors > singles ? p.vectors : singles, SPAN_THREADS);
}

#endif
