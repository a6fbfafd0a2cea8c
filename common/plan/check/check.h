/* The checker's own parts, which share nothing with the compiler's but the facts of sharding.h and layout.h:
 *
 *   check.c     structure of each program, and the order of all checks
 *   operands.c  the table of operands: how far each reaches, its type, its layout
 *   extent.c    how far operands reach, and their types       hold.c    buffers and units against sharding.h
 *   place.c     where buffers lie                             layout.c  what an op makes of operands' layouts
 *   rank.c      what one rank does in two steps: with reach.c, apply.c and sums.c
 *   once.c      norm and update of a step                     ring.c    attention over a cut sequence
 *   batch.c     that microbatches make up the batch           world.c   all ranks together, to the end
 *   parts.c     values that are made, or travel, in parts
 *
 * Private to common/plan. */
#ifndef DTD_COMMON_PLAN_CHECK_CHECK_H
#define DTD_COMMON_PLAN_CHECK_CHECK_H

#include "common/plan/program.h"

/* A line of a program, for messages. */
struct check_at {
    const struct program *p;
    int action, op;
};

/* ERR_INVALID with "rank 1, action 3 (backward micro 0), op 17 (gemm): " before the sentence. */
err_t check_fail(const struct check_at *at, struct why *why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether `buffer` is `run` or lies in it, at any depth. */
bool check_in_run(const struct program *p, int buffer, int run);

/* ---- operands (extent.c) ---- */

/* No operand reaches past its buffer or has elements of another type than the kernel takes. */
err_t check_operand_shapes(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why);
/* Elements from an operand's start that the op may touch, at the symbols' bounds; 0 where the op does not tell. */
int64_t check_extent(const struct program *p, const struct op *op, int i);

/* ---- groups ---- */

bool check_is_collective(const struct op *op);
/* The axes on which the members of a group differ. */
unsigned check_group_axes(const struct program *p, int group);
/* The group is those ranks that differ from this one on `axes` only; of a parameter's (tensor >= 0) those that hold the
 * same part of it, where tp shares it out, and those that use it, where stages do. `name` for the message. */
err_t check_group_is(const struct check_at *at, const struct graph *g, int group, unsigned axes, int tensor,
                     const char *name, struct why *why);

/* ---- places (place.c) ---- */

/* One instance of a buffer that contains no other: the unit in which values are followed. */
struct spot {
    int buffer, slot;
    int64_t lo, hi; /* bytes in its space */
};

struct spots {
    struct spot *place;
    int n;
    int *first;                    /* by buffer: its first place; -1 for a run of other buffers */
    int *under_first, *under;      /* by buffer: all places in it, at any depth */
    int *overlap_first, *overlaps; /* by place: the places that share bytes with it */
};

/* Every buffer inside its space, aligned, inside its run; buffers that live as long as the job disjoint; the
 * spaces exactly as large as what is in them. `ret` is freed by spots_fini. */
NODISCARD err_t spots_check(const struct program *p, struct spots *ret, struct why *why);
void spots_fini(struct spots *p);

/* ---- layouts (layout.c) ---- */

/* What a value is over one axis of the mesh. */
enum value_on {
    ON_WHOLE,   /* every rank has the same */
    ON_ROWS,    /* each has its rows: tokens, or of a parameter's first dimension */
    ON_COLS,    /* each its columns */
    ON_PIECE,   /* rows of a parameter's local tensor, as ZeRO deals them */
    ON_SUM = 8, /* and of that a share of a sum; of what is cut among the ranks that hold the same part */
};

/* Of a value. On an axis of size 1 everything is whole. `zero`: nothing but zeros, which go with anything. */
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

/* Of a parameter's local tensor, or of a rank's piece of it. */
struct value_layout layout_of_param(const struct program *p, const struct graph *g, int t, bool piece);
/* Of what the host brings: tokens, which all of tp have. */
struct value_layout layout_of_input(const struct program *p);
/* What crosses between stages: no shares, cut as the model says. */
err_t layout_of_message(const struct check_op *c, const struct value_layout *in, struct value_layout *ret);
/* The layouts of what a kernel writes or adds, from those of what it reads; by operand. For kernels, and the
 * collectives whose operands are one value each. */
err_t layout_of_op(const struct check_op *c, const struct value_layout in[OP_MAX_OPERANDS],
                   struct value_layout ret[OP_MAX_OPERANDS]);
/* `into` with `more` added to it; *reduced: the axes over which `into` was summed. */
err_t layout_add(const struct check_op *c, int buffer, struct value_layout *into, unsigned reduced,
                 const struct value_layout *more);
/* Sums over the op's group. */
err_t layout_reduce(const struct check_op *c, int buffer, unsigned axes, struct value_layout *l, unsigned *reduced);
/* A part that stands in its place among zeros: their sum is the whole. */
struct value_layout layout_among_zeros(const struct value_layout *l);
/* An axis on which the value is a share of a sum; -1. */
int layout_partial(const struct value_layout *l);
/* The gradient of parameter t: on stages that share it a share; cut as the parameter is. */
err_t layout_of_grad(const struct check_op *c, int buffer, struct value_layout *l);

/* ---- parts (parts.c) ---- */

/* The product makes the rows of one member's own tokens in a value of all tokens: that member; -1: it makes all. */
int parts_rows(const struct program *p, const struct op *op);
/* Columns [*lo, *hi) of `width` in all that a product makes of a parameter of which it takes only a part; false: it
 * takes all of it, or what it takes is no parameter. */
bool parts_columns(const struct program *p, const struct graph *g, const struct op *op, int64_t *lo, int64_t *hi,
                   int64_t *width);

/* ---- rings (ring.c) ---- */

#define RING_MAX 16 /* ranks of a ring whose pairs are followed */

/* How far away in the ring the owner is of what arrives from member `from`, where it was `away` from it. */
int ring_shifted(const struct program *p, int away, int from);
/* An attention with keys whose owner is `away`: a pair that the mask leaves, and not one of `seen`, which it joins. */
err_t ring_pair(const struct check_op *c, int away, uint64_t *seen);
/* All pairs have been; c->op is the last. */
err_t ring_complete(const struct check_op *c, uint64_t seen);

/* ---- one rank (rank.c) ---- */

struct block_range {
    int64_t lo, hi;
};

/* Of what part the value is that a collective takes: of the own tokens of the rank so far away in tp, of columns [lo,
 * hi); all zero: of no part. */
struct part_fact {
    int away;
    int64_t lo, hi;
};

/* What all ranks together must agree on. */
struct rank_facts {
    struct part_fact *parts;    /* by op */
    unsigned char *reduced;     /* by graph tensor: axes over which the gradient that the update reads was summed */
    int *losses;                /* by microbatch: times that its loss was added to */
    struct block_range *blocks; /* of squares that this rank counts in a step */
    int n_blocks, cap_blocks;
    int64_t total_blocks; /* that the clip reads */
    int *messages;        /* in the order of a step's posts: the microbatch that each is of, -1: of none */
    int n_messages;       /* room */
    int blocks_group;     /* over which they are summed, -1 */
    bool clips;
};
void rank_facts_fini(struct rank_facts *f);

/* Two steps of one rank: what is read has been written in this step and not been overwritten, shares are summed once
 * before use, every piece is updated once, and accesses from different streams are ordered by events. */
NODISCARD err_t check_rank(const struct graph *g, const struct program *p, struct rank_facts *ret, struct why *why);

/* ---- norm, update (once.c) ---- */

/* The gradient that `norm` or `adamw` reads: all of it summed, the own piece of it. */
err_t check_summed(const struct check_op *c, int operand, const struct value_layout *l, unsigned reduced);
err_t check_update(const struct check_op *c);
err_t check_norm(const struct check_op *c, struct rank_facts *facts);
/* Every distinct block counted once over each norm's group; gradients summed over the same axes everywhere. */
err_t check_sums(const struct graph *g, const struct program *programs, const struct rank_facts *facts, int n,
                 struct why *why);

/* ---- the rest ---- */

/* Buffers of parameters, tables of units and segments, against sharding.h; a unit's op against its table. */
err_t check_holdings(const struct graph *g, const struct program *p, struct why *why);
err_t check_unit(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why);
err_t check_held_alike(const struct program *programs, int n, struct why *why);
err_t check_batch(const struct program *programs, const struct rank_facts *facts, int n, struct why *why);
err_t check_world(const struct program *programs, const struct rank_facts *facts, int n, struct why *why);

#endif
