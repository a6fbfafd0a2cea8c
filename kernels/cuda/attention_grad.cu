/* The gradient of attention, in the blocks of attention.cu and without atomics. o and lse belong to all keys; this call
 * may have only some of them.
 *
 * dot = rowsum(do o) is computed first, into scratch memory. Then p = 2^(scale log2(e) s - log2(e) lse), dp = do v^T,
 * ds = p (dp - dot), dq = scale ds k, dk = scale ds^T q, dv = p^T do. One kernel computes both halves. For dq a block
 * owns queries (rows of q and do) and visits keys (k and v). For dk and dv it owns keys (k and v) and visits queries (q
 * and do), those of all heads of the group one after another, so that a sum over heads is one sum in registers. In both
 * cases
 *     s = own0 by0^T    dp = own1 by1^T    out0 += ds by0    out1 += p by1 (keys only)
 * with s and dp transposed in the second case. So the lanes that need p and ds as left factors are those that hold
 * them.
 *
 * Scores are computed twice, which makes seven products instead of five. This is the price of sums whose order depends
 * only on the shapes. Results stay in registers, so for large heads a block computes only a part of the columns and
 * recomputes the scores for it. */
#include "kernels/cuda/attention.h"

#include <limits.h>
#include <math.h>

namespace
{

struct grad_args {
    struct kern_attention a;
    const void *d_o;
    void *d_0, *d_1; /* d_q; or d_k, d_v */
    bool add;        /* add to d_0, d_1 */
    const float *dot;
    int owners, group; /* number of heads of owned rows; number of heads that share keys */
    int keys;          /* number of keys in a sample */
    unsigned blocks;   /* blocks of owned rows, per head */
    float scale;       /* of d_q and d_k */
    struct attn_bounds bounds;
    bool q_chunks, k_chunks, v_chunks, o_chunks, d_0_chunks, d_1_chunks;
};

/* As forward_shape in attention.cu: the largest number of blocks without spills. Bounds take registers. */
constexpr int grad_blocks(int d, bool keys, bool plain)
{
    if (sizeof(elem) == 4)
        return !keys && d == 192 ? 2 : !plain && d >= 96 ? 1 : 0;
    if (!plain && (d == 64 || d == 96))
        return keys || d == 96 ? 0 : 3;
    if (keys)
        return d <= 96 || d == 192 ? 3 : 0;
    return d == 64 ? 4 : d == 96 || d == 256 ? 0 : 3;
}

template <int D, bool KEYS> struct grad_shape {
    static constexpr int bytes = D * (int)sizeof(elem);
    static constexpr int rows = bytes <= 384 ? 64 : bytes <= 768 ? 32 : 16;
    static constexpr int cols = bytes <= 64 ? 64 : bytes <= 256 ? 32 : 16;
    static constexpr bool held = sizeof(elem) == 2 && bytes <= 128;
    static constexpr int parts = bytes <= 256 ? 1 : (KEYS ? 2 : 1) * (bytes <= 512 ? 1 : 2);
    static constexpr int threads = rows / 16 * CUDA_WARP;
    static constexpr int unroll =
        !KEYS && bytes == 512 && sizeof(elem) == 2 ? 8 : attn_unroll(D); /* else dq 256 spills */
    static constexpr int width = D / parts;                              /* columns of a block's results */
    static constexpr int shared =
        (2 * rows + 4 * cols) * attn_pitch(D) * (int)sizeof(elem) + (KEYS ? 4 * cols * (int)sizeof(float) : 0);
};

/* ---- dot ---- */

struct dot_args {
    const elem *o, *d_o;
    float *dot;
    int64_t rows, seq, heads, stride; /* rows: batch * seq * heads */
    int width, lanes;                 /* of a row: number of elements; number of lanes that share it */
    bool chunks;
};

static __device__ __forceinline__ void load_chunk(const elem *p, int n, bool whole, float (&x)[ATTN_CHUNK])
{
    elem held[ATTN_CHUNK];
    if (whole)
        *(uint4 *)held = *(const uint4 *)p;
#pragma unroll
    for (int e = 0; e < ATTN_CHUNK; e++)
        x[e] = whole ? attn_float(held[e]) : e < n ? attn_float(p[e]) : 0.0f;
}

/* `lanes` lanes share one row of one head and take one chunk each at a time. */
static __global__ void attention_dot(struct dot_args d)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / d.lanes;
    int64_t row = i / d.heads, head = i % d.heads;
    float sum = 0;
    for (int c = (int)threadIdx.x % d.lanes * ATTN_CHUNK; c < d.width && i < d.rows; c += d.lanes * ATTN_CHUNK) {
        float x[ATTN_CHUNK], y[ATTN_CHUNK];
        int64_t at = row * d.stride + head * d.width + c;
        load_chunk(d.o + at, d.width - c, d.chunks, x);
        load_chunk(d.d_o + at, d.width - c, d.chunks, y);
#pragma unroll
        for (int e = 0; e < ATTN_CHUNK; e++)
            sum = fmaf(x[e], y[e], sum);
    }
    for (int bit = d.lanes / 2; bit > 0; bit /= 2)
        sum += __shfl_xor_sync(CUDA_WARP_ALL, sum, bit);
    if (i < d.rows && threadIdx.x % d.lanes == 0)
        d.dot[(row / d.seq * d.heads + head) * d.seq + row % d.seq] = sum;
}

