/* Root-mean-square norm and layer norm, preceded by the residual sum; formulas as in ref/norm.c.
 *
 * A block processes a row, with one thread for every 16 bytes up to the block's limit, and then the row one grid
 * further on. A row is read from memory once; later passes find it in the first- or second-level cache. The statistics
 * are those of the stored residual sum, which is what the backward reads.
 *
 * The backward adds up the weights' gradients of its block's rows along with the input's gradient. The sums are in
 * shared memory if a row of them fits, and otherwise directly in the block's row of scratch memory. Every thread owns
 * its columns there. partials_add then sums the blocks' rows. */
#include "kernels/cuda/block.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vec.h"

#define MOST_THREADS 512
#define SHARED_BYTES (CUDA_SHARED_PLAIN - BLOCK_SUM2_SHARED) /* the rest of the plain limit; more must be requested */

/* Every loop over a row: j is the thread's next run of VEC columns. */
#define FOR_COLUMNS(j, d) for (int64_t j = (int64_t)threadIdx.x * VEC; j < (d); j += (int64_t)blockDim.x * VEC)

/* ---- forward ---- */

struct norm {
    int64_t t, d;
    float eps, one; /* factors are one + w */
    const elem *x, *res, *w, *b;
    elem *r, *y;
    float *mean, *rstd;
};

/* Sum of x or of its squares, after the residual sum, which is written; returns the row that is normalised. */
template <bool WHOLE>
static __device__ __forceinline__ const elem *row_sum(const struct norm &a, int64_t row, bool squares, float *ret)
{
    const elem *x = a.x + row * a.d, *res = a.res ? a.res + row * a.d : NULL;
    elem *r = res ? a.r + row * a.d : NULL;
    float sum = 0;
    FOR_COLUMNS(j, a.d)
    {
        float v[VEC], u[VEC];
        row_load<WHOLE>(x, j, a.d, v);
        if (res) {
            row_load<WHOLE>(res, j, a.d, u);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                v[k] = vec_rounded(v[k] + u[k]);
            row_store<WHOLE>(r, j, a.d, v);
        }
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum = squares ? fmaf(v[k], v[k], sum) : sum + v[k];
    }
    *ret = block_sum(sum);
    return res ? r : x;
}

/* Sum of (x - mean)^2; elements beyond the row's end do not count. */
template <bool WHOLE> static __device__ __forceinline__ float squares_around(const elem *x, int64_t d, float mean)
{
    float sum = 0;
    FOR_COLUMNS(j, d)
    {
        float v[VEC];
        row_load<WHOLE>(x, j, d, v);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            float h = WHOLE || j + k < d ? v[k] - mean : 0;
            sum = fmaf(h, h, sum);
        }
    }
    return block_sum(sum);
}

/* y = (x - mean) * rstd * (one + w) [+ b] */
template <bool WHOLE>
static __device__ __forceinline__ void row_scale(const struct norm &a, int64_t row, const elem *x, float mean, float k)
{
    elem *y = a.y + row * a.d;
    FOR_COLUMNS(j, a.d)
    {
        float v[VEC], w[VEC], b[VEC] = {};
        row_load<WHOLE>(x, j, a.d, v);
        row_load<WHOLE>(a.w, j, a.d, w);
        if (a.b)
            row_load<WHOLE>(a.b, j, a.d, b);
#pragma unroll
        for (int e = 0; e < VEC; e++)
            v[e] = fmaf((v[e] - mean) * k, a.one + w[e], b[e]);
        row_store<WHOLE>(y, j, a.d, v);
    }
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) rmsnorm_rows(struct norm a)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        float squares;
        const elem *x = row_sum<WHOLE>(a, i, true, &squares);
        float k = 1.0f / sqrtf(squares / (float)a.d + a.eps);
        row_scale<WHOLE>(a, i, x, 0, k);
        if (threadIdx.x == 0)
            a.rstd[i] = k;
    }
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) layernorm_rows(struct norm a)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        float sum;
        const elem *x = row_sum<WHOLE>(a, i, false, &sum);
        float mean = sum / (float)a.d;
        float k = 1.0f / sqrtf(squares_around<WHOLE>(x, a.d, mean) / (float)a.d + a.eps);
        row_scale<WHOLE>(a, i, x, mean, k);
        if (threadIdx.x == 0) {
            a.mean[i] = mean;
            a.rstd[i] = k;
        }
    }
}

static bool norm_whole(const struct norm *a)
{
    const void *rows[] = {a->x, a->res, a->w, a->b, a->r, a->y};
    return vec_all_aligned(6, rows) && a->d % VEC == 0;
}

