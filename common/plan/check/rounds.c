/* Rounds, in which a layer computes rows of experts one part after another (program.rounds). Layouts do not show that
 * one of them is missing: every part of the rows has the layout of all. So this file compares the rounds with each
 * other. */
#include "common/plan/check/check.h"

/* The next op of the action, from op `i` on, that belongs to a round; its end: none. */
static int next_of_rounds(const struct program *p, const struct action *a, int i)
{
    while (i < a->first_op + a->n_ops && !p->ops[i].round)
        i++;
    return i;
}

/* A product adds to the gradients of experts that the round before it has written. */
static bool adds_gradient(const struct op *op)
{
    return op->kind == OP_GROUPED_GEMM && op->flags & OPF_TRANS_A;
}

static err_t compare(const struct check_at *at, const struct op *op, const struct op *first, struct why *why)
{
    const unsigned ignored = adds_gradient(op) ? OPF_ACC : 0;
    if (op->kind != first->kind || op->node != first->node || (op->flags ^ first->flags) & ~ignored)
        return check_fail(at, why, "is in round %d, where round 1 has another op (%s)", op->round,
                          op_name(first->kind));
    for (int k = 0; (op->kind == OP_EXCHANGE || adds_gradient(op)) && op_mode(op, k); k++)
        if (op_mode(op, k) == 'a' && op->arg[k].buffer != first->arg[k].buffer)
            return check_fail(at, why, "adds to %s, and in round 1 to another buffer",
                              at->p->buffers[op->arg[k].buffer].name);
    return op->round > 1 && adds_gradient(op) && !(op->flags & OPF_ACC)
               ? check_fail(at, why, "overwrites what round %d has written", op->round - 1)
               : OK;
}

/* Checks the rounds of one pass over a layer, whose first op is `first`: all have the ops of round 1, in its order.
 * *ret_end: the op behind them. */
static err_t check_pass(struct check_at *at, const struct action *a, int first, int *ret_end, struct why *why)
{
    const struct program *p = at->p;
    int i = first, round = 1;
    err_t e = OK;
    for (; round <= p->rounds && !e; round++) {
        int like = first;
        at->op = i;
        if (i == a->first_op + a->n_ops || p->ops[i].round != round)
            return check_fail(at, why, "is where round %d of %d begins", round, p->rounds);
        for (; i < a->first_op + a->n_ops && p->ops[i].round == round && !e; i = next_of_rounds(p, a, i + 1)) {
            at->op = i;
            e = compare(at, &p->ops[i], &p->ops[like], why);
            like = next_of_rounds(p, a, like + 1);
        }
        if (!e && round > 1 && p->ops[like].round == 1)
            e = check_fail(at, why, "is the last op of round %d, where round 1 goes on (%s)", round,
                           op_name(p->ops[like].kind));
    }
    *ret_end = i;
    return e;
}

err_t check_rounds(const struct program *p, struct why *why)
{
    err_t e = OK;
    for (int k = 0; k < p->n_actions && !e; k++) {
        const struct action *a = &p->actions[k];
        struct check_at at = {p, k, a->first_op};
        for (int i = next_of_rounds(p, a, a->first_op); i < a->first_op + a->n_ops && !e;)
            e = check_pass(&at, a, i, &i, why);
    }
    return e;
}
