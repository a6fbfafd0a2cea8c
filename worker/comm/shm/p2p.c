/* Messages: each ordered pair of ranks has a lane, a ring of chunks that the sender writes and the receiver reads, so
 * the copies into and out of the lane overlap. A message in the sender's shared bytes is one chunk, which the receiver
 * reads in place.
 *
 * There is no background thread. A rank that waits for one message moves all messages that it has posted, in the order
 * of posting within each lane; two ranks that wait for different messages of each other therefore do not deadlock. A
 * full or empty lane blocks only itself. A rank that can move nothing sleeps on its own bell. It sets `asleep` before
 * its last check, and its peer tests `asleep` after it has written or read a chunk, so a wake-up is never lost. */
#include "worker/comm/shm/shm.h"

#include <string.h>

static struct shm_lane *lane_of(const struct shm_comm *s, const struct shm_post *p)
{
    size_t from = (size_t)(p->send ? s->base.rank : p->peer), to = (size_t)(p->send ? p->peer : s->base.rank);
    return &s->lanes[from * (size_t)s->base.world + to];
}

static void wake_peer(struct shm_comm *s, int rank)
{
    struct shm_bell *bell = &s->ctl->bell[rank];
    if (!atomic_load(&bell->asleep))
        return;
    atomic_fetch_add(&bell->rung, 2);
    shm_futex_wake(&bell->rung);
}

/* Copies the next part of the message into the slot's box; a message in shared bytes needs no copy. */
static struct shm_chunk make_chunk(struct shm_comm *s, const struct shm_post *p, const struct shm_lane *lane,
                                   uint32_t slot)
{
    uint8_t *base = (uint8_t *)s->head;
    if (p->shared)
        return (struct shm_chunk){(uint64_t)(p->buffer - base), p->bytes, p->bytes};
    size_t left = p->bytes - p->at, bytes = left < s->box_bytes ? left : s->box_bytes;
    uint8_t *box = s->boxes + ((size_t)(lane - s->lanes) * SHM_SLOTS + slot) * s->box_bytes;
    if (bytes > 0)
        shm_pass(s, box, p->buffer + p->at, bytes);
    return (struct shm_chunk){(uint64_t)(box - base), bytes, p->bytes};
}

/* Fills the free slots. Returns true when something moved. */
static bool send_some(struct shm_comm *s, struct shm_post *p)
{
    struct shm_lane *lane = lane_of(s, p);
    uint32_t filled = atomic_load_explicit(&lane->filled, memory_order_relaxed);
    bool moved = false;
    while (!p->through && filled - atomic_load(&lane->taken) < SHM_SLOTS) {
        struct shm_chunk *chunk = &lane->chunk[filled % SHM_SLOTS];
        *chunk = make_chunk(s, p, lane, filled % SHM_SLOTS);
        p->at += chunk->bytes;
        p->through = p->at == p->bytes;
        p->last = ++filled;
        atomic_store(&lane->filled, filled);
        wake_peer(s, p->peer);
        moved = true;
    }
    return moved;
}

static err_t sizes_differ(struct shm_comm *s, const struct shm_post *p, uint64_t total)
{
    why_set(s->base.why.text[0] ? NULL : &s->base.why, ERR_INVALID,
            "rank %d sends a message of %llu bytes where rank %d receives %zu", p->peer, (unsigned long long)total,
            s->base.rank, p->bytes);
    shm_abort(&s->base);
    return ERR_INVALID;
}

static err_t receive_some(struct shm_comm *s, struct shm_post *p, bool *moved)
{
    struct shm_lane *lane = lane_of(s, p);
    uint32_t taken = atomic_load_explicit(&lane->taken, memory_order_relaxed);
    while (!p->through && atomic_load(&lane->filled) != taken) {
        const struct shm_chunk *chunk = &lane->chunk[taken % SHM_SLOTS];
        const size_t bytes = chunk->bytes;
        if (chunk->total != p->bytes)
            return sizes_differ(s, p, chunk->total);
        if (bytes > 0)
            memcpy(p->buffer + p->at, (const uint8_t *)s->head + chunk->at, bytes);
        p->at += bytes;
        p->through = p->at == p->bytes;
        atomic_store(&lane->taken, ++taken);
        wake_peer(s, p->peer);
        *moved = true;
    }
    return OK;
}

static bool is_done(const struct shm_comm *s, const struct shm_post *p)
{
    if (!p->through || !p->send || !p->shared)
        return p->through;
    return (int32_t)(atomic_load(&lane_of(s, p)->taken) - p->last) >= 0;
}

