/* The first parameters: each element a function of the seed, the tensor's name and its index in the whole tensor, so
 * that every layout starts from the same numbers. They are computed by the host, also for a device whose memory it does
 * not see: there in chunks, two in turn, so that one is copied while the next is computed. */
#include "worker/step/engine.h"

#include "common/base/rng.h"
#include "worker/step/rows.h"

#include <assert.h>

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

/* Elements at .. at+n-1 of the box, which lie in `from` one behind another, to their places. */
static err_t copy_out(struct filler *f, uint8_t *to, size_t size, const struct rows *rows, const uint8_t *from,
                      int64_t at, int64_t n)
{
    err_t err = OK;
    for (int64_t i = at, run; !err && i < at + n; i += run) {
        run = rows_run(rows, i, at + n);
        err = dev_copy(f->engine->stream[STREAM_COMPUTE], to + (size_t)rows_place(rows, i) * size,
                       from + (size_t)(i - at) * size, (size_t)run * size);
    }
    return err;
}

static err_t fill_chunks(struct filler *f, uint8_t *to, enum dtype dtype, const struct graph_tensor *t,
                         const struct box *b, const struct rows *rows)
{
    const struct engine *e = f->engine;
    const size_t size = dtype_bytes(dtype);
    assert(size > 0);
    const int64_t n = box_elements(b), room = (int64_t)(CHUNK / size);
    err_t err = OK;
    for (int64_t at = 0; !err && at < n; at += room, f->turn ^= 1) {
        uint8_t *chunk = f->chunk + (f->turn ? CHUNK : 0);
        int64_t m = n - at < room ? n - at : room;
        err = dev_event_sync(e->config.dev, f->left[f->turn], f->why);
        if (err)
            break;
        fill_elements(chunk, dtype, t, b, e->config.job->train.seed, at, m);
        err = copy_out(f, to, size, rows, chunk, at, m);
        err = err ? err : dev_event_record(e->config.dev, f->left[f->turn], e->stream[STREAM_COMPUTE]);
    }
    return err;
}

static err_t fill_box(struct filler *f, uint8_t *to, enum dtype dtype, const struct graph_tensor *t,
                      const struct place_box *b)
{
    const struct rows rows = rows_of(&b->box, b->stride);
    const int64_t n = box_elements(&b->box);
    to += (size_t)b->offset * dtype_bytes(dtype);
    if (f->chunk)
        return fill_chunks(f, to, dtype, t, &b->box, &rows);
    for (int64_t at = 0, run; at < n; at += run) {
        run = rows_run(&rows, at, n);
        fill_elements(to + (size_t)rows_place(&rows, at) * dtype_bytes(dtype), dtype, t, &b->box,
                      f->engine->config.job->train.seed, at, run);
    }
    return OK;
}

/* This rank's piece of it. */
static err_t fill_tensor(struct filler *f, const struct program *p, int tensor)
{
    const struct engine *e = f->engine;
    const struct place_param *q = &p->place.param[tensor];
    const struct buffer *b = &p->buffers[p->param_buffer[tensor]];
    struct place_box boxes[PLACE_MAX_BOXES];
    int n = place_boxes(&p->place, e->config.graph, tensor, q->lo, q->hi, boxes);
    err_t err = OK;
    for (int i = 0; !err && i < n; i++)
        err = fill_box(f, engine_buffer(e, p, p->param_buffer[tensor]), b->dtype, &e->config.graph->tensors[tensor],
                       &boxes[i]);
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
