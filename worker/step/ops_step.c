/* Ops that a step needs between its kernels: collectives, the canonical tree, norm, clipping, the update. */
#include "worker/step/run.h"

#include "common/plan/sumtree.h"

static err_t op_all_reduce(const struct run *r, const struct op *op)
{
    const struct buffer *b = &r->program->buffers[op->arg[0].buffer];
    return comm_all_reduce(r->rig->groups[op->group], run_stream(r, op), run_arg(r, op, 0), run_dim(r, op->m), b->dtype,
                           op->reduce);
}

/* A leaf joins the stack of finished nodes; siblings on top merge (common/plan/sumtree.h). */
static err_t op_tree_leaf(const struct run *r, const struct op *op)
{
    const struct program *p = r->program;
    const struct kern_ops *k = r->engine->kernels;
    struct kern_stream *s = run_stream(r, op);
    int64_t n = run_dim(r, op->m);
    int height = sumtree_height(p->n_micros, p->first_micro, r->action->micro);
    int merges = sumtree_merges(p->n_micros, p->first_micro, r->action->micro);
    if (merges == 0)
        return dev_copy(s, run_arg_slot(r, op, 1, height), run_arg(r, op, 0), (size_t)n * dtype_bytes(k->wide));
    void *top = run_arg_slot(r, op, 1, height - 1);
    k->add(s, n, top, run_arg(r, op, 0), top);
    for (int i = 1; i < merges; i++) {
        void *under = run_arg_slot(r, op, 1, height - 1 - i);
        k->add(s, n, under, run_arg_slot(r, op, 1, height - i), under);
    }
    return OK;
}

static err_t op_tree_reduce(const struct run *r, const struct op *op)
{
    const struct program *p = r->program;
    struct sumtree_node nodes[SUMTREE_MAX_NODES];
    struct comm_tree_node mine[SUMTREE_MAX_NODES];
    uint8_t *shared = comm_shared(r->engine->comm);
    int n = sumtree_nodes(p->n_micros, p->first_micro, p->end_micro, nodes);
    for (int i = 0; i < n; i++)
        mine[i] =
            (struct comm_tree_node){nodes[i].lo, nodes[i].hi, (size_t)((uint8_t *)run_arg_slot(r, op, 0, i) - shared)};
    return comm_tree_reduce(r->rig->groups[op->group], mine, n, p->n_micros, run_arg(r, op, 1), run_dim(r, op->m),
                            p->buffers[op->arg[1].buffer].dtype);
}

static err_t op_norm(const struct run *r, const struct op *op)
{
    r->engine->kernels->sumsq_blocks(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), run_arg(r, op, 0),
                                     run_arg(r, op, 1));
    return OK;
}

static err_t op_clip(const struct run *r, const struct op *op)
{
    const struct kern_clip c = {
        .n_blocks = run_dim(r, op->m),
        .n_losses = run_dim(r, op->n),
        .blocks = run_arg(r, op, 0),
        .losses = run_arg(r, op, 1),
        .norm = run_arg(r, op, 2),
        .factor = run_arg(r, op, 3),
        .limit = r->engine->config.job->train.clip,
    };
    r->engine->kernels->clip(run_stream(r, op), &c);
    return OK;
}

static err_t op_adamw(const struct run *r, const struct op *op)
{
    const struct job_train *t = &r->engine->config.job->train;
    const struct kern_adamw a = {
        .n = run_dim(r, op->m),
        .p = run_arg(r, op, 0),
        .m = run_arg(r, op, 1),
        .v = run_arg(r, op, 2),
        .g = run_arg(r, op, 3),
        .lr = r->lr,
        .beta1 = t->beta1,
        .beta2 = t->beta2,
        .eps = t->eps,
        .weight_decay = op->flags & OPF_DECAY ? t->weight_decay : 0.0,
        .grad_scale = run_arg(r, op, 4),
        .step = r->update,
    };
    r->engine->kernels->adamw(run_stream(r, op), &a);
    return OK;
}

const run_op_fn run_step_ops[OP_KIND_COUNT] = {
    [OP_ALL_REDUCE] = op_all_reduce,
    [OP_TREE_LEAF] = op_tree_leaf,
    [OP_TREE_REDUCE] = op_tree_reduce,
    [OP_NORM] = op_norm,
    [OP_CLIP] = op_clip,
    [OP_ADAMW] = op_adamw,
};
