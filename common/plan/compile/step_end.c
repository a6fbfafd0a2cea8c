/* The end of a step, after its microbatches: sums of gradients and losses over ranks, norm, clip, update, snapshot.
 *
 * A gradient is a sum of shares, and sharding.h determines the sums: over ranks with other tokens (dp, fsdp, cp)
 * always; over the tp ranks of its box where each has computed only a part; over the stages that use the parameter.
 *
 *   ZeRO off     all-reduce over dp x fsdp x cp              local tensor
 *   ZeRO on      reduce-scatter over fsdp, all-reduce        own piece
 *                over dp x cp
 *   canonical    tree reduce over dp x fsdp, all-reduce      local tensor
 *                over cp
 *   then         all-reduce over tp, over pp where needed    own piece
 *
 * The canonical tree is over microbatches, so its sum over dp and fsdp comes first, on whole local tensors. After these
 * sums, ops read only the rank's own piece.
 *
 * The reduces are on the communication stream, in the order in which the last backward completes the units, so that on
 * an asynchronous device a unit is reduced while the backward of the next one runs. The squares of the norm are
 * computed unit by unit, but summed in the graph's order: each block of squares is counted by one rank and is zero on
 * all others, and adding zeros is exact.
 *
 * With post-validation everything that needs the ranks of other stages comes last: the sum of the losses and that of
 * the blocks. A rank that runs slots ahead does so before these (worker/step/ahead.c). Its update first copies what it
 * overwrites, and the restore copies it back. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#define AXIS(a) (1u << (a))

/* The axes on which ranks count different blocks of squares. */
static unsigned norm_axes(const struct compiler *c)
{
    unsigned axes = sharding_norm_axes(&c->p->sharding);
    axes &= MUTANT(NORM_WITHOUT_STAGES) ? ~AXIS(AXIS_PP) : ~0u;
    axes &= MUTANT(NORM_WITHOUT_SHARDS) ? ~AXIS(AXIS_FSDP) : ~0u;
    return MUTANT(NORM_WITHOUT_EXPERTS) ? axes & ~c->p->sharding.ep.axes : axes;
}

/* The ranks on `axes` with shares of the unit's gradients: of experts those with the same ones, because the tokens of
 * all ranks of expert parallelism have already come to them. */
static int sum_group(struct compiler *c, int unit, unsigned axes)
{
    const bool experts = compile_unit_of_experts(c, unit) && !MUTANT(EXPERTS_SUMMED_AS_DENSE);
    return experts ? compile_group_rest(c, axes) : compile_group(c, axes);
}

static bool many(const struct compiler *c)
{
    return mesh_workers(&c->p->mesh) > 1;
}

/* Sets operand i to the gradient of this rank's piece of parameter t. */
static void arg_grad(struct compiler *c, struct op *op, int i, int t)
{
    const struct sharding_param *q = &c->p->sharding.param[t];
    bool own = c->piece_grad[t] >= 0;
    op_arg(op, i, own ? c->piece_grad[t] : c->p->grad_buffer[t]);
    if (!own)
        op->arg[i].offset = dim_one(MUTANT(GRADIENT_OF_THE_FIRST_PIECE) ? 0 : q->lo * q->cols);
}

/* Whether this rank has a piece of parameter t to reduce and update. */
static bool has_piece(const struct compiler *c, int t)
{
    const struct sharding_param *q = &c->p->sharding.param[t];
    return c->g->tensors[t].kind == GT_PARAM && q->held && q->lo < q->hi;
}

static int64_t piece_elements(const struct compiler *c, int t)
{
    const struct sharding_param *q = &c->p->sharding.param[t];
    return (q->hi - q->lo) * q->cols;
}

static struct op *comm_op(struct compiler *c, enum op_kind kind, int group, int64_t elements)
{
    struct op *op = compile_op(c, kind, -1);
    op->stream = STREAM_COMM;
    op->group = group;
    op->reduce = REDUCE_SUM;
    op->m = dim_one(elements);
    return op;
}

/* The tp ranks with shares of the gradient of this rank's piece of parameter t; -1: only this one. */
static int tp_group(struct compiler *c, int t)
{
    const struct sharding_param *q = &c->p->sharding.param[t];
    if (q->boxes == 1)
        return compile_group(c, AXIS(AXIS_TP));
    return q->boxes < c->p->mesh.size[AXIS_TP] ? compile_group_tp_box(c, t) : -1;
}

