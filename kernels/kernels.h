/* Kernels: the operations that every backend implements, specified once.
 *
 * A backend fills one `struct kern_ops` per compute type: `ref` (float32 and float64, plain C, the oracle), `cpu`
 * (float32 and bfloat16, fast), `cuda` (float32 and bfloat16). Rules that hold for all of them:
 *  - matrices are row-major, and dense where no row stride is given; elements between rows are neither read nor
 *    written. T is the number of tokens of one microbatch, whose samples follow one another;
 *  - every call takes a stream and may return before the work is done (kernels/device.h);
 *  - "=" writes the output, "+=" adds to it; each function states which. Gradients of parameters are always +=;
 *  - data pointers are of the table's `dtype` unless stated otherwise; token ids are int32. The table's `wide` type is
 *    for data that must not lose bits: gradients of parameters, the parameters, gradients and moments of the optimizer,
 *    and statistics that a backward reads (rstd, mean, lse). It is float32 for bfloat16 and otherwise the dtype itself;
 *  - sums are computed in float64 in `ref`, and in at least float32 elsewhere, whatever type is stored;
 *  - every pointer refers to memory of the stream's device, including scalars that a kernel reads or writes;
 *  - arrays begin at multiples of 64 bytes, except parts of matrices (heads within q, k and v, by whole heads) and the
 *    arrays of adamw, sumsq_blocks, cast and normal, which may begin and end at any element;
 *  - results depend on the arguments only: same inputs, same bits. Except for gemm, they do not depend on the stream's
 *    threads either. Element-wise results (adamw, activations) do not depend on where a range begins or ends;
 *  - nothing is allocated in the steady state; scratch memory belongs to the stream. Indices have 64 bits;
 *  - the plan guarantees the arguments, so a wrong one is an assert; a foreign library's failure is ERR_INTERNAL and is
 *    logged where it occurs. */
#ifndef DTD_KERNELS_KERNELS_H
#define DTD_KERNELS_KERNELS_H

#include "common/base/dtype.h"
#include "common/base/err.h"
#include "kernels/device.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A loss of a row is rounded to a multiple of 1 / KERN_LOSS_GRID, less than a hundredth of what float32 logits leave
 * uncertain. Sums in float64 are then exact up to 2^27, 12 million tokens of GPT-2 before it has learnt anything, so
 * their bits depend neither on their order nor on how a batch is divided into microbatches. */
#define KERN_LOSS_GRID 67108864.0 /* 2^26 */

/* The activation that a product applies to its result before storing it; f(x) is the tanh form of GELU, as in
 * kern_ops.gelu. */
enum kern_act {
    KERN_ACT_NONE,
    KERN_ACT_GELU,      /* aux = x, c = f(x) */
    KERN_ACT_GELU_GRAD, /* c = x * f'(aux) */
};

/* x[m,n] = op(A)[m,k] op(B)[k,n] + bias[n]; c = act(x), or with `accumulate` c += x (then neither bias nor act). lda,
 * ldb, ldc: elements between rows as stored; aux has ldc. a_sum[m] += sum over k of op(A), b_sum[n] += sum over k of
 * op(B), in `wide`: the gradient of a bias, computed here because the product reads that matrix anyway. */
struct kern_gemm {
    bool trans_a, trans_b, accumulate;
    bool wide_c; /* c has the table's wide type, as the gradient of a parameter does */
    bool few; /* generation: with few rows, a kernel may be used that reads each weight once but sums in another order.
               * Without it, the bits of a row do not depend on m */
    enum kern_act act;
    int64_t m, n, k, lda, ldb, ldc;
    const void *a, *b, *bias; /* bias may be NULL */
    void *c, *aux;            /* aux: NULL without act */
    void *a_sum, *b_sum;      /* may be NULL */
};

