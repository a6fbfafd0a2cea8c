/* The optimizer's step is the same number for every parameter, so all of its pieces share one cell of the arena. Names
 * are torchtitan's (common/ckpt). */
#include "worker/step/snapshot.h"

#include "common/base/past_cache.h"
#include "worker/step/fault.h"
#include "worker/step/rows.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAST_CACHE_LEAST ((size_t)64 << 10) /* less may still be in the cache when dtd-io reads it */

static size_t aligned(size_t n)
{
    return (n + PLAN_ARENA_ALIGN - 1) / PLAN_ARENA_ALIGN * PLAN_ARENA_ALIGN;
}

static struct snapshot_piece *add_piece(struct snapshot *s)
{
    if (s->n % 64 == 0) { /* the array grows by 64 pieces */
        void *more = realloc(s->pieces, (size_t)(s->n + 64) * sizeof(*s->pieces));
        if (!more)
            return NULL;
        s->pieces = more;
    }
    memset(&s->pieces[s->n], 0, sizeof(*s->pieces));
    return &s->pieces[s->n++];
}

static const int *buffers_of(const struct program *p, enum ckpt_state state)
{
    return state == CKPT_PARAM ? p->param_buffer : state == CKPT_EXP_AVG ? p->m_buffer : p->v_buffer;
}

static err_t add_part(struct snapshot *s, const struct engine *e, int tensor, enum ckpt_state state,
                      const struct box *box, int64_t at, int64_t stride)
{
    const struct program *p = e->has_train ? &e->train : &e->eval;
    const struct graph_tensor *t = &e->config.graph->tensors[tensor];
    int buffer = buffers_of(p, state)[tensor];
    struct snapshot_piece *x = add_piece(s);
    if (!x)
        return ERR_NOMEM;
    x->dtype = p->buffers[buffer].dtype;
    x->ndim = graph_shape(t, x->shape);
    x->box = *box;
    x->stride = stride;
    x->bytes = (size_t)box_elements(box) * dtype_bytes(x->dtype);
    x->data = (uint8_t *)engine_buffer(e, p, buffer) + (size_t)at * dtype_bytes(x->dtype);
    return ckpt_state_name(state, t->name, x->fqn, sizeof(x->fqn));
}

/* Adds a box of a tensor, which begins `at` elements after the start of its buffer, as boxes of the checkpoint. */
static err_t add_box(struct snapshot *s, const struct engine *e, int tensor, enum ckpt_state state,
                     const struct box *box, int64_t at, int64_t stride)
{
    struct box parts[GRAPH_BOXES_MAX];
    int n = graph_boxes(&e->config.graph->tensors[tensor], box, parts);
    err_t err = OK;
    for (int i = 0; i < n && !err; i++) {
        err = add_part(s, e, tensor, state, &parts[i], at, stride);
        at += box_elements(&parts[i]) / (parts[i].ndim > 1 ? parts[i].size[parts[i].ndim - 1] : 1) * stride;
    }
    return err;
}

static err_t add_step(struct snapshot *s, const struct engine *e, int tensor)
{
    struct snapshot_piece *x = add_piece(s);
    if (!x)
        return ERR_NOMEM;
    x->dtype = DT_F32;
    x->bytes = sizeof(s->updates);
    x->data = &s->updates;
    x->host = true;
    snprintf(x->fqn, sizeof(x->fqn), "optimizer.state.%s.step", e->config.graph->tensors[tensor].name);
    return OK;
}

static err_t add_steps(struct snapshot *s, const struct engine *e)
{
    size_t cell = s->bytes;
    for (int t = 0; t < e->config.graph->n_tensors; t++) {
        if (e->config.graph->tensors[t].kind != GT_PARAM)
            continue;
        err_t err = add_step(s, e, t);
        if (err)
            return err;
        s->pieces[s->n - 1].arena_offset = cell;
    }
    s->bytes += PLAN_ARENA_ALIGN;
    return OK;
}

