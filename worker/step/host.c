/* What host and device exchange in a step. Where the device's memory is the host's, SPACE_HOST is one thing and nothing
 * is copied. Elsewhere a batch is written into one of a few pinned copies, which take turns, so that the host can be
 * microbatches ahead: it waits only for the copy that it is about to overwrite. Scalars come back into the mirror at
 * the end of the program, each on the stream of its last writer, so that no event is needed. */
#include "worker/step/run.h"

#include <assert.h>

#define ALIGN 256

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static bool mirrored(const struct engine *e)
{
    return !e->config.dev->ops->host_memory;
}

static size_t input_bytes(const struct program *p, int buffer)
{
    return buffer >= 0 ? aligned((size_t)p->buffers[buffer].bytes) : 0;
}

/* Room for one copy of a batch of either program. */
static void ring_bytes(const struct engine *e, size_t *ret_ids, size_t *ret_targets)
{
    const struct program *programs[] = {&e->train, &e->eval};
    const bool has[] = {e->has_train, e->has_eval};
    *ret_ids = *ret_targets = 0;
    for (int i = 0; i < 2; i++) {
        size_t ids = has[i] ? input_bytes(programs[i], programs[i]->ids_buffer) : 0;
        size_t targets = has[i] ? input_bytes(programs[i], programs[i]->targets_buffer) : 0;
        *ret_ids = ids > *ret_ids ? ids : *ret_ids;
        *ret_targets = targets > *ret_targets ? targets : *ret_targets;
    }
}

static size_t row_bytes(const struct engine *e)
{
    const struct graph *g = e->config.graph;
    return e->config.generate ? (size_t)g->tensors[g->logits].dim[1].factor * dtype_bytes(e->eval.dtype) : 0;
}

err_t host_init(struct engine *e, struct why *why)
{
    struct engine_host *h = &e->host;
    size_t ids, targets, mirror = aligned(e->space_bytes[SPACE_HOST]);
    if (!mirrored(e))
        return OK;
    ring_bytes(e, &ids, &targets);
    h->bytes = mirror + ENGINE_RING * (ids + targets) + row_bytes(e);
    err_t err = dev_host_alloc(e->config.dev, h->bytes, "batches", &h->pinned, why);
    uint8_t *at = (uint8_t *)h->pinned + mirror;
    for (int i = 0; !err && i < ENGINE_RING; i++, at += ids + targets) {
        h->ring[i].ids = (int32_t *)(void *)at;
        h->ring[i].targets = (int32_t *)(void *)(at + ids);
        err = dev_event_new(e->config.dev, false, &h->ring[i].copied);
        if (err)
            why_set(why, err, "cannot make an event: %s", err_text(err));
    }
    h->row = row_bytes(e) ? at : NULL;
    return err;
}

void host_fini(struct engine *e)
{
    for (int i = 0; i < ENGINE_RING; i++)
        dev_event_free(e->config.dev, e->host.ring[i].copied);
    dev_host_free(e->config.dev, e->host.pinned, e->host.bytes);
}

void *engine_host_buffer(const struct engine *e, const struct program *p, int buffer)
{
    const struct buffer *b = &p->buffers[buffer];
    assert(b->space == SPACE_HOST);
    return mirrored(e) ? (uint8_t *)e->host.pinned + b->offset : engine_buffer(e, p, buffer);
}

static void *device_address(const struct engine *e, const struct program *p, int buffer, const struct action *a)
{
    const struct buffer *b = &p->buffers[buffer];
    return (uint8_t *)engine_buffer(e, p, buffer) + run_slot(b, a) * b->slot_bytes;
}

err_t host_batch(struct engine *e, const struct program *p, const struct action *a, int32_t **ret_ids,
                 int32_t **ret_targets, struct why *why)
{
    struct engine_host *h = &e->host;
    if (!mirrored(e)) {
        *ret_ids = device_address(e, p, p->ids_buffer, a);
        *ret_targets = p->targets_buffer >= 0 ? device_address(e, p, p->targets_buffer, a) : NULL;
        return OK;
    }
    *ret_ids = h->ring[h->turn].ids;
    *ret_targets = h->ring[h->turn].targets;
    return dev_event_sync(e->config.dev, h->ring[h->turn].copied, why);
}

err_t host_batch_written(struct engine *e, const struct program *p, const struct action *a, int64_t n)
{
    struct engine_host *h = &e->host;
    struct kern_stream *s = e->stream[STREAM_COMPUTE];
    const size_t bytes = (size_t)n * sizeof(int32_t);
    const int turn = h->turn;
    if (!mirrored(e))
        return OK;
    err_t err = dev_copy(s, device_address(e, p, p->ids_buffer, a), h->ring[turn].ids, bytes);
    if (!err && p->targets_buffer >= 0)
        err = dev_copy(s, device_address(e, p, p->targets_buffer, a), h->ring[turn].targets, bytes);
    h->turn = (turn + 1) % ENGINE_RING;
    return err ? err : dev_event_record(e->config.dev, h->ring[turn].copied, s);
}

static err_t fetch(const struct engine *e, const struct program *p, int buffer, enum op_stream stream)
{
    if (buffer < 0)
        return OK;
    const struct buffer *b = &p->buffers[buffer];
    return dev_copy(e->stream[stream], engine_host_buffer(e, p, buffer), engine_buffer(e, p, buffer),
                    (size_t)(b->bytes + (b->slots - 1) * b->slot_bytes));
}

err_t host_fetch(struct engine *e, const struct program *p, const struct engine_rig *rig)
{
    if (!mirrored(e))
        return OK;
    err_t err = fetch(e, p, p->loss_buffer, rig->loss_stream);
    err = err ? err : fetch(e, p, p->norm_buffer, rig->clip_stream);
    return err ? err : fetch(e, p, p->clip_buffer, rig->clip_stream);
}
