/* Open and close of the staged backend, and its calls that need no device: groups, barriers and comm_agree use the
 * inner comm. Halves and cells are pinned; the device does not access the rest of the segment. */
#include "worker/comm/staged/internal.h"

#include <stdlib.h>
#include <string.h>

#define STAGE_BYTES ((size_t)(2 * STAGED_HALF + COMM_SLOTS * STAGED_CELL))

static void staged_close(struct comm *c)
{
    struct staged_comm *s = (struct staged_comm *)c;
    for (int i = 0; i < 2; i++)
        dev_event_free(s->dev, s->arrived[i]);
    dev_event_free(s->dev, s->left);
    dev_event_free(s->dev, s->copied);
    if (s->pinned)
        dev_host_unpin(s->dev, s->half[0]);
    comm_close(s->inner);
    free(s);
}

static err_t make_stage(struct staged_comm *s, struct why *why)
{
    s->half[0] = comm_shared(s->inner);
    s->half[1] = s->half[0] + STAGED_HALF;
    s->cells = s->half[1] + STAGED_HALF;
    err_t err = dev_host_pin(s->dev, s->half[0], STAGE_BYTES, why);
    if (err)
        return err;
    s->pinned = true;
    for (int i = 0; !err && i < 2; i++)
        err = dev_event_new(s->dev, false, &s->arrived[i]);
    err = err ? err : dev_event_new(s->dev, false, &s->left);
    err = err ? err : dev_event_new(s->dev, false, &s->copied);
    return err ? why_set(why, err, "cannot create the events of staged collectives: %s", err_text(err)) : OK;
}

static err_t staged_open(const struct comm_config *config, struct comm **ret, struct why *why)
{
    struct comm_config inner = *config;
    if (!config->dev)
        return why_set(why, ERR_INVALID, "staged collectives need a device");
    if (config->world > STAGED_MAX_WORLD)
        return why_set(why, ERR_LIMIT, "%d workers with staged collectives; at most %d", config->world,
                       STAGED_MAX_WORLD);
    struct staged_comm *s = calloc(1, sizeof(*s));
    if (!s)
        return why_set(why, ERR_NOMEM, "out of memory");
    s->base = (struct comm){.backend = &comm_backend_staged, .rank = config->rank, .world = config->world};
    s->dev = config->dev;
    inner.backend = comm_backend_stream.name; /* which is shm if all ranks are on one node */
    inner.shared_bytes = STAGE_BYTES;
    err_t err = comm_open(&inner, &s->inner, why);
    if (err)
        goto fail;
    err = make_stage(s, why);
    if (err) {
        comm_abort(s->inner); /* this rank has joined: the others must not wait for it */
        goto fail;
    }
    *ret = &s->base;
    return OK;

fail:
    staged_close(&s->base);
    return err;
}

static void staged_abort(struct comm *c)
{
    comm_abort(((struct staged_comm *)c)->inner);
}

static void *staged_shared(struct comm *c)
{
    (void)c;
    return NULL;
}

static err_t staged_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret)
{
    struct staged_group *g = calloc(1, sizeof(*g));
    if (!g)
        return ERR_NOMEM;
    err_t err = comm_group_new(((struct staged_comm *)c)->inner, ranks, n, &g->inner);
    if (err) {
        free(g);
        return err;
    }
    g->base = (struct comm_group){.comm = c, .n = n, .me = me, .ranks = g->inner->ranks};
    *ret = &g->base;
    return OK;
}

static void staged_group_free(struct comm_group *g)
{
    comm_group_free(staged_inner(g));
    free(g);
}

static err_t staged_barrier(struct comm_group *g)
{
    return comm_barrier(staged_inner(g));
}

static err_t staged_agree(struct comm_group *g, int64_t *x, enum reduce_op op)
{
    return comm_agree(staged_inner(g), x, op);
}

const struct comm_backend comm_backend_staged = {
    .name = "staged",
    .open = staged_open,
    .close = staged_close,
    .abort = staged_abort,
    .shared = staged_shared,
    .group_new = staged_group_new,
    .group_free = staged_group_free,
    .all_reduce = staged_all_reduce,
    .all_gather = staged_all_gather,
    .reduce_scatter = staged_reduce_scatter,
    .unit_gather = staged_unit_gather,
    .unit_scatter = staged_unit_scatter,
    .broadcast = staged_broadcast,
    .barrier = staged_barrier,
    .agree = staged_agree,
    .all_to_all = staged_all_to_all,
    .send_post = staged_send_post,
    .recv_post = staged_recv_post,
    .push = staged_push,
    .wait = staged_wait,
    .copy = staged_copy,
};
