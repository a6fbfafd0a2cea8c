/* The first parameters: each element a function of the seed, the tensor's name and its index in the whole tensor, so
 * that every layout starts from the same numbers. */
#include "worker/step/engine.h"

#include "common/base/rng.h"

#include <assert.h>
#include <string.h>

#define MAX_BOXES 64

static void put(void *data, int64_t at, enum dtype dtype, double value)
{
    if (dtype == DT_F64)
        ((double *)data)[at] = value;
    else
        ((float *)data)[at] = (float)value;
}

static double value_of(const struct graph_tensor *t, uint64_t seed, uint64_t stream, int64_t index)
{
    if (t->init == INIT_NORMAL)
        return t->init_std * rng_normal(seed, stream, (uint64_t)index);
    return t->init == INIT_ONE ? 1.0 : 0.0;
}

/* Elements of one box, row-major in the box, to data[at ..]; returns the element after the last. */
static int64_t fill_box(void *data, int64_t at, enum dtype dtype, const struct graph_tensor *t, const struct box *b,
                        uint64_t seed)
{
    const uint64_t stream = rng_stream(t->name);
    int64_t n = box_elements(b);
    for (int64_t i = 0; i < n; i++, at++) {
        int64_t rest = i, index = 0, stride = 1;
        for (int d = b->ndim - 1; d >= 0; d--) {
            index += (b->offset[d] + rest % b->size[d]) * stride;
            rest /= b->size[d];
            stride *= t->dim[d].factor;
        }
        put(data, at, dtype, value_of(t, seed, stream, index));
    }
    return at;
}

static void fill_tensor(const struct engine *e, const struct program *p, int tensor)
{
    const struct graph_tensor *t = &e->config.graph->tensors[tensor];
    const struct buffer *b = &p->buffers[p->param_buffer[tensor]];
    struct box boxes[MAX_BOXES];
    int64_t dims[GRAPH_MAX_DIMS], at = 0;
    for (int d = 0; d < t->ndim; d++)
        dims[d] = t->dim[d].factor;
    int n = layout_boxes(&p->mesh, &b->layout, t->ndim, dims, p->rank, MAX_BOXES, boxes);
    assert(n <= MAX_BOXES);
    for (int i = 0; i < n; i++)
        at = fill_box(engine_buffer(e, p, p->param_buffer[tensor]), at, b->dtype, t, &boxes[i],
                      e->config.job->train.seed);
}

void engine_fill_state(struct engine *e)
{
    const struct program *p = e->has_train ? &e->train : &e->eval;
    for (int t = 0; t < e->config.graph->n_tensors; t++)
        if (e->config.graph->tensors[t].kind == GT_PARAM && p->param_buffer[t] >= 0)
            fill_tensor(e, p, t);
    if (e->space[SPACE_OPT])
        memset(e->space[SPACE_OPT], 0, e->space_bytes[SPACE_OPT]);
    e->step = 0;
    e->position = 0;
    e->updates = 0;
}
