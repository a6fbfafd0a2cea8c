/* Messages to ranks of this node go over shm. Messages to other ranks have their own lane of the wire, so a message
 * whose receive is not posted yet delays no collective. A rank that waits for one message moves all messages that it
 * has posted, of both kinds. */
#include "worker/comm/hier/internal.h"

#include <sched.h>
#include <time.h>

#define YIELDS 100
#define NAP_NS 20000 /* the rank can sleep neither on shm nor on the wire alone, so it polls both in this interval */

static bool is_remote(const struct comm_group *g, int member)
{
    const struct hier_group *h = (const struct hier_group *)g;
    return h->node_at[member] != h->here;
}

static err_t check_alive(struct hier_comm *h)
{
    if (!shm_is_dead(h->shm) && !atomic_load(&h->wire->aborted))
        return OK;
    (void)hier_end(h);
    return ERR_CANCELED;
}

/* A send makes one turn of progress: data that the operating system accepts now needs no later call of this rank. */
static err_t post_remote(struct hier_comm *h, int rank, void *buffer, int64_t bytes, bool send, int slot)
{
    struct hier_post *p = &h->posts[slot];
    int turn = 0;
    *p = (struct hier_post){true, true, send, {.buffer = buffer, .bytes = (size_t)bytes}};
    h->n_remote++;
    if (!send) {
        h->wire->ops->recv(h->wire, rank, WIRE_MESSAGES, &p->op);
        return OK;
    }
    h->wire->ops->send(h->wire, rank, WIRE_MESSAGES, &p->op);
    err_t err = hier_turn(h, true, &turn);
    if (err)
        h->n_remote--;
    return err;
}

static int local_index(const struct comm_group *g, int member)
{
    return ((const struct hier_group *)g)->local_at[member];
}

err_t hier_send_post(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to, int slot)
{
    struct hier_comm *h = hier_of(g);
    err_t err = check_alive(h);
    if (err)
        return err;
    if (is_remote(g, to))
        return hier_result(g, post_remote(h, g->ranks[to], (void *)src, bytes, true, slot));
    err = shm_send_post(hier_group_of(g)->inner, s, src, bytes, local_index(g, to), slot);
    h->posts[slot] = (struct hier_post){.active = !err};
    h->n_local += !err;
    return hier_result(g, err);
}

err_t hier_recv_post(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from, int slot)
{
    struct hier_comm *h = hier_of(g);
    err_t err = check_alive(h);
    if (err)
        return err;
    if (is_remote(g, from))
        return hier_result(g, post_remote(h, g->ranks[from], dst, bytes, false, slot));
    err = shm_recv_post(hier_group_of(g)->inner, s, dst, bytes, local_index(g, from), slot);
    h->posts[slot] = (struct hier_post){.active = !err};
    h->n_local += !err;
    return hier_result(g, err);
}

/* The slot of any message within the node that is in flight: shm_move moves all of them, whichever it is called for. */
static int any_local(const struct hier_comm *h)
{
    for (int slot = 0; slot < COMM_SLOTS; slot++)
        if (h->posts[slot].active && !h->posts[slot].remote)
            return slot;
    return -1;
}

static void nap(int turn)
{
    if (turn < YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* Messages of both kinds are in flight, so the rank must not sleep on one kind alone. */
static err_t wait_both(struct hier_comm *h, int slot)
{
    const struct hier_post *p = &h->posts[slot];
    struct comm_group *all = h->shm->all;
    bool done = false;
    err_t err = OK;
    for (int turn = 0; !err && !(p->remote ? p->op.done : done); turn++) {
        int one = 0;
        err = shm_move(all, p->remote ? any_local(h) : slot, &done);
        err = err ? err : hier_turn(h, true, &one); /* does not wait */
        if (!err && !(p->remote ? p->op.done : done))
            nap(turn);
    }
    return err;
}

static void release_post(struct hier_comm *h, struct hier_post *p)
{
    h->n_remote -= p->remote;
    h->n_local -= !p->remote;
    p->active = false;
}

err_t hier_wait(struct comm_group *g, int slot)
{
    struct hier_comm *h = hier_of(g);
    struct hier_post *p = &h->posts[slot];
    err_t err;
    if (p->remote && h->n_local == 0)
        err = hier_wait_ops(h, &p->op, 1);
    else if (!p->remote && h->n_remote == 0)
        err = shm_wait(h->shm->all, slot);
    else
        err = wait_both(h, slot);
    release_post(h, p);
    return hier_result(g, err);
}

static bool is_pushed(const struct hier_comm *h)
{
    for (int slot = 0; slot < COMM_SLOTS; slot++)
        if (h->posts[slot].active && h->posts[slot].remote && h->posts[slot].send && !h->posts[slot].op.done)
            return false;
    return h->wire->ops->flushed(h->wire) && shm_pushed(h->shm);
}

err_t hier_push(struct comm *c)
{
    struct hier_comm *h = (struct hier_comm *)c;
    int one = 0;
    bool done;
    err_t err = check_alive(h);
    if (!err && h->n_remote > 0)
        err = hier_turn(h, true, &one);
    if (!err && h->n_local > 0)
        err = shm_move(h->shm->all, any_local(h), &done);
    for (int turn = 0; !err && !is_pushed(h); turn++) {
        if (h->n_local > 0)
            err = shm_move(h->shm->all, any_local(h), &done);
        err = err ? err : hier_turn(h, true, &one); /* does not wait */
        if (!err)
            nap(turn);
    }
    return hier_outcome(h, err);
}

err_t hier_move(struct comm_group *g, int slot, bool *ret_done)
{
    struct hier_comm *h = hier_of(g);
    struct hier_post *p = slot < 0 ? NULL : &h->posts[slot];
    bool done = false;
    int turn = 0;
    err_t err = check_alive(h);
    if (!err && p)
        err = hier_turn(h, true, &turn);
    if (!err && p && h->n_local > 0)
        err = shm_move(h->shm->all, p->remote ? any_local(h) : slot, &done);
    *ret_done = !err && p && (p->remote ? p->op.done : done);
    if (*ret_done)
        release_post(h, p);
    return hier_result(g, err);
}

err_t hier_copy(struct comm_group *g, struct kern_stream *s, void *dst, const void *src, int64_t bytes)
{
    struct hier_comm *h = hier_of(g);
    err_t err = shm_copy(h->shm->all, s, dst, src, bytes);
    return hier_result(g, err);
}