err_t snapshot_plan_save(const struct engine *e, struct snapshot *ret)
{
    struct save_item *items;
    int n;
    *ret = (struct snapshot){0};
    err_t err = plan_save_items(&e->train, e->config.graph, &items, &n);
    if (err)
        return err;
    for (int i = 0; !err && i < n; i++)
        err = add_box(ret, e, items[i].tensor, (enum ckpt_state)items[i].state, &items[i].box, items[i].buffer_offset,
                      items[i].stride);
    for (int i = 0; !err && i < ret->n; i++) {
        ret->pieces[i].arena_offset = ret->bytes;
        ret->bytes += aligned(ret->pieces[i].bytes);
    }
    if (!err && e->config.rank == 0)
        err = add_steps(ret, e);
    free(items);
    if (err)
        snapshot_fini(ret);
    return err;
}

/* Adds the boxes of this rank's piece. */
static err_t add_needed(struct snapshot *s, const struct engine *e, int tensor, enum ckpt_state state)
{
    const struct program *p = e->has_train ? &e->train : &e->eval;
    const struct sharding_param *q = &p->sharding.param[tensor];
    struct sharding_box boxes[SHARDING_MAX_BOXES];
    err_t err = OK;
    if (buffers_of(p, state)[tensor] < 0)
        return OK;
    int n = sharding_boxes(&p->sharding, e->config.graph, tensor, q->lo, q->hi, boxes);
    for (int i = 0; !err && i < n; i++)
        err = add_box(s, e, tensor, state, &boxes[i].box, boxes[i].offset, boxes[i].stride);
    return err;
}

err_t snapshot_plan_load(const struct engine *e, bool optimizer, struct snapshot *ret)
{
    const struct graph *g = e->config.graph;
    err_t err = OK;
    int last = -1;
    *ret = (struct snapshot){0};
    for (int t = 0; !err && t < g->n_tensors; t++) {
        if (!graph_is_stored(&g->tensors[t]))
            continue;
        last = g->tensors[t].kind == GT_PARAM ? t : last;
        if (!optimizer)
            err = add_needed(ret, e, t, CKPT_PARAM);
        for (int state = CKPT_EXP_AVG; !err && optimizer && state < CKPT_STATE_COUNT; state++)
            err = add_needed(ret, e, t, (enum ckpt_state)state);
    }
    if (!err && optimizer && last >= 0)
        err = add_step(ret, e, last);
    if (err)
        snapshot_fini(ret);
    return err;
}

/* The dimension along which a piece is split: the first that has more than one index. */
static int split_dim(const struct snapshot_piece *x)
{
    return x->ndim == 3 && x->box.size[0] == 1 ? 1 : 0;
}

/* Shortens piece `i` to its first `n` indices of dimension `d` and appends the rest as a new piece. */
static err_t split_piece(struct snapshot *s, int i, int d, int64_t n)
{
    struct snapshot_piece *tail = add_piece(s);
    if (!tail)
        return ERR_NOMEM;
    struct snapshot_piece *x = &s->pieces[i];
    size_t head = x->bytes / (size_t)x->box.size[d] * (size_t)n;
    int64_t rows = x->ndim == 3 && d == 0 ? n * x->box.size[1] : n;
    *tail = *x;
    tail->box.offset[d] += n;
    tail->box.size[d] -= n;
    tail->data = (uint8_t *)x->data + (size_t)(rows * x->stride) * dtype_bytes(x->dtype);
    tail->bytes -= head;
    x->box.size[d] = n;
    x->bytes = head;
    return OK;
}

err_t snapshot_fit(struct snapshot *s, size_t arena_bytes)
{
    for (int i = 0; i < s->n;) { /* includes the pieces that this loop appends */
        const struct snapshot_piece *x = &s->pieces[i];
        if (x->bytes <= arena_bytes) {
            i++;
            continue;
        }
        const int d = split_dim(x);
        int64_t n = x->ndim ? (int64_t)(arena_bytes / (x->bytes / (size_t)x->box.size[d])) : 0;
        if (n < 1 && (x->ndim < 3 || d == 1))
            return ERR_LIMIT;
        err_t err = split_piece(s, i, d, n < 1 ? 1 : n); /* one expert, which is split next */
        if (err)
            return err;
    }
    return OK;
}