/* Scaled dot-product attention, softmax(cap(scale q k^T) [+ mask]) v, per sample and head, with cap(s) = softcap
 * tanh(s / softcap), or s if softcap is 0 (Gemma 2, arXiv 2408.00118, 2.1). q, o:
 * [batch*seq, heads*head_dim]; k, v: [batch*seq_kv, kv_heads*head_dim]; row strides in elements, so that q, k and v may
 * lie side by side in one matrix. lse[batch, heads, seq]: natural log of the row's sum of exp. kv_heads divides heads.
 *
 * The query at position i sees the keys at positions j with
 *
 *   j <= i            if causal
 *   j > i - window    with a window: `window` keys with the query's own
 *   j >= begin[row]   with begin: those of the query's own document. row is the query's row of q; begin is not above
 *                     the query's position and never decreases within a sample
 *
 * The first query has position q_pos0 and the first key k_pos0; causal requires that they are equal. A key that a query
 * does not see changes no bit of the query's results, unless the key or its value is not finite.
 *
 * The keys may be any part of those that the queries see (context parallelism): o and lse then belong to that part, and
 * attention_join combines the parts. A query that sees no key of the part gets o = 0 and lse = -infinity. */
struct kern_attention {
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t seq_kv; /* keys per sample, 0: seq; causal requires seq */
    int64_t q_stride, k_stride, v_stride, o_stride;
    bool causal;
    int64_t window; /* 0: none */
    int64_t q_pos0, k_pos0;
    double scale, softcap; /* 0: 1 / sqrt(head_dim), none */
    const int32_t *begin;  /* [batch*seq]; NULL: none */
    const void *q, *k, *v;
    void *o, *lse;
};

static inline double kern_attention_scale(const struct kern_attention *a)
{
    return a->scale != 0 ? a->scale : 1 / sqrt((double)a->head_dim);
}

/* d* have the strides of their forward counterparts. With s = cap(scale q k^T): p = exp(s - lse), ds = cap' p (d_o v^T
 * - rowsum(d_o o)), d_q = scale ds k, d_k = scale ds^T q, d_v = p^T d_o (Dao 2023), where cap' = 1 - (s / softcap)^2,
 * or 1 without softcap. o and lse belong to the whole row. k and v may be a part of its keys: d_k and d_v are then
 * complete, and d_q is one term of the sum over all parts. */
struct kern_attention_grad {
    struct kern_attention fwd; /* o and lse hold the forward's results */
    const void *d_o;           /* o_stride */
    void *d_q, *d_k, *d_v;
    bool acc_q, acc_kv; /* d_q, or d_k and d_v, are "+=", else "=" */
};

/* (o, lse) become those of both parts of the keys; o2 and lse2 belong to the other part and share no memory with o and
 * lse. With w = 1 / (1 + exp(lse2 - lse)) o = w o + (1 - w) o2, lse = log(exp(lse) + exp(lse2)) (Liu et al. 2023, ring
 * attention; the online softmax of Milakov and Gimelshein 2018). A part without keys has lse -infinity and finite o; at
 * most one of the two may be such a part. o, o2: [batch*seq, heads*head_dim] with row strides; lse, lse2: [batch,
 * heads, seq]. */
struct kern_attention_join {
    int64_t batch, seq, heads, head_dim, o_stride, o2_stride;
    void *o, *lse;
    const void *o2, *lse2;
};

/* Attention of the newest tokens of one sequence over the keys and values of all of its tokens so far, in the
 * generation of text. The n queries are those of tokens pos0 .. pos0 + n - 1; k and v have the rows of tokens 0 .. pos0
 * + n - 1. Token i sees tokens j <= i, with a window only those with i - j < window. The weights are the softmax of the
 * scores scale q k^T; with a softcap of softcap tanh(scale q k^T / softcap) (Gemma 2). The result of a query depends
 * neither on n nor on the other queries: its bits are the same whether its tokens come one by one or together. */
