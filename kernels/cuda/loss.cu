/* Softmax and cross-entropy, over the whole vocabulary or a part of its columns. A block processes a row. It reads the
 * row once for the largest logit and the sum of exp, which every thread keeps relative to its running maximum. With the
 * gradient it reads the row a second time, from cache if the row fits, and overwrites it.
 *
 * Dense rows of an odd vocabulary begin anywhere within 16 bytes. Therefore runs of VEC elements are counted from the
 * last 16-byte boundary before the row, computed as if the matrix were aligned. This boundary follows from the row's
 * number and the stride, so the matrix's real address changes how a run is read, but never the order of a sum. */
#include "kernels/cuda/block.h"
#include "kernels/cuda/vec.h"

#include <float.h>
#include <math.h>

#define MOST_THREADS 1024

struct loss {
    int64_t t, v, ld;
    const int32_t *targets;
    bool grad;
    float scale;
    elem *logits;
    double *losses; /* [t] */
};

/* A row, and the number of elements before it at which its first run begins. */
struct loss_row {
    elem *x;
    int64_t v, lead;
};

/* Visits the thread's runs: j is the first element, which may lie outside the row. */
#define FOR_RUNS(j, row) \
    for (int64_t j = (int64_t)threadIdx.x * VEC - (row).lead; j < (row).v; j += (int64_t)blockDim.x * VEC)

template <bool ALIGNED> static __device__ __forceinline__ bool run_whole(const struct loss_row &r, int64_t j)
{
    return ALIGNED && j >= 0 && j + VEC <= r.v;
}

/* Elements outside the row are -infinity. */
template <bool ALIGNED>
static __device__ __forceinline__ void run_load(const struct loss_row &r, int64_t j, float (&x)[VEC])
{
    if (run_whole<ALIGNED>(r, j)) {
        vec_load(r.x + j, x);
        return;
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        x[k] = j + k >= 0 && j + k < r.v ? vec_widen(r.x[j + k]) : -INFINITY;
}

template <bool ALIGNED>
static __device__ __forceinline__ void run_store(const struct loss_row &r, int64_t j, const float (&x)[VEC])
{
    if (run_whole<ALIGNED>(r, j)) {
        vec_store(r.x + j, x);
        return;
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        if (j + k >= 0 && j + k < r.v)
            vec_narrow(x[k], &r.x[j + k]);
}

/* Computes the largest logit and the sum of exp(x - largest), the same in all threads. The largest starts finite, so a
 * logit of -infinity adds nothing; a NaN or infinity makes the sum a NaN. */
template <bool ALIGNED>
static __device__ __forceinline__ void row_softmax(const struct loss_row &r, float *largest, float *total)
{
    float max = -FLT_MAX, sum = 0;
    FOR_RUNS(j, r)
    {
        float x[VEC], top = max, run = 0, shrink = 1;
        run_load<ALIGNED>(r, j, x);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            top = fmaxf(top, x[k]);
        if (top > max)
            shrink = expf(max - top);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            run += expf(x[k] - top);
        sum = fmaf(sum, shrink, run);
        max = top;
    }
    *largest = block_max(max);
    *total = block_sum(sum * expf(max - *largest));
}

/* Replaces logits by (softmax - onehot) * scale, or by zero without a target. `hot` is the target's column and may lie
 * outside these columns. */
template <bool ALIGNED>
static __device__ __forceinline__ void row_grad(const struct loss_row &r, bool counts, int64_t hot, float scale,
                                                float max, float per_total)
{
    FOR_RUNS(j, r)
    {
        float x[VEC];
        run_load<ALIGNED>(r, j, x);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            x[k] = counts ? scale * fmaf(expf(x[k] - max), per_total, j + k == hot ? -1.0f : 0.0f) : 0;
        run_store<ALIGNED>(r, j, x);
    }
}

static __device__ __forceinline__ double on_grid(double loss)
{
    return rint(loss * KERN_LOSS_GRID) / KERN_LOSS_GRID;
}

/* The target's logit is read before any thread may write the gradient, because block_sum waits for all threads. */
template <bool ALIGNED> static __global__ void __launch_bounds__(MOST_THREADS) loss_rows(struct loss a)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        struct loss_row r = {a.logits + i * a.ld, a.v, i * a.ld % VEC};
        int32_t target = a.targets[i];
        float max = 0, total = 1, own = target < 0 ? 0 : vec_widen(r.x[target]);
        if (target >= 0)
            row_softmax<ALIGNED>(r, &max, &total);
        if (a.grad)
            row_grad<ALIGNED>(r, target >= 0, target, a.scale, max, 1.0f / total);
        if (threadIdx.x == 0)
            a.losses[i] = target < 0 ? 0 : on_grid((double)logf(total) + ((double)max - (double)own));
    }
}

static __global__ void __launch_bounds__(MOST_THREADS) loss_total(int64_t t, const double *losses, double *loss_sum)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < t; i += blockDim.x)
        sum += losses[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *loss_sum += sum;
}