void step_end_groups(struct compiler *c)
{
    const unsigned logits = mode_generates(c->p->mode) ? AXIS(AXIS_CP) : 0; /* generation gathers them */
    const unsigned cp = AXIS(AXIS_CP), dp = AXIS(AXIS_DP);
    /* cp | tp: the sets of a router */
    const unsigned sets[] = {AXES_ALL,           AXES_DATA,   AXES_DATA | cp, dp | cp,
                             AXIS(AXIS_FSDP),    cp,          AXIS(AXIS_TP),  AXIS(AXIS_TP) | logits,
                             cp | AXIS(AXIS_TP), norm_axes(c)};
    /* those over which gradients of experts are summed, on what expert parallelism leaves of them */
    const unsigned rest[] = {AXES_DATA, AXES_DATA | cp, dp | cp, cp, AXIS(AXIS_FSDP)};
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]) && !c->err; i++)
        compile_group(c, sets[i]);
    for (size_t i = 0; i < sizeof(rest) / sizeof(rest[0]) && !c->err; i++)
        compile_group(c, rest[i] & ~c->p->sharding.ep.axes);
    compile_group_experts(c);
    for (size_t i = 0; i < sizeof(rest) / sizeof(rest[0]) && !c->err; i++)
        compile_group_rest(c, rest[i]);
    for (int t = 0; t < c->g->n_tensors && !c->err; t++) {
        if (c->g->tensors[t].kind != GT_PARAM)
            continue;
        tp_group(c, t);
        if (c->p->sharding.param[t].stages > 1)
            compile_group_stages(c, t);
    }
}

static void reduce_losses(struct compiler *c)
{
    int first = c->p->n_ops;
    if (!many(c))
        return;
    struct op *op =
        comm_op(c, OP_ALL_REDUCE, compile_group(c, MUTANT(LOSSES_OF_REPLICAS) ? AXES_DATA : AXES_ALL), c->p->n_micros);
    op_arg(op, 0, c->p->loss_buffer);
    for (int i = 0; i < NUMBER_COUNT; i++) {
        const int b = c->p->number_buffer[i];
        const unsigned axes = AXES_ALL & ~(MUTANT(COUNTS_WITHOUT_TP) ? AXIS(AXIS_TP) : 0);
        if (b < 0 || compile_group(c, axes) < 0)
            continue;
        op = comm_op(c, OP_ALL_REDUCE, compile_group(c, axes), c->p->buffers[b].dim[0].factor);
        op->reduce = number_reduce((enum number)i);
        op_arg(op, 0, b);
    }
    compile_action(c, (struct action){.kind = ACT_REDUCE, .micro = -1, .unit = -1},
                   (struct op_range){first, c->p->n_ops - first});
}

/* All-reduces a run of the unit's gradients over the ranks on `axes` that have shares of it, if there are any. */
static void reduce_run(struct compiler *c, int unit, int run, unsigned axes)
{
    int group = sum_group(c, unit, axes);
    if (group < 0 || c->err)
        return;
    struct op *op = comm_op(c, OP_ALL_REDUCE, group, c->p->buffers[run].dim[0].factor);
    op_arg(op, 0, run);
}

static void reduce_tree(struct compiler *c, int unit)
{
    if (c->err)
        return;
    int run = c->unit_run[unit], group = many(c) ? sum_group(c, unit, AXES_DATA) : 0;
    struct op *op = comm_op(c, OP_TREE_REDUCE, group, c->p->buffers[run].dim[0].factor);
    op_arg(op, 0, c->unit_tree[unit]);
    op_arg(op, 1, run);
    if (!MUTANT(TREE_WITHOUT_RING))
        reduce_run(c, unit, run, AXIS(AXIS_CP));
}

/* All-reduces the gradient of this rank's piece of parameter t. */
static void reduce_param(struct compiler *c, int t, int group)
{
    if (group < 0 || c->err)
        return;
    struct op *op = comm_op(c, OP_ALL_REDUCE, group, piece_elements(c, t));
    arg_grad(c, op, 0, t);
}

static void reduce_params(struct compiler *c, int unit)
{
    for (int i = c->held_from[unit]; i < c->held_from[unit + 1] && !c->err; i++) {
        const int t = c->held[i];
        if (!has_piece(c, t))
            continue;
        if (c->tp_shares[t] && !MUTANT(TP_SHARES_LEFT))
            reduce_param(c, t, tp_group(c, t));
        if (c->tp_shares[t] && MUTANT(TP_SHARES_TWICE))
            reduce_param(c, t, tp_group(c, t));
        if (MUTANT(WHOLE_SUMMED) && !c->tp_shares[t] && c->p->sharding.param[t].boxes == 1)
            reduce_param(c, t, compile_group(c, AXIS(AXIS_TP)));
        if (c->p->sharding.param[t].stages > 1 && !MUTANT(TIED_LEFT))
            reduce_param(c, t, compile_group_stages(c, t));
    }
}

