/* Checks the programs of all ranks before a job may start.
 *
 * First each program is checked alone: its structure (indices, required operands, groups, what the rank holds), then
 * two steps of the rank (rank.c). Then the programs are checked together: they hold one model, their microbatches make
 * up the batch, they run to the end, and every sum is complete. */
#include "common/plan/check/check.h"
#include "common/plan/check/plan_check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Sanity limit for action.slot, the instance of the buffers that an action uses. */
#define MAX_SLOTS 4096

/* ---- messages ---- */

err_t check_fail(const struct check_at *at, struct why *why, const char *fmt, ...)
{
    char text[512], micro[32] = "";
    const struct action *a = &at->p->actions[at->action];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (a->micro >= 0)
        snprintf(micro, sizeof(micro), " micro %d", a->micro);
    else if (a->unit >= 0)
        snprintf(micro, sizeof(micro), " unit %d", a->unit);
    return why_set(why, ERR_INVALID, "rank %d, action %d (%s%s), op %d (%s): %s", at->p->rank, at->action,
                   action_name(a->kind), micro, at->op, op_name(at->p->ops[at->op].kind), text);
}

bool check_in_run(const struct program *p, int buffer, int run)
{
    for (int depth = 0; buffer >= 0 && depth < 8; depth++, buffer = p->buffers[buffer].run)
        if (buffer == run)
            return true;
    return false;
}

/* ---- groups ---- */

bool check_is_collective(const struct op *op)
{
    switch (op->kind) {
    case OP_ALL_REDUCE:
    case OP_OWN_GATHER:
    case OP_OWN_SCATTER:
    case OP_GATHER:
    case OP_UNIT_GATHER:
    case OP_UNIT_SCATTER:
    case OP_SHIFT:
    case OP_EXCHANGE:
    case OP_BORROW:
    case OP_GIVE_BACK:
    case OP_GATHER_TOKENS:
        return true;
    case OP_TREE_REDUCE: /* without a group the rank joins its own nodes alone */
        return op->group >= 0;
    default:
        return false;
    }
}

bool check_between_experts(const struct program *p, const struct op *op)
{
    return op->kind == OP_EXCHANGE || op->kind == OP_GATHER_TOKENS || op->kind == OP_BORROW ||
           op->kind == OP_GIVE_BACK || (op->kind == OP_GATHER && p->buffers[op->arg[0].buffer].dtype == DT_I32);
}

unsigned check_group_axes(const struct program *p, int group)
{
    int own[AXIS_COUNT], other[AXIS_COUNT];
    unsigned axes = 0;
    mesh_coords(&p->mesh, p->rank, own);
    for (int i = 0; group >= 0 && i < p->groups[group].n; i++) {
        mesh_coords(&p->mesh, p->groups[group].ranks[i], other);
        for (int a = 0; a < AXIS_COUNT; a++)
            axes |= own[a] != other[a] ? 1u << a : 0;
    }
    return axes;
}

/* Whether rank `other`, which differs from `own` only on the group's axes, belongs to the sum of parameter t's
 * gradient. */
static bool rank_shares_grad(const struct program *p, const struct graph *g, int t, const int own[AXIS_COUNT],
                             const int other[AXIS_COUNT])
{
    if (!sharding_same_box(&p->sharding, g, t, own, other))
        return false;
    return other[AXIS_PP] == own[AXIS_PP] || sharding_uses(&p->sharding, other[AXIS_PP], t);
}

err_t check_group_is(const struct check_at *at, const struct graph *g, int group, unsigned axes, int tensor,
                     const char *name, struct why *why)
{
    const struct program *p = at->p;
    const struct group *is = &p->groups[group];
    int own[AXIS_COUNT], other[AXIS_COUNT], n = 0;
    mesh_coords(&p->mesh, p->rank, own);
    for (int r = 0; r < mesh_workers(&p->mesh); r++) {
        bool same = true;
        mesh_coords(&p->mesh, r, other);
        for (int a = 0; a < AXIS_COUNT; a++)
            same &= other[a] == own[a] || (axes >> a & 1);
        if (!same || (tensor >= 0 && !rank_shares_grad(p, g, tensor, own, other)))
            continue;
        if (n >= is->n || is->ranks[n] != r) {
            bool early = n < is->n && is->ranks[n] < r;
            return early
                       ? check_fail(at, why, "has rank %d in its group, which holds no share of %s", is->ranks[n], name)
                       : check_fail(at, why, "leaves rank %d out, which holds a share of %s", r, name);
        }
        n++;
    }
    return n == is->n ? OK
                      : check_fail(at, why, "has rank %d in its group, which holds no share of %s", is->ranks[n], name);
}

