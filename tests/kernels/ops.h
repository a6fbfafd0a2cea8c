/* Every kernel seen from outside: its operands, how it is called, and for a gradient which forward it belongs to. One
 * table of cases over it (cases.c) serves comparison with the oracle on every device and type, finite differences and
 * repeatability. */
#ifndef DTD_TESTS_KERNELS_OPS_H
#define DTD_TESTS_KERNELS_OPS_H

#include "kernels/kernels.h"

#define MAX_OPERANDS 9

enum flags {
    TRANS_A = 1,
    TRANS_B = 2,
    ADD_TO = 4, /* gemm: += */
    BIAS = 8, /* normal: mean 1 */
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
    PART = 65536,     /* columns lo .. lo + cols of the vocabulary; attention_grad: of more keys than these */
    ACC_Q = 131072,   /* attention_grad: += */
    ACC_KV = 262144,
};

/* Which runs a case is for. */
enum effort {
    NORMAL,
    TINY, /* one small case per kernel, several warps and blocks nevertheless: for the slowest of runs */
    SLOW, /* left out where threads are emulated */
};

struct kcase {
    const char *op;
    enum effort effort;
    int64_t t, d, seq, vocab; /* rows, columns */
    int64_t m, n, k;          /* products; element-wise kernels: n */
    int64_t heads, kv_heads, head_dim;
    int64_t seq_kv;   /* 0: seq */
    int64_t lo, cols; /* with PART; dropout and normal: the first column, columns of the whole matrix */
    int64_t parts;    /* loss_join */
    int64_t pad;      /* elements between rows that no row has, where the kernel takes strides */
    double limit;     /* clip; normal: the deviation */
    unsigned flags;
    int alias; /* 1 + index into the op's aliases, 0: all operands apart */
};

enum role { ABSENT, IN, OUT, ACC /* read and written */ };
/* What an operand holds; IDS and TARGETS are int32, from DOUBLES on they are float64 in every table. */
enum content {
    REALS,
    WEIGHTS, /* near 1 */
    POSITIVE,
    AWKWARD, /* ties, extremes and what is no number, among others */
    IDS,
    TARGETS,
    LOG_SUMS, /* above most sums of scores */
    DOUBLES,
    STATS,           /* of a softmax: largest, sum, target's; in turn */
    SQUARES,         /* positive */
    SQUARES_AND_NAN, /* one of them, in the middle */
    DOUBLES_AND_INF,
    FACTOR, /* 0.25 */
};

struct operand {
    enum role role;
    enum content content;
    int64_t n;
    int64_t cols, stride; /* of a matrix whose rows stand apart: holes are between them, before the call and behind it;
                             0: dense */
    bool wide;            /* of the table's wide type, not its dtype */
};

/* How a gradient's operands come from its forward's. */
struct link {
    const char *forward;
    int from[MAX_OPERANDS];   /* forward operand whose value after the call this one has; NONE: own content */
    int seed[MAX_OPERANDS];   /* forward output whose cotangent this one is; NONE */
    int target[MAX_OPERANDS]; /* forward input whose gradient this one becomes; NONE */
};
#define NONE (-1)

struct op_desc {
    const char *name;
    /* Fills o[0..MAX_OPERANDS), zeroed before. */
    void (*shape)(const struct kcase *c, struct operand *o);
    err_t (*call)(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p);
    void (*link)(const struct kcase *c, struct link *l); /* NULL: not a gradient; all NONE before */
    /* Length of its longest sum; NULL: 1; a result of 0: every result is the oracle's, rounded once. */
    int64_t (*terms)(const struct kcase *c);
    int aliases[2][2]; /* {output, input} that may be one array; {0, 0}: none */
    double floor;      /* size of the terms of its sums, where they may cancel to nothing; 0: they do not */
    /* Rounding of values between to the table's dtype that an implementation may do, as a multiple of that rounding of
     * the result; NULL: none. */
    double (*between)(const struct kcase *c);
    bool exact_doubles; /* its float64 results are float64 sums, not float32 ones in a wide box */
    bool anywhere;      /* takes ranges of shards, which begin at any element */
};

extern const struct op_desc ops_matrix[], ops_flat[], ops_part[];
extern const int n_ops_matrix, n_ops_flat, n_ops_part;

const struct op_desc *op_find(const char *name);

extern const struct kcase kcases[];
extern const int n_kcases;

/* ---- for the rows ---- */

/* The part of the vocabulary that is here. */
static inline int64_t vocab_lo(const struct kcase *c)
{
    return c->flags & PART ? c->lo : 0;
}

static inline int64_t vocab_cols(const struct kcase *c)
{
    return c->flags & PART ? c->cols : c->vocab;
}

/* exp magnifies its argument's rounding by the argument: as if so many terms had been added */
#define GATE_TERMS 8

#define LOSS_SCALE 0.125

static inline struct operand operand_in(int64_t n)
{
    return (struct operand){.role = IN, .content = REALS, .n = n};
}

static inline struct operand operand_out(int64_t n)
{
    return (struct operand){.role = OUT, .content = REALS, .n = n};
}

static inline struct operand operand_acc(int64_t n)
{
    return (struct operand){.role = ACC, .content = REALS, .n = n};
}

static inline struct operand operand_of(enum role role, enum content content, int64_t n)
{
    return (struct operand){.role = role, .content = content, .n = n};
}

/* rows x cols elements, `stride` from one row to the next: the last row ends where its columns do. */
static inline struct operand operand_rows(struct operand o, int64_t rows, int64_t cols, int64_t stride)
{
    o.n = rows ? (rows - 1) * stride + cols : 0;
    o.cols = cols;
    o.stride = stride;
    return o;
}

static inline struct operand operand_wide(struct operand o)
{
    o.wide = true;
    return o;
}

static inline struct operand operand_when(bool present, struct operand o)
{
    return present ? o : (struct operand){0};
}

#endif
