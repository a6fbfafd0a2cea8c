/* Rotary positions. A thread rotates one run of columns in several neighbouring heads of one token, because they share
 * the angles.
 *
 * Angles are measured in quarter turns and are double until whole turns are subtracted, so distant positions lose no
 * precision. The remainder is within an eighth of a turn, where a short float polynomial is exact to rounding.
 * Frequencies are launch arguments, FREQUENCIES at a time. */
#include "kernels/cuda/vec.h"

#include <assert.h>
#include <math.h>

#define FREQUENCIES 128
#define HEADS 4 /* heads per thread; they share the angles */
#define QUARTER 1.57079632679489661923
#define THREADS 256

struct rope {
    int64_t t, seq, pos0, heads, head_dim, stride;
    int64_t column, width; /* the columns of every head that this launch processes */
    float cosine, sine;    /* factors; a negative one of the sine rotates by the negative angle */
    elem *x;
    double quarters[FREQUENCIES]; /* quarter turns per position, for the pairs from `column` on */
};

/* Cosine and sine for |r| <= pi/4 by Taylor series; the first omitted terms are below 2e-10. */
static __device__ __forceinline__ void small_turn(float r, float *c, float *s)
{
    float r2 = r * r;
    float cosine = fmaf(r2, -1.0f / 3628800, 1.0f / 40320), sine = fmaf(r2, -1.0f / 39916800, 1.0f / 362880);
    cosine = fmaf(r2, cosine, -1.0f / 720);
    cosine = fmaf(r2, cosine, 1.0f / 24);
    cosine = fmaf(r2, cosine, -0.5f);
    sine = fmaf(r2, sine, -1.0f / 5040);
    sine = fmaf(r2, sine, 1.0f / 120);
    sine = fmaf(r2, sine, -1.0f / 6);
    *c = fmaf(r2, cosine, 1.0f);
    *s = fmaf(r2 * r, sine, r);
}

static __device__ __forceinline__ void turn(double quarters, float *c, float *s)
{
    double whole = rint(quarters);
    float cosine, sine;
    small_turn((float)((quarters - whole) * QUARTER), &cosine, &sine);
    int64_t q = (int64_t)whole & 3;
    float x = q & 1 ? sine : cosine, y = q & 1 ? cosine : sine;
    *c = q == 1 || q == 2 ? -x : x;
    *s = q >= 2 ? -y : y;
}

/* Rotates columns [j, j + VEC) of the heads of one group. */
template <bool WHOLE>
static __device__ __forceinline__ void turn_run(const struct rope &a, int64_t token, int64_t group, int64_t j)
{
    float c[VEC / 2], s[VEC / 2];
    double pos = (double)(a.pos0 + token % a.seq);
#pragma unroll
    for (int k = 0; k < VEC / 2; k++) {
        turn(pos * a.quarters[min(j / 2 + k, a.width / 2 - 1)], &c[k], &s[k]);
        c[k] *= a.cosine;
        s[k] *= a.sine;
    }
    for (int64_t h = group * HEADS; h < (group + 1) * HEADS && h < a.heads; h++) {
        elem *p = a.x + token * a.stride + h * a.head_dim + a.column;
        float x[VEC];
        row_load<WHOLE>(p, j, a.width, x);
#pragma unroll
        for (int k = 0; k < VEC / 2; k++) {
            float even = x[2 * k], odd = x[2 * k + 1];
            x[2 * k] = fmaf(even, c[k], -(odd * s[k]));
            x[2 * k + 1] = fmaf(even, s[k], odd * c[k]);
        }
        row_store<WHOLE>(p, j, a.width, x);
    }
}

template <bool WHOLE> static __global__ void __launch_bounds__(THREADS) rope_runs(const __grid_constant__ struct rope a)
{
    int64_t runs = (a.width + VEC - 1) / VEC, groups = (a.heads + HEADS - 1) / HEADS;
    for (int64_t i = grid_index(); i < a.t * groups * runs; i += grid_threads())
        turn_run<WHOLE>(a, i / (groups * runs), i / runs % groups, i % runs * VEC);
}

static void rope_launch(struct kern_stream *s, const struct rope *a)
{
    int64_t runs = (a->width + VEC - 1) / VEC, groups = (a->heads + HEADS - 1) / HEADS;
    unsigned blocks = grid_for(s, a->t * groups * runs, THREADS);
    if (vec_aligned(a->x) && a->stride % VEC == 0 && a->head_dim % VEC == 0 && a->width % VEC == 0)
        CUDA_LAUNCH(s, rope_runs<true>, blocks, THREADS, 0, *a);
    else
        CUDA_LAUNCH(s, rope_runs<false>, blocks, THREADS, 0, *a);
}

/* Floor: x read and written. */
void KERN_FN(rope)(struct kern_stream *s, int64_t t, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                   int64_t stride, const struct kern_rope *rope, bool inverse, void *x)
{
    assert(2 * rope->pairs <= head_dim && stride >= heads * head_dim);
    struct rope a = {};
    a.t = t;
    a.seq = seq;
    a.pos0 = pos0;
    a.heads = heads;
    a.head_dim = head_dim;
    a.stride = stride;
    a.cosine = (float)rope->factor;
    a.sine = inverse ? -a.cosine : a.cosine;
    a.x = (elem *)x;
    const int64_t columns = 2 * rope->pairs;
    for (a.column = 0; a.column < columns; a.column += 2 * FREQUENCIES) {
        a.width = columns - a.column < 2 * FREQUENCIES ? columns - a.column : 2 * FREQUENCIES;
        for (int64_t j = 0; j < a.width; j += 2)
            a.quarters[j / 2] = rope->frequency[(a.column + j) / 2] / QUARTER;
        rope_launch(s, &a);
    }
}
