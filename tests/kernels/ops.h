/* Every kernel seen from outside: its operands, how it is called, and for a gradient which forward it belongs to. One
 * table of cases over it (cases.c) serves comparison with the oracle, finite differences and repeatability. */
#ifndef DTD_TESTS_KERNELS_OPS_H
#define DTD_TESTS_KERNELS_OPS_H

#include "kernels/kernels.h"

#define MAX_OPERANDS 9

enum flags {
    TRANS_A = 1,
    TRANS_B = 2,
    ADD_TO = 4, /* gemm: += */
    BIAS = 8,
    RES = 16,
    POS = 32,
    CAUSAL = 64,
    INVERSE = 128,
    GRAD = 256,
};

struct kcase {
    const char *op;
    int64_t t, d, seq, vocab; /* rows, columns */
    int64_t m, n, k;          /* products; element-wise kernels: n */
    int64_t heads, kv_heads, head_dim;
    int64_t pad; /* extra elements between rows, where the kernel takes strides */
    unsigned flags;
    int alias; /* 1 + index into the op's aliases, 0: all operands apart */
};

enum role { ABSENT, IN, OUT, ACC /* read and written */ };
enum content { REALS, WEIGHTS /* near 1 */, POSITIVE, IDS, TARGETS, DOUBLES };

struct operand {
    enum role role;
    enum content content;
    int64_t n;
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
    int64_t (*terms)(const struct kcase *c);             /* length of its longest sum; NULL: 1 */
    int aliases[2][2];                                   /* {output, input} that may be one array; {0, 0}: none */
    double floor; /* size of the terms of its sums, where they may cancel to nothing; 0: they do not */
};

const struct op_desc *op_find(const char *name);

extern const struct kcase kcases[];
extern const int n_kcases;

#endif
