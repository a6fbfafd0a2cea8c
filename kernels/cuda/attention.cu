/* Attention on tensor cores, in blocks of queries and keys (Dao 2023, FlashAttention-2).
 *
 * A block of threads owns ROWS queries of one head. Each warp owns 16 of them and keeps their running largest score,
 * sum and output in its registers. The block visits keys and values in tiles of COLS rows. Shared memory holds two
 * pairs of tiles: the next pair is copied while the current pair is used. Each score is computed in the lane that needs
 * its weight as a factor of the second product, so weights never leave the registers. In bfloat16 the weights are
 * rounded for that product, while their sum is over the unrounded weights. Everything is in base 2:
 * 2^(scale log2(e) (s - max)).
 *
 * Tiles beyond the causal diagonal, and those before the window or the document of every query of the block, are not
 * visited. Within a head, the queries that see the most keys start first. The
 * shapes fix the order of every sum. A NaN in a key makes its weight, and so the sum, NaN. */
#include "kernels/cuda/attention.h"

#include <limits.h>
#include <math.h>

namespace
{

struct forward_args {
    struct kern_attention a;
    int heads, group; /* group: number of heads that share keys */
    int keys;         /* number of keys in a sample */
    unsigned blocks;  /* blocks of queries, per head */
    struct attn_bounds bounds;
    bool q_chunks, k_chunks, v_chunks, o_chunks;
};

/* Rows per block and keys per tile, by the number of bytes of a row. The tiles fit ATTN_SHARED_MAX, and are smaller if
 * that lets more blocks run at once. `held`: float32 splits the rows of q at each use, and compared with that reading
 * them again costs nothing. `blocks`: how many blocks run at once on a multiprocessor; the compiler limits registers
 * accordingly. 0: the compiler's own choice is the same, or the limit would make it spill. docs/internals/kernels.md
 * has the results. */
template <int D> struct forward_shape {
    static constexpr int bytes = D * (int)sizeof(elem);
    static constexpr int rows = bytes <= 768 ? 64 : 32;
    static constexpr int cols = bytes <= 128 ? 64 : bytes <= 512 ? 32 : 16;
    static constexpr bool held = sizeof(elem) == 2 && bytes <= 256;
    static constexpr bool hide = D != 96 && bytes <= 512; /* attn_fetch */
    static constexpr int threads = rows / 16 * CUDA_WARP;
    static constexpr int blocks = sizeof(elem) == 2 && D == 64 ? 4 : 0;
    static constexpr int shared = (rows + 4 * cols) * attn_pitch(D) * (int)sizeof(elem);
};

/* The running largest score and sum of a lane's two rows, g and g + 8; the sum covers only the lane's own columns. */
struct running {
    float max[2], sum[2];
};

static __device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(CUDA_WARP_ALL, x, 1));
    return fmaxf(x, __shfl_xor_sync(CUDA_WARP_ALL, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(CUDA_WARP_ALL, x, 1);
    return x + __shfl_xor_sync(CUDA_WARP_ALL, x, 2);
}

/* Replaces scores of keys that row `query` (and query + 8) must not see by -inf. `key` is the tile's first key. */
template <int C, bool PLAIN>
static __device__ __forceinline__ void mask(float (&s)[C / 8][4], const struct forward_args &f, int sample, int query,
                                            int key)
{
    int first[2] = {0, 0};
    for (int r = 0; r < 2 && !PLAIN; r++)
        first[r] = attn_first(f.a, f.bounds.shift, sample, query + r * 8);
    key += attn_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int k = key + n * 8 + e % 2;
            if (k >= f.keys || (f.a.causal && k > query + e / 2 * 8) || (!PLAIN && k < first[e / 2]))
                s[n][e] = -INFINITY;
        }
}

/* Caps scores, but for the factor. */
template <int C> static __device__ __forceinline__ void cap(float (&s)[C / 8][4], float in)
{
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = tanhf(s[n][e] * in);
}

/* Replaces scores by weights relative to the running maximum, and rescales the sum and output of earlier keys. Only if
 * PLAIN is false a row may have seen no key yet: its maximum is then -inf. */
