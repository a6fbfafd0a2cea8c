/* Dropout by Philox4x32-10: a thread computes the four words of a counter for four neighbouring elements of a row.
 * Counters refer to global coordinates, so the first and the last counter of a row may include elements outside of it.
 */
#include "kernels/cuda/philox.h"
#include "kernels/cuda/vec.h"

#include <assert.h>

#define MOST_THREADS 512
#define QUAD 4

struct dropout {
    struct kern_dropout d;
    int64_t quads; /* counters per row, enough for any first column */
    uint32_t bound;
    float scale;
};

/* Elements j .. j + 3, as far as the row has them. */
template <bool WHOLE>
static __device__ __forceinline__ void drop_quad(const struct dropout &a, uint64_t quad, int64_t j, const elem *x,
                                                 elem *y)
{
    uint4 counter = make_uint4((uint32_t)quad, (uint32_t)(quad >> 32), (uint32_t)a.d.step, (uint32_t)a.d.site);
    uint4 word = philox(a.d.seed, counter);
    const uint32_t words[QUAD] = {word.x, word.y, word.z, word.w};
    float v[QUAD];
    if (WHOLE)
        vec_load(x + j, v);
#pragma unroll
    for (int k = 0; k < QUAD; k++) {
        bool here = WHOLE || (j + k >= 0 && j + k < a.d.n);
        v[k] = WHOLE ? v[k] : here ? vec_widen(x[j + k]) : 0;
        v[k] = words[k] >= a.bound ? v[k] * a.scale : 0;
        if (!WHOLE && here)
            vec_narrow(v[k], &y[j + k]);
    }
    if (WHOLE)
        vec_store(y + j, v);
}

/* WHOLE: rows begin and end at a counter's boundary and are aligned. */
template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) drop_rows(struct dropout a)
{
    for (int64_t i = blockIdx.x; i < a.d.t; i += gridDim.x) {
        int64_t first = a.d.rows[i] * a.d.cols + a.d.col0, lead = WHOLE ? 0 : first % QUAD;
        const elem *x = (const elem *)a.d.x + i * a.d.n;
        elem *y = (elem *)a.d.y + i * a.d.n;
        for (int64_t q = threadIdx.x; q < a.quads; q += blockDim.x)
            drop_quad<WHOLE>(a, (uint64_t)(first / QUAD + q), q * QUAD - lead, x, y);
    }
}

/* Floor: 2 arrays. */
void KERN_FN(dropout)(struct kern_stream *s, const struct kern_dropout *d)
{
    assert(d->rate >= 0 && d->rate < 1);
    const void *arrays[] = {d->x, d->y};
    bool whole = vec_all_aligned(2, arrays) && d->n % QUAD == 0 && d->cols % QUAD == 0 && d->col0 % QUAD == 0;
    struct dropout a = {*d, whole ? d->n / QUAD : d->n / QUAD + 2, KERN_DROPOUT_BOUND(d->rate),
                        (float)(1 / (1 - d->rate))};
    int threads = row_threads(a.quads * VEC, MOST_THREADS);
    if (whole)
        CUDA_LAUNCH(s, drop_rows<true>, grid_blocks(s, d->t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, drop_rows<false>, grid_blocks(s, d->t, threads), threads, 0, a);
}
