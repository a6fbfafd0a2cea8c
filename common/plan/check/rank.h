/* One rank's two steps, between the files that follow them: check_rank.c (steps), check_reach.c (places and streams),
 * check_apply.c (kernels, messages, what a step does once), check_sums.c (sums and gathers of many values),
 * check_parts.c (parts of values). Private to the checker. */
#ifndef DTD_COMMON_PLAN_CHECK_RANK_H
#define DTD_COMMON_PLAN_CHECK_RANK_H

#include "common/plan/check/check.h"

#define NO_MICRO (-1)
/* The n-th message of a step is of the microbatch that reads it; until then its value is of FIRST_MESSAGE - n. */
#define FIRST_MESSAGE (-2)

enum value {
    VALUE_NONE,  /* never written */
    VALUE_STALE, /* of the step before, or of a microbatch that is over */
    VALUE_LOST,  /* its bytes were written as another buffer */
    VALUE_SET,
};

/* Of a value that is made, or travels, in parts. All zero: it is whole. */
struct value_part {
    int away;              /* these are the own tokens of the rank so far away in tp */
    int64_t lo, hi, width; /* it has columns [lo, hi) of `width`; hi 0: all */
    int64_t due;           /* members' rows, or columns, that nobody has put into it yet */
};

struct state {
    enum value value;
    struct value_layout layout;
    unsigned reduced;       /* axes over which it has been summed in this step */
    int64_t sum_lo, sum_hi; /* bytes of the space that were */
    bool among_zeros;       /* zero but for the parts that copies have put into it */
    bool spent;             /* a gradient, or a share, that a scatter, the tree or the update has taken */
    int micro;              /* whose value it is */
    int away;               /* context parallelism: how far in the ring the rank is whose tokens these are of */
    struct value_part part; /* tensor parallelism: of which part of the whole it is, and what is missing of it */
    int lost_to;            /* VALUE_LOST: the buffer */
    int updates;            /* parameters: optimizer ops */
    int leaves;             /* trees in canonical numerics: leaves that joined */
    int writer;             /* op, for messages */
    int sending;            /* posts that read it and are not waited for */
    bool receiving;
    int write_stream;
    int64_t write_time, read_time[STREAM_COUNT];
};

struct clock {
    int64_t t[STREAM_COUNT];
};

struct post {
    int place;
    bool send;
};

/* Which places an operand means, in c->reached. */
struct reach {
    int first, n;
};

struct rank_check {
    const struct graph *g;
    const struct program *p;
    struct spots places;
    struct state *state; /* by place */
    struct clock *event; /* by event: what its last record knows */
    struct clock streams[STREAM_COUNT];
    struct rank_facts *facts;
    bool first_step;
    bool blocks_zeroed;
    int wasted; /* a share that has been overwritten before anybody took it, -1 */
    int *reached, n_reached, cap_reached;
    struct reach reach[OP_MAX_OPERANDS];
    char mode[OP_MAX_OPERANDS + 1]; /* of the op's operands, 0 behind the last */
    struct post *posts;
    int n_posts, cap_posts;
    int n_messages;      /* of this step so far */
    unsigned char *rows; /* by place and member of tp: its rows of a value that lacks some are there */
    uint64_t
        *pairs[2];    /* by node: pairs of a ring's pieces that this action's list has computed, and their gradients */
    int *pairs_op[2]; /* the last op that did */
    struct check_at at;
    struct why *why;
};

static inline const struct buffer *rank_buffer(const struct rank_check *c, int place)
{
    return &c->p->buffers[c->places.place[place].buffer];
}

static inline const char *rank_name(const struct rank_check *c, int place)
{
    return rank_buffer(c, place)->name;
}

static inline bool rank_is_param(const struct rank_check *c, const struct buffer *b)
{
    return b->tensor >= 0 && c->g->tensors[b->tensor].kind == GT_PARAM;
}

static inline bool rank_is_grad(const struct rank_check *c, int place)
{
    return rank_buffer(c, place)->space == SPACE_GRAD && rank_is_param(c, rank_buffer(c, place));
}

static inline struct check_op rank_op(const struct rank_check *c)
{
    return (struct check_op){&c->at, c->g, &c->p->ops[c->at.op], c->why};
}

static inline int rank_place(const struct rank_check *c, int operand, int i)
{
    return c->reached[c->reach[operand].first + i];
}

/* ---- check_reach.c ---- */

/* The places that the op's operands mean in this action: rank_place. */
void rank_reach(struct rank_check *c, const struct op *op);
/* Those of a buffer that is no run. */
void rank_reach_buffer(struct rank_check *c, int b, struct reach *r);
/* Before the op: each access is behind what it must be behind, and what is read is there. */
err_t rank_operand(struct rank_check *c, const struct op *op, const struct clock *now, int i);
/* `writes`: the words for a write, NULL for a read. */
err_t rank_order(const struct rank_check *c, const struct clock *now, int place, int other, const char *writes);
void rank_touch(struct rank_check *c, const struct clock *now, enum op_stream stream, int place, char mode);
/* The value is of this step and of the action's microbatch. */
err_t rank_readable(struct rank_check *c, int place);
/* There is no share of a gradient in it that earlier ops have added up. */
err_t rank_overwrite(const struct rank_check *c, int place);
/* A new value stands in `place`; what lies on the same bytes is gone. */
void rank_put(struct rank_check *c, int place, const struct value_layout *l, unsigned reduced);
void rank_lose(struct rank_check *c, int place);
/* What an op makes is written (mode 'w') or added ('a'). */
err_t rank_write(struct rank_check *c, int place, char mode, struct value_layout made);

/* ---- check_parts.c ---- */

/* Of what part the values are that the op takes, before it: nothing takes a part for the whole. What it makes is
 * `made`; a product of one member's rows changes what its tokens are over tp in `in`. */
err_t rank_parts(struct rank_check *c, const struct op *op, struct value_layout in[OP_MAX_OPERANDS],
                 struct value_part *made);
/* Behind rank_write of operand i's `place`, which was `before`: the part is put to the others. */
err_t rank_part_put(struct rank_check *c, const struct op *op, int i, int place, const struct state *before,
                    const struct value_part *made);

/* ---- check_apply.c ---- */

/* What the op does to the values of its operands. */
err_t rank_apply(struct rank_check *c, const struct op *op);
/* Only behind its wait a message is over: who waits for an event of a post knows nothing. */
err_t rank_message_over(struct rank_check *c, const struct clock *now, enum op_stream stream);
/* The action is over: every pair of its rings has been. */
err_t rank_rings_over(struct rank_check *c);
/* The buffer of the norm's blocks. */
bool rank_is_blocks(const struct rank_check *c, int buffer);
/* The place of an operand with the tensor that is in `place`; -1. */
int rank_same_tensor(const struct rank_check *c, int operand, int place);

/* ---- check_sums.c ---- */

/* Whether this rank has any rows of the local tensor. */
bool rank_has_piece(const struct rank_check *c, int place);
err_t rank_all_reduce(struct rank_check *c, const struct op *op);
err_t rank_unit_gather(struct rank_check *c);
err_t rank_unit_scatter(struct rank_check *c, const struct op *op);
err_t rank_leaf(struct rank_check *c);
err_t rank_tree_reduce(struct rank_check *c, const struct op *op);

#endif
