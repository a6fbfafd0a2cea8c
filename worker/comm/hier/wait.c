/* Progress of the wire, and the end of an epoch. A rank that detects that the shared segment or the wire is dead aborts
 * the other. A rank that waits for the wire checks the segment in every turn; a rank that waits in the segment calls
 * hier_watch, which checks the wire. */
#include "worker/comm/hier/internal.h"

#include <sched.h>

#define SPINS 200
#define SPINS_CROWDED 20 /* if the node has more ranks than processors */
#define NAP_MS 20        /* longest wait in the wire before the segment is checked again */

static struct why *free_why(struct comm *c)
{
    return c->why.text[0] ? NULL : &c->why;
}

void hier_abort(struct comm *c)
{
    struct hier_comm *h = (struct hier_comm *)c;
    h->wire->ops->abort(h->wire);
    shm_abort(&h->shm->base);
}

err_t hier_end(struct hier_comm *h)
{
    hier_abort(&h->base);
    err_t err = h->wire->ops->progress(h->wire, 0);
    return err ? err : ERR_CANCELED;
}

/* Called when the wire is dead or this rank has aborted. */
static err_t wire_ended(struct hier_comm *h, err_t err)
{
    if (err != ERR_CANCELED)
        why_set(free_why(&h->base), err, "%s", h->wire->why.text);
    hier_abort(&h->base);
    return err;
}

err_t hier_outcome(struct hier_comm *h, err_t err)
{
    if (!err)
        return OK;
    if (h->shm->base.why.text[0])
        why_set(free_why(&h->base), err, "%s", h->shm->base.why.text);
    if (!shm_is_dead(h->shm))
        return err;
    (void)hier_end(h);
    /* The rank's own hier_watch found the wire dead and aborted the segment: return the reason, not "canceled". */
    if (err == ERR_CANCELED && h->wire->dead)
        err = h->wire->dead;
    err = h->reported ? ERR_CANCELED : err;
    h->reported = true;
    return err;
}

err_t hier_result(struct comm_group *g, err_t err)
{
    return hier_outcome(hier_of(g), err);
}

void hier_watch(void *comm)
{
    struct hier_comm *h = comm;
    err_t err = h->wire->ops->progress(h->wire, 0);
    if (err)
        wire_ended(h, err);
}

err_t hier_turn(struct hier_comm *h, bool moved, int *turn)
{
    const int spins = h->shm->spins ? SPINS : SPINS_CROWDED;
    *turn = moved ? 0 : *turn + 1;
    if (shm_is_dead(h->shm))
        return hier_end(h);
    err_t err = h->wire->ops->progress(h->wire, *turn < spins ? 0 : NAP_MS);
    if (!err && !moved && *turn < spins)
        sched_yield();
    return err ? wire_ended(h, err) : OK;
}

err_t hier_wait_ops(struct hier_comm *h, const struct wire_op *ops, int n)
{
    int done = 0, turn = 0;
    err_t err = OK;
    while (!err && (done < n || !h->wire->ops->flushed(h->wire))) {
        const int before = done;
        while (done < n && ops[done].done)
            done++;
        if (done < n || !h->wire->ops->flushed(h->wire))
            err = hier_turn(h, done > before, &turn);
    }
    return err;
}

void hier_send(const struct hier_group *g, int member, void *data, int64_t bytes, struct wire_op *op)
{
    struct comm_wire *w = hier_of(&g->base)->wire;
    *op = (struct wire_op){.buffer = data, .bytes = (size_t)bytes};
    w->ops->send(w, g->base.ranks[member], WIRE_COLLECTIVES, op);
}

void hier_recv(const struct hier_group *g, int member, void *data, int64_t bytes, struct wire_op *op)
{
    struct comm_wire *w = hier_of(&g->base)->wire;
    *op = (struct wire_op){.buffer = data, .bytes = (size_t)bytes};
    w->ops->recv(w, g->base.ranks[member], WIRE_COLLECTIVES, op);
}
