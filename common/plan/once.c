/* What a step does once, behind its microbatches: sum gradients and losses over the ranks, norm, clip, update,
 * snapshot.
 *
 * Reduces go to the communication stream in the order in which the last backward completes the units, each behind the
 * event of its own unit, so that an asynchronous device sums a unit while it still computes the one below. The norm's
 * parts follow unit by unit as the sums arrive; the sum over blocks is one op, in the order of the graph, whatever came
 * first. */
#include "common/plan/compile.h"

static void reduce(struct compiler *c, int unit, int buffer, int64_t elements, enum op_kind kind, int ready, int done)
{
    int first = c->p->n_ops;
    struct op *op = compile_op(c, kind, -1);
    op->stream = STREAM_COMM;
    op->group = 0;
    op->reduce = REDUCE_SUM;
    op->m = dim_one(elements);
    op->wait[0] = ready;
    op->event = done;
    if (kind == OP_TREE_REDUCE)
        op_arg(op, 0, c->unit_tree[unit]);
    op_arg(op, kind == OP_TREE_REDUCE ? 1 : 0, buffer);
    compile_action(c, (struct action){.kind = ACT_REDUCE, .micro = -1, .unit = unit}, (struct op_range){first, 1});
}

void compile_reduce(struct compiler *c)
{
    struct program *p = c->p;
    if (mesh_workers(&p->mesh) > 1)
        reduce(c, -1, p->loss_buffer, p->n_micros, OP_ALL_REDUCE, c->loss_event, c->loss_reduced_event);
    if (p->mode != MODE_TRAIN || (mesh_workers(&p->mesh) == 1 && !p->tree_depth))
        return;
    /* A rank that has no leaves may start when its last update has read the gradients. The zeroing of the losses
     * follows that, and the losses' reduce, which is before this one on the stream, has waited for it. */
    bool idle = p->tree_depth && p->first_micro == p->end_micro;
    for (int unit = c->g->n_units - 1; unit >= 0 && !c->err; unit--)
        reduce(c, unit, c->unit_run[unit], p->buffers[c->unit_run[unit]].dim[0].factor,
               p->tree_depth ? OP_TREE_REDUCE : OP_ALL_REDUCE, idle ? -1 : c->unit_event + unit,
               c->reduced_event + unit);
}

static int64_t param_elements(const struct compiler *c, int t)
{
    return c->g->tensors[t].dim[0].factor * compile_cols(c, t);
}

static void norm_unit(struct compiler *c, int unit)
{
    bool reduced = mesh_workers(&c->p->mesh) > 1 || c->p->tree_depth, first = true;
    for (int t = 0; t < c->g->n_tensors; t++) {
        if (c->g->tensors[t].kind != GT_PARAM || c->g->tensors[t].unit != unit)
            continue;
        struct op *op = compile_op(c, OP_NORM, -1);
        op->m = dim_one(param_elements(c, t));
        op->wait[0] = reduced && first ? c->reduced_event + unit : -1;
        op_arg(op, 0, c->p->grad_buffer[t]);
        op_arg(op, 1, c->blocks);
        op->arg[1].offset = dim_one(c->block_offset[t]);
        first = false;
    }
}

void compile_norm(struct compiler *c)
{
    int first = c->p->n_ops;
    for (int unit = c->g->n_units - 1; unit >= 0; unit--)
        norm_unit(c, unit);
    struct op *op = compile_op(c, OP_CLIP, -1);
    op->m = c->err ? dim_one(0) : c->p->buffers[c->blocks].dim[0];
    op->n = dim_one(c->p->n_micros);
    op->wait[0] = mesh_workers(&c->p->mesh) > 1 ? c->loss_reduced_event : -1;
    op_arg(op, 0, c->blocks);
    op_arg(op, 1, c->p->loss_buffer);
    op_arg(op, 2, c->p->norm_buffer);
    op_arg(op, 3, c->p->clip_buffer);
    compile_action(c, (struct action){.kind = ACT_NORM, .micro = -1, .unit = -1},
                   (struct op_range){first, c->p->n_ops - first});
}

void compile_update(struct compiler *c)
{
    struct program *p = c->p;
    int first = p->n_ops;
    struct op *op = NULL;
    for (int t = 0; t < c->g->n_tensors; t++) {
        if (c->g->tensors[t].kind != GT_PARAM)
            continue;
        op = compile_op(c, OP_ADAMW, -1);
        op->flags = c->g->tensors[t].decay ? OPF_DECAY : 0;
        op->m = dim_one(param_elements(c, t));
        op->wait[0] = p->n_ops - 1 == first ? c->snapshot_event : -1; /* the last save may still be copying */
        const int args[] = {p->param_buffer[t], p->m_buffer[t], p->v_buffer[t], p->grad_buffer[t], p->clip_buffer};
        for (int k = 0; k < 5; k++)
            op_arg(op, k, args[k]);
    }
    if (op)
        op->event = c->update_event;
    compile_action(c, (struct action){.kind = ACT_UPDATE, .micro = -1, .unit = -1},
                   (struct op_range){first, p->n_ops - first});
}

void compile_snapshot(struct compiler *c)
{
    int first = c->p->n_ops;
    struct op *op = compile_op(c, OP_SNAPSHOT, -1);
    op->stream = STREAM_COPY;
    op->wait[0] = c->update_event;
    op->event = c->snapshot_event;
    op_arg(op, 0, c->all_params);
    op_arg(op, 1, c->all_m);
    op_arg(op, 2, c->all_v);
    compile_action(c, (struct action){.kind = ACT_SNAPSHOT, .micro = -1, .unit = -1}, (struct op_range){first, 1});
}