int snapshot_place(struct snapshot *s, int first, size_t arena_bytes)
{
    size_t at = 0;
    int i = first;
    for (; i < s->n && at + s->pieces[i].bytes <= arena_bytes; i++) {
        s->pieces[i].arena_offset = at;
        at += aligned(s->pieces[i].bytes);
    }
    s->bytes = at;
    return i;
}

void snapshot_fini(struct snapshot *s)
{
    free(s->pieces);
    *s = (struct snapshot){0};
}

/* ---- copying ---- */

/* The program's snapshot action and its only op, which names the stream, the event to wait for, and the event that
 * marks completion. */
static const struct op *snapshot_op(const struct engine *e, const struct action **ret_action)
{
    const struct program *p = &e->train;
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].kind == ACT_SNAPSHOT) {
            *ret_action = &p->actions[i];
            return &p->ops[p->actions[i].first_op];
        }
    assert(!"a training program has a snapshot");
    return NULL;
}

static struct dev_event *snapshot_event(const struct engine *e)
{
    const struct action *a = NULL;
    const struct op *op = snapshot_op(e, &a);
    return e->train_bindings.events[op->event];
}

/* Pieces are large together, and each is smaller than what glibc writes past the caches. */
static void copy_to_arena(void *to, const void *from, size_t bytes)
{
    if (bytes < PAST_CACHE_LEAST)
        memcpy(to, from, bytes);
    else
        copy_past_cache(to, from, bytes);
}

/* Copies between the arena, where the box is dense, and its rows on the device. s NULL: the device is the processor,
 * and dtd-io, not this process, reads the arena next. */
static err_t copy_piece(const struct snapshot_piece *x, struct kern_stream *s, uint8_t *arena, bool to_arena)
{
    const struct box_rows rows = rows_of(&x->box, x->stride);
    const int64_t n = box_elements(&x->box);
    const size_t size = dtype_bytes(x->dtype);
    err_t err = OK;
    for (int64_t at = 0, run; !err && at < n; at += run) {
        run = rows_run(&rows, at, n);
        uint8_t *dense = arena + (size_t)at * size, *data = (uint8_t *)x->data + (size_t)rows_place(&rows, at) * size;
        if (!s)
            copy_to_arena(dense, data, (size_t)run * size);
        else
            err = dev_copy(s, to_arena ? dense : data, to_arena ? data : dense, (size_t)run * size);
    }
    return err;
}

err_t snapshot_copy(struct snapshot *s, struct engine *e, void *arena)
{
    struct run r = {.engine = e, .program = &e->train, .bindings = &e->train_bindings};
    const struct op *op = snapshot_op(e, &r.action);
    const bool past_cache = e->config.dev->ops->host_memory;
    err_t err = run_waits(&r, op);
    s->updates = (float)e->updates;
    for (int i = 0; !err && i < s->n; i++) {
        const struct snapshot_piece *x = &s->pieces[i];
        uint8_t *to = (uint8_t *)arena + x->arena_offset;
        if (i == s->n / 2)
            fault_point(&r, op, FAULT_WITHIN);
        if (x->host)
            memcpy(to, x->data, x->bytes);
        else
            err = copy_piece(x, past_cache ? NULL : run_stream(&r, op), to, true);
    }
    return err ? err : run_record(&r, op);
}

bool snapshot_over(const struct engine *e)
{
    return dev_event_over(e->config.dev, snapshot_event(e));
}

err_t snapshot_wait(const struct engine *e, struct why *why)
{
    return dev_event_sync(e->config.dev, snapshot_event(e), why);
}

err_t snapshot_restore(const struct snapshot *s, struct engine *e, const void *arena, int first, int end,
                       struct why *why)
{
    struct kern_stream *stream = e->stream[STREAM_COMPUTE];
    err_t err = OK;
    e->moments_untouched = false;
    for (int i = first; !err && i < end; i++) {
        const struct snapshot_piece *x = &s->pieces[i];
        uint8_t *from = (uint8_t *)arena + x->arena_offset; /* only read */
        if (x->host)
            memcpy(x->data, from, x->bytes);
        else
            err = copy_piece(x, stream, from, false);
    }
    if (err)
        return why_set(why, err, "cannot copy the state to the device: %s", err_text(err));
    return dev_stream_sync(stream, why);
}