err_t check_group_exchanges(const struct check_at *at, int group, const char *name, struct why *why)
{
    const struct program *p = at->p;
    const struct group *is = &p->groups[group];
    const int *share = p->sharding.ep.share;
    int own[AXIS_COUNT], other[AXIS_COUNT], n = 0, all = 1;
    mesh_coords(&p->mesh, p->rank, own);
    for (int a = 0; a < AXIS_COUNT; a++)
        all *= share[a];
    for (int i = 0; i < is->n; i++) {
        bool same = true;
        mesh_coords(&p->mesh, is->ranks[i], other);
        for (int a = 0; a < AXIS_COUNT; a++)
            same &= other[a] / share[a] == own[a] / share[a];
        n += same;
    }
    return n == is->n && n == all
               ? OK
               : check_fail(at, why, "sends %s to other ranks than those that share the experts with this one", name);
}

/* ---- structure ---- */

/* Bit i: operand i may be absent. */
static const unsigned optional[OP_KIND_COUNT] = {
    [OP_EMBED] = 1 << 2,
    [OP_EMBED_GRAD] = 1 << 3,
    [OP_GEMM] = 1 << 2 | 7 << 4,
    [OP_RMSNORM] = 1 << 1 | 1 << 3,
    [OP_RMSNORM_GRAD] = 1 << 4,
    [OP_ROW_DOTS] = 1 << 2,
    [OP_RMSNORM_PART_GRAD] = 1 << 3,
    [OP_LAYERNORM] = 1 << 1 | 1 << 4,
    [OP_LAYERNORM_GRAD] = 1 << 5,
    [OP_ATTENTION] = 1 << 5,
    [OP_ATTENTION_GRAD] = 1 << 9,
    [OP_LOSS_JOIN] = 1 << 3,
    [OP_ROUTE] = 1 << 1 | 15 << 4,
    [OP_ROUTE_GRAD] = 1 << 4 | 1 << 5,
    [OP_ROWS_SUM] = 1 << 1,
    [OP_ROWS_GATHER] = 1 << 2,
    [OP_ROWS_SUM_GRAD] = 1 << 4,
    [OP_SNAPSHOT] = 1 << 3,
    [OP_GROUPED_GEMM] = 1 << 4,
    [OP_CHOICES] = 1 << 1,
    [OP_DROP] = 1 << 4,
    [OP_ARRIVE] = 1 << 1 | 1 << 4,
    [OP_ROWS_PICK] = 1 << 2,
};

static err_t check_operands(const struct check_at *at, const struct op *op, struct why *why)
{
    for (int i = 0; op_mode(op, i); i++) {
        int b = op->arg[i].buffer;
        if (b >= at->p->n_buffers)
            return check_fail(at, why, "operand %d is buffer %d of %d", i, b, at->p->n_buffers);
        if (b < 0 && !(optional[op->kind] >> i & 1))
            return check_fail(at, why, "operand %d is missing", i);
        if (b >= 0 && (op->arg[i].col < 0 || op->arg[i].offset.factor < 0))
            return check_fail(at, why, "operand %d starts before %s", i, at->p->buffers[b].name);
        int slot = at->p->actions[at->action].slot;
        if (b >= 0 && at->p->buffers[b].slot_index == SLOT_ACTION && slot >= at->p->buffers[b].slots)
            return check_fail(at, why, "takes instance %d of %s, which has %d", slot, at->p->buffers[b].name,
                              at->p->buffers[b].slots);
    }
    return OK;
}

/* An activation needs aux and applies to the whole result, so nothing may be added to the result before or after it. */
static err_t check_gemm(const struct check_at *at, const struct op *op, struct why *why)
{
    uint32_t act = op->flags & (OPF_GELU | OPF_GELU_GRAD);
    if (act == (OPF_GELU | OPF_GELU_GRAD) || (act && op->flags & OPF_ACC))
        return check_fail(at, why, "has more than one of OPF_GELU, OPF_GELU_GRAD and OPF_ACC");
    if (!act != (op->arg[4].buffer < 0))
        return check_fail(at, why, "%s", act ? "has an activation but no aux" : "has an aux but no activation");
    if (op->flags & OPF_ACC && op->arg[2].buffer >= 0)
        return check_fail(at, why, "has both OPF_ACC and a bias, which would be added more than once");
    return OK;
}

