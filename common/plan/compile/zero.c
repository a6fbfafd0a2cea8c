/* ZeRO's gathers and scatters in lists of ops. A unit is gathered or scattered by one op.
 *
 *   stage    gather                                        scatter
 *   1        all units after the begin                     once, at the end of the step (step_end.c)
 *   2        all units after the begin                     after the last write of the unit's gradient, each backward
 *   3        before the first use in a list, `prefetch`    after the last write of the unit's gradient, each backward
 *            units ahead
 *
 * Stages 1 and 2 gather into buffers that live as long as the program. With stage 3 a gathered unit is freed after its
 * last use in the list at no cost, because it is a transient buffer. The rules of forward.c and backward.c use the
 * buffers in c->value. The first list that uses a unit keeps these; in later lists new buffers replace them. With
 * `reshard: false` the units that the forward gathered live until its backward.
 *
 * A unit with a parameter that two chunks of the rank use (a tied head in a V) is scattered in every list that writes
 * some of its gradients, from zeros and added, because lists of both chunks alternate.
 *
 * All ranks of an fsdp group must issue the same collectives in the same order, however many microbatches each has; a
 * rank with fewer joins (zero_join_list). So it does where expert parallelism is folded over fsdp: rows of other ranks'
 * tokens come to its experts, and its turn has no tokens of its own. Canonical numerics keep whole gradients and
 * scatter nothing in a backward.
 *
 * The tensors of experts are divided over the ranks of fsdp that have the same ones. Where expert parallelism takes all
 * of fsdp, they are not divided: nothing is gathered or scattered, and later microbatches add to their gradients. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int zero_stage(const struct compiler *c)
{
    return c->p->mesh.size[AXIS_FSDP] > 1 ? c->p->sharding.zero : 0;
}

bool zero_divides(const struct compiler *c, int unit)
{
    const bool experts = c->p->sharding.ep.axes && compile_unit_of_experts(c, unit);
    return zero_stage(c) > 0 && (!experts || sharding_rest(&c->p->sharding, AXIS_FSDP) > 1);
}

/* The ranks between which ZeRO divides the tensors of a unit. */
static int unit_group(struct compiler *c, int unit)
{
    const unsigned fsdp = 1u << AXIS_FSDP;
    return compile_unit_of_experts(c, unit) ? compile_group_rest(c, fsdp) : compile_group(c, fsdp);
}

bool zero_scatters(const struct compiler *c)
{
    return zero_stage(c) >= 2 && !c->p->tree_depth;
}

static void emit_gather(struct compiler *c, int unit, int values)
{
    int group = unit_group(c, unit);
    struct op *op = compile_op(c, OP_UNIT_GATHER, -1);
    op->stream = STREAM_COMM;
    op->group = group;
    op->unit = unit;
    op_arg(op, 0, c->unit_pieces[unit]);
    op_arg(op, 1, values);
}

void zero_emit_scatter(struct compiler *c, int unit, bool add)
{
    int group = unit_group(c, unit);
    struct op *op = compile_op(c, OP_UNIT_SCATTER, -1);
    op->stream = STREAM_COMM;
    op->group = group;
    op->unit = unit;
    op->reduce = REDUCE_SUM;
    op->flags = (add && !MUTANT(SCATTER_NEVER_ADDS)) || MUTANT(SCATTER_ALWAYS_ADDS) ? OPF_ACC : 0;
    op_arg(op, 0, c->unit_run[unit]);
    op_arg(op, 1, c->unit_grads[unit]);
}

void zero_emit_gathers(struct compiler *c)
{
    if (zero_stage(c) != 1 && zero_stage(c) != 2)
        return;
    for (int unit = 0; unit < c->g->n_units && !c->err; unit++) {
        int first = c->p->n_ops;
        if (c->unit_values[unit] < 0 || !zero_divides(c, unit) || (MUTANT(GATHER_LEFT_OUT) && unit == 1))
            continue;
        emit_gather(c, unit, c->unit_values[unit]);
        compile_action(c, (struct action){.kind = ACT_GATHER, .micro = -1, .unit = unit}, (struct op_range){first, 1});
    }
}

/* ---- rewriting a list ---- */

struct list_rewrite {
    struct op *ops;
    int n, n_units;
    int *order, n_order; /* units to gather, in the order of their first use */
    int *first;          /* by unit: op that first reads its values, -1 */
    int *begin, *last;   /* by unit: ops that access its gradients first and last, -1 */
    int *fresh;          /* by buffer: the buffer that replaces it */
    int n_fresh;
};

