/* Shared by the forward and the backward of attention: tiles of a head's rows in shared memory, and products of tiles
 * on tensor cores with the results in registers. Private to attention.cu and attention_grad.cu.
 *
 * A tile holds rows of one head, D elements wide. D is the head's size rounded up to a bucket; the added elements are
 * zero. Each row is 16 bytes longer than D elements, so that the 16-byte pieces of eight rows lie in different banks. A
 * warp owns 16 rows of a result. One step of a product contracts 32 bytes of a row in either type: 16 bfloat16 or 8
 * float. So both types use the same loops and differ only in the functions of the section "fragments".
 *
 * float32 on tensor cores: x = hi + lo, both tf32 (11 significant bits), and a b = lo hi + hi lo + hi hi. Rounding lo
 * costs at most 2^-22 |x| and omitting lo lo at most 2^-22 |a b|. So the error of a product of two numbers is at most
 * 3 * 2^-22, about as much as four float32 roundings, and typically a third of that. The hardware truncates when it
 * adds. Therefore each step starts from zero and is added to the sum by an ordinary float addition, which rounds to
 * nearest: the error of a sum grows like that of a float32 sum (the scheme of Ootomo and Yokota 2022). */
#ifndef DTD_KERNELS_CUDA_ATTENTION_H
#define DTD_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx.h"

#include <assert.h>

#define ATTN_STEP (32 / (int)sizeof(elem))  /* contraction of one product of fragments */
#define ATTN_CHUNK (16 / (int)sizeof(elem)) /* elements per copy */
#define ATTN_LOG2E 1.4426950408889634f
#define ATTN_LN2 0.6931471805599453f
#define ATTN_SEQ_MAX (1 << 30)      /* rows of a sample, plus one tile, are counted in 32 bits */
#define ATTN_SHARED_MAX (99 * 1024) /* shared memory of a block on the smallest target device */

/* This header is compiled for two types. An anonymous namespace prevents one symbol in both, of which the linker would
 * keep only one. */