/* ---- blocks ---- */

/* The position of a block. The block computes it again at its end, because keeping it would take more registers. */
struct grad_place {
    int sample, head; /* head: that of the owned rows */
    int first;        /* first owned row */
    int part;
};

template <bool KEYS>
static __device__ __forceinline__ struct grad_place place_of(const struct grad_args &f, int rows, int parts)
{
    unsigned all = blockIdx.x / (unsigned)parts;
    int at = (int)(all / f.blocks), block = (int)(all % f.blocks);
    return {at / f.owners, at % f.owners,
            (KEYS ? block : (int)f.blocks - 1 - block) * rows, /* the block with the most work first */
            (int)(blockIdx.x % (unsigned)parts)};
}

/* The operands of one block. `by` is the visited rows of the first head; those of the group's other heads are `by_head`
 * elements apart. */
struct grad_head {
    struct attn_rows own[2], by[2];
    int by_head[2];
    int64_t stats; /* offset of the first head's values in lse and dot; those of other heads are seq apart */
};

template <bool KEYS>
static __device__ __forceinline__ struct grad_head head_of(const struct grad_args &f, struct grad_place p)
{
    const struct kern_attention &a = f.a;
    int width = (int)a.head_dim, seq = (int)a.seq;
    int64_t head = KEYS ? p.head * f.group : p.head, kv = KEYS ? p.head : p.head / f.group;
    int64_t first = p.sample * a.seq, first_kv = (int64_t)p.sample * f.keys;
    struct attn_rows q = {(elem *)a.q + first * a.q_stride + head * width, a.q_stride, seq, width, f.q_chunks};
    struct attn_rows k = {(elem *)a.k + first_kv * a.k_stride + kv * width, a.k_stride, f.keys, width, f.k_chunks};
    struct attn_rows v = {(elem *)a.v + first_kv * a.v_stride + kv * width, a.v_stride, f.keys, width, f.v_chunks};
    struct attn_rows o = {(elem *)f.d_o + first * a.o_stride + head * width, a.o_stride, seq, width, f.o_chunks};
    struct grad_head h;
    h.own[0] = KEYS ? k : q;
    h.own[1] = KEYS ? v : o;
    h.by[0] = KEYS ? q : k;
    h.by[1] = KEYS ? o : v;
    h.by_head[0] = h.by_head[1] = KEYS ? width : 0;
    h.stats = first * a.heads + head * seq;
    return h;
}

/* The rows of result i: d_q, or d_k and d_v. They have the layout of q, k and v. */
template <bool KEYS>
static __device__ __forceinline__ struct attn_rows rows_out(const struct grad_args &f, struct grad_place p, int i)
{
    const struct kern_attention &a = f.a;
    int64_t stride = !KEYS ? a.q_stride : i ? a.v_stride : a.k_stride;
    int n = KEYS ? f.keys : (int)a.seq;
    elem *at = (elem *)(i ? f.d_1 : f.d_0) + (int64_t)p.sample * n * stride + p.head * a.head_dim;
    return {at, stride, n, (int)a.head_dim, i ? f.d_1_chunks : f.d_0_chunks};
}

/* The visited pairs of tiles, C rows each: for each head those from row `first` up to `end`. The part of the next pair
 * that this thread copies begins at `at`, and its statistics at `stats`. */