static err_t rewrite_init(struct list_rewrite *r, struct compiler *c, struct op_range list)
{
    size_t units = (size_t)c->g->n_units;
    r->n_units = c->g->n_units;
    r->n = list.n;
    r->n_fresh = c->p->n_buffers;
    r->ops = malloc(((size_t)list.n + 1) * sizeof(*r->ops));
    r->order = malloc((units + 1) * sizeof(*r->order));
    r->first = malloc((units + 1) * sizeof(*r->first));
    r->begin = malloc((units + 1) * sizeof(*r->begin));
    r->last = malloc((units + 1) * sizeof(*r->last));
    r->fresh = malloc(((size_t)r->n_fresh + 1) * sizeof(*r->fresh));
    if (!r->ops || !r->order || !r->first || !r->begin || !r->last || !r->fresh)
        return ERR_NOMEM;
    if (list.n)
        memcpy(r->ops, c->p->ops + list.first, (size_t)list.n * sizeof(*r->ops));
    for (int u = 0; u < r->n_units; u++)
        r->first[u] = r->begin[u] = r->last[u] = -1;
    for (int b = 0; b < r->n_fresh; b++)
        r->fresh[b] = b;
    return OK;
}

static void rewrite_fini(struct list_rewrite *r)
{
    free(r->ops);
    free(r->order);
    free(r->first);
    free(r->begin);
    free(r->last);
    free(r->fresh);
}

/* The unit of parameter buffer b, if the unit's `run` contains b; -1. */
static int unit_of(const struct compiler *c, int b, const int *run)
{
    int t = b < 0 ? -1 : c->p->buffers[b].tensor;
    if (t < 0 || c->g->tensors[t].kind != GT_PARAM)
        return -1;
    int unit = c->g->tensors[t].unit;
    return run[unit] >= 0 && c->p->buffers[b].run == run[unit] && zero_divides(c, unit) ? unit : -1;
}

static void find_uses(const struct compiler *c, struct list_rewrite *r)
{
    bool values = zero_stage(c) == 3, grads = zero_scatters(c);
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < OP_MAX_OPERANDS; k++) {
            int b = r->ops[i].arg[k].buffer;
            int read = values ? unit_of(c, b, c->unit_values) : -1, touched = grads ? unit_of(c, b, c->unit_run) : -1;
            if (read >= 0 && r->first[read] < 0) {
                r->first[read] = i;
                r->order[r->n_order++] = read;
            }
            if (touched >= 0 && r->begin[touched] < 0)
                r->begin[touched] = i;
            if (touched >= 0 && !(MUTANT(SCATTER_EARLY) && r->last[touched] >= 0))
                r->last[touched] = i;
        }
}

/* New buffers for units whose buffers in c->value belong to an earlier list. */
static void find_buffers(struct compiler *c, struct list_rewrite *r)
{
    for (int k = 0; k < r->n_order && !c->err; k++) {
        int unit = r->order[k];
        if (!c->unit_used[unit]) {
            c->unit_used[unit] = true;
            continue;
        }
        if (!c->job->parallel.reshard)
            continue;
        int run = c->unit_values[unit];
        compile_gathered_params(c, unit);
        for (int b = 0; b < r->n_fresh && !c->err; b++)
            if (c->p->buffers[b].run == run)
                r->fresh[b] = c->value[c->p->buffers[b].tensor];
    }
}

/* The op before which the k-th gather is inserted. */
static int gather_at(const struct compiler *c, const struct list_rewrite *r, int k)
{
    int64_t before = k - c->job->parallel.prefetch;
    return before < 0 ? 0 : r->first[r->order[before]];
}

static void copy_op(struct compiler *c, const struct list_rewrite *r, const struct op *from)
{
    struct op *op = compile_op(c, from->kind, from->node);
    *op = *from;
    for (int k = 0; k < OP_MAX_OPERANDS; k++)
        if (op->arg[k].buffer >= 0)
            op->arg[k].buffer = r->fresh[op->arg[k].buffer];
}

/* Whether two chunks of this rank use a parameter of the unit. */
static bool between_chunks(const struct compiler *c, int unit)
{
    bool found = false;
    for (int i = c->held_from[unit]; i < c->held_from[unit + 1]; i++)
        found |= c->p->sharding.param[c->held[i]].chunks;
    return found;
}