struct kern_attention_cached {
    int64_t n, pos0, heads, kv_heads, head_dim;
    int64_t q_stride, k_stride, v_stride, o_stride;
    int64_t window;        /* 0: none */
    double scale, softcap; /* 0: 1 / sqrt(head_dim); 0: none */
    const void *q, *k, *v;
    void *o;
};

/* Columns col0 .. col0 + n of rows[i], i < t, of a matrix with `cols` columns: y = keep ? x / (1 - rate) : 0, 0 <= rate
 * < 1, x and y dense [t, n], y may be x. An element is kept if its random word is at least KERN_DROPOUT_BOUND(rate).
 * With e = rows[i] cols + col0 + j the word is number e % 4 of Philox4x32-10 (Salmon et al. 2011; common/base/rng.h) at
 * the key {seed low, high} and the counter {e / 4 low, e / 4 high, step low, site}. It is a function of global
 * coordinates, so it does not depend on the rank that computes it. The gradient is the same call on the gradient. */
struct kern_dropout {
    int64_t t, n, cols, col0;
    double rate;
    uint64_t seed;
    int64_t step;
    int site; /* number of the dropout within a step */
    const int32_t *rows;
    const void *x;
    void *y;
};
#define KERN_DROPOUT_BOUND(rate) ((uint32_t)((rate)*0x1p32))

/* Decoupled weight decay (Loshchilov and Hutter 2019), bias corrected as in torch.optim.AdamW; p, m, v in place, all of
 * the wide type. Changes nothing if *grad_scale is not finite. */
struct kern_adamw {
    int64_t n;
    void *p, *m, *v;
    const void *g;
    double lr, beta1, beta2, eps, weight_decay;
    const double *grad_scale; /* the clip factor: g is read as g * *grad_scale */
    int64_t step;             /* 1 for the first update */
};

/* norm = sqrt(blocks[0] + blocks[1] + ..), in ascending order or along a fixed tree; factor = min(1, limit / norm), 1
 * if limit is 0, and NaN if the norm or the sum of the losses is not finite: such a step changes nothing. */
struct kern_clip {
    int64_t n_blocks, n_losses;
    const double *blocks, *losses;
    double limit;
    double *norm, *factor;
};

/* The initial values of a parameter: y[i stride + j] = mean + std x, i < rows, j < n, rounded once to the table's wide
 * type. x is the standard normal number of the element first + i cols + j (rng_normal of common/base/rng.h at seed,
 * stream and that position). It depends only on the element's position in the whole tensor, not on how the tensor is
 * sharded. All tables compute the same bits. */
struct kern_normal {
    int64_t rows, n, stride, cols;
    uint64_t first, seed, stream;
    double mean, std;
    void *y; /* wide; may begin at any element */
};

/* ---- experts ----
 *
 * A mixture of experts (Shazeer et al. 2017): a router gives each token k of `experts` feed-forwards and a weight for
 * each. T tokens become T k rows, sorted by expert and then by token, so the rows of an expert are contiguous:
 *
 *   token          0      1      2          row      0    1    2    3    4    5
 *   ids (k = 2)    0 2    1 2    0 1        token    0    2    1    2    0    1
 *   place          0 4    2 5    1 3        expert  |  0    0 |  1    1 |  2    2 |
 *                                           offsets  0         2         4         6
 */

#define KERN_MAX_EXPERTS 1024
#define KERN_MAX_CHOICES 64

/* How logits become scores. The choice is by score; SOFTMAX_TOPK chooses by logit and takes the softmax over the chosen
 * ones as weights (Mixtral, GPT-OSS). */
enum kern_scores { KERN_SCORES_SOFTMAX, KERN_SCORES_SOFTMAX_TOPK, KERN_SCORES_SIGMOID };

