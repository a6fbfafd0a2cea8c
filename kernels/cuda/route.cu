/* Routers, in float64 from the logits on: all backends choose the same experts from the same logits, except where two
 * scores differ by less than float64 can represent. Formulas as in ref/experts.c.
 *
 * A block is one warp and processes a token; lane l has the experts l, l + 32 and so on, whose scores are in shared
 * memory. The best k are found one after another: each is the first one behind the previous one in the order of
 * (value descending, id ascending), so nothing has to be marked as taken.
 *
 * Sums over tokens use no atomics. The first launch writes the numbers of each token as a row of scratch memory, the
 * second adds the rows of each set of tokens in a fixed order. */
#include "kernels/cuda/block.h"
#include "kernels/cuda/vec.h"

#include <assert.h>
#include <math.h>

#define PIECE_BYTES (16 << 20) /* most scratch memory for the numbers of tokens; more tokens are cut into pieces */
#define NORM_FLOOR 1e-20       /* DeepSeek-V3 adds it to the sum of the chosen scores */
#define FOR_EXPERTS(e, n) for (int e = (int)threadIdx.x; e < (int)(n); e += CUDA_WARP)

static __device__ __forceinline__ double warp_largest(double x)
{
#pragma unroll
    for (int step = CUDA_WARP / 2; step > 0; step /= 2)
        x = fmax(x, __shfl_xor_sync(CUDA_WARP_ALL, x, step));
    return x;
}

/* ---- scores ---- */

/* What a router computes of one token. */
struct token_scores {
    const float *logits;
    double *share; /* shared memory [experts]: the sigmoid with KERN_SCORES_SIGMOID, else the softmax */
    double over;   /* share[e] * over sums to 1 */
    double lse;    /* NaN: no choice can be made */
};

static __device__ struct token_scores score_token(const struct kern_router &r, const float *logits, double *share)
{
    const bool sigmoid = r.scores == KERN_SCORES_SIGMOID;
    double max = -INFINITY, sum = 0, total = 0;
    FOR_EXPERTS(e, r.experts)
    max = fmax(max, (double)logits[e]);
    max = warp_largest(max);
    FOR_EXPERTS(e, r.experts)
    {
        share[e] = exp((double)logits[e] - max);
        sum += share[e];
    }
    sum = warp_sum(sum);
    FOR_EXPERTS(e, r.experts)
    {
        share[e] = sigmoid ? 1 / (1 + exp(-(double)logits[e])) : share[e] / sum;
        total += share[e];
    }
    total = warp_sum(total);
    __syncwarp();
    return token_scores{logits, share, sigmoid ? 1 / total : 1, max + log(sum)};
}

static __device__ __forceinline__ double score_of(const struct kern_router &r, const struct token_scores &t, int e)
{
    return r.scores == KERN_SCORES_SOFTMAX_TOPK ? (double)t.logits[e] : t.share[e];
}

/* ---- the choice ---- */

/* A place in the order of values; id -1: in front of all. */
struct candidate {
    double value;
    int id;
};

/* NaNs are in no order. */
static __device__ __forceinline__ bool comes_behind(double value, int id, const struct candidate &c)
{
    return c.id < 0 ? value == value : value < c.value || (value == c.value && id > c.id);
}

/* The first of value[0..n) behind `last`, the same in all lanes; id -1 if there is none. */
static __device__ struct candidate next_best(int64_t n, const double *value, const struct candidate &last)
{
    struct candidate best = {-INFINITY, -1};
    FOR_EXPERTS(e, n)
    if (comes_behind(value[e], e, last) && (best.id < 0 || value[e] > best.value))
        best = candidate{value[e], e};
    for (int step = CUDA_WARP / 2; step > 0; step /= 2) {
        struct candidate other = {__shfl_xor_sync(CUDA_WARP_ALL, best.value, step),
                                  __shfl_xor_sync(CUDA_WARP_ALL, best.id, step)};
        if (other.id >= 0 && (best.id < 0 || comes_behind(best.value, best.id, other)))
            best = other;
    }
    return best;
}

/* The n-th of value[0..count), n >= 1. */
static __device__ struct candidate nth_best(int64_t count, const double *value, int64_t n)
{
    struct candidate last = {0, -1};
    for (int64_t i = 0; i < n; i++)
        last = next_best(count, value, last);
    return last;
}