/* Zeroes the gradients of units between chunks of which op i is the first to write some. */
static void zero_unwritten(struct compiler *c, const struct list_rewrite *r, int i)
{
    for (int unit = 0; unit < r->n_units && !c->err; unit++)
        if (r->begin[unit] == i && between_chunks(c, unit)) {
            struct op *op = compile_op(c, OP_ZERO, -1);
            op->m = c->p->buffers[c->unit_run[unit]].dim[0];
            op_arg(op, 0, c->unit_run[unit]);
        }
}

static void scatter_waiting(struct compiler *c, const struct list_rewrite *r, int i, bool backward, bool again)
{
    for (int k = 1; k <= r->n_units; k++) {
        int unit = r->n_units - k;
        bool ends = r->last[unit] == i && c->unit_waits[unit], both = ends && between_chunks(c, unit);
        if (ends && (backward || both)) {
            zero_emit_scatter(c, unit, again || (both && !MUTANT(CHUNKS_OVERWRITE)));
            c->unit_waits[unit] = false;
        }
    }
}

static void rewrite_list(struct compiler *c, const struct list_rewrite *r, const bool *gathers, bool backward,
                         bool again)
{
    int next = 0;
    for (int i = 0; i < r->n && !c->err; i++) {
        for (; next < r->n_order && gather_at(c, r, next) + MUTANT(GATHER_LATE) * 4 <= i; next++)
            if (gathers[r->order[next]])
                emit_gather(c, r->order[next], c->unit_values[r->order[next]]);
        zero_unwritten(c, r, i);
        copy_op(c, r, &r->ops[i]);
        scatter_waiting(c, r, i, backward, again);
    }
    if (backward) /* only an earlier half has written them */
        scatter_waiting(c, r, -1, backward, again);
}

/* Whether the list is a copy of a rewritten one; then only its scatters may change. */
static bool rewritten(struct compiler *c, struct op_range list, bool again)
{
    bool found = false;
    for (int i = list.first; i < list.first + list.n; i++) {
        struct op *op = &c->p->ops[i];
        found |= op->kind == OP_UNIT_GATHER || op->kind == OP_UNIT_SCATTER;
        if (op->kind == OP_UNIT_SCATTER && again && !MUTANT(SCATTER_NEVER_ADDS))
            op->flags |= OPF_ACC;
    }
    return found;
}

struct op_range zero_rewrite_list(struct compiler *c, struct op_range list, bool backward, bool again)
{
    struct list_rewrite r = {0};
    if (c->err || (zero_stage(c) < 3 && !zero_scatters(c)) || rewritten(c, list, again))
        return list;
    assert(list.first + list.n == c->p->n_ops);
    bool *gathers = malloc((size_t)c->g->n_units + 1);
    err_t e = rewrite_init(&r, c, list);
    c->err = gathers ? e : ERR_NOMEM;
    if (!c->err) {
        find_uses(c, &r);
        for (int u = 0; u < c->g->n_units; u++) {
            gathers[u] = c->job->parallel.reshard || !c->unit_used[u];
            c->unit_waits[u] |= r.last[u] >= 0;
        }
        find_buffers(c, &r);
        c->p->n_ops = list.first;
        rewrite_list(c, &r, gathers, backward, again);
    }
    rewrite_fini(&r);
    free(gathers);
    return (struct op_range){list.first, c->p->n_ops - list.first};
}

/* Whether the rank takes part in the op without tokens of its own: it gathers or scatters a unit, or it has rows of
 * other ranks' tokens for its experts, where those come from ranks with other microbatches. */
static bool joins_op(const struct compiler *c, const struct op *op)
{
    const bool rows = op->kind == OP_EXCHANGE || op->kind == OP_ARRIVE || op->kind == OP_GROUPED_GEMM ||
                      op->kind == OP_GATHER_TOKENS || op->kind == OP_SOURCES || op->kind == OP_BORROW ||
                      op->kind == OP_GIVE_BACK || op->m.sym == SYM_ARRIVED ||
                      (op->kind == OP_GATHER && c->p->buffers[op->arg[0].buffer].dtype == DT_I32);
    return op->kind == OP_UNIT_GATHER || op->kind == OP_UNIT_SCATTER || (rows && experts_cross_micros(c));
}

/* Zeroes `n` elements of what `op` reads. With 0 elements the op has the value of no token, which is empty. */
static void join_with_zeros(struct compiler *c, const struct op *op, struct graph_dim n)
{
    struct op *zero = compile_op(c, OP_ZERO, -1);
    zero->m = n;
    op_arg(zero, 0, op->arg[0].buffer);
}

