/* Describes every kernel from outside: its operands, how it is called, and for a gradient the forward that it belongs
 * to. One table of cases (cases.c) uses this for comparison with the oracle on every device and type, for finite
 * differences and for repeatability. */
#ifndef DTD_TESTS_KERNELS_OPS_H
#define DTD_TESTS_KERNELS_OPS_H

#include "kernels/kernels.h"

#define MAX_OPERANDS 10

enum flags {
    TRANS_A = 1,
    TRANS_B = 2,
    ADD_TO = 4, /* gemm: += */
    BIAS = 8,   /* normal: mean 1 */
    RES = 16,
    POS = 32,
    CAUSAL = 64,
    INVERSE = 128,
    GRAD = 256,
    GELU = 512, /* gemm: its activations */
    GELU_GRAD = 1024,
    A_SUM = 2048,
    B_SUM = 4096,
    WIDE_C = 8192,
    SOME_NAN = 16384, /* clip: among the blocks; adamw: the factor */
    SOME_INF = 32768, /* clip: among the losses; adamw: the factor */
    PART = 65536,     /* columns lo .. lo + cols of the vocabulary; attention_grad: only a part of the keys */
    ACC_Q = 131072,   /* attention_grad: += */
    ACC_KV = 262144,
    SIGMOID = 524288, /* routers */
    TOPK = 1048576,   /* softmax over the chosen experts */
    NORM = 2097152,
    BY_SET = 4194304,       /* with the numbers of rows */
    BARE = 8388608,         /* without sums, totals and gap */
    TIES = 16777216,        /* many equal logits */
    ZERO_LOGITS = 33554432, /* all are equal */
    LOSSES = 67108864,      /* with the auxiliary losses */
    DROPPED = 134217728,    /* some choices have no row */
    GIVEN = 268435456,      /* routers choose nothing */
    DOCUMENTS = 536870912,  /* attention: of different lengths */
    PLUS_ONE = 1073741824,  /* norms */
};

/* The kinds of runs that include a case. */
enum effort {
    NORMAL,
    TINY, /* one small case per kernel, still with several warps and blocks: for the slowest runs */
    SLOW, /* skipped where threads are emulated */
};

struct kcase {
    const char *op;
    enum effort effort;
    int64_t t, d, seq, vocab; /* rows, columns; vocab: also the number of experts */
    int64_t m, n, k;          /* products; element-wise kernels: n; routers: groups, kept groups, choices of a token;
                                 drop: own tokens, capacity, choices of a token; norms: k columns of all ranks */
    int64_t heads, kv_heads, head_dim;
    int64_t seq_kv;   /* 0: seq */
    int64_t window;   /* attention: 0: none */
    int64_t ahead;    /* attention: position of the first query, less that of the first key */
    double softcap;   /* attention: 0: none; limit is then the scale */
    int64_t lo, cols; /* with PART; dropout and normal: the first column, columns of the whole matrix; routers: the
                         first set, experts that count for a group */
    int64_t parts;    /* loss_join; routers: sets; products of experts: borrowed ones; gemm: 1: kern_gemm.few */
    int64_t pad;      /* elements between rows, if the kernel takes strides */
    double limit;     /* clip; normal: the deviation; routers: the scale */
    unsigned flags;
    int alias; /* 1 + index into the op's aliases; 0: no aliases */
};

enum role { ABSENT, IN, OUT, ACC /* read and written */ };
/* Content of an operand. From IDS on, contents are int32, and from DOUBLES on float64 in every table. */
enum content {
    REALS,
    WEIGHTS, /* near 1 */
    POSITIVE,
    AWKWARD,  /* includes ties, extremes and NaNs */
    LOG_SUMS, /* above most sums of scores */
    HALVES,   /* multiples of 1/2: many are equal */
    ZEROS,    /* all are equal */
    POISONED, /* one NaN and one of each infinity, which are far apart */
    IDS,
    TARGETS,
    ROW_NUMBERS, /* of the case's sets */
    TOKEN_ROWS,  /* of different tokens of the case's sets */
    BEGINS,      /* where documents begin: several in a sample, or in earlier keys */
    CHOICES,     /* k different experts per token, ascending; with DROPPED some are -1 */
    PERMUTATION, /* with DROPPED, of the rows that are left; the others are -1, in random places */
    PACKED,      /* the same, with the others at the end */
    OFFSETS,     /* first rows of the experts; some have none */
    ALL_OFFSETS, /* of home rows: of `parts` members, the numbers of whose rows are those of member_rows */
    DOUBLES,
    STATS,           /* statistics of a softmax: largest, sum, target's logit, repeated */
    SQUARES,         /* positive */
    CLOSENESS,       /* 1 over a positive difference; compared as the difference, whose error does not grow with it */
    SQUARES_AND_NAN, /* one NaN, in the middle */
    DOUBLES_AND_INF,
    FACTOR,      /* 0.25 */
    NONE_CHOSEN, /* 0 */
    COUNTS,      /* whole numbers, some of them equal to the mean */
};