struct walk {
    int first, end;
    int row, left; /* first row of the current pair; number of pairs left, including this one */
    const elem *at[2];
    int64_t stats;
};

/* The first query from `low` on, below `end`, that sees no key up to `key` through a window or of its document; `end`
 * if all see one. */
static __device__ __forceinline__ int query_beyond(const struct grad_args &f, int sample, int key, int low, int end)
{
    while (low < end) {
        int middle = low + (end - low) / 2;
        if (attn_first(f.a, f.bounds.shift, sample, middle) > key)
            end = middle;
        else
            low = middle + 1;
    }
    return end;
}

/* The tiles that contain a row that sees, or is seen by, an owned row. */
template <int D, bool KEYS, bool PLAIN>
static __device__ __forceinline__ struct walk walk_begin(const struct grad_args &f, const struct grad_head &h,
                                                         int sample, int owned)
{
    using S = grad_shape<D, KEYS>;
    struct walk w;
    w.first = 0;
    w.end = KEYS ? (int)f.a.seq : f.keys;
    if (f.a.causal && KEYS)
        w.first = owned / S::cols * S::cols;
    if (f.a.causal && !KEYS && owned + S::rows < f.keys)
        w.end = owned + S::rows;
    if (!PLAIN && KEYS)
        w.end = query_beyond(f, sample, owned + S::rows - 1, w.first, w.end);
    if (!PLAIN && !KEYS) {
        w.first = attn_first(f.a, f.bounds.shift, sample, owned) / S::cols * S::cols;
        w.first = w.first < w.end ? w.first : w.end;
    }
    w.row = w.first;
    w.left = (w.end - w.first + S::cols - 1) / S::cols * (KEYS ? f.group : 1);
    w.stats = h.stats + w.first;
#pragma unroll
    for (int i = 0; i < 2; i++)
        w.at[i] = attn_mine<D, S::threads>(attn_from(h.by[i], w.first));
    return w;
}

/* Advances to the next pair, for which `at` and `stats` are already set. The first pair of another head lies elsewhere.
 */
template <int C>
static __device__ __forceinline__ void walk_next(struct walk &w, const struct grad_head &h, int64_t seq)
{
    w.row += C;
    w.left--;
    if (w.row >= w.end) {
        int back = w.row - w.first;
#pragma unroll
        for (int i = 0; i < 2; i++)
            w.at[i] += h.by_head[i] - back * h.by[i].stride;
        w.stats += seq - back;
        w.row = w.first;
    }
}

/* The lse of a row in base 2, and dot, both stored at index `at`. Rows that do not exist get weights of zero. */
static __device__ __forceinline__ void statistics(const struct grad_args &f, bool there, int64_t at, float *lse,
                                                  float *dot)
{
    *lse = there ? ((const float *)f.a.lse)[at] * ATTN_LOG2E : INFINITY;
    *dot = there ? f.dot[at] : 0.0f;
}

/* Starts copying the pair of tiles, and the statistics of their rows if they are queries. */
template <int D, bool KEYS>
static __device__ __forceinline__ void bring(const struct grad_args &f, const struct grad_head &h, struct walk &w,
                                             elem *pair, float *stats)
{
    using S = grad_shape<D, KEYS>;
#pragma unroll
    for (int i = 0; i < 2; i++)
        attn_fetch<D, S::cols, S::threads, true>(pair + i * S::cols * attn_pitch(D), h.by[i], w.row, w.at[i]);
    for (int i = (int)threadIdx.x; KEYS && i < S::cols; i += S::threads)
        statistics(f, w.row + i < (int)f.a.seq, w.stats + i, &stats[i], &stats[S::cols + i]);
    w.stats += S::cols;
}

/* Whether owned row `r` and visited row `c` do not see each other. */
template <bool KEYS, bool PLAIN>
static __device__ __forceinline__ bool hidden(const struct grad_args &f, int sample, int r, int c)
{
    int query = KEYS ? c : r, key = KEYS ? r : c;
    return key >= f.keys || (f.a.causal && key > query) ||
           (!PLAIN && key < attn_first(f.a, f.bounds.shift, sample, query));
}

