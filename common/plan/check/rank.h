/* State of the check of one rank over two steps, shared by rank.c (steps), reach.c (intervals and streams), apply.c
 * (kernels, messages, norm and update), sums.c (sums and gathers of many values) and parts.c (parts of values). Private
 * to the checker. */
#ifndef DTD_COMMON_PLAN_CHECK_RANK_H
#define DTD_COMMON_PLAN_CHECK_RANK_H

#include "common/plan/check/check.h"

#define NO_MICRO (-1)
/* A received value takes the microbatch of the op that reads it first. Until then the value of the n-th message of a
 * step has the microbatch FIRST_MESSAGE - n. -2, because -1 is NO_MICRO. */
#define FIRST_MESSAGE (-2)

enum value {
    VALUE_NONE,  /* never written */
    VALUE_STALE, /* from an earlier step, or from a microbatch that is finished */
    VALUE_LOST,  /* its bytes were overwritten as part of another buffer */
    VALUE_SET,
};

/* The part of a value that is computed or sent in parts. All zero: the value is whole. */
struct value_part {
    int away;              /* the value consists of the own tokens of the rank at this distance in the tp group */
    int64_t lo, hi, width; /* the value has columns [lo, hi) of `width`; hi 0: all */
    int64_t due;           /* number of members' rows, or of columns, that have not been written yet */
};

struct value_state {
    enum value value;
    struct value_layout layout;
    unsigned reduced;       /* axes over which it was summed in this step */
    int64_t sum_lo, sum_hi; /* byte range of the space that was summed */
    bool among_zeros;       /* all zeros except the parts that were copied into it */
    bool spent;             /* a gradient or a share that a scatter, the tree or the update has used */
    int micro;              /* microbatch of the value */
    int away;               /* context parallelism: distance in the ring to the rank whose tokens these are */
    struct value_part part; /* tensor parallelism: the part that it is, and what is missing of it */
    int lost_to;            /* VALUE_LOST: the buffer that overwrote it */
    int updates;            /* parameters: number of optimizer ops; states: of ops that move them */
    int leaves;             /* trees in canonical numerics: leaves added */
    int writer;             /* op that wrote it, for messages */
    int sending;            /* sends that read it and have not been waited for */
    bool receiving;
    int write_stream;
    int64_t write_time, read_time[STREAM_COUNT];
};

struct clock {
    int64_t t[STREAM_COUNT];
};

struct message_post {
    int interval;
    bool send;
};

/* The intervals that an operand covers: a range of c->reached. */
struct reach {
    int first, n;
};

struct rank_check {
    const struct graph *g;
    const struct program *p;
    struct interval_table intervals;
    struct value_state *state; /* by interval */
    struct clock *event;       /* by event: the clock at its last record */
    struct clock streams[STREAM_COUNT];
    struct rank_facts *facts;
    bool first_step;
    bool blocks_zeroed;
    int wasted; /* a share that was overwritten before it was used, -1: none */
    int *reached, n_reached, cap_reached;
    struct reach reach[OP_MAX_OPERANDS];
    char mode[OP_MAX_OPERANDS + 1]; /* access modes of the op's operands, 0 after the last */
    struct message_post *posts;
    int n_posts, cap_posts;
    int n_messages; /* messages of this step so far */
    /* By interval and member of the tp group: whether the member's rows of an incomplete value are written. */
    unsigned char *rows;
    /* By node: pairs of segments for which this action has computed attention (0) and its gradients (1). */
    uint64_t *pairs[2];
    int *pairs_op[2]; /* by node: the last op that computed one */
    struct check_at at;
    struct why *why;
};

static inline const struct buffer *rank_buffer(const struct rank_check *c, int interval)
{
    return &c->p->buffers[c->intervals.at[interval].buffer];
}

static inline const char *rank_name(const struct rank_check *c, int interval)
{
    return rank_buffer(c, interval)->name;
}