/* The sum, in descending order, of the `most` largest of value[0..n), by one thread. */
static __device__ double sum_of_best(int64_t n, const double *value, int64_t most)
{
    struct candidate last = {0, -1};
    double sum = 0;
    for (int64_t i = 0; i < most && i < n; i++) {
        struct candidate best = {-INFINITY, -1};
        for (int e = 0; e < n; e++)
            if (comes_behind(value[e], e, last) && (best.id < 0 || value[e] > best.value))
                best = candidate{value[e], e};
        sum += best.value;
        last = best;
    }
    return sum;
}

/* Makes the values of all but the best groups NaN. `rank`: shared memory [groups]. */
static __device__ void keep_groups(const struct kern_router &r, double *value, double *rank)
{
    const int each = (int)(r.experts / r.groups);
    FOR_EXPERTS(g, r.groups)
    rank[g] = sum_of_best(each, value + g * each, r.group_best);
    __syncwarp();
    struct candidate last = nth_best(r.groups, rank, r.groups_kept);
    FOR_EXPERTS(e, r.experts)
    if (comes_behind(rank[e / each], e / each, last))
        value[e] = NAN;
    __syncwarp();
}

/* Writes ids[k], ascending, to shared memory. Returns 1 over the difference between the k-th and the next value, 0
 * where there is no next one. `value` and `rank`: shared memory [experts]. */
static __device__ double choose(const struct kern_router &r, const struct token_scores &t, const float *bias,
                                double *value, double *rank, int *ids)
{
    if (t.lse != t.lse) {
        FOR_EXPERTS(j, r.k)
        ids[j] = j;
        __syncwarp();
        return 0;
    }
    FOR_EXPERTS(e, r.experts)
    value[e] = fmax(score_of(r, t, e) + (bias ? (double)bias[e] : 0), -HUGE_VAL); /* a bias of NaN counts as least */
    __syncwarp();
    if (r.groups > 1)
        keep_groups(r, value, rank);
    struct candidate last = nth_best(r.experts, value, r.k), next = next_best(r.experts, value, last);
    unsigned below = (1u << threadIdx.x) - 1;
    for (int first = 0, n = 0; first < r.experts; first += CUDA_WARP) {
        int e = first + (int)threadIdx.x;
        bool chosen = e < r.experts && value[e] == value[e] && !comes_behind(value[e], e, last);
        unsigned all = __ballot_sync(CUDA_WARP_ALL, chosen);
        if (chosen)
            ids[n + __popc(all & below)] = e;
        n += __popc(all);
    }
    __syncwarp();
    return next.id < 0 ? 0 : 1 / (last.value - next.value);
}

static __device__ void take_given(const struct kern_router &r, const int32_t *given, int *ids)
{
    FOR_EXPERTS(j, r.k)
    ids[j] = given[j];
    __syncwarp();
}

/* The weights of the chosen experts. */
static __device__ void weigh(const struct kern_router &r, const struct token_scores &t, const int *ids, float *weights)
{
    const bool softmax = r.scores == KERN_SCORES_SOFTMAX_TOPK;
    double max = -INFINITY, sum = 0;
    FOR_EXPERTS(j, r.k)
    max = fmax(max, score_of(r, t, ids[j]));
    max = warp_largest(max);
    FOR_EXPERTS(j, r.k)
    sum += softmax ? exp(score_of(r, t, ids[j]) - max) : score_of(r, t, ids[j]);
    sum = warp_sum(sum) + (r.scores == KERN_SCORES_SIGMOID ? NORM_FLOOR : 0);
    FOR_EXPERTS(j, r.k)
    {
        double w = softmax ? exp(score_of(r, t, ids[j]) - max) : score_of(r, t, ids[j]);
        weights[j] = t.lse == t.lse ? (float)((softmax || r.norm ? w / sum : w) * r.scale) : NAN;
    }
}

/* ---- forward ---- */

struct route_piece {
    struct kern_route r;
    int64_t lo, hi;    /* its tokens */
    double *numbers;   /* [hi - lo, KERN_ROUTE_NUMBERS]; NULL: not wanted */
    double *closeness; /* [hi - lo] */
    double *sums;      /* [sets, KERN_ROUTE_NUMBERS] */
};

