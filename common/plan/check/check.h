/* The checker's internal functions, grouped by the file that defines them. The checker shares nothing with the compiler
 * except the facts of sharding.h and layout.h.
 *
 *   check.c     structure of each program; runs all checks in order
 *   operands.c  the table of operands: extent, element type and layout of each
 *   extent.c    extents and types of operands                 hold.c    buffers and units, compared with sharding.h
 *   place.c     offsets and overlaps of buffers               layout.c  layouts of an op's results
 *   rank.c      two steps of one rank, with reach.c, apply.c and sums.c
 *   once.c      norm and update, once per step                ring.c    ring attention
 *   batch.c     microbatches add up to the global batch       world.c   two steps of all ranks together
 *   rounds.c    rounds, in which experts' rows are computed
 *   parts.c     values that are computed or sent in parts     ahead.c   post-validation
 *
 * Private to common/plan. */
#ifndef DTD_COMMON_PLAN_CHECK_CHECK_H
#define DTD_COMMON_PLAN_CHECK_CHECK_H

#include "common/plan/program.h"

/* A position in a program, for messages. */
struct check_at {
    const struct program *p;
    int action, op;
};

/* Returns ERR_INVALID; `why` gets "rank 1, action 3 (backward micro 0), op 17 (gemm): " and the formatted sentence. */
err_t check_fail(const struct check_at *at, struct why *why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether `buffer` is `run` or lies in it, at any depth. */
bool check_in_run(const struct program *p, int buffer, int run);

/* ---- operands (extent.c) ---- */

/* Checks that each operand stays inside its buffer and has the element type that the kernel takes. */
err_t check_operand_shapes(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why);
/* Number of elements from an operand's start that the op may access, with every symbol at its bound; 0 where the op
 * does not determine it. */
int64_t check_extent(const struct program *p, const struct op *op, int i);

/* ---- groups ---- */

bool check_is_collective(const struct op *op);
/* Whether it moves rows or matrices of experts, or the offsets of rows, over a group of expert parallelism. */
bool check_between_experts(const struct program *p, const struct op *op);
/* The axes on which the members of a group differ. */
unsigned check_group_axes(const struct program *p, int group);
/* Checks that the group is this rank's group of expert parallelism. `name` is for the message. */
err_t check_group_exchanges(const struct check_at *at, int group, const char *name, struct why *why);
/* Checks that the group contains exactly the ranks that differ from this one only on `axes`. With a parameter (tensor
 * >= 0) it contains of those only the ranks that hold the same tp part of it and whose stages use it. `name` is for the
 * message. */
err_t check_group_is(const struct check_at *at, const struct graph *g, int group, unsigned axes, int tensor,
                     const char *name, struct why *why);

/* ---- intervals (place.c) ---- */

/* One instance of a buffer that contains no other buffer. The checker follows values by interval. */
struct interval {
    int buffer, slot;
    int64_t lo, hi; /* byte range in its space */
};

struct interval_table {
    struct interval *at;
    int n;
    int *first;                    /* by buffer: its first interval; -1 for a run of other buffers */
    int *under_first, *under;      /* by buffer: all intervals in it, at any depth */
    int *overlap_first, *overlaps; /* by interval: the intervals that share bytes with it */
};

/* Checks that every buffer lies inside its space and its run and is aligned, that buffers that live as long as the job
 * are disjoint, and that each space is exactly as large as its buffers need. `ret` is freed by intervals_fini. */
NODISCARD err_t intervals_check(const struct program *p, struct interval_table *ret, struct why *why);
void intervals_fini(struct interval_table *p);

/* ---- layouts (layout.c) ---- */

/* How a value is distributed over one axis of the mesh. */
enum value_on {
    ON_WHOLE,         /* every rank has the whole value */
    ON_ROWS,          /* each rank has some rows: tokens, or rows of a parameter's first dimension */
    ON_COLS,          /* each rank has some columns */
    ON_EXPERTS,       /* each rank has what belongs to its experts: their matrices, or the rows of all ranks for them */
    ON_PIECE,         /* rows of a parameter's local tensor, as ZeRO divides them */
    ON_EXPERTS_PIECE, /* the same of experts, between the ranks that have the same ones */
    ON_GROUP,         /* the same on all ranks of the group of expert parallelism, others elsewhere */
    ON_SUM = 8,       /* a flag: the value is a share of a sum over the ranks that hold the same part */
    ON_LENT = 16,     /* a flag: ranks that borrowed experts have parts of the sum */
};

/* The distribution of a value. On an axis of size 1 every value is whole. `zero`: the value is all zeros, which fit
 * every layout. */
struct value_layout {
    unsigned char on[AXIS_COUNT];
    bool zero;
};

struct check_op {
    const struct check_at *at;
    const struct graph *g;
    const struct op *op;
    struct why *why;
};

/* Layout of a parameter's local tensor, or of a rank's piece of it. */
struct value_layout layout_of_param(const struct program *p, const struct graph *g, int t, bool piece);
/* Of a local tensor that is `on` over fsdp, the layout of the pieces into which ZeRO divides it. */
unsigned char layout_of_piece(unsigned on);
/* Layout of the inputs that the host writes: all ranks of a tp group have the same tokens. */
struct value_layout layout_of_input(const struct program *p);
/* Layout of a message between stages; checks that it is no share of a sum and is sharded as the model prescribes. */
err_t layout_of_message(const struct check_op *c, const struct value_layout *in, struct value_layout *ret);
/* Layouts of what a kernel writes or adds, by operand, from the layouts of what it reads. For kernels and for
 * collectives whose operands are one value each. */
err_t layout_of_op(const struct check_op *c, const struct value_layout in[OP_MAX_OPERANDS],
                   struct value_layout ret[OP_MAX_OPERANDS]);
/* Whether the op, a copy, takes the rows of own tokens from a matrix of all tokens. */
bool check_copies_own(const struct program *p, const struct op *op);
/* Adds `more` to `into`. `reduced`: the axes over which `into` has been summed. */
err_t layout_add(const struct check_op *c, int buffer, struct value_layout *into, unsigned reduced,
                 const struct value_layout *more);
/* Sums over the op's group, which spans `axes`; adds them to *reduced. */
err_t layout_reduce(const struct check_op *c, int buffer, unsigned axes, struct value_layout *l, unsigned *reduced);
/* Layout of a buffer of zeros into which one part of a value was copied: the sum of all ranks' buffers is the whole
 * value. */
struct value_layout layout_among_zeros(const struct value_layout *l);
/* An axis on which the value is a share of a sum; -1: none. */
int layout_partial(const struct value_layout *l);
/* Checks that a gradient is sharded like its parameter; marks it as a share over pp where several stages use the
 * parameter. */
err_t layout_of_grad(const struct check_op *c, int buffer, struct value_layout *l);

/* ---- parts (parts.c) ---- */

/* The member of the tp group whose own tokens are the rows that this matmul writes, in a result of all tokens; -1: it
 * writes all rows. */
int parts_rows(const struct program *p, const struct op *op);
/* For a matmul that reads only a part of a parameter: the columns [*lo, *hi) that it computes, of `width`. False: it
 * reads the whole parameter, or its operand is no parameter. */
bool parts_columns(const struct program *p, const struct graph *g, const struct op *op, int64_t *lo, int64_t *hi,
                   int64_t *width);

/* ---- rings (ring.c) ---- */

/* Ranks of the largest ring whose pairs are checked: `seen` has 64 bits, for 2 segments of queries times 2 * 16
 * segments of keys. */
#define RING_MAX 16

/* Distance in the ring to the owner of what arrives from member `from`, where it was `away` from that owner. */
int ring_shifted(const struct program *p, int away, int from);
/* Checks an attention over keys whose owner is `away`: the mask permits the pair of segments, and `seen` does not
 * contain it yet. Adds it to `seen`. */
err_t ring_pair(const struct check_op *c, int away, uint64_t *seen);
/* Checks that `seen` contains all pairs; c->op is the last op that added one. */
err_t ring_complete(const struct check_op *c, uint64_t seen);

/* ---- one rank (rank.c) ---- */

struct block_range {
    int64_t lo, hi;
};

/* The part of a value that a collective reads: own tokens of the rank that is `away` in the tp group, or columns [lo,
 * hi). All zero: the value is whole. */
struct part_fact {
    int away;
    int64_t lo, hi;
};

/* What the checks of all ranks together need from each rank. */
struct rank_facts {
    struct part_fact *parts;    /* by op */
    unsigned char *reduced;     /* by graph tensor: axes over which the gradient that the update reads was summed */
    int *losses;                /* by microbatch: how often its loss was added */
    struct block_range *blocks; /* blocks of squares that this rank counts in a step */
    int n_blocks, cap_blocks;
    int64_t total_blocks; /* number of blocks that the clip reads */
    int *messages;        /* by post of a step: the microbatch of the message, -1: none */
    int n_messages;       /* capacity of `messages` */
    int blocks_group;     /* the group over which blocks are summed, -1: none */
    bool clips;
};
void rank_facts_fini(struct rank_facts *f);

/* Checks two steps of one rank: what is read was written in this step and not overwritten since, shares are summed once
 * before use, every piece is updated once, and accesses from different streams are ordered by events. */
NODISCARD err_t check_rank(const struct graph *g, const struct program *p, struct rank_facts *ret, struct why *why);

/* ---- norm, update (once.c) ---- */

/* Checks that the gradient that `norm` or `adamw` reads is completely summed and is this rank's piece. */
err_t check_summed(const struct check_op *c, int operand, const struct value_layout *l, unsigned reduced);
err_t check_update(const struct check_op *c);
err_t check_norm(const struct check_op *c, struct rank_facts *facts);
/* Checks that every distinct block is counted once over each norm's group, and that gradients are summed over the same
 * axes on all ranks. */
err_t check_sums(const struct graph *g, const struct program *programs, const struct rank_facts *facts, int n,
                 struct why *why);

/* ---- the rest ---- */

/* Compare buffers of parameters, tables of units and segments with sharding.h, and a unit's op with its table. */
err_t check_holdings(const struct graph *g, const struct program *p, struct why *why);
err_t check_unit(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why);
err_t check_held_alike(const struct program *programs, int n, struct why *why);
/* Checks that the rounds of a layer have the same ops, in the same order (rounds.c). */
err_t check_rounds(const struct program *p, struct why *why);
err_t check_batch(const struct program *programs, const struct rank_facts *facts, int n, struct why *why);
err_t check_world(const struct program *programs, const struct rank_facts *facts, int n, struct why *why);
/* Checks what the programs state in n_ahead and validate. */
err_t check_ahead(const struct program *programs, int n, struct why *why);

#endif
