/* Sums and gathers of many values at once: a unit's gradients, its pieces, the canonical tree. A value is summed over
 * an axis once, only where it is a share, and by exactly the ranks that have the other shares. */
#include "common/plan/check/rank.h"

static err_t reduce_blocks(struct rank_check *c, const struct op *op)
{
    if (!c->first_step)
        return OK;
    if (c->facts->blocks_group >= 0)
        return check_fail(&c->at, c->why, "reduces the blocks of squares a second time in this step");
    if (!c->blocks_zeroed)
        return check_fail(&c->at, c->why, "reduces blocks of squares that still hold the sums of the previous step");
    c->facts->blocks_group = op->group;
    return OK;
}

err_t rank_all_reduce(struct rank_check *c, const struct op *op)
{
    struct check_op at = rank_op(c);
    unsigned axes = check_group_axes(c->p, op->group);
    int64_t size = (int64_t)dtype_bytes(c->p->buffers[op->arg[0].buffer].dtype);
    int64_t lo =
        c->p->buffers[op->arg[0].buffer].offset + program_dim(c->p, op->arg[0].offset, c->p->max_samples) * size;
    if (op->reduce != number_reduce(program_number(c->p, op->arg[0].buffer)))
        return check_fail(&c->at, c->why,
                          "does not sum %s, of which every rank has a share, or takes no maximum where it should",
                          c->p->buffers[op->arg[0].buffer].name);
    if (rank_is_blocks(c, op->arg[0].buffer))
        return reduce_blocks(c, op);
    for (int k = 0; k < c->reach[0].n; k++) {
        int interval = rank_interval(c, 0, k), b = c->intervals.at[interval].buffer;
        struct value_state *s = &c->state[interval];
        err_t e = layout_reduce(&at, b, axes, &s->layout, &s->reduced);
        if (!e)
            e = check_group_is(&c->at, c->g, op->group, axes, rank_is_grad(c, interval) ? c->p->buffers[b].tensor : -1,
                               c->p->buffers[b].name, c->why);
        if (e)
            return e;
        s->sum_lo = lo > s->sum_lo ? lo : s->sum_lo;
        s->sum_hi =
            lo + check_extent(c->p, op, 0) * size < s->sum_hi ? lo + check_extent(c->p, op, 0) * size : s->sum_hi;
        rank_lose(c, interval);
    }
    return OK;
}

/* Whether this rank's piece of the local tensor has any rows. */
bool rank_has_piece(const struct rank_check *c, int interval)
{
    const struct sharding_param *q = &c->p->sharding.param[rank_buffer(c, interval)->tensor];
    return q->lo < q->hi;
}

/* Gathers pieces into local tensors. */
err_t rank_unit_gather(struct rank_check *c)
{
    for (int k = 0; k < c->reach[1].n; k++) {
        int y = rank_interval(c, 1, k);
        struct value_layout l = layout_of_param(c->p, c->g, rank_buffer(c, y)->tensor, false);
        if (rank_has_piece(c, y) && rank_same_tensor(c, 0, y) < 0)
            return check_fail(&c->at, c->why, "gathers %s but does not send this rank's piece of it", rank_name(c, y));
        rank_put(c, y, &l, 0);
    }
    return OK;
}

/* Sums the local gradient x into the piece's gradient y; y is -1 on a rank without a piece. */
static err_t scatter_one(struct rank_check *c, const struct op *op, int x, int y)
{
    struct check_op at = rank_op(c);
    struct value_layout l = c->state[x].layout;
    unsigned reduced = c->state[x].reduced;
    err_t e = c->state[x].spent ? check_fail(&c->at, c->why, "reduces %s a second time in this step", rank_name(c, x))
                                : layout_reduce(&at, c->intervals.at[x].buffer, 1u << AXIS_FSDP, &l, &reduced);
    c->state[x].spent = true;
    if (e || y < 0)
        return e;
    l.on[AXIS_FSDP] = layout_of_piece(l.on[AXIS_FSDP]);
    struct value_layout sum = c->state[y].layout;
    if (!(op->flags & OPF_ACC))
        e = rank_overwrite(c, y);
    else if (!(e = layout_add(&at, c->intervals.at[y].buffer, &sum, c->state[y].reduced, &l)))
        l = sum;
    if (!e)
        rank_put(c, y, &l, op->flags & OPF_ACC ? c->state[y].reduced : reduced);
    return e;
}