/* Floor: 2 arrays of T d elements (x, y), 4 with a residual (x, res, r, y), and w. */
void KERN_FN(rmsnorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, bool plus_one, const void *x,
                      const void *res, const void *w, void *r, void *y, void *rstd)
{
    struct norm a = {t,
                     d,
                     (float)eps,
                     plus_one ? 1.0f : 0.0f,
                     (const elem *)x,
                     (const elem *)res,
                     (const elem *)w,
                     NULL,
                     (elem *)r,
                     (elem *)y,
                     NULL,
                     (float *)rstd};
    int threads = row_threads(d, MOST_THREADS);
    if (norm_whole(&a))
        CUDA_LAUNCH(s, rmsnorm_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, rmsnorm_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
}

/* Floor: as rmsnorm, and b. */
void KERN_FN(layernorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, const void *x, const void *res,
                        const void *w, const void *b, void *r, void *y, void *mean, void *rstd)
{
    struct norm a = {t,
                     d,
                     (float)eps,
                     0,
                     (const elem *)x,
                     (const elem *)res,
                     (const elem *)w,
                     (const elem *)b,
                     (elem *)r,
                     (elem *)y,
                     (float *)mean,
                     (float *)rstd};
    int threads = row_threads(d, MOST_THREADS);
    if (norm_whole(&a))
        CUDA_LAUNCH(s, layernorm_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, layernorm_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
}

/* ---- backward ---- */

struct norm_grad {
    int64_t t, d;
    const elem *x, *w, *dy, *d_res;
    const float *mean, *rstd; /* mean: NULL without centering */
    elem *dx;
    float one;      /* factors are one + w */
    float *partial; /* [gridDim.x, 1 or 2, d]: dw, then db with centering */
    bool in_shared; /* the sums stay in shared memory until the end */
};

/* Columns of a row on several ranks: its dot product over all of them, NULL: another rank subtracts it; how many. */
struct norm_dots {
    const double *of_row;
    double whole;
};

/* One run of VEC columns of a row, loaded: g = dy * (one + w), h = (x - mean) * rstd. */
struct norm_run {
    float dy[VEC], g[VEC], h[VEC];
};

template <bool WHOLE>
static __device__ __forceinline__ void run_load(const struct norm_grad &a, int64_t i, int64_t j, float mean, float k,
                                                struct norm_run *ret)
{
    float w[VEC];
    row_load<WHOLE>(a.dy + i * a.d, j, a.d, ret->dy);
    row_load<WHOLE>(a.x + i * a.d, j, a.d, ret->h);
    row_load<WHOLE>(a.w, j, a.d, w);
#pragma unroll
    for (int e = 0; e < VEC; e++) {
        ret->g[e] = ret->dy[e] * (a.one + w[e]);
        ret->h[e] = (ret->h[e] - mean) * k;
    }
}

/* sums[j ..] += dy h, and the sums of db, which follow, += dy. `sums` begins at a multiple of 16 bytes, and so does
 * db's part with WHOLE. */
template <bool WHOLE, bool CENTERED>
static __device__ __forceinline__ void weight_sums(const struct norm_run &r, int64_t j, int64_t d, float *sums)
{
    float w[VEC], b[VEC];
    row_load<WHOLE>(sums, j, d, w);
#pragma unroll
    for (int e = 0; e < VEC; e++)
        w[e] = fmaf(r.dy[e], r.h[e], w[e]);
    row_store<WHOLE>(sums, j, d, w);
    if (CENTERED) {
        row_load<WHOLE>(sums + d, j, d, b);
#pragma unroll
        for (int e = 0; e < VEC; e++)
            b[e] += r.dy[e];
        row_store<WHOLE>(sums + d, j, d, b);
    }
}

/* The first pass over row i: (sum of g, sum of g h). Beyond the row's end dy and so g are zero. */
template <bool WHOLE, bool CENTERED>
static __device__ __forceinline__ float2 grad_sums(const struct norm_grad &a, int64_t i, float mean, float k,
                                                   float *sums)
{
    float2 sum = make_float2(0, 0);
    FOR_COLUMNS(j, a.d)
    {
        struct norm_run r;
        run_load<WHOLE>(a, i, j, mean, k, &r);
#pragma unroll
        for (int e = 0; e < VEC; e++) {
            sum.x += r.g[e];
            sum.y = fmaf(r.g[e], r.h[e], sum.y);
        }
        weight_sums<WHOLE, CENTERED>(r, j, a.d, sums);
    }
    return block_sum2(sum);
}

/* The second pass: dx = k (g - mean_g - h mean_gh) [+ d_res]. */
template <bool WHOLE>
static __device__ __forceinline__ void input_grad(const struct norm_grad &a, int64_t i, float mean, float k,
                                                  float mean_g, float mean_gh)
{
    FOR_COLUMNS(j, a.d)
    {
        struct norm_run r;
        float past[VEC] = {};
        run_load<WHOLE>(a, i, j, mean, k, &r);
        if (a.d_res)
            row_load<WHOLE>(a.d_res + i * a.d, j, a.d, past);
#pragma unroll
        for (int e = 0; e < VEC; e++)
            past[e] = fmaf(fmaf(-r.h[e], mean_gh, r.g[e] - mean_g), k, past[e]);
        row_store<WHOLE>(a.dx + i * a.d, j, a.d, past);
    }
}

template <bool WHOLE, bool CENTERED, bool PART>
static __device__ __forceinline__ void norm_grad_block(const struct norm_grad &a, const struct norm_dots &dots)
{
    int64_t columns = (CENTERED ? 2 : 1) * a.d;
    float *out = a.partial + blockIdx.x * columns, *sums = a.in_shared ? (float *)cuda_shared() : out;
    float zero[VEC] = {};
    FOR_COLUMNS(j, a.d)
    {
        row_store<WHOLE>(sums, j, a.d, zero);
        if (CENTERED)
            row_store<WHOLE>(sums + a.d, j, a.d, zero);
    }
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        float mean = CENTERED ? a.mean[i] : 0, k = a.rstd[i];
        float2 sum = grad_sums<WHOLE, CENTERED>(a, i, mean, k, sums);
        float mean_gh = !PART ? sum.y / (float)a.d : dots.of_row ? (float)(dots.of_row[i] / dots.whole) * k : 0;
        input_grad<WHOLE>(a, i, mean, k, CENTERED ? sum.x / (float)a.d : 0, mean_gh);
    }
    if (!a.in_shared)
        return;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < columns; j += blockDim.x)
        out[j] = sums[j];
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) rmsnorm_grad_rows(struct norm_grad a)
{
    norm_grad_block<WHOLE, false, false>(a, norm_dots{});
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) layernorm_grad_rows(struct norm_grad a)
{
    norm_grad_block<WHOLE, true, false>(a, norm_dots{});
}

