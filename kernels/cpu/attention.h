/* Shared by the forward and the backward of attention: blocks, heads, and the products of scores. Private to
 * kernels/cpu. */
#ifndef DTD_KERNELS_CPU_ATTENTION_H
#define DTD_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/tile.h"

/* A block of scores fits the second-level cache. Blocks of keys start at multiples of the blocks of queries, so under
 * the causal mask every row of a block has a key that is not later. */
#define ATTN_QUERIES 96             /* multiple of TILE_ROWS */
#define ATTN_KEYS 576               /* multiple of ATTN_START */
#define ATTN_START 192              /* the first block of keys begins at a multiple; multiple of PANEL, ATTN_QUERIES */
#define ATTN_PITCH (ATTN_KEYS + 16) /* not a power of two, which would map a column to few cache sets */

struct attn_block {
    int64_t q0, nq, k0, nk;
    bool more;           /* the queries have visited earlier keys */
    const int64_t *from; /* [nq]: the first key that each query may see; never decreases */
};

/* Scratch memory of one thread, every array aligned to 64 bytes; NULL if a direction does not need it. Rows of `padded`
 * floats hold head_dim values, then zeros. */
struct attn_work {
    int64_t padded;
    float *s, *dp;                /* [ATTN_QUERIES, ATTN_PITCH] */
    int64_t *from;                /* [ATTN_QUERIES] */
    float *max, *sum;             /* [ATTN_QUERIES]; the backward keeps D = rowsum(do o) in sum */
    float *out;                   /* [ATTN_QUERIES, padded]: sums of o, or of d_q */
    float *q, *d_o;               /* [ATTN_QUERIES, padded] */
    float *k_columns, *v_columns; /* panels of all keys, values of a head */
    float *k_rows, *v_rows;       /* [keys, padded] */
    float *dk_rows, *dv_rows;     /* [keys, padded] */
};

/* One head of one sample. */
struct attn_head {
    const struct kern_attention *a;
    float scale, cap;               /* cap 0: scores are not capped */
    int64_t row;                    /* first query of the sample */
    int64_t q_at, k_at, v_at, o_at; /* elements from the start of a matrix to the head's first row */
    float *lse;
};

static inline int64_t attn_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t attn_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The number of keys of a sample. */
static inline int64_t attn_keys(const struct kern_attention *a)
{
    return a->seq_kv ? a->seq_kv : a->seq;
}

/* The number of keys that the queries before `end` see. */
static inline int64_t attn_keys_until(const struct kern_attention *a, int64_t end)
{
    return a->causal ? end : attn_keys(a);
}

/* Row i sees no key of the block from this one on. */
static inline int64_t attn_visible(const struct kern_attention *a, const struct attn_block *b, int64_t i)
{
    return a->causal ? attn_min(b->nk, b->q0 + i + 1 - b->k0) : b->nk;
}

/* Row i sees no key of the block before this one. */
static inline int64_t attn_first(const struct attn_block *b, int64_t i)
{
    return attn_max(0, attn_min(b->nk, b->from[i] - b->k0));
}

/* The first key of the block that the products of row i's strip read, a multiple of VF. */
static inline int64_t attn_strip(const struct attn_block *b, int64_t i)
{
    return attn_first(b, i - i % TILE_ROWS) / VF * VF;
}

struct attn_head KERN_FN(attn_head)(const struct kern_attention *a, int64_t sample, int64_t head);

/* Begins the block of queries from q0 on: computes which keys each may see. k0 is the first block of keys, at least one
 * of whose keys some query sees; not below attn_keys_until if they see none. */
struct attn_block KERN_FN(attn_begin)(const struct attn_head *h, int64_t q0, struct attn_work *w);

/* Scores of row i become those that the softmax takes, apart from h->scale: capped, and -infinity from the first key
 * that its strip reads to the first that it sees; earlier ones that a strip of keys reads become 0. With dp, the
 * gradient of weights becomes that of scores over weights. Returns false if the row sees no key; then its scores, and
 * dp, are 0. */
bool KERN_FN(attn_mask_row)(const struct attn_head *h, const struct attn_block *b, int64_t i, float *s, float *dp,
                            float dot);

/* out[nq, visible keys] = x[nq, head_dim] columns; skips vectors that no row of a strip sees. */
void KERN_FN(attn_scores)(const struct kern_attention *a, const struct attn_block *b, const float *x, int64_t x_stride,
                          const float *columns, float *out);

/* out[nq, padded] (= | +=) w[nq, visible keys] rows; w has row stride ATTN_PITCH, and zeros from the first key that a
 * strip reads to the first visible one and for TILE_ROWS keys after the last visible one */
void KERN_FN(attn_weighted)(const struct kern_attention *a, const struct attn_block *b, const float *w,
                            const float *rows, int64_t padded, float *out);

/* The stream's threads call fn(head, work) for each (sample, key-value head). */
struct attn_job;
typedef void attn_group_fn(const struct attn_job *job, int64_t sample, int64_t kv, struct attn_work *w);
struct attn_job {
    const struct kern_attention *a;
    const struct kern_attention_grad *grad; /* NULL in the forward */
    attn_group_fn *fn;
    char *scratch;
    size_t part_bytes;
};
NODISCARD err_t KERN_FN(attn_run)(struct kern_stream *s, struct attn_job *job);

#endif
