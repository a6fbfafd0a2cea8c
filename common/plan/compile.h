/* The compiler's own parts: what compile.c (driver, passes), buffers.c (spaces), forward.c and backward.c (operators to
 * ops), once.c (what a step does once) and pack.c (places) share. Private to common/plan. */
#ifndef DTD_COMMON_PLAN_COMPILE_H
#define DTD_COMMON_PLAN_COMPILE_H

#include "common/plan/program.h"

struct compiler {
    const struct job_spec *job;
    const struct graph *g;
    struct program *p;
    struct why *why;
    int cap_buffers, cap_ops, cap_actions;
    err_t err;      /* the first failure; everything is harmless after it */
    struct op sink; /* what compile_op answers after a failure */

    /* By graph tensor. */
    int *act;           /* the buffer that holds an activation or statistic, -1 */
    int *grad;          /* the buffer with its gradient while the backward still needs it, -1 */
    int *consumers;     /* nodes that read it; rope, which works in place, is none */
    int *producer;      /* the last node that makes it: a rope that turns it in place, else its own; -1 */
    int *reader;        /* a node that reads it, the only one where consumers is 1; -1 */
    int *copy;          /* a parameter's buffer in the compute type, -1: it is computed with as it is */
    bool *grad_started; /* a parameter's gradient has been written in this backward */

    /* Events; those of units are the first of n_units. */
    int unit_event;    /* the unit's gradient of this rank is complete */
    int reduced_event; /* the group's is */
    int loss_event, loss_reduced_event, update_event, snapshot_event;

    /* Buffers. */
    int *unit_run;  /* by unit: all its gradients */
    int *unit_tree; /* by unit: its nodes of the canonical tree, -1 */
    int all_grads, all_params, all_copies, all_m, all_v, blocks;
    int64_t *block_offset; /* by graph tensor: its first block of squares */
};

/* A range of ops, which actions name. */
struct op_range {
    int first, n;
};

static inline struct graph_dim dim_one(int64_t n)
{
    return (struct graph_dim){SYM_ONE, n};
}

static inline struct graph_dim dim_tokens(int64_t per_token)
{
    return (struct graph_dim){SYM_TOKENS, per_token};
}

/* A new op on the compute stream without operands, waits or event; valid until the next call. */
struct op *compile_op(struct compiler *c, enum op_kind kind, int node);
void compile_action(struct compiler *c, struct action a, struct op_range ops);
/* Adds a buffer and works out its bytes from dims and dtype, unless they are given. -1 after a failure. */
int compile_buffer(struct compiler *c, const struct buffer *b);
/* A buffer for a graph tensor in SPACE_WORK; suffix "" or ".grad". */
int compile_work(struct compiler *c, int tensor, const char *suffix);

static inline void op_arg(struct op *op, int i, int buffer)
{
    op->arg[i].buffer = buffer;
}

/* The buffer with tensor t's value in the type that is computed in: a parameter or its copy, an input, an activation, a
 * statistic; -1 for an absent one. */
int compile_value(const struct compiler *c, int t);

/* Row length of a matrix; 1 for a vector. */
static inline int64_t compile_cols(const struct compiler *c, int t)
{
    return c->g->tensors[t].ndim > 1 ? c->g->tensors[t].dim[1].factor : 1;
}

/* Whether a consumer may write into t's buffer: nobody else reads t, and its producer's backward does not either. */
bool compile_can_take(const struct compiler *c, int t);

/* Node i is a linear. The GELU that alone reads what it makes, or that alone makes what it reads for nobody else: the
 * product does the GELU's work (OPF_GELU, OPF_GELU_GRAD), and the GELU's own rule emits nothing. -1: there is none. */
int compile_gelu_behind(const struct compiler *c, int i);
int compile_gelu_before(const struct compiler *c, int i);

void compile_forward(struct compiler *c);
void compile_backward(struct compiler *c);
/* What a step does once, behind its microbatches. */
void compile_reduce(struct compiler *c);
void compile_norm(struct compiler *c);
void compile_update(struct compiler *c);
void compile_snapshot(struct compiler *c);

/* save.c: the sum of what the rank saves, every item at 64 bytes. */
NODISCARD err_t plan_arena_bytes(const struct program *p, const struct graph *g, int64_t *ret);

/* buffers.c: everything that does not depend on life times; SPACE_WORK begins with what may never be reused. */
void compile_buffers(struct compiler *c);

/* Places the SPACE_WORK buffers that `forward` and `backward` use one after the other; sets space_bytes. */
void compile_pack(struct compiler *c, struct op_range forward, struct op_range backward);

#endif
