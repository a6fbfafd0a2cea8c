/* Life of an engine. The order is fixed by who needs what: programs say how much memory there is, the gradients' part
 * of it lies in the comm's segment, groups need the comm. */
#include "worker/step/engine.h"

#include "worker/step/memory.h"

#include <stdlib.h>
#include <string.h>

static const char *const space_names[SPACE_COUNT] = {"parameters", "optimizer state", "gradients", "activations",
                                                     "batch data"};

void *engine_buffer(const struct engine *e, const struct program *p, int buffer)
{
    const struct buffer *b = &p->buffers[buffer];
    return (uint8_t *)e->space[b->space] + b->offset;
}

/* Rank 0 compiles everybody's program and checks them against each other: a plan that cannot work never starts. */
static err_t check_all(const struct engine *e, enum program_mode mode, struct why *why)
{
    const struct engine_config *c = &e->config;
    int n = 0;
    err_t err = OK;
    struct program *all = calloc((size_t)c->world, sizeof(*all));
    if (!all)
        return ERR_NOMEM;
    for (; !err && n < c->world; n++) {
        err = plan_compile(c->job, c->graph, mode, n, &all[n], why);
        if (err)
            break;
    }
    if (!err)
        err = plan_check(c->graph, all, n, why);
    while (n > 0)
        program_fini(&all[--n]);
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

static err_t find_kernels(struct engine *e, struct why *why)
{
    enum dtype dtype = e->has_train ? e->train.dtype : e->eval.dtype;
    if (e->config.job->train.numerics != NUMERICS_PROOF)
        e->kernels = kern_find("cpu", dtype);
    if (!e->kernels)
        e->kernels = kern_find("ref", dtype);
    if (!e->kernels)
        return why_set(why, ERR_UNSUPPORTED, "no kernels for %s in this build", dtype_name(dtype));
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
        err = compile(e, MODE_GENERATE, &e->eval, &e->has_eval, why);
    if (!err)
        err = find_kernels(e, why);
    if (err)
        engine_fini(e);
    return err;
}

size_t engine_shared_bytes(const struct engine *e)
{
    return e->space_bytes[SPACE_GRAD];
}

static err_t make_groups(struct engine *e, const struct program *p, struct comm_group ***ret, struct why *why)
{
    struct comm_group **groups = calloc((size_t)p->n_groups + 1, sizeof(*groups));
    if (!groups)
        return why_set(why, ERR_NOMEM, "out of memory");
    *ret = groups; /* freed by engine_fini, whole or not */
    for (int i = 0; i < p->n_groups; i++) {
        err_t err = comm_group_new(e->comm, p->groups[i].ranks, p->groups[i].n, &groups[i]);
        if (err)
            return why_set(why, err, "cannot make communication group %d of %d", i, p->n_groups);
    }
    return OK;
}

err_t engine_start(struct engine *e, struct comm *comm, struct why *why)
{
    err_t err = OK;
    e->comm = comm;
    for (int s = 0; !err && s < SPACE_COUNT; s++)
        if (s != SPACE_GRAD)
            err = memory_map(e->space_bytes[s], space_names[s], &e->space[s], why);
    if (!err && comm) {
        e->space[SPACE_GRAD] = comm_shared(comm);
        err = make_groups(e, &e->train, &e->train_groups, why);
        if (!err && e->has_eval)
            err = make_groups(e, &e->eval, &e->eval_groups, why);
    }
    if (!err)
        err = kern_stream_new(e->kernels, e->config.threads, &e->stream);
    return err;
}

static void free_groups(struct comm_group **groups, int n)
{
    for (int i = 0; groups && i < n; i++)
        comm_group_free(groups[i]);
    free(groups);
}

void engine_fini(struct engine *e)
{
    kern_stream_free(e->stream);
    free_groups(e->train_groups, e->train.n_groups);
    free_groups(e->eval_groups, e->eval.n_groups);
    for (int s = 0; s < SPACE_COUNT; s++)
        if (s != SPACE_GRAD)
            memory_unmap(e->space[s], e->space_bytes[s]);
    if (e->has_train)
        program_fini(&e->train);
    if (e->has_eval)
        program_fini(&e->eval);
    *e = (struct engine){0};
}