template <int D, int C, bool PLAIN>
static __device__ __forceinline__ void softmax(float (&s)[C / 8][4], float scale, struct running *run,
                                               float (&out)[D / 8][4])
{
    float down[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float max = run->max[r];
#pragma unroll
        for (int n = 0; n < C / 8; n++)
            max = fmaxf(max, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        max = quad_max(max);
        const float from = !PLAIN && max == -INFINITY ? 0 : max;
        down[r] = ptx_exp2((run->max[r] - from) * scale);
        float sum = 0;
#pragma unroll
        for (int n = 0; n < C / 8; n++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                s[n][e] = ptx_exp2(fmaf(s[n][e], scale, -from * scale));
                sum += s[n][e];
            }
        run->sum[r] = run->sum[r] * down[r] + sum;
        run->max[r] = max;
    }
    if (down[0] == 1 && down[1] == 1)
        return;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            out[n][e] *= down[e / 2];
}

/* The position of a block. The block computes it again at its end, because keeping it would take more registers. */
struct forward_place {
    int sample, head;
    int query; /* first query of the block */
};

static __device__ __forceinline__ struct forward_place place_of(const struct forward_args &f, int rows)
{
    int at = (int)(blockIdx.x / f.blocks);
    return {at / f.heads, at % f.heads, (int)(f.blocks - 1 - blockIdx.x % f.blocks) * rows};
}

/* The operands of one block. */
struct forward_head {
    struct attn_rows q, k, v;
};

static __device__ __forceinline__ struct forward_head head_of(const struct forward_args &f, struct forward_place p)
{
    const struct kern_attention &a = f.a;
    int width = (int)a.head_dim;
    int64_t kv = p.head / f.group, first = p.sample * a.seq, first_kv = (int64_t)p.sample * f.keys;
    struct forward_head h;
    h.q = {(elem *)a.q + first * a.q_stride + p.head * width, a.q_stride, (int)a.seq, width, f.q_chunks};
    h.k = {(elem *)a.k + first_kv * a.k_stride + kv * width, a.k_stride, f.keys, width, f.k_chunks};
    h.v = {(elem *)a.v + first_kv * a.v_stride + kv * width, a.v_stride, f.keys, width, f.v_chunks};
    return h;
}

/* Writes out / sum and the log of the sum for the warp's 16 rows; 0 and -inf for a row that has seen no key. */
template <int D, bool PLAIN>
static __device__ __forceinline__ void finish(const struct forward_args &f, const struct running &run,
                                              const float (&out)[D / 8][4], elem *tile)
{
    const struct kern_attention &a = f.a;
    const struct forward_place p = place_of(f, forward_shape<D>::rows);
    int row = p.query + attn_warp() * 16;
    int64_t first = p.sample * a.seq;
    const struct attn_rows o = {(elem *)a.o + first * a.o_stride + p.head * a.head_dim, a.o_stride, (int)a.seq,
                                (int)a.head_dim, f.o_chunks};
    float *lse = (float *)a.lse + first * a.heads + p.head * a.seq;
    float sum[2] = {quad_sum(run.sum[0]), quad_sum(run.sum[1])}, factor[2] = {1 / sum[0], 1 / sum[1]};
    for (int r = 0; r < 2 && !PLAIN; r++)
        factor[r] = sum[r] == 0 ? 0 : factor[r];
    int lane = attn_lane();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row + lane / 4 + r * 8;
        if (lane % 4 == 0 && i < o.n)
            lse[i] = (run.max[r] * f.bounds.factor + log2f(sum[r])) * ATTN_LN2;
    }
    attn_give<D, D>(tile, out, factor, attn_from(o, row), false);
}