static int64_t elements_between(const struct program *p, int buffer, int run)
{
    int64_t size = (int64_t)dtype_bytes(p->buffers[buffer].dtype);
    return size ? (p->buffers[buffer].offset - p->buffers[run].offset) / size : -1;
}

/* One op casts many parameters, so each copy must be at the same distance from its run as its parameter. */
static err_t check_cast(const struct check_at *at, const struct op *op, struct why *why)
{
    const struct program *p = at->p;
    int x = op->arg[0].buffer, y = op->arg[1].buffer;
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        int from = b->tensor >= 0 ? p->param_buffer[b->tensor] : -1;
        if (b->tensor < 0 || !check_in_run(p, i, y))
            continue;
        if (from < 0 || !check_in_run(p, from, x) || elements_between(p, i, y) != elements_between(p, from, x))
            return check_fail(at, why, "casts to %s from elements that are not its parameter", b->name);
    }
    return OK;
}

static err_t check_member(const struct check_at *at, const struct op *op, struct why *why)
{
    const struct program *p = at->p;
    if (op->group < 0 || op->group >= p->n_groups)
        return check_fail(at, why, "is over group %d of %d", op->group, p->n_groups);
    const struct group *g = &p->groups[op->group];
    bool member = false;
    for (int i = 0; i < g->n; i++)
        member |= g->ranks[i] == p->rank;
    if (!member)
        return check_fail(at, why, "is over group %d, which this rank is not in", op->group);
    bool to = op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_SHIFT, from = op->kind == OP_SHIFT;
    if ((to && (op->peer < 0 || op->peer >= g->n || g->ranks[op->peer] == p->rank)) ||
        (from && (op->from < 0 || op->from >= g->n || g->ranks[op->from] == p->rank)))
        return check_fail(at, why, "names member %d of %d as its peer, which must be another rank of the group",
                          from && op->peer >= 0 && op->peer < g->n ? op->from : op->peer, g->n);
    return OK;
}

/* A parameter of the unit; all of them are divided in one way. -1: none. */
static int unit_tensor(const struct graph *g, int unit)
{
    for (int t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].kind == GT_PARAM && g->tensors[t].unit == unit)
            return t;
    return -1;
}

/* For collectives whose kind determines their axis: the group contains all ranks of that axis that have the same
 * tensors. */
static err_t check_axis(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    static const unsigned axes[OP_KIND_COUNT] = {
        [OP_OWN_GATHER] = 1u << AXIS_TP,    [OP_OWN_SCATTER] = 1u << AXIS_TP,    [OP_GATHER] = 1u << AXIS_TP,
        [OP_UNIT_GATHER] = 1u << AXIS_FSDP, [OP_UNIT_SCATTER] = 1u << AXIS_FSDP, [OP_SHIFT] = 1u << AXIS_CP};
    unsigned is = axes[op->kind];
    if (op->kind == OP_SHIFT && check_group_axes(at->p, op->group) == 1u << AXIS_TP)
        is = 1u << AXIS_TP; /* own tokens instead of keys and values */
    const char *name = at->p->buffers[op->arg[0].buffer].name;
    if (check_between_experts(at->p, op))
        return check_group_exchanges(at, op->group, name, why); /* rows of experts, and their offsets */
    if (!is)
        return OK;
    const bool unit = op->kind == OP_UNIT_GATHER || op->kind == OP_UNIT_SCATTER;
    return check_group_is(at, g, op->group, is, unit ? unit_tensor(g, op->unit) : -1, name, why);
}

static err_t check_kind(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    err_t e = OK;
    if (op->kind == OP_GEMM)
        e = check_gemm(at, op, why);
    if (op->kind == OP_CAST)
        e = check_cast(at, op, why);
    if (check_is_collective(op) || op->kind == OP_SEND || op->kind == OP_RECV)
        e = check_member(at, op, why);
    if (!e)
        e = check_axis(at, g, op, why);
    if (!e && (op->kind == OP_UNIT_GATHER || op->kind == OP_UNIT_SCATTER))
        e = check_unit(at, g, op, why);
    return e;
}

static err_t check_waits(const struct check_at *at, const struct op *op, const bool *recorded, struct why *why)
{
    for (int i = 0; i < OP_MAX_WAITS; i++)
        if (op->wait[i] >= at->p->n_events || (op->wait[i] >= 0 && !recorded[op->wait[i]]))
            return check_fail(at, why, "waits for event %d, which nothing records", op->wait[i]);
    return OK;
}

