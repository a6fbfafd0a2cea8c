/* Post-validation: a rank may run the first actions of a step before the last ones of the step before. This is correct
 * if nothing is overwritten that the last actions still access, if all that the update overwrites is kept and restored,
 * and if no message passes between these first actions and others: a rank that discards them leaves nothing in flight.
 * The other checks follow a step in the order of its actions, which is the order of a step with nothing ahead. */
#include "common/plan/check/check.h"

struct byte_range {
    enum buffer_space space;
    int64_t lo, hi;
};

/* All instances of an operand's buffer. */
static struct byte_range range_of(const struct program *p, const struct op *op, int i)
{
    const struct buffer *b = &p->buffers[op->arg[i].buffer];
    const int64_t last = b->slots > 1 ? (b->slots - 1) * b->slot_bytes : 0;
    return (struct byte_range){b->space, b->offset, b->offset + last + b->bytes};
}

static bool ranges_meet(const struct byte_range *a, const struct byte_range *b)
{
    return a->space == b->space && a->lo < b->hi && b->lo < a->hi;
}

static bool is_read(char mode)
{
    return mode != 'w';
}

static bool is_written(char mode)
{
    return mode != 'r';
}

/* Whether the op accesses these bytes in a mode that `counts`. */
static bool op_meets(const struct program *p, const struct op *op, const struct byte_range *r, bool (*counts)(char))
{
    for (int i = 0; op_mode(op, i); i++) {
        if (op->arg[i].buffer < 0 || (counts && !counts(op_mode(op, i))))
            continue;
        const struct byte_range own = range_of(p, op, i);
        if (ranges_meet(&own, r))
            return true;
    }
    return false;
}

/* ---- what runs ahead ---- */

/* Whether an op that runs ahead accesses these bytes. */
static bool ahead_meets(const struct program *p, const struct byte_range *r, bool (*counts)(char))
{
    for (int a = 0; a < p->n_ahead; a++)
        for (int i = 0; i < p->actions[a].n_ops; i++)
            if (op_meets(p, &p->ops[p->actions[a].first_op + i], r, counts))
                return true;
    return false;
}

static bool may_run_ahead(const struct program *p, const struct action *a)
{
    if (a->kind != ACT_BEGIN && a->kind != ACT_GATHER && a->kind != ACT_FORWARD && a->kind != ACT_EXCHANGE)
        return false;
    for (int i = 0; i < a->n_ops; i++) {
        const struct op *op = &p->ops[a->first_op + i];
        if (check_is_collective(op) && op->group >= 0 && check_group_axes(p, op->group) >> AXIS_PP & 1)
            return false;
    }
    return true;
}

/* Checks an op of the end of a step, which may run after the actions that run ahead. */
static err_t check_late_op(const struct check_at *at, bool updates, struct why *why)
{
    const struct program *p = at->p;
    const struct op *op = &p->ops[at->op];
    for (int i = 0; op_mode(op, i); i++) {
        if (op->arg[i].buffer < 0)
            continue;
        const struct byte_range r = range_of(p, op, i);
        if (ahead_meets(p, &r, is_written))
            return check_fail(at, why, "uses %s, whose bytes the actions that run ahead have overwritten",
                              p->buffers[op->arg[i].buffer].name);
        if (!updates && is_written(op_mode(op, i)) && ahead_meets(p, &r, is_read))
            return check_fail(at, why, "writes %s, which the actions that run ahead have read",
                              p->buffers[op->arg[i].buffer].name);
    }
    return OK;
}

static err_t check_order(const struct program *p, struct why *why)
{
    for (int a = 0; a < p->n_ahead; a++)
        if (!may_run_ahead(p, &p->actions[a]))
            return why_set(why, ERR_INVALID, "rank %d, action %d (%s) cannot run ahead of the step before", p->rank, a,
                           action_name(p->actions[a].kind));
    for (int a = p->validate; a < p->n_actions; a++) {
        const struct action *x = &p->actions[a];
        for (int i = 0; i < x->n_ops; i++) {
            const struct check_at at = {p, a, x->first_op + i};
            err_t e = check_late_op(&at, x->kind == ACT_UPDATE || x->kind == ACT_RESTORE, why);
            if (e)
                return e;
        }
    }
    return OK;
}

/* ---- what is kept ---- */

static const struct action *find_action(const struct program *p, enum action_kind kind)
{
    const int i = program_find(p, kind, p->validate);
    return i < 0 ? NULL : &p->actions[i];
}