/* The numbers of one token, in the order of KERN_ROUTE_NUMBERS. */
static __device__ void write_numbers(const struct kern_router &r, const struct token_scores &t, const int *ids,
                                     double *numbers)
{
    double entropy = 0;
    FOR_EXPERTS(e, r.experts)
    {
        double p = t.share[e] * t.over;
        numbers[e] = 0;
        numbers[r.experts + e] = p;
        entropy -= p > 0 ? p * log(p) : p;
    }
    entropy = warp_sum(entropy);
    __syncwarp();
    FOR_EXPERTS(j, r.k)
    numbers[ids[j]] = 1;
    if (threadIdx.x == 0) {
        numbers[2 * r.experts] = entropy;
        numbers[2 * r.experts + 1] = t.lse * t.lse;
    }
}

static __global__ void __launch_bounds__(CUDA_WARP) route_tokens(struct route_piece a)
{
    CUDA_SHARED(int[KERN_MAX_CHOICES], ids);
    const struct kern_router &r = a.r.router;
    double *share = (double *)cuda_shared(), *value = share + r.experts, *rank = value + r.experts;
    for (int64_t i = a.lo + blockIdx.x; i < a.hi; i += gridDim.x) {
        struct token_scores t = score_token(r, (const float *)a.r.logits + i * r.experts, share);
        double closeness = 0;
        if (a.r.given)
            take_given(r, a.r.given + i * r.k, ids);
        else
            closeness = choose(r, t, (const float *)a.r.bias, value, rank, ids);
        FOR_EXPERTS(j, r.k)
        a.r.ids[i * r.k + j] = ids[j];
        weigh(r, t, ids, (float *)a.r.weights + i * r.k);
        if (a.numbers)
            write_numbers(r, t, ids, a.numbers + (i - a.lo) * KERN_ROUTE_NUMBERS(r.experts));
        if (threadIdx.x == 0)
            a.closeness[i - a.lo] = closeness;
        __syncwarp(); /* before any lane writes the scores of the next token */
    }
}

static __device__ __forceinline__ int64_t set_of(const struct kern_route &r, int64_t i)
{
    return r.rows ? r.rows[i] / r.seq - r.set0 : 0;
}

/* 32 columns by 32 rows of threads; the rows' sums are added in shared memory, in order. A block adds the tokens of set
 * blockIdx.y; the first piece begins the sums. */
static __global__ void __launch_bounds__(CUDA_WARP *CUDA_WARP) add_numbers(struct route_piece a)
{
    CUDA_SHARED(double[CUDA_WARP][CUDA_WARP], part);
    const int64_t count = KERN_ROUTE_NUMBERS(a.r.router.experts), set = blockIdx.y;
    int lane = threadIdx.x % CUDA_WARP, row = threadIdx.x / CUDA_WARP;
    int64_t j = (int64_t)blockIdx.x * CUDA_WARP + lane;
    double sum = 0;
    for (int64_t i = a.lo + row; i < a.hi; i += CUDA_WARP)
        if (j < count && set_of(a.r, i) == set)
            sum += a.numbers[(i - a.lo) * count + j];
    part[row][lane] = sum;
    __syncthreads();
    if (row || j >= count)
        return;
    for (int i = 1; i < CUDA_WARP; i++)
        sum += part[i][lane];
    double *to = &a.sums[set * count + j];
    *to = a.lo ? *to + sum : sum;
}

static __global__ void __launch_bounds__(CUDA_WARP)
    add_sets(int64_t sets, int64_t count, const double *sums, double *totals)
{
    int64_t j = grid_index();
    double sum = 0;
    for (int64_t i = 0; i < sets && j < count; i++)
        sum += sums[i * count + j];
    if (j < count)
        totals[j] += sum;
}

static __global__ void __launch_bounds__(CUDA_WARP) closest(int64_t n, const double *closeness, double *ret)
{
    double most = 0;
    for (int64_t i = threadIdx.x; i < n; i += CUDA_WARP)
        most = fmax(most, closeness[i]);
    most = warp_largest(most);
    if (threadIdx.x == 0)
        *ret = fmax(*ret, most);
}

static size_t route_shared(const struct kern_router *r)
{
    return 3 * (size_t)r->experts * sizeof(double); /* share, value, rank; of a gradient share and dz */
}

