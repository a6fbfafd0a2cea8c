/* Messages: while a message is in flight it has a cell of pinned memory in the inner comm's shared bytes. It moves
 * chunk by chunk: from the device to the cell, to the peer's cell as a message of the inner comm, and to the peer's
 * device.
 *
 * As in the inner comm there is no background thread: a rank that waits moves all messages that it has posted. Of two
 * messages in the same direction with the same peer, the second begins when the last chunk of the first has been posted
 * in the inner comm, which keeps the order. */
#include "worker/comm/staged/internal.h"

#include "common/base/log.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define YIELDS 100
#define NAP_NS 20000

static uint8_t *cell_of(struct staged_comm *s, const struct staged_post *p)
{
    return s->cells + (p - s->posts.post) * STAGED_CELL;
}

/* The copy is complete on return: the host may read the cell, or reuse it for the next chunk. */
static err_t copy_and_wait(struct staged_comm *s, const struct staged_post *p, void *dst, const void *src, size_t bytes)
{
    struct why why = {""};
    err_t err = bytes ? dev_copy(p->stream, dst, src, bytes) : OK;
    if (!err && bytes)
        err = dev_event_record(s->dev, s->copied, p->stream);
    if (!err && bytes)
        err = dev_event_sync(s->dev, s->copied, &why);
    if (err)
        log_error("staged_copy_failed error=%s why=\"%s\"", err_name(err), why.text);
    return err;
}

/* Posts the next chunk in the inner comm. */
static err_t begin_chunk(struct staged_comm *s, struct staged_post *p)
{
    const struct comm_backend *inner = s->inner->backend;
    const int slot = (int)(p - s->posts.post);
    const int64_t left = p->bytes - p->at;
    p->chunk = left < STAGED_CELL ? left : STAGED_CELL;
    p->moving = true;
    if (!p->send)
        return inner->recv_post(p->group, NULL, cell_of(s, p), p->chunk, p->peer, slot);
    err_t err = copy_and_wait(s, p, cell_of(s, p), p->buffer + p->at, (size_t)p->chunk);
    return err ? err : inner->send_post(p->group, NULL, cell_of(s, p), p->chunk, p->peer, slot);
}

static err_t end_chunk(struct staged_comm *s, struct staged_post *p)
{
    err_t err = p->send ? OK : copy_and_wait(s, p, p->buffer + p->at, cell_of(s, p), (size_t)p->chunk);
    p->moving = false;
    p->at += p->chunk;
    p->done = p->at == p->bytes;
    return err;
}

static err_t advance_chunk(struct staged_comm *s, struct staged_post *p, bool *moved)
{
    bool over = false;
    err_t err = OK;
    if (!p->moving) {
        *moved = true;
        err = begin_chunk(s, p);
    }
    if (!err)
        err = s->inner->backend->move(p->group, (int)(p - s->posts.post), &over);
    if (err || !over)
        return err;
    *moved = true;
    return end_chunk(s, p);
}

static bool is_last_chunk(const struct staged_post *p)
{
    return p->moving && p->at + p->chunk == p->bytes;
}

static err_t progress(struct staged_comm *s, bool *ret_moved)
{
    struct staged_posts *t = &s->posts;
    int kept = 0;
    err_t err = OK;
    t->pass++;
    for (int i = 0; i < t->n_active; i++) {
        struct staged_post *p = &t->post[t->active[i]];
        uint32_t *busy = &t->busy[p->send][p->group->ranks[p->peer]];
        if (!err && *busy != t->pass)
            err = advance_chunk(s, p, ret_moved);
        if (!p->done && !is_last_chunk(p))
            *busy = t->pass;
        if (!p->done)
            t->active[kept++] = t->active[i];
    }
    t->n_active = kept;
    return err;
}

static err_t post_message(struct comm_group *g, const struct staged_post *p, int slot)
{
    struct staged_comm *s = staged_of(g);
    bool over;
    s->posts.post[slot] = *p;
    s->posts.post[slot].group = staged_inner(g);
    s->posts.active[s->posts.n_active++] = slot;
    /* Fails at once if the comm is dead. Nothing is moved yet, because that would wait for the caller's stream. */
    err_t err = s->inner->backend->move(staged_inner(g), -1, &over);
    if (err)
        s->posts.n_active--;
    return err;
}

err_t staged_send_post(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to, int slot)
{
    return post_message(
        g, &(struct staged_post){.buffer = (uint8_t *)src, .bytes = bytes, .peer = to, .send = true, .stream = s},
        slot);
}

err_t staged_recv_post(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from, int slot)
{
    return post_message(g, &(struct staged_post){.buffer = dst, .bytes = bytes, .peer = from, .stream = s}, slot);
}

/* A send is pushed only when it is done, because it goes through its cell chunk by chunk. */
static bool is_pushed(const struct staged_comm *s)
{
    for (int i = 0; i < s->posts.n_active; i++)
        if (s->posts.post[s->posts.active[i]].send)
            return false;
    return true;
}

/* Moves messages until the slot's message is done; slot -1: until all sends are pushed. */
static err_t move_until(struct staged_comm *s, int slot)
{
    err_t err = OK;
    for (int turn = 0; !err && !(slot < 0 ? is_pushed(s) : s->posts.post[slot].done); turn++) {
        bool moved = false;
        err = progress(s, &moved);
        if (moved)
            turn = 0;
        else if (turn < YIELDS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    if (err == ERR_INVALID)
        why_set(s->base.why.text[0] ? NULL : &s->base.why, err, "%s", comm_why(s->inner));
    if (err && err != ERR_CANCELED)
        comm_abort(s->inner); /* partly sent messages cannot continue */
    return err;
}

err_t staged_wait(struct comm_group *g, int slot)
{
    return move_until(staged_of(g), slot);
}

err_t staged_push(struct comm *c)
{
    return move_until((struct staged_comm *)c, -1);
}

err_t staged_copy(struct comm_group *g, struct kern_stream *s, void *dst, const void *src, int64_t bytes)
{
    (void)g;
    return bytes ? dev_copy(s, dst, src, (size_t)bytes) : OK;
}
