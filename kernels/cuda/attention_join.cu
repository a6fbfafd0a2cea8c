/* Combines two parts of a softmax. Several lanes of a warp share a head's row and process one vector each at a time.
 * All of them have read the row's lse before one of them writes it. */
#include "kernels/cuda/vec.h"

#include <assert.h>
#include <limits.h>

#define THREADS 256

struct attention_join {
    struct kern_attention_join a;
    int64_t rows; /* rows of all heads */
    int lanes;    /* lanes that share a row, a power of two */
};

template <bool WHOLE> static __global__ void __launch_bounds__(THREADS) join_heads(struct attention_join k)
{
    const struct kern_attention_join &a = k.a;
    int64_t i = grid_index() / k.lanes, row = i / a.heads, head = i % a.heads;
    int64_t at = (row / a.seq * a.heads + head) * a.seq + row % a.seq;
    bool here = i < k.rows;
    int lane = (int)(grid_index() % k.lanes);
    float lse = here ? ((const float *)a.lse)[at] : 0, lse2 = here ? ((const float *)a.lse2)[at] : 0;
    float max = fmaxf(lse, lse2), own = expf(lse - max), other = expf(lse2 - max), sum = own + other;
    __syncwarp();
    if (here && lane == 0)
        ((float *)a.lse)[at] = max + logf(sum);
    elem *o = (elem *)a.o + row * a.o_stride + head * a.head_dim;
    const elem *o2 = (const elem *)a.o2 + row * a.o2_stride + head * a.head_dim;
    own /= sum;
    other /= sum;
    for (int64_t j = (int64_t)lane * VEC; here && j < a.head_dim; j += (int64_t)k.lanes * VEC) {
        float x[VEC], y[VEC];
        row_load<WHOLE>(o, j, a.head_dim, x);
        row_load<WHOLE>(o2, j, a.head_dim, y);
#pragma unroll
        for (int e = 0; e < VEC; e++)
            x[e] = fmaf(x[e], own, y[e] * other);
        row_store<WHOLE>(o, j, a.head_dim, x);
    }
}

/* Floor: o read and written, o2 read. */
void KERN_FN(attention_join)(struct kern_stream *s, const struct kern_attention_join *a)
{
    struct attention_join k = {*a, a->batch * a->seq * a->heads, 1};
    const void *arrays[] = {a->o, a->o2};
    while (k.lanes < CUDA_WARP && k.lanes * VEC < a->head_dim)
        k.lanes *= 2;
    int64_t blocks = (k.rows * k.lanes + THREADS - 1) / THREADS;
    assert(blocks <= INT_MAX);
    if (blocks == 0)
        return;
    if (vec_all_aligned(2, arrays) && a->head_dim % VEC == 0 && a->o_stride % VEC == 0 && a->o2_stride % VEC == 0)
        CUDA_LAUNCH(s, join_heads<true>, (unsigned)blocks, THREADS, 0, k);
    else
        CUDA_LAUNCH(s, join_heads<false>, (unsigned)blocks, THREADS, 0, k);
}