/* Floor: the logits once; with numbers, 8 bytes per token and number twice. */
void KERN_FN(route)(struct kern_stream *s, const struct kern_route *r)
{
    const int64_t count = KERN_ROUTE_NUMBERS(r->router.experts), fit = PIECE_BYTES / (count * (int64_t)sizeof(double));
    const int64_t piece = r->t < fit ? r->t : fit;
    const bool wanted = r->sums || r->totals;
    assert(r->router.k >= 1 && r->router.k <= KERN_MAX_CHOICES && r->router.experts <= KERN_MAX_EXPERTS);
    double *scratch = (double *)cuda_scratch(s, (size_t)(piece + (piece + 1) * count) * sizeof(double));
    if (!scratch)
        return;
    struct route_piece a = {*r, 0, 0, wanted ? scratch + count : NULL, scratch + (piece + 1) * count, r->sums};
    if (!r->sums) { /* all tokens are one set */
        a.r.rows = NULL;
        a.r.sets = 1;
        a.sums = scratch;
    }
    dim3 tiles((unsigned)((count + CUDA_WARP - 1) / CUDA_WARP), (unsigned)a.r.sets);
    do {
        a.hi = a.lo + piece < r->t ? a.lo + piece : r->t;
        CUDA_LAUNCH(s, route_tokens, grid_blocks(s, a.hi - a.lo, CUDA_WARP), CUDA_WARP, route_shared(&r->router), a);
        if (wanted)
            CUDA_LAUNCH(s, add_numbers, tiles, CUDA_WARP * CUDA_WARP, 0, a);
        if (r->closeness)
            CUDA_LAUNCH(s, closest, 1, CUDA_WARP, 0, a.hi - a.lo, (const double *)a.closeness, r->closeness);
        a.lo = a.hi;
    } while (a.lo < r->t);
    if (r->totals)
        CUDA_LAUNCH(s, add_sets, tiles.x, CUDA_WARP, 0, a.r.sets, count, (const double *)a.sums, r->totals);
}

/* ---- the gradient ---- */

/* dz += the gradient through the weights w, with dw given. All lanes; each expert is chosen at most once. */
static __device__ void through_weights(const struct kern_router &r, const struct token_scores &t, const int32_t *ids,
                                       const float *w, const float *dw, double *dz)
{
    const bool sigmoid = r.scores == KERN_SCORES_SIGMOID, over_chosen = r.norm || r.scores == KERN_SCORES_SOFTMAX_TOPK;
    double mean = 0, sum = 0;
    FOR_EXPERTS(j, r.k)
    {
        mean += (double)w[j] * (double)dw[j];
        sum += score_of(r, t, ids[j]);
    }
    mean = warp_sum(mean);
    sum = warp_sum(sum);
    FOR_EXPERTS(j, r.k)
    {
        double p = t.share[ids[j]], ds = r.scale * (double)dw[j];
        if (sigmoid)
            dz[ids[j]] += p * (1 - p) * (r.norm ? (ds - mean) / (sum + NORM_FLOOR) : ds);
        else
            dz[ids[j]] += (double)w[j] * (double)dw[j] - (over_chosen ? (double)w[j] * mean / r.scale : 0);
    }
    __syncwarp();
    if (!sigmoid && !over_chosen)
        FOR_EXPERTS(e, r.experts)
    dz[e] -= t.share[e] * mean;
}

/* dz += the gradient of the auxiliary loss; n: the counts of the token's set. */
static __device__ void through_aux(const struct kern_route_grad &a, const struct token_scores &t, const double *n,
                                   double *dz)
{
    const struct kern_router &r = a.fwd.router;
    const bool sigmoid = r.scores == KERN_SCORES_SIGMOID;
    double choices = 0, mean = 0;
    FOR_EXPERTS(e, r.experts)
    {
        choices += n[e];
        mean += t.share[e] * t.over * n[e];
    }
    choices = warp_sum(choices);
    mean = warp_sum(mean);
    double each = choices > 0 ? a.aux * (double)r.experts * a.scale / choices : 0;
    FOR_EXPERTS(e, r.experts)
    dz[e] += t.share[e] * t.over * (sigmoid ? 1 - t.share[e] : 1) * each * (n[e] - mean);
}

