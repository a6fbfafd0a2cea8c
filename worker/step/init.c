/* The first parameters: each element a function of the seed, the tensor's name and its index in the whole tensor, so
 * that every layout starts from the same numbers. They are computed by the host, also for a device whose memory it does
 * not see: there in chunks, two in turn, so that one is copied while the next is computed. */
#include "worker/step/engine.h"

#include "common/base/rng.h"

#include <assert.h>

#define MAX_BOXES 64
#define CHUNK ((size_t)4 << 20)

/* Two pinned chunks and what says that a copy has left them. `chunk` is NULL where the device's memory is written
 * directly. */
struct filler {
    struct engine *engine;
    struct why *why;
    uint8_t *chunk;
    struct dev_event *left[2];
    int turn;
};

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

/* Elements first .. first+n-1 of a box, row-major in the box, to data[0 ..]. */
static void fill_elements(void *data, enum dtype dtype, const struct graph_tensor *t, const struct box *b,
                          uint64_t seed, int64_t first, int64_t n)
{
    const uint64_t stream = rng_stream(t->name);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = first + i, index = 0, stride = 1;
        for (int d = b->ndim - 1; d >= 0; d--) {
            index += (b->offset[d] + rest % b->size[d]) * stride;
            rest /= b->size[d];
            stride *= t->dim[d].factor;
        }
        put(data, i, dtype, value_of(t, seed, stream, index));
    }
}

static err_t fill_box(struct filler *f, uint8_t *to, enum dtype dtype, const struct graph_tensor *t,
                      const struct box *b)
{
    const struct engine *e = f->engine;
    const uint64_t seed = e->config.job->train.seed;
    const int64_t n = box_elements(b), size = (int64_t)dtype_bytes(dtype);
    assert(size > 0);
    const int64_t room = (int64_t)CHUNK / size;
    struct kern_stream *s = e->stream[STREAM_COMPUTE];
    err_t err = OK;
    if (!f->chunk)
        fill_elements(to, dtype, t, b, seed, 0, n);
    for (int64_t at = 0; f->chunk && !err && at < n; at += room, f->turn ^= 1) {
        uint8_t *chunk = f->chunk + (f->turn ? CHUNK : 0);
        int64_t m = n - at < room ? n - at : room;
        err = dev_event_sync(e->config.dev, f->left[f->turn], f->why);
        if (err)
            break;
        fill_elements(chunk, dtype, t, b, seed, at, m);
        err = dev_copy(s, to + at * size, chunk, (size_t)(m * size));
        err = err ? err : dev_event_record(e->config.dev, f->left[f->turn], s);
    }
    return err;
}

static err_t fill_tensor(struct filler *f, const struct program *p, int tensor)
{
    const struct engine *e = f->engine;
    const struct graph_tensor *t = &e->config.graph->tensors[tensor];
    const struct buffer *b = &p->buffers[p->param_buffer[tensor]];
    uint8_t *to = engine_buffer(e, p, p->param_buffer[tensor]);
    struct box boxes[MAX_BOXES];
    int64_t dims[GRAPH_MAX_DIMS];
    err_t err = OK;
    for (int d = 0; d < t->ndim; d++)
        dims[d] = t->dim[d].factor;
    int n = layout_boxes(&p->mesh, &b->layout, t->ndim, dims, p->rank, MAX_BOXES, boxes);
    assert(n <= MAX_BOXES);
    for (int i = 0; !err && i < n; i++) {
        err = fill_box(f, to, b->dtype, t, &boxes[i]);
        to += box_elements(&boxes[i]) * (int64_t)dtype_bytes(b->dtype);
    }
    return err;
}

static err_t filler_init(struct filler *f)
{
    struct dev *dev = f->engine->config.dev;
    void *chunk = NULL;
    if (dev->ops->host_memory)
        return OK;
    err_t err = dev_host_alloc(dev, 2 * CHUNK, "the first parameters", &chunk, f->why);
    f->chunk = chunk;
    for (int i = 0; !err && i < 2; i++)
        err = dev_event_new(dev, false, &f->left[i]);
    return err;
}

static void filler_fini(struct filler *f)
{
    struct dev *dev = f->engine->config.dev;
    for (int i = 0; i < 2; i++)
        dev_event_free(dev, f->left[i]);
    dev_host_free(dev, f->chunk, 2 * CHUNK);
}

err_t engine_zero_moments(struct engine *e, struct why *why)
{
    err_t err = OK;
    e->updates = 0;
    if (e->space[SPACE_OPT])
        err = dev_zero(e->stream[STREAM_COMPUTE], e->space[SPACE_OPT], e->space_bytes[SPACE_OPT]);
    if (err)
        return why_set(why, err, "cannot clear the optimizer's state: %s", err_text(err));
    return dev_stream_sync(e->stream[STREAM_COMPUTE], why);
}

err_t engine_fill_state(struct engine *e, struct why *why)
{
    const struct program *p = e->has_train ? &e->train : &e->eval;
    struct why detail = {""};
    struct filler f = {.engine = e, .why = &detail};
    err_t err = filler_init(&f);
    for (int t = 0; !err && t < e->config.graph->n_tensors; t++)
        if (e->config.graph->tensors[t].kind == GT_PARAM && p->param_buffer[t] >= 0)
            err = fill_tensor(&f, p, t);
    err_t last = engine_zero_moments(e, why); /* waits for the copies, too */
    filler_fini(&f);
    e->step = 0;
    e->position = 0;
    if (err)
        return why_set(why, err, "cannot fill the first parameters: %s", detail.text[0] ? detail.text : err_text(err));
    return last;
}