/* Makes one pass over all messages in flight; only the first unfinished message of each lane may move. When called by
 * a post it moves sends only: receiving there would delay the rank's own sends, and two peers would take turns instead
 * of exchanging data at the same time. */
static err_t progress(struct shm_comm *s, bool sends_only, bool *ret_moved)
{
    struct shm_posts *t = &s->posts;
    int kept = 0;
    err_t err = OK;
    bool moved = false;
    t->pass++;
    for (int i = 0; i < t->n_active; i++) {
        struct shm_post *p = &t->post[t->active[i]];
        uint32_t *busy = &t->busy[p->send][p->peer];
        if (!err && *busy != t->pass && p->send)
            moved |= send_some(s, p);
        else if (!err && *busy != t->pass && !sends_only)
            err = receive_some(s, p, &moved);
        if (!p->through)
            *busy = t->pass;
        p->done = is_done(s, p);
        moved |= p->done;
        if (!p->done)
            t->active[kept++] = t->active[i];
    }
    t->n_active = kept;
    *ret_moved = moved;
    return err;
}

static err_t post_message(struct comm_group *g, const struct shm_post *p, int slot)
{
    struct shm_comm *s = shm_of(g);
    bool moved;
    if (shm_is_dead(s))
        return ERR_CANCELED;
    s->posts.post[slot] = *p;
    s->posts.active[s->posts.n_active++] = slot;
    return p->send ? progress(s, true, &moved) : OK;
}

err_t shm_send_post(struct comm_group *g, struct kern_stream *stream, const void *src, int64_t bytes, int to, int slot)
{
    (void)stream;
    const struct shm_post p = {.buffer = (uint8_t *)src,
                               .bytes = (size_t)bytes,
                               .peer = g->ranks[to],
                               .send = true,
                               .shared = bytes > 0 && shm_is_shared(g, src, (size_t)bytes)};
    return post_message(g, &p, slot);
}

err_t shm_recv_post(struct comm_group *g, struct kern_stream *stream, void *dst, int64_t bytes, int from, int slot)
{
    (void)stream;
    const struct shm_post p = {.buffer = dst, .bytes = (size_t)bytes, .peer = g->ranks[from]};
    return post_message(g, &p, slot);
}

bool shm_pushed(const struct shm_comm *s)
{
    for (int i = 0; i < s->posts.n_active; i++) {
        const struct shm_post *p = &s->posts.post[s->posts.active[i]];
        if (p->send && !p->through)
            return false;
    }
    return true;
}

/* Moves messages until the slot's message is done; slot -1: until all sends are pushed. */
static err_t move_until(struct shm_comm *s, int slot)
{
    struct shm_bell *bell = &s->ctl->bell[s->base.rank];
    err_t err = OK;
    for (int turn = 0; !err && !(slot < 0 ? shm_pushed(s) : s->posts.post[slot].done); turn++) {
        bool sleepy = turn > 0 && !shm_idle(s, turn - 1), moved = false;
        if (sleepy)
            atomic_store(&bell->asleep, 1);
        uint32_t seen = atomic_load(&bell->rung);
        err = shm_is_dead(s) ? ERR_CANCELED : progress(s, false, &moved);
        if (sleepy && !err && !moved)
            shm_sleep(s, &bell->rung, seen);
        if (sleepy)
            atomic_store(&bell->asleep, 0);
        turn = moved ? -1 : turn;
    }
    return err;
}

err_t shm_wait(struct comm_group *g, int slot)
{
    return move_until(shm_of(g), slot);
}

/* Also receives what has arrived, because its sender may wait for that in its own comm_push. */
err_t shm_push(struct comm *c)
{
    struct shm_comm *s = (struct shm_comm *)c;
    bool moved;
    err_t err = shm_is_dead(s) ? ERR_CANCELED : progress(s, false, &moved);
    return err ? err : move_until(s, -1);
}

err_t shm_move(struct comm_group *g, int slot, bool *ret_done)
{
    struct shm_comm *s = shm_of(g);
    bool moved;
    err_t err = shm_is_dead(s) ? ERR_CANCELED : slot < 0 ? OK : progress(s, false, &moved);
    *ret_done = !err && slot >= 0 && s->posts.post[slot].done;
    return err;
}

err_t shm_copy(struct comm_group *g, struct kern_stream *stream, void *dst, const void *src, int64_t bytes)
{
    (void)stream;
    if (bytes > 0)
        memmove(dst, src, (size_t)bytes);
    return shm_is_dead(shm_of(g)) ? ERR_CANCELED : OK;
}