namespace
{

/* Elements between rows of a tile. */
__host__ __device__ constexpr int attn_pitch(int d)
{
    return d + ATTN_CHUNK;
}

/* Lane of the calling thread. An unsigned division by a power of two is one instruction, a signed one five. */
static __device__ __forceinline__ int attn_lane(void)
{
    return (int)(threadIdx.x % CUDA_WARP);
}

static __device__ __forceinline__ int attn_warp(void)
{
    return (int)(threadIdx.x / CUDA_WARP);
}

static inline int64_t attn_blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

/* The number of keys of a sample. */
static inline int64_t attn_keys(const struct kern_attention *a)
{
    return a->seq_kv ? a->seq_kv : a->seq;
}

static inline void attn_check(const struct kern_attention *a)
{
    assert(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->head_dim > 0 && a->head_dim <= 256);
    assert(a->seq <= ATTN_SEQ_MAX && attn_keys(a) <= ATTN_SEQ_MAX);
    assert(!a->causal || (attn_keys(a) == a->seq && a->q_pos0 == a->k_pos0));
}

/* Whether the call needs no more than a causal mask. Each kernel is compiled for such calls (PLAIN) and again for
 * windows, documents and capped scores, which take registers. */
static inline bool attn_is_plain(const struct kern_attention *a)
{
    return !a->window && !a->begin && a->softcap == 0;
}

/* The window and the cap as kernels take them. Query i sees no key before i + shift; scores are weighed after
 * s = tanh(s cap_in), unless cap_in is 0, and then multiplied by `factor`, log2(e) included. */
struct attn_bounds {
    int shift;
    float cap_in, factor;
};

static inline struct attn_bounds attn_bounds_of(const struct kern_attention *a)
{
    const int64_t shift = a->window ? a->q_pos0 - a->k_pos0 - a->window + 1 : -ATTN_SEQ_MAX;
    const double scale = kern_attention_scale(a);
    struct attn_bounds b;
    b.shift = (int)(shift > -ATTN_SEQ_MAX ? shift : -ATTN_SEQ_MAX);
    b.cap_in = a->softcap != 0 ? (float)(scale / a->softcap) : 0;
    b.factor = (float)(a->softcap != 0 ? a->softcap : scale) * ATTN_LOG2E;
    return b;
}

/* The first key that a query of a sample may see, which never decreases from query to query. A query that does not
 * exist counts as the last one. */
static __device__ __forceinline__ int attn_first(const struct kern_attention &a, int shift, int sample, int query)
{
    int seq = (int)a.seq;
    query = query < seq ? query : seq - 1;
    int first = query + shift;
    int begin = a.begin ? a.begin[(int64_t)sample * seq + query] - (int)a.k_pos0 : 0;
    first = first > begin ? first : begin;
    return first > 0 ? first : 0;
}

/* Rows of one head in device memory. With `chunks`, they may be copied in whole chunks of 16 bytes: address, stride and
 * head size are then multiples of 16 bytes. */
struct attn_rows {
    elem *at;
    int64_t stride;
    int n, width; /* number of rows; size of the head */
    bool chunks;
};

static inline bool attn_in_chunks(const void *p, int64_t stride, int64_t head_dim)
{
    return (uintptr_t)p % 16 == 0 && stride % ATTN_CHUNK == 0 && head_dim % ATTN_CHUNK == 0;
}

/* The rows from `row` on. */
static __device__ __forceinline__ struct attn_rows attn_from(struct attn_rows r, int row)
{
    r.at += row * r.stride;
    r.n -= row;
    return r;
}

static __device__ __forceinline__ elem attn_elem(float x)
{
#if KERN_CUDA_BITS == 16
    return __float2bfloat16_rn(x);
#else
    return x;
#endif
}

static __device__ __forceinline__ float attn_float(elem x)
{
#if KERN_CUDA_BITS == 16
    return __bfloat162float(x);
#else
    return x;
#endif
}

/* ---- tiles ---- */

/* How the THREADS of a block share the chunks of a tile. `across` threads side by side copy a row, in several turns if
 * it has more chunks; `rows` rows are copied at once. Both are powers of two, so that a thread divides only by powers
 * of two. */
template <int D, int THREADS> struct attn_share {
    static constexpr int chunks = D / ATTN_CHUNK;
    static constexpr int factor = chunks & -chunks; /* the largest power of two that divides it */
    static constexpr int across = factor < CUDA_WARP ? factor : CUDA_WARP;
    static constexpr int rows = THREADS / across;

    static __device__ __forceinline__ int row()
    {
        return (int)(threadIdx.x / (unsigned)across);
    }

    static __device__ __forceinline__ int col()
    {
        return (int)(threadIdx.x % (unsigned)across) * ATTN_CHUNK;
    }
};

/* The calling thread's first chunk of a tile whose first row is the first of `from`. */
template <int D, int THREADS> static __device__ __forceinline__ const elem *attn_mine(const struct attn_rows &from)
{
    using S = attn_share<D, THREADS>;
    return from.at + S::row() * from.stride + S::col();
}

/* Starts copying ROWS rows of `from`, from row `first` on, into a tile; rows and columns that do not exist become zero.
 * All threads of the block take part; the tile has arrived after ptx_async_wait and a barrier. `at` is the thread's
 * first chunk of these rows, and afterwards its first chunk of the rows that follow. So consecutive tiles need only
 * this address and the distance between two rows of a thread. HIDE keeps the compiler from holding one pointer for each
 * of the two loops, which it sometimes does; each kernel uses the setting that takes fewer registers. */
template <int D, int ROWS, int THREADS, bool HIDE>
static __device__ __forceinline__ void attn_fetch(elem *tile, const struct attn_rows &from, int first, const elem *&at)
{
    using S = attn_share<D, THREADS>;
    static_assert(ROWS % S::rows == 0 && S::rows * S::across == THREADS);
    constexpr int turn = S::across * ATTN_CHUNK;
    const int64_t hop = S::rows * from.stride;
    int left = from.n - first - S::row(), width = from.width - S::col();
    elem *to = tile + S::row() * attn_pitch(D) + S::col();
    at = HIDE ? ptx_opaque(at) : at;
    if (from.chunks) {
#pragma unroll
        for (int r = 0; r < ROWS; r += S::rows, at += hop)
#pragma unroll
            for (int c = 0; c < D; c += turn)
                ptx_async_copy16(to + r * attn_pitch(D) + c, at + c, r < left && c < width ? 16 : 0);
        return;
    }
#pragma unroll 1
    for (int r = 0; r < ROWS; r += S::rows, at += hop)
#pragma unroll 1
        for (int c = 0; c < D; c += turn)
#pragma unroll
            for (int e = 0; e < ATTN_CHUNK; e++)
                to[r * attn_pitch(D) + c + e] = r < left && c + e < width ? at[c + e] : attn_elem(0);
}

/* The same for a single tile: rows [first, first + ROWS). */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void attn_fetch_once(elem *tile, const struct attn_rows &from, int first)
{
    const elem *at = attn_mine<D, THREADS>(attn_from(from, first));
    attn_fetch<D, ROWS, THREADS, false>(tile, from, first, at);
}

/* Writes a warp's 16 rows of results, N columns of them, times factor[0] in the upper and factor[1] in the lower eight,
 * to `to`, or adds them there. `tile`, 16 rows of pitch(D) that no other warp uses, is overwritten: results pass
 * through it so that whole chunks are written. */
template <int D, int N>
static __device__ __forceinline__ void attn_give(elem *tile, const float (&x)[N / 8][4], const float (&factor)[2],
                                                 struct attn_rows to, bool add)
{
    int lane = attn_lane(), g = lane / 4, t = lane % 4;
    __syncwarp(); /* other lanes may still read the tile */
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = g + e / 2 * 8, c = n * 8 + 2 * t + e % 2;
            bool old = add && r < to.n && c < to.width;
            tile[r * attn_pitch(D) + c] =
                attn_elem(fmaf(x[n][e], factor[e / 2], old ? attn_float(to.at[r * to.stride + c]) : 0.0f));
        }
    __syncwarp();
    for (int i = lane; i < 16 * (N / ATTN_CHUNK); i += CUDA_WARP) {
        int r = i / (N / ATTN_CHUNK), c = i % (N / ATTN_CHUNK) * ATTN_CHUNK;
        const elem *from = tile + r * attn_pitch(D) + c;
        elem *p = to.at + r * to.stride + c;
        if (r >= to.n)
            break;
        for (int e = 0; !to.chunks && e < ATTN_CHUNK && c + e < to.width; e++)
            p[e] = from[e];
        if (to.chunks && c < to.width)
            *(uint4 *)p = *(const uint4 *)from;
    }
}

