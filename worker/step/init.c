/* Initial parameters. Each element is a function of the seed, the tensor's name and its index in the whole tensor, so
 * every layout starts from the same numbers. The device computes them (kern_ops.normal). */
#include "worker/step/engine.h"

#include "common/base/rng.h"

#include <assert.h>

/* Fills box b of tensor t; this rank's piece begins at `piece`. Ones and zeros are normal numbers with deviation 0. */
static void fill_box(const struct engine *e, const struct graph_tensor *t, const struct sharding_box *b, uint8_t *piece)
{
    const bool matrix = b->box.ndim > 1;
    struct kern_normal k = {.rows = b->box.size[0],
                            .n = matrix ? b->box.size[1] : 1,
                            .stride = b->stride,
                            .cols = matrix ? t->dim[1].factor : 1,
                            .seed = e->config.job->train.seed,
                            .stream = rng_stream(t->name),
                            .mean = t->init == INIT_ONE,
                            .std = t->init == INIT_NORMAL ? t->init_std : 0,
                            .y = piece + (size_t)b->offset * dtype_bytes(e->kernels->wide)};
    assert(b->box.ndim <= 2);
    k.first = (uint64_t)(b->box.offset[0] * k.cols + (matrix ? b->box.offset[1] : 0));
    if (k.n == k.cols && k.n == k.stride) { /* whole contiguous rows: one long row is faster to fill */
        k.n *= k.rows;
        k.rows = 1;
    }
    e->kernels->normal(e->stream[STREAM_COMPUTE], &k);
}

/* Fills this rank's piece of the tensor. */
static void fill_tensor(const struct engine *e, const struct program *p, int tensor)
{
    const struct sharding_param *q = &p->sharding.param[tensor];
    struct sharding_box boxes[SHARDING_MAX_BOXES];
    int n = sharding_boxes(&p->sharding, e->config.graph, tensor, q->lo, q->hi, boxes);
    assert(p->buffers[p->param_buffer[tensor]].dtype == e->kernels->wide);
    for (int i = 0; i < n; i++)
        fill_box(e, &e->config.graph->tensors[tensor], &boxes[i], engine_buffer(e, p, p->param_buffer[tensor]));
}

err_t engine_zero_moments(struct engine *e, struct why *why)
{
    err_t err = OK;
    e->updates = 0;
    if (e->space[SPACE_OPT] && !e->moments_untouched)
        err = dev_zero(e->stream[STREAM_COMPUTE], e->space[SPACE_OPT], e->space_bytes[SPACE_OPT]);
    if (err)
        return why_set(why, err, "cannot clear the optimizer's state: %s", err_text(err));
    return dev_stream_sync(e->stream[STREAM_COMPUTE], why);
}

err_t engine_fill_state(struct engine *e, struct why *why)
{
    const struct program *p = e->has_train ? &e->train : &e->eval;
    err_t err = OK;
    for (int t = 0; !err && t < e->config.graph->n_tensors; t++)
        if (e->config.graph->tensors[t].kind == GT_STATE && p->param_buffer[t] >= 0)
            err = dev_zero(e->stream[STREAM_COMPUTE], engine_buffer(e, p, p->param_buffer[t]),
                           (size_t)p->buffers[p->param_buffer[t]].bytes);
    if (err)
        return why_set(why, err, "cannot clear the state of routers: %s", err_text(err));
    for (int t = 0; t < e->config.graph->n_tensors; t++)
        if (e->config.graph->tensors[t].kind == GT_PARAM && p->param_buffer[t] >= 0)
            fill_tensor(e, p, t);
    e->step = 0;
    e->position = 0;
    return engine_zero_moments(e, why); /* also waits for the parameters and returns their error */
}