/* Caps scores, but for the factor, and multiplies the gradients of weights, less dot, by the slope. */
template <int C, bool KEYS>
static __device__ __forceinline__ void cap(float (&s)[C / 8][4], float (&dp)[C / 8][4], float in, const float (&dot)[2],
                                           const float *stats)
{
    int t = attn_lane() % 4;
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = tanhf(s[n][e] * in);
            dp[n][e] -= KEYS ? stats[C + n * 8 + 2 * t + e % 2] : dot[e / 2];
            dp[n][e] *= fmaf(-s[n][e], s[n][e], 1.0f);
        }
}

/* Replaces s by p and, unless they are capped, dp by ds, without the scale. */
template <int C, bool KEYS>
static __device__ __forceinline__ void weigh(float (&s)[C / 8][4], float (&dp)[C / 8][4], float scale, bool capped,
                                             const float (&lse)[2], const float (&dot)[2], const float *stats)
{
    int t = attn_lane() % 4;
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int c = n * 8 + 2 * t + e % 2;
            s[n][e] = ptx_exp2(fmaf(s[n][e], scale, -(KEYS ? stats[c] : lse[e / 2])));
            if (!capped)
                dp[n][e] -= KEYS ? stats[C + c] : dot[e / 2];
        }
}

/* Sets the weights of hidden pairs to zero, whatever 2^x returned. */
template <int C, bool KEYS, bool PLAIN>
static __device__ __forceinline__ void mask(float (&p)[C / 8][4], const struct grad_args &f, int sample, int row,
                                            int col)
{
    int lane = attn_lane();
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (hidden<KEYS, PLAIN>(f, sample, row + lane / 4 + e / 2 * 8, col + n * 8 + lane % 4 * 2 + e % 2))
                p[n][e] = 0;
}

/* Whether a warp's 16 rows from `row` on and a tile's rows from `col` on all see each other. */
template <int C, bool KEYS, bool PLAIN>
static __device__ __forceinline__ bool all_seen(const struct grad_args &f, int sample, int row, int col)
{
    int last = KEYS ? row + 15 : col + C - 1, query = KEYS ? col : row;
    bool seen = last < f.keys && !(f.a.causal && last > query);
    if (PLAIN || !seen)
        return seen;
    return attn_first(f.a, f.bounds.shift, sample, KEYS ? col + C - 1 : row + 15) <= (KEYS ? row : col);
}

/* A warp's left factors and results. */
template <int D, bool KEYS> struct grad_warp {
    using S = grad_shape<D, KEYS>;
    struct attn_own<D, S::held> own[2];
    int row;              /* first row of the warp */
    float lse[2], dot[2]; /* for rows g and g + 8 if they are queries */
    float out0[S::width / 8][4], out1[KEYS ? S::width / 8 : 1][4];
};

/* Adds the contribution of one pair of tiles, rows from `col` on. */
template <int D, bool KEYS, bool PLAIN>
static __device__ __forceinline__ void take(struct grad_warp<D, KEYS> &w, const struct grad_args &f, int sample,
                                            int part, int col, const elem *pair, const float *stats)
{
    using S = grad_shape<D, KEYS>;
    constexpr int C = S::cols, W = S::width, tile = C * attn_pitch(D);
    float s[C / 8][4], dp[C / 8][4];
    attn_scores<D, C, S::unroll>(w.own[0], pair, s);
    attn_scores<D, C, S::unroll>(w.own[1], pair + tile, dp);
    bool capped = !PLAIN && f.bounds.cap_in != 0;
    if (capped)
        cap<C, KEYS>(s, dp, f.bounds.cap_in, w.dot, stats);
    weigh<C, KEYS>(s, dp, f.bounds.factor, capped, w.lse, w.dot, stats);
    if (!all_seen<C, KEYS, PLAIN>(f, sample, w.row, col))
        mask<C, KEYS, PLAIN>(s, f, sample, w.row, col);
    if constexpr (KEYS)
        attn_weighted<D, C, W>(s, pair + tile + part * W, w.out1);
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            dp[n][e] *= s[n][e];
    attn_weighted<D, C, W>(dp, pair + part * W, w.out0);
}

