/* All-to-all. Every rank publishes where its part for each member lies: in its shared bytes, where the members read it,
 * or in its stream, which is all its parts for others one behind another and goes through its window block by block, so
 * that counts may be as uneven as they like and no block is filled by half but the last. The stream of member i begins
 * with the part for i+1: in a round of even counts each member then takes from another one.
 *
 * The first block is written before the list is published, the next while the others still copy the one before: one
 * barrier a round, and two for a small exchange. */
#include "worker/comm/shm/shm.h"

#include <assert.h>
#include <string.h>

struct part {
    int64_t at, bytes; /* in the stream, or from `base` */
};

struct list {
    uint64_t base; /* of the packed source in the segment; SHM_PRIVATE: a stream */
    int64_t stream_bytes;
    struct part part[SHM_MAX_WORLD]; /* for each member */
};
static_assert(sizeof(struct list) <= SHM_BLOCK, "the list lies in half a window");

/* Clear of the blocks, which lie in `in`. */
static struct list *list_of(const struct comm_group *g, int index)
{
    return (struct list *)shm_window(g, index)->out[0];
}

static void publish(struct comm_group *g, const uint8_t *src, const int64_t *counts, int64_t size)
{
    struct list *l = list_of(g, g->me);
    int64_t total = 0;
    for (int i = 0; i < g->n; i++) {
        l->part[i] = (struct part){total, counts[i] * size};
        total += counts[i] * size;
    }
    l->base = SHM_PRIVATE;
    l->stream_bytes = 0;
    if (total > 0 && shm_is_shared(g, src, (size_t)total)) {
        l->base = (uint64_t)(src - (uint8_t *)shm_of(g)->head);
        return;
    }
    for (int k = 1; k < g->n; k++) {
        struct part *p = &l->part[(g->me + k) % g->n];
        p->at = l->stream_bytes;
        l->stream_bytes += p->bytes;
    }
}

/* Copies what of the part falls into the stream's block from `begin` on, between the block and the packed part. */
static void copy_piece(const struct part *p, int64_t begin, uint8_t *block, uint8_t *packed, bool in)
{
    int64_t lo = p->at > begin ? p->at : begin, end = begin + (int64_t)SHM_BLOCK;
    int64_t hi = p->at + p->bytes < end ? p->at + p->bytes : end;
    if (lo >= hi)
        return;
    if (in)
        memcpy(block + (lo - begin), packed + (lo - p->at), (size_t)(hi - lo));
    else
        memcpy(packed + (lo - p->at), block + (lo - begin), (size_t)(hi - lo));
}

static void fill(struct comm_group *g, const uint8_t *src, int64_t round)
{
    const struct list *l = list_of(g, g->me);
    uint8_t *block = shm_window(g, g->me)->in[round & 1];
    for (int i = 0; i < g->n && l->base == SHM_PRIVATE; i++) {
        if (i != g->me)
            copy_piece(&l->part[i], round * (int64_t)SHM_BLOCK, block, (uint8_t *)src, true);
        src += l->part[i].bytes;
    }
}

/* Streams' pieces of the round; in the first one also what lies in shared bytes. */
static void take(struct comm_group *g, uint8_t *dst, int64_t round)
{
    for (int i = 0; i < g->n; i++) {
        const struct list *l = list_of(g, i);
        const struct part *p = &l->part[g->me];
        if (l->base == SHM_PRIVATE && i != g->me) {
            copy_piece(p, round * (int64_t)SHM_BLOCK, shm_window(g, i)->in[round & 1], dst, false);
        } else if (l->base != SHM_PRIVATE && round == 0 && p->bytes > 0) {
            memcpy(dst, (uint8_t *)shm_of(g)->head + l->base + p->at, (size_t)p->bytes);
        }
        dst += p->bytes;
    }
}

static err_t check(struct comm_group *g, const int64_t *counts, int64_t size)
{
    for (int i = 0; i < g->n; i++) {
        int64_t bytes = list_of(g, i)->part[g->me].bytes, wanted = counts[i] * size;
        if (bytes == wanted)
            continue;
        why_set(g->comm->why.text[0] ? NULL : &g->comm->why, ERR_INVALID,
                "all-to-all: rank %d sends %lld bytes where rank %d expects %lld", g->ranks[i], (long long)bytes,
                g->comm->rank, (long long)wanted);
        shm_abort(g->comm);
        return ERR_INVALID;
    }
    return OK;
}

static void copy_own(struct comm_group *g, const uint8_t *src, uint8_t *dst, const int64_t *send_counts,
                     const int64_t *recv_counts, int64_t size)
{
    for (int i = 0; i < g->me; i++) {
        src += send_counts[i] * size;
        dst += recv_counts[i] * size;
    }
    if (send_counts[g->me] > 0)
        memcpy(dst, src, (size_t)(send_counts[g->me] * size));
}

static int64_t rounds_of(const struct comm_group *g)
{
    int64_t most = 0;
    for (int i = 0; i < g->n; i++)
        most = list_of(g, i)->stream_bytes > most ? list_of(g, i)->stream_bytes : most;
    return (most + (int64_t)SHM_BLOCK - 1) / (int64_t)SHM_BLOCK;
}

err_t shm_all_to_all(struct comm_group *g, struct kern_stream *stream, const void *src, const int64_t *send_counts,
                     void *dst, const int64_t *recv_counts, enum dtype dtype)
{
    (void)stream;
    const int64_t size = (int64_t)dtype_bytes(dtype);
    publish(g, src, send_counts, size);
    fill(g, src, 0);
    err_t err = shm_barrier(g);
    if (!err)
        err = check(g, recv_counts, size);
    if (err)
        return err;
    if (list_of(g, g->me)->base == SHM_PRIVATE)
        copy_own(g, src, dst, send_counts, recv_counts, size);
    const int64_t rounds = rounds_of(g);
    take(g, dst, 0);
    for (int64_t round = 1; !err && round < rounds; round++) {
        fill(g, src, round);
        err = shm_barrier(g);
        if (!err)
            take(g, dst, round);
    }
    return err ? err : shm_barrier(g);
}
