/* Life cycle of an engine. The order of the steps follows from their needs: compiled programs determine the size of
 * memory, the gradients may lie in the comm's segment, and groups need the comm. Everything on the device is one
 * allocation, so a job either has all its memory before the first step or fails at once. */
#include "worker/step/engine.h"

#include "common/plan/check/plan_check.h"
#include "common/plan/compile/compile.h"
#include "worker/step/comm_thread.h"
#include "worker/step/routing.h"

#include <stdlib.h>

void *engine_buffer(const struct engine *e, const struct program *p, int buffer)
{
    const struct buffer *b = &p->buffers[buffer];
    return (uint8_t *)e->space[b->space] + b->offset;
}

/* Rank 0 compiles the programs of all ranks and checks them against each other, so a plan that cannot work never
 * starts. */
static err_t check_all(const struct engine *e, enum program_mode mode, struct why *why)
{
    const struct engine_config *c = &e->config;
    const int n = c->world;
    struct program *all = calloc((size_t)c->world, sizeof(*all));
    if (!all)
        return ERR_NOMEM;
    err_t err = plan_compile_all(c->job, c->graph, mode, n, all, why);
    if (!err)
        err = plan_check(c->graph, all, n, why);
    for (int i = 0; i < n; i++)
        program_fini(&all[i]);
    free(all);
    return err;
}

static err_t compile(struct engine *e, enum program_mode mode, struct program *ret, bool *ret_has, struct why *why)
{
    const struct engine_config *c = &e->config;
    err_t err = plan_compile(c->job, c->graph, mode, c->rank, ret, why);
    if (err)
        return err;
    *ret_has = true;
    for (int s = 0; s < SPACE_COUNT; s++)
        if ((size_t)ret->space_bytes[s] > e->space_bytes[s])
            e->space_bytes[s] = (size_t)ret->space_bytes[s];
    return c->rank == 0 ? check_all(e, mode, why) : OK;
}

/* With train.numerics proof, the reference kernels run, whatever the device's own kernels guarantee. */
static err_t find_kernels(struct engine *e, struct why *why)
{
    const struct dev *dev = e->config.dev;
    enum dtype dtype = e->has_train ? e->train.dtype : e->eval.dtype;
    if (e->config.job->train.numerics != NUMERICS_PROOF || !dev->ops->host_memory)
        e->kernels = dev_kernels(dev, dtype);
    if (!e->kernels && dev->ops->host_memory)
        e->kernels = kern_find("ref", dtype);
    if (!e->kernels)
        return why_set(why, ERR_UNSUPPORTED, "the device \"%s\" has no kernels for %s; choose another train.dtype",
                       dev->ops->name, dtype_name(dtype));
    return OK;
}

err_t engine_init(struct engine *e, const struct engine_config *config, struct why *why)
{
    *e = (struct engine){.config = *config};
    err_t err = OK;
    if (!config->generate)
        err = compile(e, MODE_TRAIN, &e->train, &e->has_train, why);
    if (!err && config->eval && !config->generate)
        err = compile(e, MODE_EVAL, &e->eval, &e->has_eval, why);
    if (!err && config->generate)
        err = compile(e, config->decode ? MODE_DECODE : MODE_GENERATE, &e->eval, &e->has_eval, why);
    if (!err)
        err = find_kernels(e, why);
    if (err)
        engine_fini(e);
    return err;
}

static size_t reserved(const struct engine *e, enum buffer_space s)
{
    return (size_t)plan_space_reserved((int64_t)e->space_bytes[s]);
}

/* Spaces that peers access: gradients, which all ranks reduce; messages to other ranks; operands of other collectives;
 * with ZeRO the pieces of the parameters, which all ranks gather. */
static bool is_shared(const struct engine *e, enum buffer_space s)
{
    bool units = (e->has_train && e->train.n_units) || (e->has_eval && e->eval.n_units);
    return s == SPACE_GRAD || s == SPACE_SENT || s == SPACE_SHARED || (s == SPACE_PARAM && units);
}

/* A rank alone has no peers; only the tree of canonical sums reads its leaves from shared memory. Private memory is
 * faster to allocate, because it may have huge pages. */