/* Writes the warp's results, by way of its own rows of the owned tiles. */
template <int D, bool KEYS>
static __device__ __forceinline__ void give(const struct grad_warp<D, KEYS> &w, const struct grad_args &f,
                                            elem *const (&mine)[2])
{
    using S = grad_shape<D, KEYS>;
    constexpr int W = S::width;
    const struct grad_place p = place_of<KEYS>(f, S::rows, S::parts);
    const float scaled[2] = {f.scale, f.scale}, plain[2] = {1, 1};
    struct attn_rows to[2];
#pragma unroll
    for (int i = 0; i < (KEYS ? 2 : 1); i++) {
        to[i] = attn_from(rows_out<KEYS>(f, p, i), p.first + attn_warp() * 16);
        to[i].at += p.part * W;
        to[i].width -= p.part * W;
    }
    attn_give<D, W>(mine[0], w.out0, scaled, to[0], f.add);
    if constexpr (KEYS)
        attn_give<D, W>(mine[1], w.out1, plain, to[1], f.add);
}

template <int D, bool KEYS, bool PLAIN>
__global__ void __launch_bounds__(grad_shape<D, KEYS>::threads, grad_blocks(D, KEYS, PLAIN))
    attention_backward(struct grad_args f)
{
    using S = grad_shape<D, KEYS>;
    constexpr int pitch = attn_pitch(D), C = S::cols, tile = C * pitch;
    elem *own = (elem *)cuda_shared(), *pairs = own + 2 * S::rows * pitch;
    float *stats = (float *)(pairs + 4 * tile);
    const struct grad_place p = place_of<KEYS>(f, S::rows, S::parts);
    const struct grad_head h = head_of<KEYS>(f, p);
    int warp = attn_warp();
    elem *const mine[2] = {own + warp * 16 * pitch, own + (S::rows + warp * 16) * pitch};
    struct grad_warp<D, KEYS> w = {
    };
    w.row = p.first + warp * 16;
    for (int r = 0; r < 2 && !KEYS; r++) {
        int row = w.row + attn_lane() / 4 + r * 8;
        statistics(f, row < (int)f.a.seq, h.stats + row, &w.lse[r], &w.dot[r]);
    }
    for (int i = 0; i < 2; i++)
        attn_fetch_once<D, S::rows, S::threads>(own + i * S::rows * pitch, h.own[i], p.first);
    struct walk walk = walk_begin<D, KEYS, PLAIN>(f, h, p.sample, p.first);
    bring<D, KEYS>(f, h, walk, pairs, stats);
    ptx_async_wait();
    __syncthreads(); /* the owned rows have arrived */
    for (int i = 0; i < 2; i++)
        w.own[i].load(mine[i]);
    for (int here = 0; walk.left > 0; here = 1 - here) {
        int there = 1 - here, row = walk.row;
        ptx_async_wait();
        __syncthreads(); /* the pair `here` has arrived, and no thread uses the other any more */
        walk_next<C>(walk, h, f.a.seq);
        if (walk.left > 0)
            bring<D, KEYS>(f, h, walk, pairs + there * 2 * tile, stats + there * 2 * C);
        take<D, KEYS, PLAIN>(w, f, p.sample, p.part, row, pairs + here * 2 * tile, stats + here * 2 * C);
    }
    give<D, KEYS>(w, f, mine);
}

#define BACKWARD(D, KEYS, PLAIN)                                                                      \
    {                                                                                                 \
        D, attention_backward<D, KEYS, PLAIN>, grad_shape<D, KEYS>::rows, grad_shape<D, KEYS>::parts, \
            grad_shape<D, KEYS>::shared, &backward_allowed[PLAIN][KEYS][D / 32]                       \
    }
#define BACKWARDS(KEYS, PLAIN)                                                                                       \
    {                                                                                                                \
        BACKWARD(32, KEYS, PLAIN), BACKWARD(64, KEYS, PLAIN), BACKWARD(96, KEYS, PLAIN), BACKWARD(128, KEYS, PLAIN), \
            BACKWARD(192, KEYS, PLAIN), BACKWARD(256, KEYS, PLAIN)                                                   \
    }

static uint64_t backward_allowed[2][2][9];
static const struct attn_variant<struct grad_args> backwards[2][2][6] = {
    {BACKWARDS(false, false), BACKWARDS(true, false)}, {BACKWARDS(false, true), BACKWARDS(true, true)}};

/* Dynamic shared memory of a block, bytes, of dq and of dk and dv; tests/kernels/cuda/resources records these lines in
 * docs/internals/kernels.md. */