/* The rule of a router, computed in float64 from the logits on, so that all backends choose the same experts from the
 * same logits. With s the scores (the logits for SOFTMAX_TOPK) and b the bias, the k experts with the largest s + b are
 * chosen; of equal ones the lower id. With groups > 1 the experts are that many groups of consecutive ids; a group's
 * rank is the sum, in descending order, of its `group_best` largest s + b, and only experts of the `groups_kept` best
 * groups can be chosen, whatever the values in the others (DeepSeek-V2: 1 best; V3: 2 best). The weight of a chosen
 * expert is s, never s + b; `norm` divides it by the sum of the chosen s (sigmoid: plus 1e-20); all are multiplied by
 * `scale`. SOFTMAX_TOPK: softmax over the chosen logits, times scale, with or without `norm`. */
struct kern_router {
    int64_t experts; /* at most KERN_MAX_EXPERTS */
    int64_t k;       /* 1 <= k <= experts / groups * groups_kept, k <= KERN_MAX_CHOICES */
    enum kern_scores scores;
    bool norm;
    double scale;                            /* > 0 */
    int64_t groups, groups_kept, group_best; /* groups divides experts; 1, 1, any: no groups */
};

/* Numbers of a set of tokens (a sample, a microbatch, a step), in float64: for each expert the number of tokens that
 * chose it; for each expert the sum over tokens of its share (SOFTMAX, SOFTMAX_TOPK: the softmax over all experts;
 * SIGMOID: s divided by the token's sum of s); the sum over tokens of the entropy of the shares, - sum of p ln p; the
 * sum over tokens of the square of the logits' log-sum-exp. */
#define KERN_ROUTE_NUMBERS(experts) (2 * (experts) + 2)

/* Writes ids (ascending in each token) and weights. A token whose logits have no finite log-sum-exp (one is NaN or
 * +infinity, or all are -infinity) gets ids 0 .. k-1 and NaN weights; it has no gap. sums[sets, KERN_ROUTE_NUMBERS] is
 * written and totals[KERN_ROUTE_NUMBERS] added to. *closeness becomes the larger of itself and of the largest 1 / gap
 * over tokens; the gap is the difference between the k-th and the next score + bias of the experts that could be
 * chosen, infinite where there is no next one (a tie: closeness infinite). Each may be NULL. Where `given` is not NULL,
 * ids become these, which are ascending experts; no choice is made, so there is no gap. Row i belongs to set
 * rows[i] / seq - set0, or to set 0 where rows is NULL. */
struct kern_route {
    struct kern_router router;
    int64_t t, seq, sets, set0;
    const void *logits, *bias; /* wide [t, experts]; wide [experts], NULL: no bias */
    const int32_t *rows;       /* [t], as in struct kern_dropout */
    const int32_t *given;      /* [t, k] */
    int32_t *ids;              /* [t, k] */
    void *weights;             /* wide [t, k] */
    double *sums, *totals, *closeness;
};

/* Which choices an expert with a capacity keeps (Fedus et al. 2021): at most `capacity` among the tokens of one sample.
 * Of more it keeps those of the first tokens, or with `by_weight` those with the largest weights, of equal ones those
 * of the first tokens; a weight of NaN counts as the largest. The samples are set0 .. set0 + sets - 1, and rows[i] is
 * the index of a token, as in struct kern_route.
 *
 * table[sets][by_weight ? 2 : 1][seq][k] has all choices of the samples: 1 + id of each, then the weights. `choices`
 * writes those of this rank's t tokens and 0 for all others; the sum over the ranks that have tokens of the samples is
 * the table that `drop` reads. So what is kept does not depend on which rank has which tokens. `drop` writes kept =
 * ids, or -1 for a choice that is dropped, and adds their number to *dropped, which may be NULL. */
struct kern_drop {
    int64_t t, k, experts, seq, sets, set0, capacity;
    bool by_weight;
    const int32_t *ids, *rows; /* [t, k], [t] */
    const void *weights;       /* wide [t, k]; read by `choices` with by_weight */
    double *table;
    int32_t *kept; /* [t, k] */
    double *dropped;
};