static err_t check_op_at(const struct check_at *at, const struct graph *g, const bool *recorded, struct why *why)
{
    const struct op *op = &at->p->ops[at->op];
    if ((unsigned)op->kind >= OP_KIND_COUNT || (unsigned)op->stream >= STREAM_COUNT || op->event >= at->p->n_events ||
        op->node >= g->n_nodes)
        return check_fail(at, why, "has an unknown kind, stream, node or event");
    err_t e = check_operands(at, op, why);
    if (!e)
        e = check_waits(at, op, recorded, why);
    if (!e)
        e = check_kind(at, g, op, why);
    return e ? e : check_operand_shapes(at, g, op, why);
}

static err_t check_actions(const struct program *p, bool *recorded, struct why *why)
{
    for (int a = 0; a < p->n_actions; a++) {
        const struct action *x = &p->actions[a];
        if ((unsigned)x->kind >= ACT_COUNT || x->first_op < 0 || x->n_ops < 0 || x->first_op > p->n_ops - x->n_ops ||
            x->micro >= p->n_micros || x->slot < 0 || x->slot > MAX_SLOTS)
            return why_set(why, ERR_INVALID, "rank %d: action %d has an unknown kind, microbatch, slot or range of ops",
                           p->rank, a);
        for (int i = 0; i < x->n_ops; i++)
            if (p->ops[x->first_op + i].event >= 0 && p->ops[x->first_op + i].event < p->n_events)
                recorded[p->ops[x->first_op + i].event] = true;
    }
    return OK;
}

/* Actions that share a list of ops share its faults, except for the instances of buffers. So a list is checked at its
 * first use, and again in each action with another slot. */
static bool is_new(const struct program *p, int action)
{
    const struct action *a = &p->actions[action];
    for (int i = 0; i < action; i++)
        if (p->actions[i].first_op == a->first_op && p->actions[i].n_ops == a->n_ops && p->actions[i].slot == a->slot &&
            (p->actions[i].micro < 0) == (a->micro < 0))
            return false;
    return true;
}

static err_t check_structure(const struct graph *g, const struct program *p, struct why *why)
{
    bool *recorded = calloc((size_t)p->n_events + 1, sizeof(*recorded));
    err_t e = recorded ? check_actions(p, recorded, why) : ERR_NOMEM;
    for (int a = 0; a < p->n_actions && !e; a++)
        for (int i = 0; i < p->actions[a].n_ops && !e && (i > 0 || is_new(p, a)); i++) {
            struct check_at at = {p, a, p->actions[a].first_op + i};
            e = check_op_at(&at, g, recorded, why);
        }
    free(recorded);
    return e;
}

/* ---- all checks ---- */

static err_t check_one(const struct graph *g, const struct program *p, struct rank_facts *facts, struct why *why)
{
    err_t e = check_holdings(g, p, why);
    if (!e)
        e = check_structure(g, p, why);
    if (!e)
        e = check_rounds(p, why);
    return e ? e : check_rank(g, p, facts, why);
}

static err_t check_all(const struct graph *g, const struct program *programs, struct rank_facts *facts, int n,
                       struct why *why)
{
    err_t e = OK;
    for (int r = 0; r < n && !e; r++) {
        const struct program *p = &programs[r];
        if (p->rank != r || mesh_workers(&p->mesh) != n || p->mode != programs->mode)
            return why_set(why, ERR_INVALID,
                           "program %d of %d is for rank %d of %d, or for another mode than program 0", r, n, p->rank,
                           mesh_workers(&p->mesh));
        e = check_one(g, p, &facts[r], why);
    }
    if (!e)
        e = check_held_alike(programs, n, why);
    if (!e)
        e = check_batch(programs, facts, n, why);
    if (!e)
        e = check_world(programs, facts, n, why);
    if (!e)
        e = check_ahead(programs, n, why);
    return e ? e : check_sums(g, programs, facts, n, why);
}

err_t plan_check(const struct graph *g, const struct program *programs, int n, struct why *why)
{
    if (n <= 0)
        return why_set(why, ERR_INVALID, "no program to check");
    struct rank_facts *facts = calloc((size_t)n, sizeof(*facts));
    err_t e = facts ? check_all(g, programs, facts, n, why) : ERR_NOMEM;
    for (int r = 0; r < n && facts; r++)
        rank_facts_fini(&facts[r]);
    free(facts);
    return e;
}