/* Scatters the unit's gradients once for the step. With a scatter per microbatch there is nothing left to do, unless no
 * rank of the fsdp group had a microbatch: then zeros are scattered. */
static void scatter_rest(struct compiler *c, int unit)
{
    if (zero_scatters(c) && zero_rounds(c) > 0)
        return;
    if (zero_scatters(c)) {
        struct op *op = compile_op(c, OP_ZERO, -1);
        op->m = c->err ? dim_one(0) : c->p->buffers[c->unit_run[unit]].dim[0];
        op_arg(op, 0, c->unit_run[unit]);
    }
    zero_emit_scatter(c, unit, false);
}

static void reduce_unit(struct compiler *c, int unit)
{
    int first = c->p->n_ops;
    if (c->p->tree_depth) {
        reduce_tree(c, unit);
    } else if (zero_divides(c, unit)) {
        scatter_rest(c, unit);
        reduce_run(c, unit, c->unit_grads[unit], (MUTANT(PIECES_WITHOUT_REPLICAS) ? 0 : AXIS(AXIS_DP)) | AXIS(AXIS_CP));
    } else {
        reduce_run(c, unit, c->unit_run[unit], AXES_DATA | (MUTANT(RUN_WITHOUT_RING) ? 0 : AXIS(AXIS_CP)));
    }
    reduce_params(c, unit);
    if (c->p->n_ops > first)
        compile_action(c, (struct action){.kind = ACT_REDUCE, .micro = -1, .unit = unit},
                       (struct op_range){first, c->p->n_ops - first});
}

void step_end_reduce(struct compiler *c)
{
    if (!c->order->ahead)
        reduce_losses(c);
    for (int unit = c->g->n_units - 1; unit >= 0 && !c->err && c->p->mode == MODE_TRAIN; unit--)
        if (c->unit_run[unit] >= 0)
            reduce_unit(c, unit);
}

/* ---- norm ---- */

static void norm_unit(struct compiler *c, int unit)
{
    for (int i = c->held_from[unit]; i < c->held_from[unit + 1]; i++) {
        const int t = c->held[i];
        const struct sharding_param *q = &c->p->sharding.param[t];
        if (!has_piece(c, t) || !sharding_counts(&c->p->sharding, c->g, t))
            continue;
        struct op *op = compile_op(c, OP_NORM, -1);
        op->m = dim_one(piece_elements(c, t));
        op->n = dim_one(q->grain * q->cols);
        arg_grad(c, op, 0, t);
        op_arg(op, 1, c->blocks);
        op->arg[1].offset = dim_one(q->block0 + q->lo / q->grain);
    }
}

static void norm_blocks(struct compiler *c, int group)
{
    if (group >= 0) {
        struct op *op = compile_op(c, OP_ZERO, -1);
        op->m = dim_one(c->p->sharding.n_blocks);
        op_arg(op, 0, c->blocks);
    }
    for (int unit = c->g->n_units - 1; unit >= 0; unit--)
        norm_unit(c, unit);
}

/* Ends the action of this rank's own squares. The next actions need all ranks, so they come after the slots that run
 * ahead.
 */
static void norm_validate(struct compiler *c, int first)
{
    compile_action(c, (struct action){.kind = ACT_NORM, .micro = -1, .unit = -1},
                   (struct op_range){first, c->p->n_ops - first});
    c->p->validate = compile_ahead(c) > 0 ? c->p->n_actions : 0;
    reduce_losses(c);
}

void step_end_norm(struct compiler *c)
{
    const int group = compile_group(c, norm_axes(c)); /* -1: this rank counts all blocks */
    int first = c->p->n_ops;
    norm_blocks(c, group);
    if (c->order->ahead) {
        norm_validate(c, first);
        first = c->p->n_ops;
    }
    if (group >= 0)
        op_arg(comm_op(c, OP_ALL_REDUCE, group, c->p->sharding.n_blocks), 0, c->blocks);
    struct op *op = compile_op(c, OP_CLIP, -1);
    op->m = dim_one(c->p->sharding.n_blocks);
    op->n = dim_one(c->p->n_micros);
    op_arg(op, 0, c->blocks);
    op_arg(op, 1, c->p->loss_buffer);
    op_arg(op, 2, c->p->norm_buffer);
    op_arg(op, 3, c->p->clip_buffer);
    compile_action(c, (struct action){.kind = ACT_NORM, .micro = -1, .unit = -1},
                   (struct op_range){first, c->p->n_ops - first});
}