template <int D, bool PLAIN>
__global__ void __launch_bounds__(forward_shape<D>::threads, forward_shape<D>::blocks)
    attention_forward(struct forward_args f)
{
    using S = forward_shape<D>;
    constexpr int tile = S::cols * attn_pitch(D);
    elem *own = (elem *)cuda_shared(), *pair = own + S::rows * attn_pitch(D);
    const struct forward_place p = place_of(f, S::rows);
    const struct forward_head h = head_of(f, p);
    elem *mine = own + attn_warp() * 16 * attn_pitch(D);
    int row = p.query + attn_warp() * 16;
    int keys = f.a.causal && p.query + S::rows < f.keys ? p.query + S::rows : f.keys;
    struct attn_own<D, S::held> q;
    struct running run = {{-INFINITY, -INFINITY}, {0, 0}};
    float s[S::cols / 8][4], out[D / 8][4] = {};
    int key = 0;
    if (!PLAIN) {
        key = attn_first(f.a, f.bounds.shift, p.sample, p.query) / S::cols * S::cols;
        key = key < keys ? key : keys;
    }
    const elem *k_at = attn_mine<D, S::threads>(attn_from(h.k, key));
    const elem *v_at = attn_mine<D, S::threads>(attn_from(h.v, key));
    attn_fetch_once<D, S::rows, S::threads>(own, h.q, p.query);
    attn_fetch<D, S::cols, S::threads, S::hide>(pair, h.k, key, k_at);
    attn_fetch<D, S::cols, S::threads, S::hide>(pair + tile, h.v, key, v_at);
    ptx_async_wait();
    __syncthreads(); /* the rows of q have arrived */
    q.load(mine);
    int here = 0; /* offset of the current pair from the first */
    for (; key < keys; key += S::cols, here = 2 * tile - here) {
        elem *now = pair + here, *next = pair + 2 * tile - here;
        ptx_async_wait();
        __syncthreads(); /* `now` has arrived, and no thread uses `next` any more */
        if (key + S::cols < keys) {
            attn_fetch<D, S::cols, S::threads, S::hide>(next, h.k, key + S::cols, k_at);
            attn_fetch<D, S::cols, S::threads, S::hide>(next + tile, h.v, key + S::cols, v_at);
        }
        attn_scores<D, S::cols, attn_unroll(D)>(q, now, s);
        if (!PLAIN && f.bounds.cap_in != 0)
            cap<S::cols>(s, f.bounds.cap_in);
        if (key + S::cols > f.keys || (f.a.causal && key + S::cols - 1 > row) ||
            (!PLAIN && key < attn_first(f.a, f.bounds.shift, p.sample, row + 15)))
            mask<S::cols, PLAIN>(s, f, p.sample, row + attn_lane() / 4, key);
        softmax<D, S::cols, PLAIN>(s, f.bounds.factor, &run, out);
        attn_weighted<D, S::cols, D>(s, now + tile, out);
    }
    finish<D, PLAIN>(f, run, out, mine);
}

#define FORWARD(D, PLAIN)                                                                    \
    {                                                                                        \
        D, attention_forward<D, PLAIN>, forward_shape<D>::rows, 1, forward_shape<D>::shared, \
            &forward_allowed[PLAIN][D / 32]                                                  \
    }
#define FORWARDS(PLAIN)                                                                                       \
    {                                                                                                         \
        FORWARD(32, PLAIN), FORWARD(64, PLAIN), FORWARD(96, PLAIN), FORWARD(128, PLAIN), FORWARD(192, PLAIN), \
            FORWARD(256, PLAIN)                                                                               \
    }

static uint64_t forward_allowed[2][9];
static const struct attn_variant<struct forward_args> forwards[2][6] = {FORWARDS(false), FORWARDS(true)};

/* Dynamic shared memory of a block, bytes; tests/kernels/cuda/resources records these lines in
 * docs/internals/kernels.md. */
#define SHARED(D, bytes) static_assert(forward_shape<D>::shared == (bytes) && (bytes) <= ATTN_SHARED_MAX)
#if KERN_CUDA_BITS == 16
SHARED(32, 25600);
SHARED(64, 46080);
SHARED(96, 39936);
SHARED(128, 52224);
SHARED(192, 76800);
SHARED(256, 101376);
#else
SHARED(32, 46080);
SHARED(64, 52224);
SHARED(96, 76800);
SHARED(128, 101376);
SHARED(192, 100352);
SHARED(256, 99840);
#endif

} // namespace

err_t KERN_FN(attention)(struct kern_stream *s, const struct kern_attention *a)
{
    const struct attn_variant<struct forward_args> *v = forwards[attn_is_plain(a)];
    attn_check(a);
    while (v->head_dim < a->head_dim)
        v++;
    err_t err = attn_allow(s, v);
    if (err != OK)
        return err;
    const struct forward_args f = {.a = *a,
                                   .heads = (int)a->heads,
                                   .group = (int)(a->heads / a->kv_heads),
                                   .keys = (int)attn_keys(a),
                                   .blocks = (unsigned)attn_blocks(a->seq, v->rows),
                                   .bounds = attn_bounds_of(a),
                                   .q_chunks = attn_in_chunks(a->q, a->q_stride, a->head_dim),
                                   .k_chunks = attn_in_chunks(a->k, a->k_stride, a->head_dim),
                                   .v_chunks = attn_in_chunks(a->v, a->v_stride, a->head_dim),
                                   .o_chunks = attn_in_chunks(a->o, a->o_stride, a->head_dim)};
    int64_t blocks = a->batch * a->heads * f.blocks;
    assert(blocks > 0 && blocks <= INT_MAX);
    CUDA_LAUNCH(s, v->kernel, (unsigned)blocks, v->rows * 2, v->shared, f);
    return cuda_stream_of(s)->err;
}