template <bool WHOLE>
static __global__ void __launch_bounds__(MOST_THREADS) rmsnorm_part_grad_rows(struct norm_grad a, struct norm_dots dots)
{
    norm_grad_block<WHOLE, false, true>(a, dots);
}

/* How the rows are distributed over blocks, and where their sums go. */
struct norm_grad_plan {
    int threads;
    unsigned blocks;
    size_t shared;
};

static bool norm_grad_begin(struct kern_stream *s, struct norm_grad *a, struct norm_grad_plan *plan)
{
    size_t columns = (a->mean ? 2 : 1) * (size_t)a->d, bytes = columns * sizeof(float);
    plan->threads = row_threads(a->d, MOST_THREADS);
    plan->blocks = grid_blocks(s, a->t, 2 * plan->threads);
    a->in_shared = bytes <= SHARED_BYTES;
    plan->shared = a->in_shared ? bytes : 0;
    a->partial = (float *)cuda_scratch(s, plan->blocks * bytes);
    return a->partial != NULL;
}

static bool norm_grad_whole(const struct norm_grad *a)
{
    const void *rows[] = {a->x, a->w, a->dy, a->d_res, a->dx};
    return vec_all_aligned(5, rows) && a->d % VEC == 0;
}

/* db: NULL without centering. */
static void norm_grad_run(struct kern_stream *s, struct norm_grad a, void *dw, void *db)
{
    struct norm_grad_plan plan;
    int64_t stride = (db ? 2 : 1) * a.d;
    if (!norm_grad_begin(s, &a, &plan))
        return;
    bool whole = norm_grad_whole(&a);
    if (db && whole)
        CUDA_LAUNCH(s, layernorm_grad_rows<true>, plan.blocks, plan.threads, plan.shared, a);
    else if (db)
        CUDA_LAUNCH(s, layernorm_grad_rows<false>, plan.blocks, plan.threads, plan.shared, a);
    else if (whole)
        CUDA_LAUNCH(s, rmsnorm_grad_rows<true>, plan.blocks, plan.threads, plan.shared, a);
    else
        CUDA_LAUNCH(s, rmsnorm_grad_rows<false>, plan.blocks, plan.threads, plan.shared, a);
    KERN_FN(partials_add)(s, plan.blocks, a.d, stride, a.partial, (float *)dw);
    if (db)
        KERN_FN(partials_add)(s, plan.blocks, a.d, stride, a.partial + a.d, (float *)db);
}

static struct norm_grad norm_grad_of(int64_t t, int64_t d, const void *x, const void *w, const void *mean,
                                     const void *rstd, const void *dy, const void *d_res, void *dx)
{
    return norm_grad{t,
                     d,
                     (const elem *)x,
                     (const elem *)w,
                     (const elem *)dy,
                     (const elem *)d_res,
                     (const float *)mean,
                     (const float *)rstd,
                     (elem *)dx,
                     0,
                     NULL,
                     false};
}

