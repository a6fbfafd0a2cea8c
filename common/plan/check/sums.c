/* Sums over ranks and gathers of many values at once: a unit's gradients, its pieces, the canonical tree. Each value is
 * summed over an axis once, where it is a share, by the ranks that hold the others. */
#include "common/plan/check/rank.h"

static err_t reduce_blocks(struct rank_check *c, const struct op *op)
{
    if (!c->first_step)
        return OK;
    if (c->facts->blocks_group >= 0)
        return check_fail(&c->at, c->why, "reduces the blocks of squares a second time in this step");
    if (!c->blocks_zeroed)
        return check_fail(&c->at, c->why, "reduces blocks of squares that still hold the sums of the step before");
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
    if (op->reduce != REDUCE_SUM)
        return check_fail(&c->at, c->why, "does not sum %s, of which every rank has a share",
                          c->p->buffers[op->arg[0].buffer].name);
    if (rank_is_blocks(c, op->arg[0].buffer))
        return reduce_blocks(c, op);
    for (int k = 0; k < c->reach[0].n; k++) {
        int place = rank_place(c, 0, k), b = c->places.place[place].buffer;
        struct state *s = &c->state[place];
        err_t e = layout_reduce(&at, b, axes, &s->layout, &s->reduced);
        if (!e)
            e = check_group_is(&c->at, c->g, op->group, axes, rank_is_grad(c, place) ? c->p->buffers[b].tensor : -1,
                               c->p->buffers[b].name, c->why);
        if (e)
            return e;
        s->sum_lo = lo > s->sum_lo ? lo : s->sum_lo;
        s->sum_hi =
            lo + check_extent(c->p, op, 0) * size < s->sum_hi ? lo + check_extent(c->p, op, 0) * size : s->sum_hi;
        rank_lose(c, place);
    }
    return OK;
}

/* Whether this rank has any rows of the local tensor. */
bool rank_has_piece(const struct rank_check *c, int place)
{
    const struct sharding_param *q = &c->p->sharding.param[rank_buffer(c, place)->tensor];
    return q->lo < q->hi;
}

/* Pieces become local tensors. */
err_t rank_unit_gather(struct rank_check *c)
{
    for (int k = 0; k < c->reach[1].n; k++) {
        int y = rank_place(c, 1, k);
        struct value_layout l = layout_of_param(c->p, c->g, rank_buffer(c, y)->tensor, false);
        if (rank_has_piece(c, y) && rank_same_tensor(c, 0, y) < 0)
            return check_fail(&c->at, c->why, "gathers %s, of which it sends no piece", rank_name(c, y));
        rank_put(c, y, &l, 0);
    }
    return OK;
}

/* Local gradient x is summed into the piece's y, which a rank without a piece does not have. */
static err_t scatter_one(struct rank_check *c, const struct op *op, int x, int y)
{
    struct check_op at = rank_op(c);
    struct value_layout l = c->state[x].layout;
    unsigned reduced = c->state[x].reduced;
    err_t e = c->state[x].spent ? check_fail(&c->at, c->why, "reduces %s a second time in this step", rank_name(c, x))
                                : layout_reduce(&at, c->places.place[x].buffer, 1u << AXIS_FSDP, &l, &reduced);
    c->state[x].spent = true;
    if (e || y < 0)
        return e;
    l.on[AXIS_FSDP] = ON_PIECE;
    struct value_layout sum = c->state[y].layout;
    if (!(op->flags & OPF_ACC))
        e = rank_overwrite(c, y);
    else if (!(e = layout_add(&at, c->places.place[y].buffer, &sum, c->state[y].reduced, &l)))
        l = sum;
    if (!e)
        rank_put(c, y, &l, op->flags & OPF_ACC ? c->state[y].reduced : reduced);
    return e;
}

err_t rank_unit_scatter(struct rank_check *c, const struct op *op)
{
    err_t e = OK;
    for (int k = 0; k < c->reach[0].n && !e; k++) {
        int x = rank_place(c, 0, k), y = rank_same_tensor(c, 1, x);
        if (rank_has_piece(c, x) && y < 0)
            e = check_fail(&c->at, c->why, "scatters %s, of whose piece it has no gradient", rank_name(c, x));
        else
            e = scatter_one(c, op, x, y);
    }
    return e;
}

/* ---- the canonical tree ---- */

/* Leaves join once each, in ascending order. */
err_t rank_leaf(struct rank_check *c)
{
    const struct program *p = c->p;
    int micro = p->actions[c->at.action].micro;
    struct value_layout leaf = {{0}, true};
    for (int k = 0; k < c->reach[0].n; k++) {
        int x = rank_place(c, 0, k);
        struct state *s = &c->state[x];
        err_t e = rank_readable(c, x);
        if (!e && micro != p->first_micro + s->leaves)
            e = check_fail(&c->at, c->why, "puts microbatch %d of %s into the tree when %d is next", micro,
                           rank_name(c, x), p->first_micro + s->leaves);
        if (!e && s->reduced)
            e = check_fail(&c->at, c->why, "puts %s into the tree, which has been reduced", rank_name(c, x));
        if (e)
            return e;
        s->leaves++;
        leaf = s->layout;
        s->value = VALUE_STALE; /* the next microbatch starts its own */
    }
    for (int k = 0; k < c->reach[1].n; k++)
        rank_put(c, rank_place(c, 1, k), &leaf, 0);
    return OK;
}

/* What the leaves of this gradient were: its parameter's, with shares on the axes of the batch, and what tp adds. The
 * leaf's own layout is kept in its state. */
err_t rank_tree_reduce(struct rank_check *c, const struct op *op)
{
    struct check_op at = rank_op(c);
    const struct program *p = c->p;
    unsigned axes = op->group >= 0 ? check_group_axes(p, op->group) : 0;
    unsigned due =
        (p->mesh.size[AXIS_DP] > 1 ? 1u << AXIS_DP : 0) | (p->mesh.size[AXIS_FSDP] > 1 ? 1u << AXIS_FSDP : 0);
    if (axes != due)
        return check_fail(&c->at, c->why, "joins trees over other axes than dp and fsdp, which have the microbatches");
    for (int k = 0; k < c->reach[1].n; k++) {
        int x = rank_place(c, 1, k), b = c->places.place[x].buffer;
        struct state *s = &c->state[x];
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
