/* Transfers between host and device in a step.
 *
 * If the device's memory is host memory, SPACE_HOST exists once and nothing is copied. Otherwise a batch is written
 * into one of ENGINE_RING pinned copies, which are used in turn, so that the host can be several microbatches ahead; it
 * waits only for the copy that it is about to overwrite. At the end of the program the scalars are copied to the
 * mirror, each on the stream of its last writer, so that no event is needed. */
#include "worker/step/run.h"

#include <assert.h>
#include <stdlib.h>

#define ALIGN 256

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static bool mirrored(const struct engine *e)
{
    return !e->config.dev->ops->host_memory;
}

static size_t input_bytes(const struct program *p, enum batch_part part)
{
    int buffer = batch_buffer(p, part);
    return buffer >= 0 ? aligned((size_t)p->buffers[buffer].bytes) : 0;
}

/* The size of one copy of a batch, large enough for either program. */
static size_t ring_bytes(const struct engine *e, size_t ret[BATCH_PARTS])
{
    size_t sum = 0;
    for (enum batch_part i = 0; i < BATCH_PARTS; i++) {
        size_t train = e->has_train ? input_bytes(&e->train, i) : 0, eval = e->has_eval ? input_bytes(&e->eval, i) : 0;
        ret[i] = train > eval ? train : eval;
        sum += ret[i];
    }
    return sum;
}

static size_t row_bytes(const struct engine *e)
{
    const struct program *p = &e->eval;
    if (!e->config.generate || p->logits_buffer < 0)
        return 0;
    return (size_t)(p->sequences ? p->sequences : 1) * (size_t)buffer_row(&p->buffers[p->logits_buffer]) *
           dtype_bytes(p->dtype);
}

static err_t make_ring(struct engine *e, uint8_t *at, const size_t bytes[BATCH_PARTS])
{
    struct engine_host *h = &e->host;
    err_t err = OK;
    for (int i = 0; !err && i < ENGINE_RING; i++) {
        for (int part = 0; part < BATCH_PARTS; at += bytes[part++])
            h->ring[i].part[part] = (int32_t *)(void *)at;
        err = dev_event_new(e->config.dev, false, &h->ring[i].copied);
    }
    h->row = row_bytes(e) ? at : NULL;
    return err;
}

err_t host_init(struct engine *e, struct why *why)
{
    struct engine_host *h = &e->host;
    size_t parts[BATCH_PARTS], mirror = aligned(e->space_bytes[SPACE_HOST]);
    h->sample = calloc(3 * (size_t)e->config.job->train.seq, sizeof(*h->sample));
    if (!h->sample)
        return why_set(why, ERR_NOMEM, "out of memory");
    if (!mirrored(e))
        return OK;
    h->bytes = mirror + ENGINE_RING * ring_bytes(e, parts) + row_bytes(e);
    err_t err = dev_host_alloc(e->config.dev, h->bytes, "batches", &h->pinned, why);
    if (err)
        return err;
    err = make_ring(e, (uint8_t *)h->pinned + mirror, parts);
    return err ? why_set(why, err, "cannot create an event: %s", err_text(err)) : OK;
}

void host_fini(struct engine *e)
{
    for (int i = 0; i < ENGINE_RING; i++)
        dev_event_free(e->config.dev, e->host.ring[i].copied);
    dev_host_free(e->config.dev, e->host.pinned, e->host.bytes);
    free(e->host.sample);
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

err_t host_batch(struct engine *e, const struct program *p, const struct program_bindings *bindings,
                 const struct action *a, struct host_batch *ret, struct why *why)
{
    struct engine_host *h = &e->host;
    *ret = (struct host_batch){{NULL}};
    if (!bindings->reads[a->chunk])
        return OK;
    for (enum batch_part i = 0; i < BATCH_PARTS; i++)
        if (bindings->reads[a->chunk] & (1u << i))
            ret->part[i] = mirrored(e) ? h->ring[h->turn].part[i] : device_address(e, p, batch_buffer(p, i), a);
    return mirrored(e) ? dev_event_sync(e->config.dev, h->ring[h->turn].copied, why) : OK;
}

err_t host_batch_written(struct engine *e, const struct program *p, const struct action *a, const struct host_batch *b,
                         int64_t n)
{
    struct engine_host *h = &e->host;
    struct kern_stream *s = e->stream[STREAM_COMPUTE];
    const int turn = h->turn;
    bool any = false;
    err_t err = OK;
    for (enum batch_part i = 0; !err && mirrored(e) && i < BATCH_PARTS; i++)
        if (b->part[i]) {
            err = dev_copy(s, device_address(e, p, batch_buffer(p, i), a), b->part[i], (size_t)n * sizeof(int32_t));
            any = true;
        }
    if (err || !any)
        return err;
    h->turn = (turn + 1) % ENGINE_RING;
    return dev_event_record(e->config.dev, h->ring[turn].copied, s);
}

static err_t fetch_scalar(const struct engine *e, const struct program *p, int buffer, enum op_stream stream)
{
    if (buffer < 0)
        return OK;
    const struct buffer *b = &p->buffers[buffer];
    return dev_copy(e->stream[stream], engine_host_buffer(e, p, buffer), engine_buffer(e, p, buffer),
                    (size_t)(b->bytes + (b->slots - 1) * b->slot_bytes));
}

err_t host_fetch(struct engine *e, const struct program *p, const struct program_bindings *bindings)
{
    if (!mirrored(e))
        return OK;
    err_t err = fetch_scalar(e, p, p->loss_buffer, bindings->loss_stream);
    for (int i = 0; i < NUMBER_COUNT && !err; i++)
        err = fetch_scalar(e, p, p->number_buffer[i], bindings->loss_stream);
    err = err ? err : fetch_scalar(e, p, p->norm_buffer, bindings->clip_stream);
    return err ? err : fetch_scalar(e, p, p->clip_buffer, bindings->clip_stream);
}