/* d_logits = the gradient through the weights, and of the two losses that a router has (Fedus et al. 2021; Zoph et al.
 * 2022), which are added to the loss of the step:
 *
 *   aux experts scale / (sum over e of n_e) sum over e of n_e (sum over tokens of p_te)      for each set of tokens
 *   z scale sum over tokens of lse^2
 *
 * n and p as in KERN_ROUTE_NUMBERS; n is constant. `sums` are those of the whole sets: of all ranks that have tokens of
 * them. The bias and the choice of groups get no gradient. */
struct kern_route_grad {
    struct kern_route fwd; /* its logits, rows, ids and weights; sums: read; bias, totals and closeness are not used */
    double aux, z, scale;  /* coefficients, 0: no such loss; scale: of the loss (1 / tokens of the global batch) */
    const void *d_weights; /* wide [t, k] */
    void *d_logits;        /* the dtype [t, experts] */
};

/* Moves the biases of a router's choice towards equal numbers of tokens (Wang et al. 2024; the rule of DeepSeek-V3 and
 * of torchtitan, which keeps the sum of the biases):
 *
 *   s_e = sign(sum of n - experts n_e), sign(0) = 0        b_e += rate (s_e - mean of s)
 *
 * n are whole numbers, and the sign is that of a 64-bit integer. The step is computed in float64 and b_e rounded once,
 * so all backends compute the same bits. Changes nothing if *factor is not finite. */
struct kern_balance {
    int64_t experts;
    double rate;
    const double *counts; /* [experts], of all tokens of the step: the first of KERN_ROUTE_NUMBERS */
    const double *factor; /* as grad_scale of struct kern_adamw */
    void *bias;           /* wide [experts] */
};

/* Products of each expert e with its own rows, offsets[e] .. offsets[e+1] - 1:
 *
 *   trans_a false   c[rows, n] (+)= a[rows, k] op(B_e)             B_e = b + e k n, [n, k] with trans_b, else [k, n]
 *   trans_a true    C_e[m, n] (+)= a[rows, m]^T b[rows, n]         C_e = c + e m n; an expert without rows gives zeros
 *
 * A row of the first form depends on that row of a (and of c) and on B_e only: its bits are the same whatever rows
 * stand beside it. All matrices are dense. offsets[0] is 0; rows from offsets[experts] on are neither read nor written.
 *
 * The last `borrowed` of the experts have their matrices, B_e or C_e, at `more`, the first of them at its start. Their
 * results C_e are always written, never added to. */
struct kern_grouped {
    bool trans_a, trans_b, accumulate;
    bool wide_c;                    /* as in struct kern_gemm */
    int64_t experts, rows, m, n, k; /* rows: the most that there are; m with trans_a, k without */
    int64_t borrowed;               /* of the experts; 0: `more` is not used */
    const int32_t *offsets;         /* [experts + 1] */
    const void *a, *b;
    void *c, *more;
};

/* The order of the rows that arrive at a rank of expert parallelism. Each member of the group has home rows, sorted by
 * expert; all[i, e] is the first of member i's for expert e, and all[i, experts] their number. The rows for the experts
 * [lo, hi) of this rank arrive by member. A product needs them by expert, then by member.
 *
 *   index[r]    where row r of the product stands among the arrived rows
 *   inverse     the inverse of index
 *   offsets     [hi - lo + 1], the first row of each of this rank's experts, and the number of rows
 *   choices[r]  sources[h], plus the number of home rows of the members before: h is row r among the home rows of all
 *               members, one member's after another's */
struct kern_arrive {
    int64_t members, experts, lo, hi;
    const int32_t *all;                           /* [members, experts + 1] */
    const int32_t *sources;                       /* by home row of all members; NULL without `choices` */
    int32_t *index, *inverse, *offsets, *choices; /* NULL: not wanted */
};

#define KERN_POSITIONS_BASE 10000.0

/* Which columns of a head rotate, and how fast. */
struct kern_rope {
    int64_t pairs;           /* at most head_dim / 2 */
    const double *frequency; /* [pairs], radians per position; in host memory, read before the kernel returns */
    double factor;           /* of the rotated columns; usually 1 */
};