static __global__ void __launch_bounds__(CUDA_WARP) route_grad_tokens(struct kern_route_grad a)
{
    const struct kern_route &f = a.fwd;
    const int64_t experts = f.router.experts, k = f.router.k;
    double *share = (double *)cuda_shared(), *dz = share + experts;
    for (int64_t i = blockIdx.x; i < f.t; i += gridDim.x) {
        const float *logits = (const float *)f.logits + i * experts;
        struct token_scores t = score_token(f.router, logits, share);
        double z = a.z != 0 ? 2 * a.z * a.scale * t.lse : 0;
        FOR_EXPERTS(e, experts)
        dz[e] = z * exp((double)logits[e] - t.lse);
        __syncwarp();
        through_weights(f.router, t, f.ids + i * k, (const float *)f.weights + i * k,
                        (const float *)a.d_weights + i * k, dz);
        if (a.aux != 0)
            through_aux(a, t, f.sums + set_of(f, i) * KERN_ROUTE_NUMBERS(experts), dz);
        FOR_EXPERTS(e, experts)
        vec_narrow((float)dz[e], (elem *)a.d_logits + i * experts + e);
        __syncwarp();
    }
}

/* Floor: the logits and their gradient once. */
void KERN_FN(route_grad)(struct kern_stream *s, const struct kern_route_grad *a)
{
    CUDA_LAUNCH(s, route_grad_tokens, grid_blocks(s, a->fwd.t, CUDA_WARP), CUDA_WARP, route_shared(&a->fwd.router), *a);
}

/* ---- balance ---- */

static __device__ __forceinline__ long long sign(long long x)
{
    return (x > 0) - (x < 0);
}

/* One warp. Sums of whole numbers do not depend on their order. */
static __global__ void __launch_bounds__(CUDA_WARP) balance_experts(struct kern_balance b)
{
    double sum = 0, signs = 0;
    FOR_EXPERTS(e, b.experts)
    sum += b.counts[e];
    const long long all = (long long)warp_sum(sum), experts = b.experts;
    FOR_EXPERTS(e, b.experts)
    signs += (double)sign(all - experts * (long long)b.counts[e]);
    const long long mean = (long long)warp_sum(signs);
    float *bias = (float *)b.bias;
    if (!isfinite(*b.factor))
        return;
    FOR_EXPERTS(e, b.experts)
    {
        long long above = experts * sign(all - experts * (long long)b.counts[e]) - mean;
        bias[e] = (float)((double)bias[e] + b.rate * (double)above / (double)experts);
    }
}

/* Floor: a launch; the counts and biases of one router are a few kilobytes. */
void KERN_FN(balance)(struct kern_stream *s, const struct kern_balance *b)
{
    CUDA_LAUNCH(s, balance_experts, 1, CUDA_WARP, 0, *b);
}

static __global__ void __launch_bounds__(CUDA_WARP)
    keep_numbers(int64_t n, const double *from, const double *factor, double *to)
{
    const int64_t i = grid_index();
    if (i < n && isfinite(*factor))
        to[i] = from[i];
}

/* Floor: a launch. */
void KERN_FN(keep)(struct kern_stream *s, int64_t n, const double *from, const double *factor, double *to)
{
    CUDA_LAUNCH(s, keep_numbers, (unsigned)((n + CUDA_WARP - 1) / CUDA_WARP), CUDA_WARP, 0, n, from, factor, to);
}

/* ---- the value of the auxiliary loss ---- */

/* One warp; the sets one after another. */
static __global__ void __launch_bounds__(CUDA_WARP)
    add_aux_loss(int64_t sets, int64_t experts, const double *sums, double scale, double *total)
{
    double sum = 0;
    for (int64_t i = 0; i < sets; i++) {
        const double *n = sums + i * KERN_ROUTE_NUMBERS(experts);
        double choices = 0, product = 0;
        FOR_EXPERTS(e, experts)
        {
            choices += n[e];
            product += n[e] * n[experts + e];
        }
        choices = warp_sum(choices);
        product = warp_sum(product);
        sum += choices > 0 ? scale * (double)experts / choices * product : 0;
    }
    if (threadIdx.x == 0)
        *total += sum;
}

/* Floor: the numbers of all sets once. */
void KERN_FN(aux_loss)(struct kern_stream *s, int64_t sets, int64_t experts, const double *sums, double scale,
                       double *total)
{
    CUDA_LAUNCH(s, add_aux_loss, 1, CUDA_WARP, 0, sets, experts, sums, scale, total);
}