/* ---- fragments: 16 x STEP of a left factor, STEP x 16 of a right one ---- */

struct attn_a {
    uint32_t x[4];
};

struct attn_b {
    uint32_t x[2][2]; /* two halves of eight columns each */
};

/* 16 rows of a tile, STEP columns from `tile` on. */
static __device__ __forceinline__ struct attn_a attn_load_a(const elem *tile, int pitch)
{
    int lane = attn_lane();
    struct attn_a a;
    ptx_ldmatrix_x4(a.x, tile + lane % 16 * pitch + lane / 16 * ATTN_CHUNK);
    return a;
}

/* The same fragment transposed: a right factor whose columns are the tile's rows. */
static __device__ __forceinline__ struct attn_b attn_load_b(const elem *tile, int pitch)
{
    int lane = attn_lane();
    struct attn_b b;
    uint32_t r[4];
    ptx_ldmatrix_x4(r, tile + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * ATTN_CHUNK);
    b.x[0][0] = r[0], b.x[0][1] = r[1], b.x[1][0] = r[2], b.x[1][1] = r[3];
    return b;
}

#if KERN_CUDA_BITS == 16

/* STEP rows of a tile, not transposed, 16 columns from `tile` on: a right factor whose rows are the tile's. */
static __device__ __forceinline__ struct attn_b attn_load_rows(const elem *tile, int pitch)
{
    int lane = attn_lane();
    struct attn_b b;
    uint32_t r[4];
    ptx_ldmatrix_x4_trans(r, tile + lane % 16 * pitch + lane / 16 * ATTN_CHUNK);
    b.x[0][0] = r[0], b.x[0][1] = r[1], b.x[1][0] = r[2], b.x[1][1] = r[3];
    return b;
}

/* Columns [k, k + STEP) of a result as a left factor: each lane already holds the elements that it needs of the factor.
 */
template <int N> static __device__ __forceinline__ struct attn_a attn_of_result(const float (&x)[N][4], int k)
{
    const float *low = x[k / 8], *high = x[k / 8 + 1];
    return {{ptx_pack_bf16(low[0], low[1]), ptx_pack_bf16(low[2], low[3]), ptx_pack_bf16(high[0], high[1]),
             ptx_pack_bf16(high[2], high[3])}};
}

static __device__ __forceinline__ void attn_mma(float (&c)[4], const struct attn_a &a, const uint32_t (&b)[2])
{
    ptx_mma_bf16(c, a.x, b);
}

#else

/* A lane holds columns 2t and 2t+1 of a result but needs t and t+4 of a factor. The order of a sum is free, so this
 * function and attn_of_result number the rows of the tile such that columns 2t, 2t+1 stand for t, t+4. */
static __device__ __forceinline__ struct attn_b attn_load_rows(const elem *tile, int pitch)
{
    int lane = attn_lane();
    const elem *p = tile + lane % 4 * 2 * pitch + lane / 4;
    return {
        {{__float_as_uint(p[0]), __float_as_uint(p[pitch])}, {__float_as_uint(p[8]), __float_as_uint(p[pitch + 8])}}};
}

template <int N> static __device__ __forceinline__ struct attn_a attn_of_result(const float (&x)[N][4], int k)
{
    const float *c = x[k / 8];
    return {{__float_as_uint(c[0]), __float_as_uint(c[2]), __float_as_uint(c[1]), __float_as_uint(c[3])}};
}