/* Whether one of the action's first `n` ops copies elements [0, m) of buffer `from` to `to`. */
static bool copies(const struct program *p, const struct action *a, int n, int from, int to, int64_t m)
{
    for (int i = 0; a && i < n && i < a->n_ops; i++) {
        const struct op *op = &p->ops[a->first_op + i];
        if (op->kind == OP_COPY && op->arg[0].buffer == from && op->arg[1].buffer == to && op->m.factor == m &&
            !op->arg[0].offset.factor && !op->arg[1].offset.factor)
            return true;
    }
    return false;
}

/* Whether the update copies these bytes before its op number `n`, and the restore copies them back. */
static bool is_kept(const struct program *p, const struct action *update, int n, const struct byte_range *r)
{
    for (int i = 0; i < n; i++) {
        const struct op *op = &p->ops[update->first_op + i];
        if (op->kind != OP_COPY)
            continue;
        const struct byte_range from = range_of(p, op, 0);
        const int64_t copied = op->m.factor * (int64_t)dtype_bytes(p->buffers[op->arg[0].buffer].dtype);
        const struct action *restore = find_action(p, ACT_RESTORE);
        if (from.space == r->space && from.lo <= r->lo && r->hi <= from.lo + copied && restore &&
            copies(p, restore, restore->n_ops, op->arg[1].buffer, op->arg[0].buffer, op->m.factor))
            return true;
    }
    return false;
}

static err_t check_kept(const struct program *p, struct why *why)
{
    const struct action *update = find_action(p, ACT_UPDATE);
    for (int i = 0; update && i < update->n_ops; i++) {
        const struct op *op = &p->ops[update->first_op + i];
        const struct check_at at = {p, (int)(update - p->actions), update->first_op + i};
        for (int k = 0; op->kind != OP_COPY && op_mode(op, k); k++) {
            if (op_mode(op, k) == 'r' || op->arg[k].buffer < 0)
                continue;
            const struct byte_range r = range_of(p, op, k);
            if (!is_kept(p, update, i, &r))
                return check_fail(&at, why,
                                  "overwrites %s, which is not kept and restored, although the clip factor is assumed",
                                  p->buffers[op->arg[k].buffer].name);
        }
    }
    return OK;
}

/* ---- messages ---- */

/* Messages that the actions that run ahead send to a rank, or receive from it. */
static int count_messages(const struct program *p, enum op_kind kind, int peer)
{
    int n = 0;
    for (int a = 0; a < p->n_ahead; a++)
        for (int i = 0; i < p->actions[a].n_ops; i++) {
            const struct op *op = &p->ops[p->actions[a].first_op + i];
            n += op->kind == kind && p->groups[op->group].ranks[op->peer] == peer;
        }
    return n;
}

/* The first message that is received ahead and for which no op waits there; -1: none. */
static int not_waited(const struct program *p)
{
    for (int a = 0; a < p->n_ahead; a++)
        for (int i = 0; i < p->actions[a].n_ops; i++) {
            const struct op *op = &p->ops[p->actions[a].first_op + i];
            const int b = op->arg[0].buffer;
            bool waits = op->kind != OP_RECV;
            for (int x = a; x < p->n_ahead && !waits; x++)
                for (int k = x == a ? i + 1 : 0; k < p->actions[x].n_ops && !waits; k++) {
                    const struct op *later = &p->ops[p->actions[x].first_op + k];
                    waits = later->kind == OP_WAIT && later->arg[0].buffer == b;
                }
            if (!waits)
                return b;
        }
    return -1;
}

static err_t check_messages(const struct program *programs, int n, int rank, struct why *why)
{
    const struct program *p = &programs[rank];
    const int buffer = not_waited(p);
    if (buffer >= 0)
        return why_set(why, ERR_INVALID, "rank %d: an action that runs ahead receives %s and does not wait for it",
                       rank, p->buffers[buffer].name);
    for (int peer = 0; peer < n; peer++) {
        const int sent = count_messages(p, OP_SEND, peer);
        const int received = count_messages(&programs[peer], OP_RECV, rank);
        if (sent != received)
            return why_set(why, ERR_INVALID,
                           "rank %d sends %d messages to rank %d ahead of the step before, and rank %d receives %d of "
                           "them ahead",
                           rank, sent, peer, peer, received);
    }
    return OK;
}

err_t check_ahead(const struct program *programs, int n, struct why *why)
{
    err_t e = OK;
    for (int r = 0; r < n && !e; r++) {
        const struct program *p = &programs[r];
        if (p->n_ahead < 0 || p->validate < p->n_ahead || p->validate > p->n_actions ||
            (p->validate && p->mode != MODE_TRAIN))
            return why_set(why, ERR_INVALID, "rank %d: %d actions run ahead, and action %d validates", r, p->n_ahead,
                           p->validate);
        if (p->validate) {
            e = check_order(p, why);
            e = e ? e : check_kept(p, why);
        }
        e = e ? e : check_messages(programs, n, r, why);
    }
    return e;
}