/* Floor: 3 arrays of T d elements (x, dy, dx), 4 with d_res. */
void KERN_FN(rmsnorm_grad)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *x, const void *w,
                           const void *rstd, const void *dy, const void *d_res, void *dx, void *dw)
{
    struct norm_grad a = norm_grad_of(t, d, x, w, NULL, rstd, dy, d_res, dx);
    a.one = plus_one ? 1.0f : 0.0f;
    norm_grad_run(s, a, dw, NULL);
}

/* Floor: as rmsnorm_grad. */
void KERN_FN(layernorm_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *w,
                             const void *mean, const void *rstd, const void *dy, const void *d_res, void *dx, void *dw,
                             void *db)
{
    norm_grad_run(s, norm_grad_of(t, d, x, w, mean, rstd, dy, d_res, dx), dw, db);
}

/* ---- columns of a row on several ranks ---- */

struct row_dots {
    int64_t t, d;
    float one;
    const elem *a, *b, *w;
    double *sums;
};

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) dot_rows(struct row_dots x)
{
    for (int64_t i = blockIdx.x; i < x.t; i += gridDim.x) {
        float sum = 0;
        FOR_COLUMNS(j, x.d)
        {
            float a[VEC], b[VEC], w[VEC];
            row_load<WHOLE>(x.a + i * x.d, j, x.d, a);
            row_load<WHOLE>(x.b + i * x.d, j, x.d, b);
            if (x.w)
                row_load<WHOLE>(x.w, j, x.d, w);
#pragma unroll
            for (int e = 0; e < VEC; e++)
                sum = fmaf(a[e], x.w ? b[e] * (x.one + w[e]) : b[e], sum);
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            x.sums[i] = (double)sum;
    }
}

/* Floor: T d elements of a, the same of b unless it is a. */
void KERN_FN(row_dots)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *a, const void *b,
                       const void *w, double *sums)
{
    struct row_dots x = {t, d, plus_one ? 1.0f : 0.0f, (const elem *)a, (const elem *)b, (const elem *)w, sums};
    const void *rows[] = {a, b, w};
    int threads = row_threads(d, MOST_THREADS);
    if (vec_all_aligned(3, rows) && d % VEC == 0)
        CUDA_LAUNCH(s, dot_rows<true>, grid_blocks(s, t, threads), threads, 0, x);
    else
        CUDA_LAUNCH(s, dot_rows<false>, grid_blocks(s, t, threads), threads, 0, x);
}

template <bool WHOLE>
static __global__ void __launch_bounds__(MOST_THREADS)
    rmsnorm_part_rows(struct norm a, const double *sums, double whole)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        float k = 1.0f / sqrtf((float)(sums[i] / whole) + a.eps);
        row_scale<WHOLE>(a, i, a.x + i * a.d, 0, k);
        if (threadIdx.x == 0)
            a.rstd[i] = k;
    }
}

/* Floor: 2 arrays of T d elements (x, y), and w. */
void KERN_FN(rmsnorm_part)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, double eps, bool plus_one,
                           const void *x, const void *w, const double *sums, void *y, void *rstd)
{
    struct norm a = {t,    d,         (float)eps, plus_one ? 1.0f : 0.0f, (const elem *)x, NULL, (const elem *)w, NULL,
                     NULL, (elem *)y, NULL,       (float *)rstd};
    int threads = row_threads(d, MOST_THREADS);
    if (norm_whole(&a))
        CUDA_LAUNCH(s, rmsnorm_part_rows<true>, grid_blocks(s, t, threads), threads, 0, a, sums, (double)whole);
    else
        CUDA_LAUNCH(s, rmsnorm_part_rows<false>, grid_blocks(s, t, threads), threads, 0, a, sums, (double)whole);
}

/* Floor: 3 arrays of T d elements (x, dy, dx). */
void KERN_FN(rmsnorm_part_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, bool plus_one,
                                const void *x, const void *w, const void *rstd, const double *sums, const void *dy,
                                void *dx, void *dw)
{
    struct norm_grad a = norm_grad_of(t, d, x, w, NULL, rstd, dy, NULL, dx);
    a.one = plus_one ? 1.0f : 0.0f;
    struct norm_dots dots = {sums, (double)whole};
    struct norm_grad_plan plan;
    if (!norm_grad_begin(s, &a, &plan))
        return;
    if (norm_grad_whole(&a))
        CUDA_LAUNCH(s, rmsnorm_part_grad_rows<true>, plan.blocks, plan.threads, plan.shared, a, dots);
    else
        CUDA_LAUNCH(s, rmsnorm_part_grad_rows<false>, plan.blocks, plan.threads, plan.shared, a, dots);
    KERN_FN(partials_add)(s, plan.blocks, d, d, a.partial, (float *)dw);
}