#define SHARED(D, dq, dkv)                                                                        \
    static_assert(grad_shape<D, false>::shared == (dq) && grad_shape<D, true>::shared == (dkv) && \
                  (dkv) <= ATTN_SHARED_MAX)
#if KERN_CUDA_BITS == 16
SHARED(32, 30720, 31744);
SHARED(64, 36864, 37376);
SHARED(96, 53248, 53760);
SHARED(128, 69632, 70144);
SHARED(192, 76800, 77056);
SHARED(256, 67584, 67840);
#else
SHARED(32, 36864, 37376);
SHARED(64, 69632, 70144);
SHARED(96, 76800, 77056);
SHARED(128, 67584, 67840);
SHARED(192, 100352, 100608);
SHARED(256, 99840, 100096);
#endif

static void launch_dot(struct kern_stream *s, const struct kern_attention_grad *g, float *dot)
{
    const struct kern_attention *a = &g->fwd;
    struct dot_args d = {.o = (const elem *)a->o,
                         .d_o = (const elem *)g->d_o,
                         .dot = dot,
                         .rows = a->batch * a->seq * a->heads,
                         .seq = a->seq,
                         .heads = a->heads,
                         .stride = a->o_stride,
                         .width = (int)a->head_dim,
                         .lanes = 1,
                         .chunks = attn_in_chunks(a->o, a->o_stride, a->head_dim) &&
                                   attn_in_chunks(g->d_o, a->o_stride, a->head_dim)};
    while (d.lanes < CUDA_WARP && d.lanes * ATTN_CHUNK < d.width)
        d.lanes *= 2;
    int64_t blocks = attn_blocks(d.rows * d.lanes, 256);
    assert(blocks <= INT_MAX);
    CUDA_LAUNCH(s, attention_dot, (unsigned)blocks, 256, 0, d);
}

/* Launches the kernel for dq, or for dk and dv. */
static err_t launch_half(struct kern_stream *s, struct grad_args f, bool keys)
{
    const struct kern_attention *a = &f.a;
    const struct attn_variant<struct grad_args> *v = backwards[attn_is_plain(a)][keys];
    while (v->head_dim < a->head_dim)
        v++;
    err_t err = attn_allow(s, v);
    if (err != OK)
        return err;
    f.owners = (int)(keys ? a->kv_heads : a->heads);
    f.blocks = (unsigned)attn_blocks(keys ? f.keys : a->seq, v->rows);
    f.d_0_chunks = attn_in_chunks(f.d_0, keys ? a->k_stride : a->q_stride, a->head_dim);
    f.d_1_chunks = attn_in_chunks(f.d_1, a->v_stride, a->head_dim);
    int64_t blocks = a->batch * f.owners * f.blocks * v->parts;
    assert(blocks > 0 && blocks <= INT_MAX);
    CUDA_LAUNCH(s, v->kernel, (unsigned)blocks, v->rows * 2, v->shared, f);
    return cuda_stream_of(s)->err;
}

} // namespace

err_t KERN_FN(attention_grad)(struct kern_stream *s, const struct kern_attention_grad *g)
{
    const struct kern_attention *a = &g->fwd;
    attn_check(a);
    float *dot = (float *)cuda_scratch(s, (size_t)(a->batch * a->heads * a->seq) * sizeof(float));
    if (!dot)
        return cuda_stream_of(s)->err;
    launch_dot(s, g, dot);
    struct grad_args f = {};
    f.a = *a;
    f.d_o = g->d_o;
    f.d_0 = g->d_q;
    f.dot = dot;
    f.add = g->acc_q;
    f.group = (int)(a->heads / a->kv_heads);
    f.keys = (int)attn_keys(a);
    f.scale = (float)kern_attention_scale(a);
    f.bounds = attn_bounds_of(a);
    f.q_chunks = attn_in_chunks(a->q, a->q_stride, a->head_dim);
    f.k_chunks = attn_in_chunks(a->k, a->k_stride, a->head_dim);
    f.v_chunks = attn_in_chunks(a->v, a->v_stride, a->head_dim);
    f.o_chunks = attn_in_chunks(g->d_o, a->o_stride, a->head_dim);
    err_t err = launch_half(s, f, false);
    if (err != OK)
        return err;
    f.d_0 = g->d_k;
    f.d_1 = g->d_v;
    f.add = g->acc_kv;
    return launch_half(s, f, true);
}