err_t rank_unit_scatter(struct rank_check *c, const struct op *op)
{
    err_t e = OK;
    for (int k = 0; k < c->reach[0].n && !e; k++) {
        int x = rank_interval(c, 0, k), y = rank_same_tensor(c, 1, x);
        if (rank_has_piece(c, x) && y < 0)
            e = check_fail(&c->at, c->why, "scatters %s but has no buffer for the gradient of this rank's piece",
                           rank_name(c, x));
        else
            e = scatter_one(c, op, x, y);
    }
    return e;
}

/* ---- the canonical tree ---- */

/* Checks that each microbatch is added to the tree once, in ascending order. */
err_t rank_leaf(struct rank_check *c)
{
    const struct program *p = c->p;
    int micro = p->actions[c->at.action].micro;
    struct value_layout leaf = {{0}, true};
    for (int k = 0; k < c->reach[0].n; k++) {
        int x = rank_interval(c, 0, k);
        struct value_state *s = &c->state[x];
        err_t e = rank_readable(c, x);
        if (!e && micro != p->first_micro + s->leaves)
            e = check_fail(&c->at, c->why, "adds microbatch %d of %s to the tree when %d is next", micro,
                           rank_name(c, x), p->first_micro + s->leaves);
        if (!e && s->reduced)
            e = check_fail(&c->at, c->why, "adds %s to the tree, which has already been reduced", rank_name(c, x));
        if (e)
            return e;
        s->leaves++;
        leaf = s->layout;
        s->value = VALUE_STALE; /* the next microbatch writes the gradient anew */
    }
    for (int k = 0; k < c->reach[1].n; k++)
        rank_put(c, rank_interval(c, 1, k), &leaf, 0);
    return OK;
}

/* The result has the layout of the leaves: the parameter's layout, with shares over the axes that split the batch and,
 * where applicable, over tp. The state of x keeps the layout of its leaves. */
err_t rank_tree_reduce(struct rank_check *c, const struct op *op)
{
    struct check_op at = rank_op(c);
    const struct program *p = c->p;
    unsigned axes = op->group >= 0 ? check_group_axes(p, op->group) : 0;
    unsigned due =
        (p->mesh.size[AXIS_DP] > 1 ? 1u << AXIS_DP : 0) | (p->mesh.size[AXIS_FSDP] > 1 ? 1u << AXIS_FSDP : 0);
    if (axes != due)
        return check_fail(&c->at, c->why,
                          "joins trees over other axes than dp and fsdp, between which the microbatches are divided");
    for (int k = 0; k < c->reach[1].n; k++) {
        int x = rank_interval(c, 1, k), b = c->intervals.at[x].buffer;
        struct value_state *s = &c->state[x];
        unsigned reduced = s->value == VALUE_SET ? s->reduced : 0;
        err_t e = OK;
        if (s->value == VALUE_SET && reduced)
            e = check_fail(&c->at, c->why, "reduces %s a second time in this step", rank_name(c, x));
        else if (s->leaves != p->end_micro - p->first_micro)
            e = check_fail(&c->at, c->why, "reduces %s when %d of this rank's %d leaves are in the tree",
                           rank_name(c, x), s->leaves, p->end_micro - p->first_micro);
        struct value_layout l = s->leaves ? s->layout : (struct value_layout){{0}, true};
        if (!e)
            e = layout_reduce(&at, b, axes, &l, &reduced);
        if (!e && axes)
            e = check_group_is(&c->at, c->g, op->group, axes, -1, rank_name(c, x), c->why);
        if (e)
            return e;
        rank_put(c, x, &l, reduced | due | 1u << AXIS_COUNT); /* summed over this rank's own microbatches too */
    }
    return OK;
}
