/* AdamW, the blocks of a gradient's norm, the clip factor, and casts: memory bandwidth limits their speed, so each
 * makes one pass. The optimizer's data is float32 in both variants. */
#include "kernels/cuda/block.h"
#include "kernels/cuda/vec.h"

#include <math.h>

/* ---- AdamW ---- */

struct adamw {
    struct span span;
    float *p, *m, *v;
    const float *g;
    const double *grad_scale;
    float beta1, beta2, rest1, rest2;      /* rest = 1 - beta */
    float step_size, unbias_v, eps, decay; /* lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t), eps, lr * weight_decay */
};

/* The whole change is computed before it is added to p, so that p is rounded once: a decay of 1e-6 would be lost in 1 -
 * lr wd. */
template <int N> static __device__ __forceinline__ void adamw_at(const struct adamw &a, float scale, int64_t i)
{
    float p[N], m[N], v[N], g[N];
    vec_load(a.p + i, p);
    vec_load(a.m + i, m);
    vec_load(a.v + i, v);
    vec_load(a.g + i, g);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float grad = g[k] * scale;
        m[k] = fmaf(m[k], a.beta1, grad * a.rest1);
        v[k] = fmaf(v[k], a.beta2, grad * grad * a.rest2);
        float change = m[k] * a.step_size / fmaf(sqrtf(v[k]), a.unbias_v, a.eps);
        p[k] -= fmaf(p[k], a.decay, change);
    }
    vec_store(a.p + i, p);
    vec_store(a.m + i, m);
    vec_store(a.v + i, v);
}

static __global__ void __launch_bounds__(SPAN_THREADS) adamw_elements(struct adamw a)
{
    double scale = *a.grad_scale;
    if (!isfinite(scale))
        return;
    for (int64_t i = grid_index(); i < a.span.vectors; i += grid_threads())
        adamw_at<VEC_WIDE>(a, (float)scale, a.span.head + i * VEC_WIDE);
    for (int64_t i = grid_index(); i < span_singles(a.span); i += grid_threads())
        adamw_at<1>(a, (float)scale, span_single(a.span, i));
}

/* Floor: 28 bytes an element (p, m, v read and written, g read). */
void KERN_FN(adamw)(struct kern_stream *s, const struct kern_adamw *k)
{
    const struct span_array arrays[] = {
        {k->p, sizeof(wide)}, {k->m, sizeof(wide)}, {k->v, sizeof(wide)}, {k->g, sizeof(wide)}};
    struct adamw a = {};
    a.span = span_of(k->n, VEC_WIDE, 4, arrays);
    a.p = (float *)k->p;
    a.m = (float *)k->m;
    a.v = (float *)k->v;
    a.g = (const float *)k->g;
    a.grad_scale = k->grad_scale;
    a.beta1 = (float)k->beta1;
    a.beta2 = (float)k->beta2;
    a.rest1 = (float)(1 - k->beta1);
    a.rest2 = (float)(1 - k->beta2);
    a.step_size = (float)(k->lr / (1 - pow(k->beta1, (double)k->step)));
    a.unbias_v = (float)(1 / sqrt(1 - pow(k->beta2, (double)k->step)));
    a.eps = (float)k->eps;
    a.decay = (float)(k->lr * k->weight_decay);
    CUDA_LAUNCH(s, adamw_elements, span_grid(s, a.span), SPAN_THREADS, 0, a);
}

/* ---- the norm of a gradient ---- */

#define SUMSQ_WARPS 8

/* A warp sums a block: lane l takes elements 4 l .. 4 l + 3 of every 128. A missing tail counts as zeros. */
template <bool WHOLE> static __device__ __forceinline__ double sumsq_block(const float *x, int64_t n)
{
    double sum = 0;
#pragma unroll 8
    for (int64_t i = 0; i < n; i += CUDA_WARP * VEC_WIDE) {
        float v[VEC_WIDE];
        row_load<WHOLE>(x, i + (int64_t)(threadIdx.x % CUDA_WARP) * VEC_WIDE, n, v);
#pragma unroll
        for (int k = 0; k < VEC_WIDE; k++)
            sum = fma((double)v[k], (double)v[k], sum);
    }
    return warp_sum(sum);
}