/* ---- update ---- */

/* An op that changes state `t` of router i, from the numbers of the whole step. */
static void update_state(struct compiler *c, enum op_kind kind, int i, int t)
{
    const struct graph_node *n = &c->g->nodes[i];
    const int state = n->op == GO_ROUTE ? compile_value(c, t) : -1;
    if (state < 0)
        return;
    struct op *op = compile_op(c, kind, i);
    op->m = dim_one(n->router.experts);
    op->rate = kind == OP_BALANCE ? n->router.bias : 0;
    op_arg(op, 0, c->p->number_buffer[NUMBER_TOTALS]);
    op->arg[0].offset = dim_one(MUTANT(COUNTS_OF_THE_FIRST) ? 0 : experts_totals_before(c, i));
    op_arg(op, 1, c->p->clip_buffer);
    op_arg(op, 2, state);
    if (MUTANT(BIASES_MOVED_TWICE)) {
        const struct op again = *op;
        *compile_op(c, kind, i) = again;
    }
}

static void update_routers(struct compiler *c)
{
    for (int i = 0; i < c->g->n_nodes; i++) {
        update_state(c, OP_BALANCE, i, c->g->nodes[i].in[1]);
        if (!MUTANT(COUNTS_NOT_KEPT))
            update_state(c, OP_KEEP, i, c->g->nodes[i].in[2]);
    }
}

/* Copies parameters and moments to where they are kept, or back. */
static void copy_kept(struct compiler *c, bool back)
{
    const int of[] = {c->all_params, c->all_m, c->all_v};
    const int n = (back && MUTANT(RESTORED_WITHOUT_MOMENTS)) || (!back && MUTANT(KEPT_WITHOUT_MOMENTS)) ? 1 : 3;
    for (int i = 0; i < n && !c->err; i++) {
        struct op *op = compile_op(c, OP_COPY, -1);
        op->m = c->err ? dim_one(0) : c->p->buffers[of[i]].dim[0];
        op_arg(op, 0, back ? c->kept[i] : of[i]);
        op_arg(op, 1, back ? of[i] : c->kept[i]);
    }
}

void step_end_update(struct compiler *c)
{
    struct program *p = c->p;
    int first = p->n_ops;
    if (compile_ahead(c) > 0)
        copy_kept(c, false);
    for (int t = 0; t < c->g->n_tensors; t++) {
        if (!has_piece(c, t))
            continue;
        struct op *op = compile_op(c, OP_ADAMW, -1);
        op->flags = c->g->tensors[t].decay ? OPF_DECAY : 0;
        op->m = dim_one(piece_elements(c, t));
        op_arg(op, 0, p->param_buffer[t]);
        op_arg(op, 1, p->m_buffer[t]);
        op_arg(op, 2, p->v_buffer[t]);
        arg_grad(c, op, 3, t);
        op_arg(op, 4, p->clip_buffer);
        if (MUTANT(UPDATED_TWICE) && p->n_ops == first + 1)
            t--;
    }
    update_routers(c);
    compile_action(c, (struct action){.kind = ACT_UPDATE, .micro = -1, .unit = -1},
                   (struct op_range){first, p->n_ops - first});
}

void step_end_restore(struct compiler *c)
{
    const int first = c->p->n_ops;
    if (compile_ahead(c) == 0 || MUTANT(NEVER_RESTORED))
        return;
    copy_kept(c, true);
    compile_action(c, (struct action){.kind = ACT_RESTORE, .micro = -1, .unit = -1},
                   (struct op_range){first, c->p->n_ops - first});
}

void step_end_snapshot(struct compiler *c)
{
    int first = c->p->n_ops;
    struct op *op = compile_op(c, OP_SNAPSHOT, -1);
    op->stream = STREAM_COPY;
    op_arg(op, 0, c->all_params);
    op_arg(op, 1, c->all_m);
    op_arg(op, 2, c->all_v);
    op_arg(op, 3, c->all_states);
    compile_action(c, (struct action){.kind = ACT_SNAPSHOT, .micro = -1, .unit = -1}, (struct op_range){first, 1});
}