/* Floor: the logits once, twice with the gradient (which a training step also writes, so 2 of 3 passes). */
void KERN_FN(cross_entropy)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets, bool grad,
                            double scale, void *logits, double *loss_sum)
{
    double *losses = (double *)cuda_scratch(s, (size_t)t * sizeof(double));
    if (!losses)
        return;
    struct loss a = {t, v, ld, targets, grad, (float)scale, (elem *)logits, losses};
    int threads = row_threads(v, MOST_THREADS);
    if (vec_aligned(logits))
        CUDA_LAUNCH(s, loss_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, loss_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
    CUDA_LAUNCH(s, loss_total, 1, MOST_THREADS, 0, t, losses, loss_sum);
}

/* ---- a part of the vocabulary ---- */

struct loss_part {
    struct loss loss; /* scale and losses are unused */
    int64_t lo, parts;
    double *stats;
};

/* A row of only -infinity, or without columns, has a sum of 0; its largest logit is then not used. */
template <bool ALIGNED> static __global__ void __launch_bounds__(MOST_THREADS) part_rows(struct loss_part a)
{
    for (int64_t i = blockIdx.x; i < a.loss.t; i += gridDim.x) {
        struct loss_row r = {a.loss.logits + i * a.loss.ld, a.loss.v, i * a.loss.ld % VEC};
        int64_t hot = a.loss.targets[i] - a.lo;
        float max, total;
        row_softmax<ALIGNED>(r, &max, &total);
        if (threadIdx.x == 0) {
            a.stats[3 * i] = total == 0 ? -INFINITY : (double)max;
            a.stats[3 * i + 1] = (double)total;
            a.stats[3 * i + 2] =
                a.loss.targets[i] >= 0 && hot >= 0 && hot < r.v ? (double)vec_widen(r.x[hot]) : -INFINITY;
        }
    }
}

/* Floor: the logits once. */
void KERN_FN(loss_part)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, const int32_t *targets,
                        const void *logits, double *stats)
{
    struct loss_part a = {{t, v, ld, targets, false, 0, (elem *)logits, NULL}, lo, 1, stats};
    int threads = row_threads(v > 0 ? v : 1, MOST_THREADS);
    if (vec_aligned(logits))
        CUDA_LAUNCH(s, part_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, part_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
}

/* The statistics of row i over all parts, in order; returns the loss. */
static __device__ double whole_row(const struct loss_part &a, int64_t i, double *largest, double *total)
{
    double max = -INFINITY, logit = -INFINITY, sum = 0;
    for (int64_t p = 0; p < a.parts; p++) {
        const double *x = a.stats + 3 * (p * a.loss.t + i);
        max = x[0] > max ? x[0] : max;
        logit = x[2] > logit ? x[2] : logit;
    }
    for (int64_t p = 0; p < a.parts; p++) {
        const double *x = a.stats + 3 * (p * a.loss.t + i);
        sum = fma(x[1], exp(x[0] - max), sum);
    }
    *largest = max;
    *total = sum;
    return on_grid(log(sum) + (max - logit));
}

/* One thread combines the row's statistics for all threads. */
template <bool ALIGNED> static __global__ void __launch_bounds__(MOST_THREADS) join_rows(struct loss_part a)
{
    CUDA_SHARED(float[2], whole);
    for (int64_t i = blockIdx.x; i < a.loss.t; i += gridDim.x) {
        struct loss_row r = {a.loss.logits + i * a.loss.ld, a.loss.v, i * a.loss.ld % VEC};
        int32_t target = a.loss.targets[i];
        if (threadIdx.x == 0) {
            double max = 0, total = 1, loss = target < 0 ? 0 : whole_row(a, i, &max, &total);
            whole[0] = (float)max;
            whole[1] = (float)(1 / total);
            a.loss.losses[i] = loss;
        }
        __syncthreads();
        if (a.loss.grad)
            row_grad<ALIGNED>(r, target >= 0, target - a.lo, a.loss.scale, whole[0], whole[1]);
        __syncthreads(); /* before any thread writes `whole` again */
    }
}

/* Floor: with the gradient the logits read and written. */
void KERN_FN(loss_join)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, int64_t parts,
                        const int32_t *targets, const double *stats, bool grad, double scale, void *logits,
                        double *loss_sum)
{
    double *losses = (double *)cuda_scratch(s, (size_t)t * sizeof(double));
    if (!losses)
        return;
    struct loss_part a = {{t, v, ld, targets, grad, (float)scale, (elem *)logits, losses}, lo, parts, (double *)stats};
    int threads = row_threads(grad && v > 0 ? v : 1, MOST_THREADS);
    if (vec_aligned(logits))
        CUDA_LAUNCH(s, join_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, join_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
    if (loss_sum)
        CUDA_LAUNCH(s, loss_total, 1, MOST_THREADS, 0, t, losses, loss_sum);
}