struct kern_ops {
    const char *name; /* "ref", "cpu", "cuda" */
    enum dtype dtype, wide;

    NODISCARD err_t (*gemm)(struct kern_stream *s, const struct kern_gemm *g);
    /* db[n] += column sums of dy[T,n] */
    void (*bias_grad)(struct kern_stream *s, int64_t t, int64_t n, const void *dy, void *db);

    /* y[T,d] = table[ids[t] - lo] if lo <= ids[t] < hi, else 0 (+ pos[t % seq] when pos is not NULL: [>= seq, d]). The
     * table has rows lo .. hi-1 of the vocabulary; none if lo equals hi. `pos` points to the row of the first position.
     */
    void (*embed)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi, const int32_t *ids,
                  const void *table, const void *pos, void *y);
    /* d_table[ids[t] - lo] += dy[t], t ascending, if lo <= ids[t] < hi; d_pos[t % seq] += dy[t] for every token, when
     * not NULL */
    void (*embed_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                       const int32_t *ids, const void *dy, void *d_table, void *d_pos);

    /* r = x + res when res is not NULL (r, the residual stream, is then written); otherwise r is x and `r` is not
     * written. y = r * rstd * w, rstd[T] = 1/sqrt(mean(r^2) + eps). r may alias x or res. plus_one: 1 + w in place of
     * w, with one rounding less than a stored sum would have (Gemma). */
    void (*rmsnorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, bool plus_one, const void *x,
                    const void *res, const void *w, void *r, void *y, void *rstd);
    /* dx = gradient through the norm (+ d_res[T,d] when not NULL: the gradient of the residual path); dw += ; dx may
     * alias d_res. x is the norm's input (the forward's r). */
    void (*rmsnorm_grad)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *x, const void *w,
                         const void *rstd, const void *dy, const void *d_res, void *dx, void *dw);
    /* The same if a row's columns are sharded over ranks. Each has d columns, and `whole` is the number of all.
     *   row_dots          sums[T] = sum over the columns of a * b (* w, or 1 + w with plus_one, when w is not NULL), in
     *                     float64: of x and x in the forward, of x and dy with w in the backward
     *   rmsnorm_part      with the sums of x and x over all ranks: y and rstd
     *   rmsnorm_part_grad with the sums of x and dy over all ranks: dx (which is not added to anything), dw +=. Of
     * ranks with the same columns and shares of dy, all but one give NULL for the sums; then the sum of their dx is the
     * gradient */
    void (*row_dots)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *a, const void *b,
                     const void *w, double *sums);
    void (*rmsnorm_part)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, double eps, bool plus_one,
                         const void *x, const void *w, const double *sums, void *y, void *rstd);
    void (*rmsnorm_part_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, bool plus_one, const void *x,
                              const void *w, const void *rstd, const double *sums, const void *dy, void *dx, void *dw);
    /* As rmsnorm, with mean subtraction and bias: y = (r - mean) * rstd * w + b. */
    void (*layernorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, const void *x, const void *res,
                      const void *w, const void *b, void *r, void *y, void *mean, void *rstd);
    void (*layernorm_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *w, const void *mean,
                           const void *rstd, const void *dy, const void *d_res, void *dx, void *dw, void *db);

    /* Rotary positions in place on x[T, heads*head_dim] with row stride: neighbouring pairs (2i, 2i+1), i < pairs,
     * rotate by pos * frequency[i], pos = pos0 + t % seq, and are multiplied by `factor` (Su et al. 2021; the pairing
     * of Meta's llama and torchtitan). Other columns stay. `inverse` rotates by the negative angle: the gradient. */
    void (*rope)(struct kern_stream *s, int64_t t, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                 int64_t stride, const struct kern_rope *rope, bool inverse, void *x);

    /* y[i, j] = x[i, j] + (j even: sin, odd: cos)(pos * KERN_POSITIONS_BASE^(-(j - j % 2) / d)), pos = rows[i] % seq
     * (Vaswani et al. 2017, 3.5); y may be x. rows as in struct kern_dropout. */
    void (*positions)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, const int32_t *rows, const void *x,
                      void *y);

    NODISCARD err_t (*attention)(struct kern_stream *s, const struct kern_attention *a);
    NODISCARD err_t (*attention_grad)(struct kern_stream *s, const struct kern_attention_grad *a);
    void (*attention_join)(struct kern_stream *s, const struct kern_attention_join *a);
    NODISCARD err_t (*attention_cached)(struct kern_stream *s, const struct kern_attention_cached *a);

    /* y[T,f] = silu(a) * b; a, b, y dense [T,f] */
    void (*swiglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y);
    /* da = , db = ; da may alias a, db may alias b */
    void (*swiglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                        void *db);
    /* y = gelu(a) * b, the tanh form; aliases as for swiglu */
    void (*geglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y);
    void (*geglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                       void *db);
    /* The tanh form, as in GPT-2; x and y may alias only in the gradient (dx may alias dy). */
    void (*gelu)(struct kern_stream *s, int64_t n, const void *x, void *y);
    void (*gelu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx);
    /* y = x (1 + erf(x / sqrt 2)) / 2 (Hendrycks and Gimpel 2016); aliases as for gelu */
    void (*gelu_erf)(struct kern_stream *s, int64_t n, const void *x, void *y);
    void (*gelu_erf_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx);
    /* y = c x; y may alias x */
    void (*scale)(struct kern_stream *s, int64_t n, double c, const void *x, void *y);
    /* y = c tanh(x / c) (Gemma 2's soft-cap); dx = dy (1 - tanh(x / c)^2), which may alias dy */
    void (*cap)(struct kern_stream *s, int64_t n, double c, const void *x, void *y);
    void (*cap_grad)(struct kern_stream *s, int64_t n, double c, const void *x, const void *dy, void *dx);
    void (*relu)(struct kern_stream *s, int64_t n, const void *x, void *y);
    void (*relu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx);
    /* y = a + b, y may alias either */
    void (*add)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y);
    void (*dropout)(struct kern_stream *s, const struct kern_dropout *d);
    /* y[i, j] = x[i, j], i < rows, j < n; ldx, ldy: elements between rows. Either may begin at any element. */
    void (*copy_cols)(struct kern_stream *s, int64_t rows, int64_t n, const void *x, int64_t ldx, void *y, int64_t ldy);

    /* Softmax and cross-entropy over logits[T,v], ld elements between rows, targets int32; a target of -1 is ignored.
     * *loss_sum += sum over t of (lse - logit[target]), in float64. With `grad`, logits become (softmax - onehot) *
     * scale in place (zero rows where the target is -1). `cpu` and `cuda` round the loss of each row to
     * KERN_LOSS_GRID. */
    void (*cross_entropy)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets, bool grad,
                          double scale, void *logits, double *loss_sum);
    /* The same if the vocabulary's columns are sharded (Megatron-LM, Shoeybi et al. 2019). This rank has v >= 0
     * columns, from `lo` of the vocabulary on, [T,v] with ld elements between rows. stats[3t ..] = the largest logit,
     * the sum of exp(x - largest), and the target's logit, which is -infinity if it is not among these columns. Without
     * columns: -infinity, 0, -infinity. */
    void (*loss_part)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, const int32_t *targets,
                      const void *logits, double *stats);
    /* stats[parts, T, 3] are the statistics of all parts. *loss_sum, when not NULL, is increased as in cross_entropy;
     * with `grad` this rank's v columns become their gradient as there. With one part the result is that of
     * cross_entropy. */
    void (*loss_join)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, int64_t parts,
                      const int32_t *targets, const double *stats, bool grad, double scale, void *logits,
                      double *loss_sum);

    void (*adamw)(struct kern_stream *s, const struct kern_adamw *a);
    /* blocks[i] = sum of squares of x[block i .. min(block (i+1), n)), each block in a fixed order, in float64; x has
     * the wide type */
    void (*sumsq_blocks)(struct kern_stream *s, int64_t n, int64_t block, const void *x, double *blocks);
    void (*clip)(struct kern_stream *s, const struct kern_clip *c);
    /* y = x rounded to nearest even; x has the wide type, y the dtype */
    void (*cast)(struct kern_stream *s, int64_t n, const void *x, void *y);
    void (*normal)(struct kern_stream *s, const struct kern_normal *k);

    void (*route)(struct kern_stream *s, const struct kern_route *r);
    void (*route_grad)(struct kern_stream *s, const struct kern_route_grad *r);
    void (*balance)(struct kern_stream *s, const struct kern_balance *b);
    /* to[i] = from[i], i < n; nothing if *factor is not finite: numbers of a step that an update has used */
    void (*keep)(struct kern_stream *s, int64_t n, const double *from, const double *factor, double *to);
    /* *total += the auxiliary loss of struct kern_route_grad, of all sets, with aux scale = `scale`. A set in which no
     * token has chosen adds nothing. sums[sets, KERN_ROUTE_NUMBERS] */
    void (*aux_loss)(struct kern_stream *s, int64_t sets, int64_t experts, const double *sums, double scale,
                     double *total);
    void (*choices)(struct kern_stream *s, const struct kern_drop *d);
    NODISCARD err_t (*drop)(struct kern_stream *s, const struct kern_drop *d);
    /* From ids[T,k]: place[T,k], the row of each choice; source[T k], the choice t k + j of each row; offsets[experts +
     * 1], the first row of each expert. A choice with an id of -1 has no row: its place is -1, and there are as many
     * rows less; source is -1 for these. */
    void (*route_sort)(struct kern_stream *s, int64_t t, int64_t k, int64_t experts, const int32_t *ids, int32_t *place,
                       int32_t *source, int32_t *offsets);
    void (*arrive)(struct kern_stream *s, const struct kern_arrive *a);
    /* y[r] = weights[source[r]] x[source[r] / k], r < rows; not written where source[r] is -1. x[T,d], y[rows,d].
     * weights (wide, [T,k]) may be NULL: all 1. */
    void (*rows_gather)(struct kern_stream *s, int64_t rows, int64_t k, int64_t d, const int32_t *source,
                        const void *weights, const void *x, void *y);
    /* y[t] = sum over j, ascending, of weights[t,j] x[place[t,j]], without places of -1; weights (wide) may be NULL:
     * all 1. x[T k,d], y[T,d] */
    void (*rows_sum)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place, const void *weights,
                     const void *x, void *y);
    /* dx[place[t,j]] = weights[t,j] dy[t]; d_weights[t,j] = the product of dy[t] and x[place[t,j]], wide. dx may alias
     * x, or be NULL: not needed. For a place of -1 d_weights is 0. */
    void (*rows_sum_grad)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                          const void *weights, const void *x, const void *dy, void *dx, void *d_weights);
    NODISCARD err_t (*grouped_gemm)(struct kern_stream *s, const struct kern_grouped *g);
    /* y[t] = sigmoid(z[t]) x[t]; x, y [T,d], z [T] */
    void (*gate)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, void *y);
    /* dx = , dz = ; dx may alias dy */
    void (*gate_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, const void *dy,
                      void *dx, void *dz);
};

/* The table of a CPU backend ("ref", "cpu"); NULL if this build or this processor has none. Both run on streams of the
 * device "cpu"; the tables of other devices come from dev_kernels. */
const struct kern_ops *kern_find(const char *name, enum dtype dtype);

/* Whether this processor multiplies bfloat16 itself. Otherwise the table "cpu" widens it to float32 first, which saves
 * memory but no time. */
bool kern_multiplies_bfloat16(void);

#ifdef __cplusplus
}
#endif

#endif