struct case_operand {
    enum role role;
    enum content content;
    int64_t n;
    int64_t cols, stride; /* shape of a matrix with gaps between rows; the gaps are holes before and after the call;
                             stride 0: dense */
    bool wide;            /* has the table's wide type, not its dtype */
    int64_t unused;       /* elements at the end that are holes before and after the call */
};

/* How the operands of a gradient follow from those of its forward. */
struct grad_link {
    const char *forward;
    int from[MAX_OPERANDS];   /* the forward operand whose value after the call this operand has; NONE: own content */
    int seed[MAX_OPERANDS];   /* the forward output whose cotangent this operand is; NONE */
    int target[MAX_OPERANDS]; /* the forward input whose gradient this operand receives; NONE */
};
#define NONE (-1)

struct op_desc {
    const char *name;
    /* Fills o[0..MAX_OPERANDS), which the caller has zeroed. */
    void (*shape)(const struct kcase *c, struct case_operand *o);
    err_t (*call)(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p);
    void (*link)(const struct kcase *c, struct grad_link *l); /* NULL: not a gradient; all NONE before */
    /* Length of the longest sum; NULL: 1; a result of 0 means that every result is the oracle's, rounded once. */
    int64_t (*terms)(const struct kcase *c);
    int aliases[2][2]; /* {output, input} that may be the same array; {0, 0}: none */
    double floor;      /* size of the terms of sums that may cancel; 0: they do not cancel */
    /* Rounding of intermediate values to the table's dtype that an implementation may do, as a multiple of that
     * rounding of the result; NULL: none. */
    double (*between)(const struct kcase *c);
    bool exact_doubles; /* its float64 results are sums in float64, not float32 sums stored as float64 */
    bool anywhere;      /* takes ranges of shards, which may begin at any element */
};

extern const struct op_desc ops_matrix[], ops_flat[], ops_part[], ops_experts[];
extern const int n_ops_matrix, n_ops_flat, n_ops_part, n_ops_experts;

const struct op_desc *op_find(const char *name);

extern const struct kcase kcases[];
extern const int n_kcases;

/* ---- for the rows ---- */

/* The part of the vocabulary that the case has. */
static inline int64_t vocab_lo(const struct kcase *c)
{
    return c->flags & PART ? c->lo : 0;
}

static inline int64_t vocab_cols(const struct kcase *c)
{
    return c->flags & PART ? c->cols : c->vocab;
}

/* The rows that experts have in a product of c->t rows; the others are not used. */
static inline int64_t used_rows(const struct kcase *c)
{
    return c->t - c->t / 8;
}

/* The home rows of member i of an exchange; one of three members has none. */
static inline int64_t member_rows(const struct kcase *c, int64_t i)
{
    return i % 3 == 1 ? 0 : c->t + i;
}

/* The rows of the case's choices: all, or with DROPPED those that are left. */
static inline int64_t rows_left(const struct kcase *c)
{
    return c->t * c->k - (c->flags & DROPPED ? (c->t * c->k + 2) / 3 : 0);
}

/* exp magnifies the rounding of its argument by the argument; the bound grows as for this many terms of a sum */
#define GATE_TERMS 8

#define LOSS_SCALE 0.125

#define CASE_POS0 5 /* position of the first key of an attention */

static inline struct case_operand operand_in(int64_t n)
{
    return (struct case_operand){.role = IN, .content = REALS, .n = n};
}

static inline struct case_operand operand_out(int64_t n)
{
    return (struct case_operand){.role = OUT, .content = REALS, .n = n};
}

static inline struct case_operand operand_acc(int64_t n)
{
    return (struct case_operand){.role = ACC, .content = REALS, .n = n};
}

static inline struct case_operand operand_of(enum role role, enum content content, int64_t n)
{
    return (struct case_operand){.role = role, .content = content, .n = n};
}

/* rows x cols elements, `stride` elements between rows; the last row ends after its columns. */
static inline struct case_operand operand_rows(struct case_operand o, int64_t rows, int64_t cols, int64_t stride)
{
    o.n = rows ? (rows - 1) * stride + cols : 0;
    o.cols = cols;
    o.stride = stride;
    return o;
}

static inline struct case_operand operand_wide(struct case_operand o)
{
    o.wide = true;
    return o;
}

static inline struct case_operand operand_when(bool present, struct case_operand o)
{
    return present ? o : (struct case_operand){0};
}

#endif