size_t engine_shared_bytes(const struct engine *e)
{
    size_t bytes = 0;
    if (e->config.world == 1 && e->config.job->train.numerics == NUMERICS_FAST)
        return 0;
    for (enum buffer_space s = 0; s < SPACE_COUNT; s++)
        bytes += is_shared(e, s) ? reserved(e, s) : 0;
    return bytes;
}

size_t engine_device_bytes(const struct engine *e)
{
    size_t bytes = 0;
    for (int s = 0; s < SPACE_COUNT; s++)
        bytes += reserved(e, s);
    return bytes;
}

/* Places the shared or the private spaces one after another from `at` on. Gradients come first in the shared segment,
 * because they must have the same offset on all ranks. */
static void place_spaces(struct engine *e, bool shared, uint8_t *at)
{
    static const enum buffer_space order[] = {SPACE_GRAD, SPACE_SENT, SPACE_SHARED, SPACE_PARAM,
                                              SPACE_OPT,  SPACE_WORK, SPACE_HOST,   SPACE_CACHE};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        enum buffer_space s = order[i];
        if (e->space[s] || (shared && !is_shared(e, s)))
            continue;
        e->space[s] = e->space_bytes[s] ? at : NULL;
        at += reserved(e, s);
    }
}

static err_t make_memory(struct engine *e, struct why *why)
{
    void *shared = e->comm && engine_shared_bytes(e) ? comm_shared(e->comm) : NULL;
    if (shared)
        place_spaces(e, true, shared);
    e->memory_bytes = engine_device_bytes(e) - (shared ? engine_shared_bytes(e) : 0);
    err_t err = dev_alloc(e->config.dev, e->memory_bytes, "parameters, optimizer state, gradients and activations",
                          &e->memory, why);
    if (!err)
        place_spaces(e, false, e->memory);
    e->moments_untouched = !err;
    return err;
}

/* Where a stream is the calling thread, each thread gets one stream. */
static err_t make_streams(struct engine *e, struct why *why)
{
    struct dev *dev = e->config.dev;
    err_t err = dev_stream_new(dev, e->config.threads, false, &e->stream[STREAM_COMPUTE], why);
    for (int s = STREAM_COMPUTE + 1; !err && s < STREAM_COUNT; s++) {
        if (dev->ops->host_memory && (s != STREAM_COMM || !e->comm_thread))
            e->stream[s] = e->stream[STREAM_COMPUTE];
        else
            err = dev_stream_new(dev, 0, s == STREAM_COMM, &e->stream[s], why);
    }
    return err;
}

/* An asynchronous device has a communication stream of its own and needs no thread. */
static err_t make_comm_thread(struct engine *e, struct why *why)
{
    const struct engine_config *c = &e->config;
    bool wanted = c->comm_thread && c->world > 1 && e->comm && c->dev->ops->host_memory;
    return wanted ? comm_thread_new(&e->comm_thread, why) : OK;
}

err_t engine_start(struct engine *e, struct comm *comm, struct why *why)
{
    e->comm = comm;
    err_t err = make_memory(e, why);
    err = err ? err : make_comm_thread(e, why);
    err = err ? err : make_streams(e, why);
    err = err ? err : host_init(e, why);
    err = err ? err : routing_init(e, why);
    if (!err && e->has_train)
        err = program_bindings_init(e, &e->train, &e->train_bindings, why);
    if (!err && e->has_eval)
        err = program_bindings_init(e, &e->eval, &e->eval_bindings, why);
    return err ? err : verify_init(e, why);
}

/* Freeing a stream waits for its queued work, so streams are freed before the memory that they use. */
void engine_fini(struct engine *e)
{
    comm_thread_free(e->comm_thread);
    for (int s = STREAM_COUNT - 1; s >= 0; s--)
        if (s == STREAM_COMPUTE || e->stream[s] != e->stream[STREAM_COMPUTE])
            dev_stream_free(e->stream[s]);
    profile_free(e);
    verify_fini(e);
    routing_fini(e);
    program_bindings_fini(e, &e->eval, &e->eval_bindings); /* uses groups of the training program */
    program_bindings_fini(e, &e->train, &e->train_bindings);
    host_fini(e);
    if (e->memory)
        dev_free(e->config.dev, e->memory, e->memory_bytes);
    if (e->has_train)
        program_fini(&e->train);
    if (e->has_eval)
        program_fini(&e->eval);
    *e = (struct engine){0};
}