static inline bool rank_is_param(const struct rank_check *c, const struct buffer *b)
{
    return b->tensor >= 0 && c->g->tensors[b->tensor].kind == GT_PARAM;
}

static inline bool rank_is_grad(const struct rank_check *c, int interval)
{
    return rank_buffer(c, interval)->space == SPACE_GRAD && rank_is_param(c, rank_buffer(c, interval));
}

static inline struct check_op rank_op(const struct rank_check *c)
{
    return (struct check_op){&c->at, c->g, &c->p->ops[c->at.op], c->why};
}

static inline int rank_interval(const struct rank_check *c, int operand, int i)
{
    return c->reached[c->reach[operand].first + i];
}

/* ---- reach.c ---- */

/* Finds the intervals that the op's operands cover in this action; rank_interval returns them. */
void rank_reach(struct rank_check *c, const struct op *op);
/* The same for a buffer that is no run. */
void rank_reach_buffer(struct rank_check *c, int b, struct reach *r);
/* Checks operand i before the op: every access is ordered after the accesses that it depends on, and every value that
 * is read exists. */
err_t rank_operand(struct rank_check *c, const struct op *op, const struct clock *now, int i);
/* Checks that the accesses to `other` are ordered before `now`. `writes`: the verb of the message for a write; NULL:
 * the access is a read. */
err_t rank_order(const struct rank_check *c, const struct clock *now, int interval, int other, const char *writes);
void rank_touch(struct rank_check *c, const struct clock *now, enum op_stream stream, int interval, char mode);
/* Checks that the value belongs to this step and to the action's microbatch. */
err_t rank_readable(struct rank_check *c, int interval);
/* Checks that no share of a gradient, to which earlier ops have added, is overwritten. */
err_t rank_overwrite(const struct rank_check *c, int interval);
/* Puts a new value into the interval. The values of intervals that share bytes with it are lost. */
void rank_put(struct rank_check *c, int interval, const struct value_layout *l, unsigned reduced);
void rank_lose(struct rank_check *c, int interval);
/* Writes (mode 'w') or adds (mode 'a') the result of an op. */
err_t rank_write(struct rank_check *c, int interval, char mode, struct value_layout made);

/* ---- parts.c ---- */

/* Checks, before the op, which parts of values it reads: a part must not be used as the whole value. *made: the part
 * that the op computes. A matmul of one member's rows changes the tp layout of its tokens in `in`. */
err_t rank_parts(struct rank_check *c, const struct op *op, struct value_layout in[OP_MAX_OPERANDS],
                 struct value_part *made);
/* Called after rank_write of operand i's interval, whose state was `before`: records that the part is written. */
err_t rank_part_put(struct rank_check *c, const struct op *op, int i, int interval, const struct value_state *before,
                    const struct value_part *made);

/* ---- apply.c ---- */

/* Applies the op to the values of its operands. */
err_t rank_apply(struct rank_check *c, const struct op *op);
/* Ends the messages of a wait op. A message is complete only after its wait; an event that its post records orders
 * nothing. */
err_t rank_message_over(struct rank_check *c, const struct clock *now, enum op_stream stream);
/* Checks, at the end of an action, that attention was computed for every pair of segments. */
err_t rank_rings_over(struct rank_check *c);
/* Whether this is the buffer of the norm's blocks. */
bool rank_is_blocks(const struct rank_check *c, int buffer);
/* The interval of an operand that belongs to the same tensor as `interval`; -1: none. */
int rank_same_tensor(const struct rank_check *c, int operand, int interval);

/* ---- sums.c ---- */

/* Whether this rank's piece of the local tensor has any rows. */
bool rank_has_piece(const struct rank_check *c, int interval);
err_t rank_all_reduce(struct rank_check *c, const struct op *op);
err_t rank_unit_gather(struct rank_check *c);
err_t rank_unit_scatter(struct rank_check *c, const struct op *op);
err_t rank_leaf(struct rank_check *c);
err_t rank_tree_reduce(struct rank_check *c, const struct op *op);

#endif