static __global__ void __launch_bounds__(SUMSQ_WARPS *CUDA_WARP)
    sumsq_elements(int64_t n, int64_t block, bool aligned, const float *__restrict__ x, double *__restrict__ blocks)
{
    int64_t count = (n + block - 1) / block, stride = (int64_t)gridDim.x * SUMSQ_WARPS;
    for (int64_t i = (int64_t)blockIdx.x * SUMSQ_WARPS + threadIdx.x / CUDA_WARP; i < count; i += stride) {
        const float *p = x + i * block;
        int64_t left = n - i * block;
        double sum = aligned && left >= block ? sumsq_block<true>(p, block) : sumsq_block<false>(p, min(left, block));
        if (threadIdx.x % CUDA_WARP == 0)
            blocks[i] = sum;
    }
}

/* Floor: 4 bytes an element. */
void KERN_FN(sumsq_blocks)(struct kern_stream *s, int64_t n, int64_t block, const void *x, double *blocks)
{
    int64_t count = (n + block - 1) / block;
    CUDA_LAUNCH(s, sumsq_elements, grid_for(s, count * CUDA_WARP, SUMSQ_WARPS * CUDA_WARP), SUMSQ_WARPS * CUDA_WARP, 0,
                n, block, vec_aligned(x) && block % (CUDA_WARP * VEC_WIDE) == 0, (const float *)x, blocks);
}

#define CLIP_THREADS 1024

static __device__ double clip_sum(int64_t n, const double *x)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += CLIP_THREADS)
        sum += x[i];
    return block_sum(sum);
}

/* A single block is enough: there is one number per 1024 gradients, 1 MB for 124 million parameters. */
static __global__ void __launch_bounds__(CLIP_THREADS) clip_factor(struct kern_clip c)
{
    double norm = sqrt(clip_sum(c.n_blocks, c.blocks)), loss = clip_sum(c.n_losses, c.losses);
    if (threadIdx.x)
        return;
    *c.norm = norm;
    *c.factor = c.limit == 0 || norm <= c.limit ? 1 : c.limit / norm;
    if (!isfinite(norm) || !isfinite(loss))
        *c.factor = NAN;
}

/* Floor: 8 bytes per block and per loss. */
void KERN_FN(clip)(struct kern_stream *s, const struct kern_clip *c)
{
    CUDA_LAUNCH(s, clip_factor, 1, CLIP_THREADS, 0, *c);
}

/* ---- casts ---- */

struct cast {
    struct span span;
    const wide *x;
    elem *y;
};

template <int N> static __device__ __forceinline__ void cast_at(const struct cast &c, int64_t i)
{
    float x[N];
    vec_load(c.x + i, x);
    vec_store(c.y + i, x);
}

static __global__ void __launch_bounds__(SPAN_THREADS) cast_elements(struct cast c)
{
    for (int64_t i = grid_index(); i < c.span.vectors; i += grid_threads())
        cast_at<VEC>(c, c.span.head + i * VEC);
    for (int64_t i = grid_index(); i < span_singles(c.span); i += grid_threads())
        cast_at<1>(c, span_single(c.span, i));
}

/* Floor: 6 bytes an element in bfloat16, 8 in float32. */
void KERN_FN(cast)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    const struct span_array arrays[] = {{x, sizeof(wide)}, {y, sizeof(elem)}};
    struct cast c = {span_of(n, VEC, 2, arrays), (const wide *)x, (elem *)y};
    CUDA_LAUNCH(s, cast_elements, span_grid(s, c.span), SPAN_THREADS, 0, c);
}
