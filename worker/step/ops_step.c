/* Ops that a step needs besides the model's kernels: leaves of the canonical summation tree, norm, clipping and the
 * update. */
#include "worker/step/run.h"

#include "common/plan/sumtree.h"

/* Pushes a leaf onto the stack of finished nodes; siblings at the top merge (common/plan/sumtree.h). */
static err_t op_tree_leaf(const struct run *r, const struct op *op)
{
    const struct program *p = r->program;
    const struct kern_ops *k = run_wide_kernels(r);
    struct kern_stream *s = run_stream(r, op);
    int64_t n = run_dim(r, op->m);
    int height = sumtree_height(p->n_micros, p->first_micro, r->action->micro);
    int merges = sumtree_merges(p->n_micros, p->first_micro, r->action->micro);
    if (merges == 0)
        return dev_copy(s, run_arg_slot(r, op, 1, height), run_arg(r, op, 0), (size_t)n * dtype_bytes(k->dtype));
    void *top = run_arg_slot(r, op, 1, height - 1);
    k->add(s, n, top, run_arg(r, op, 0), top);
    for (int i = 1; i < merges; i++) {
        void *under = run_arg_slot(r, op, 1, height - 1 - i);
        k->add(s, n, under, run_arg_slot(r, op, 1, height - i), under);
    }
    return OK;
}

/* sharding_grain splits the tensor's columns into the blocks. */
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
    [OP_TREE_LEAF] = op_tree_leaf,
    [OP_NORM] = op_norm,
    [OP_CLIP] = op_clip,
    [OP_ADAMW] = op_adamw,
};