struct op_range zero_join_list(struct compiler *c, struct op_range list)
{
    int first = c->p->n_ops;
    for (int i = list.first; i < list.first + list.n && !c->err; i++) {
        const struct op from = c->p->ops[i];
        const bool experts = from.kind == OP_UNIT_SCATTER && compile_unit_of_experts(c, from.unit);
        if (!joins_op(c, &from))
            continue;
        if (from.kind == OP_GATHER) /* offsets: no rows for any expert */
            join_with_zeros(c, &from, from.m);
        if (from.kind == OP_GATHER_TOKENS || (from.kind == OP_EXCHANGE && !(from.flags & OPF_INVERSE)))
            join_with_zeros(c, &from, dim_one(0));
        if (from.kind == OP_UNIT_SCATTER && !(experts && experts_cross_micros(c)))
            join_with_zeros(c, &from, c->p->buffers[from.arg[0].buffer].dim[0]);
        *compile_op(c, from.kind, from.node) = from;
    }
    return (struct op_range){first, c->p->n_ops - first};
}

/* Most microbatches of a rank among `n` consecutive ones of the fsdp group, the first of which has most. */
static int most_micros_of(const struct compiler *c, int n)
{
    const struct program *p = c->p;
    const int fsdp = p->mesh.size[AXIS_FSDP], first = p->sharding.coord[AXIS_FSDP] / n * n;
    int64_t lo, hi;
    layout_split(p->n_micros, p->mesh.size[AXIS_DP] * fsdp, p->sharding.coord[AXIS_DP] * fsdp + first, &lo, &hi);
    return (int)(hi - lo);
}

int zero_rounds(const struct compiler *c)
{
    const struct program *p = c->p;
    const bool units = zero_stage(c) == 3 || (p->mode == MODE_TRAIN && zero_scatters(c));
    if (mode_generates(p->mode))
        return p->end_micro - p->first_micro;
    if (units)
        return most_micros_of(c, p->mesh.size[AXIS_FSDP]);
    return most_micros_of(c, MUTANT(EMPTY_TURN_LEFT_OUT) ? 1 : p->sharding.ep.share[AXIS_FSDP]);
}

/* ---- a rank without microbatches ---- */

/* The ranges are in the order of ops; consecutive ones may be equal. */
static void keep_ops(struct compiler *c, int at, struct op_range *const ranges[], int n)
{
    struct op_range last = {-1, 0};
    int moved = at;
    for (int i = 0; i < n; i++) {
        const struct op_range from = *ranges[i];
        const bool again = from.first == last.first && from.n == last.n;
        if (again || from.n == 0) {
            ranges[i]->first = again ? moved : at;
            continue;
        }
        assert(from.first >= last.first + last.n && from.first >= at);
        memmove(c->p->ops + at, c->p->ops + from.first, (size_t)from.n * sizeof(*c->p->ops));
        ranges[i]->first = moved = at;
        at += from.n;
        last = from;
    }
    c->p->n_ops = at;
}

static void keep_buffers(struct compiler *c, int first_op, int first, int *moved)
{
    struct program *p = c->p;
    int n = first;
    for (int b = 0; b < p->n_buffers; b++)
        moved[b] = b < first ? b : -1;
    for (int i = first_op; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_OPERANDS; k++)
            if (p->ops[i].arg[k].buffer >= first)
                moved[p->ops[i].arg[k].buffer] = 0;
    for (int b = first; b < p->n_buffers; b++) {
        int run = p->buffers[b].run;
        if (moved[b] < 0 && (run < first || moved[run] < 0))
            continue;
        moved[b] = n;
        p->buffers[n++] = p->buffers[b];
    }
    for (int b = first; b < n; b++)
        p->buffers[b].run = p->buffers[b].run < 0 ? -1 : moved[p->buffers[b].run];
    p->n_buffers = n;
    for (int i = first_op; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_OPERANDS; k++)
            if (p->ops[i].arg[k].buffer >= first)
                p->ops[i].arg[k].buffer = moved[p->ops[i].arg[k].buffer];
}

void zero_keep_ranges(struct compiler *c, int ops, int buffers, struct op_range *const ranges[], int n)
{
    int *moved = malloc(((size_t)c->p->n_buffers + 1) * sizeof(*moved));
    if (!moved)
        c->err = ERR_NOMEM;
    if (!c->err) {
        keep_ops(c, ops, ranges, n);
        keep_buffers(c, ops, buffers, moved);
    }
    free(moved);
}
