/* The oracle's interpreter, slow and simple: no streams and no collectives (one rank; world.h runs many). Every buffer
 * is at its planned offset, so a wrong offset or in-place choice shows as a wrong number. Kernels are the reference
 * kernels in float64. Values of a buffer of another type are widened before an op and rounded to the buffer's type
 * after it. */
#ifndef DTD_TESTS_COMMON_PLAN_MACHINE_H
#define DTD_TESTS_COMMON_PLAN_MACHINE_H

#include "common/plan/exchange.h"
#include "kernels/kernels.h"
#include "tests/common/plan/plan_fixture.h"

/* A buffer's instance, widened while an op runs. */
struct widened {
    int buffer;
    char *at; /* in the machine's memory */
    double *value;
    int64_t n;
    bool written;
};

#define MACHINE_SLOTS 16

struct machine {
    const struct program *p;
    const struct graph *g;
    struct dev *dev;
    const struct kern_ops *k;
    struct kern_stream *s;
    char *space[SPACE_COUNT];
    const struct action *action;
    int64_t samples;
    const int32_t *ids, *targets; /* of the global batch */
    const int32_t *begin;         /* the same, if the graph reads it; machine_init leaves it NULL */
    struct widened widened[OP_MAX_OPERANDS];
    int n_widened;
    int64_t arrived[64][MACHINE_SLOTS]; /* by layer and slot: SYM_ARRIVED */
    struct exchange exchange;           /* of the op that runs */
    double lr, limit;                   /* of machine_update */
    int64_t step;
};

/* Fills memory with NaN, gradients and parameters with zero, so that a read before the write shows. */
void machine_init(struct machine *m, const struct program *p, const struct graph *g, const int32_t *ids,
                  const int32_t *targets);
void machine_fini(struct machine *m);
/* Where the document of each token begins: begin[samples * seq]. Documents are 1, 2, 3, ... tokens long, and every
 * sample begins one. */
void begins_fill(int64_t samples, int64_t seq, int32_t *begin);
/* Everything up to the norm; returns the loss. */
double machine_run(struct machine *m);
/* Norm, clip and update of a step that machine_run has begun; increments m->step. Returns the norm. */
double machine_update(struct machine *m);
/* An element of a buffer, widened. */
double machine_get(const struct machine *m, int buffer, int64_t i);
void machine_set(const struct machine *m, int buffer, int64_t i, double value);

/* One op that needs no other rank, in the action entered last. */
void machine_enter(struct machine *m, const struct action *a); /* fills the batch where the action is a forward */
void machine_op(struct machine *m, const struct op *op);
int64_t machine_dim(const struct machine *m, const struct op *op, struct graph_dim d);
char *machine_operand_at(const struct machine *m, const struct op *op, int i);
/* The exchange of the op's layer, from operand `all` with the offsets of all ranks; valid until the next call. */
struct exchange *machine_exchange(struct machine *m, const struct op *op, int all);
int64_t machine_samples(const struct program *p, const struct action *a);
/* Element i of an operand in the action entered last; the same of instance `slot`; a number rounded to the operand's
 * type. */
double machine_operand_get(const struct machine *m, const struct op *op, int arg, int64_t i);
double machine_operand_get_slot(const struct machine *m, const struct op *op, int arg, int64_t slot, int64_t i);
void machine_operand_set(const struct machine *m, const struct op *op, int arg, int64_t i, double value);
double machine_round(const struct machine *m, const struct op *op, int arg, double value);

static inline int64_t tensor_elements(const struct graph_tensor *t)
{
    return t->dim[0].factor * (t->ndim > 1 ? t->dim[1].factor : 1);
}

#endif
