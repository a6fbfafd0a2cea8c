/* Attention of few queries over many cached keys. A block computes one query of one head, so that a single sequence
 * still occupies many processors. Its warps take the keys in turn; the lanes of a warp share the columns of a key. Each
 * warp keeps a running largest score m, sum l and sum of values (the online softmax of Milakov and Gimelshein 2018);
 * the first warp joins them in order. So the order of every sum depends on the number of visible tokens alone. */
#include "kernels/cuda/block.h"
#include "kernels/cuda/vec.h"

#include <assert.h>
#include <limits.h>
#include <math.h>

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define MOST_DIM 256
#define LANE_COLUMNS (MOST_DIM / CUDA_WARP) /* columns of a lane, CUDA_WARP apart */

struct cached {
    struct kern_attention_cached a;
    float scale, softcap;
};

/* The running softmax of some keys: the largest score, the sum of exponentials, and the sum of values by column. */
struct running {
    float max, sum, out[LANE_COLUMNS];
};

static __device__ __forceinline__ void columns_load(const elem *row, int64_t head_dim, int lane, float *x)
{
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++)
        x[c] = lane + c * CUDA_WARP < head_dim ? vec_widen(row[lane + c * CUDA_WARP]) : 0;
}

/* Adds a key with its value. */
static __device__ __forceinline__ void key_add(const struct cached &k, const float *q, const elem *key,
                                               const elem *value, int lane, struct running *r)
{
    float x[LANE_COLUMNS], dot = 0;
    columns_load(key, k.a.head_dim, lane, x);
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++)
        dot = fmaf(q[c], x[c], dot);
    float score = warp_sum(dot) * k.scale;
    if (k.softcap > 0)
        score = k.softcap * tanhf(score / k.softcap);
    const float max = fmaxf(r->max, score), down = expf(r->max - max), weight = expf(score - max);
    columns_load(value, k.a.head_dim, lane, x);
    r->sum = fmaf(r->sum, down, weight);
    r->max = max;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++)
        r->out[c] = fmaf(r->out[c], down, weight * x[c]);
}

static __global__ void __launch_bounds__(THREADS) attend_cached(struct cached k)
{
    CUDA_SHARED(float[WARPS], maxima);
    CUDA_SHARED(float[WARPS], sums);
    CUDA_SHARED(float[WARPS * MOST_DIM], outs);
    const int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
    const int64_t i = blockIdx.x / k.a.heads, head = blockIdx.x % k.a.heads, kv = head / (k.a.heads / k.a.kv_heads);
    const int64_t end = k.a.pos0 + i + 1, first = k.a.window > 0 && end > k.a.window ? end - k.a.window : 0;
    const elem *keys = (const elem *)k.a.k + kv * k.a.head_dim, *values = (const elem *)k.a.v + kv * k.a.head_dim;
    float q[LANE_COLUMNS];
    struct running r = {-INFINITY, 0, {}};
    columns_load((const elem *)k.a.q + i * k.a.q_stride + head * k.a.head_dim, k.a.head_dim, lane, q);
    for (int64_t j = first + warp; j < end; j += WARPS)
        key_add(k, q, keys + j * k.a.k_stride, values + j * k.a.v_stride, lane, &r);
    if (lane == 0) {
        maxima[warp] = r.max;
        sums[warp] = r.sum;
    }
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++)
        outs[warp * MOST_DIM + lane + c * CUDA_WARP] = r.out[c];
    __syncthreads();
    float max = -INFINITY, sum = 0;
    for (int w = 0; w < WARPS; w++)
        max = fmaxf(max, maxima[w]);
    for (int w = 0; w < WARPS; w++)
        sum = fmaf(sums[w], expf(maxima[w] - max), sum);
    elem *o = (elem *)k.a.o + i * k.a.o_stride + head * k.a.head_dim;
    for (int64_t d = threadIdx.x; d < k.a.head_dim; d += THREADS) {
        float x = 0;
        for (int w = 0; w < WARPS; w++)
            x = fmaf(outs[w * MOST_DIM + d], expf(maxima[w] - max), x);
        vec_narrow(x / sum, &o[d]);
    }
}

/* Floor: keys and values of the visible tokens, once per head. */
err_t KERN_FN(attention_cached)(struct kern_stream *s, const struct kern_attention_cached *a)
{
    struct cached k = {*a, (float)(a->scale > 0 ? a->scale : 1 / sqrt((double)a->head_dim)), (float)a->softcap};
    assert(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->head_dim > 0 && a->head_dim <= MOST_DIM);
    assert(a->n * a->heads <= INT_MAX);
    CUDA_LAUNCH(s, attend_cached, (unsigned)(a->n * a->heads), THREADS, 0, k);
    return cuda_stream_of(s)->err;
}