template <int N>
static __device__ __forceinline__ void attn_split(const uint32_t (&x)[N], uint32_t (&hi)[N], uint32_t (&lo)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        hi[i] = ptx_tf32(__uint_as_float(x[i])) & 0xffffe000u;
        lo[i] = ptx_tf32(__uint_as_float(x[i]) - __uint_as_float(hi[i]));
    }
}

static __device__ __forceinline__ void attn_mma(float (&c)[4], const struct attn_a &a, const uint32_t (&b)[2])
{
    uint32_t a_hi[4], a_lo[4], b_hi[2], b_lo[2];
    float sum[4] = {0, 0, 0, 0};
    attn_split(a.x, a_hi, a_lo);
    attn_split(b, b_hi, b_lo);
    ptx_mma_tf32(sum, a_lo, b_hi);
    ptx_mma_tf32(sum, a_hi, b_lo);
    ptx_mma_tf32(sum, a_hi, b_hi);
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] += sum[i];
}

#endif

/* ---- products ---- */

/* A warp's 16 rows of a tile as a left factor: in registers if HELD, else read again at each use. */
template <int D, bool HELD> struct attn_own {
    struct attn_a held[HELD ? D / ATTN_STEP : 1];
    const elem *tile;

    __device__ __forceinline__ void load(const elem *rows)
    {
        tile = rows;
#pragma unroll
        for (int k = 0; HELD && k < D; k += ATTN_STEP)
            held[k / ATTN_STEP] = attn_load_a(rows + k, attn_pitch(D));
    }

    __device__ __forceinline__ struct attn_a at(int k) const
    {
        return HELD ? held[k / ATTN_STEP] : attn_load_a(tile + k, attn_pitch(D));
    }
};

/* Steps of a product that are unrolled: all of them in bfloat16. In float32 a step is six products and the splitting of
 * their factors; if more than a few are unrolled, loads for later steps occupy the registers. */
__host__ __device__ constexpr int attn_unroll(int d)
{
    return sizeof(elem) == 2 ? d / ATTN_STEP : d == 256 ? 1 : 4;
}

/* s[16, C] = own[16, D] tile[C, D]^T, UNROLL steps unrolled */
template <int D, int C, int UNROLL, bool HELD>
static __device__ __forceinline__ void attn_scores(const struct attn_own<D, HELD> &own, const elem *tile,
                                                   float (&s)[C / 8][4])
{
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = 0;
#pragma unroll(UNROLL)
    for (int k = 0; k < D; k += ATTN_STEP) {
        struct attn_a a = own.at(k);
#pragma unroll
        for (int n = 0; n < C; n += 16) {
            struct attn_b b = attn_load_b(tile + n * attn_pitch(D) + k, attn_pitch(D));
            attn_mma(s[n / 8], a, b.x[0]);
            attn_mma(s[n / 8 + 1], a, b.x[1]);
        }
    }
}

/* out[16, N] += w[16, C] tile[C, N columns from `tile` on] */
template <int D, int C, int N>
static __device__ __forceinline__ void attn_weighted(const float (&w)[C / 8][4], const elem *tile,
                                                     float (&out)[N / 8][4])
{
#pragma unroll
    for (int k = 0; k < C; k += ATTN_STEP) {
        struct attn_a a = attn_of_result(w, k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            struct attn_b b = attn_load_rows(tile + k * attn_pitch(D) + n, attn_pitch(D));
            attn_mma(out[n / 8], a, b.x[0]);
            attn_mma(out[n / 8 + 1], a, b.x[1]);
        }
    }
}

/* ---- launching ---- */

/* A kernel and the shape of its blocks, for heads of at most `head_dim` elements. */
template <class Args> struct attn_variant {
    int head_dim;
    void (*kernel)(Args);
    int rows;          /* rows of the result, per block */
    int parts;         /* blocks that share the columns of the same rows */
    int shared;        /* bytes */
    uint64_t *allowed; /* set of devices on which the kernel's shared memory was requested */
};

/* Shared memory beyond CUDA_SHARED_PLAIN must be requested, once per kernel and device. */
template <class Args> static err_t attn_allow(struct kern_stream *s, const struct attn_variant<Args> *v)
{
    uint64_t bit = s->dev->index < 64 ? UINT64_C(1) << s->dev->index : 0;
    if (v->shared <= CUDA_SHARED_PLAIN || (__atomic_load_n(v->allowed, __ATOMIC_RELAXED) & bit))
        return OK;
    if (!cuda_enter(s))
        return cuda_stream_of(s)->err;
    err_t err = CUDA_CHECK(s, cudaFuncSetAttribute(v->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v->shared));
    if (err == OK)
        __atomic_fetch_or(v->allowed, bit, __ATOMIC_RELAXED);
    return err;
}

} // namespace

#endif
