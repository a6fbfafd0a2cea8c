/* All-to-all. Every rank publishes where its part for each member lies. A source in shared bytes is read in place.
 * Otherwise the rank's parts for the other members form one stream, one part after another, which the rank copies
 * through its window block by block. Every block but the last is therefore full, however uneven the counts are. The
 * stream of member i begins with the part for member i+1, so with even counts the members read from different windows
 * in each round.
 *
 * A rank writes its first block before the barrier that publishes the list, and each next block while the others still
 * read the previous one. A round thus needs one barrier, and a small exchange two. */
#include "worker/comm/shm/shm.h"

#include <assert.h>
#include <string.h>

struct shm_send_part {
    int64_t at, bytes; /* in the stream, or from `base` */
};

struct shm_send_list {
    uint64_t base; /* of the packed source in the segment; SHM_PRIVATE: a stream */
    int64_t stream_bytes;
    struct shm_send_part part[SHM_MAX_WORLD]; /* for each member */
};
static_assert(sizeof(struct shm_send_list) <= SHM_BLOCK, "the list lies in half a window");

/* The list lies in `out`, because the blocks use `in`. */
static struct shm_send_list *list_of(const struct comm_group *g, int index)
{
    return (struct shm_send_list *)shm_window(g, index)->out[0];
}

static void publish(struct comm_group *g, const uint8_t *src, const int64_t *counts, int64_t size)
{
    struct shm_send_list *l = list_of(g, g->me);
    int64_t total = 0;
    for (int i = 0; i < g->n; i++) {
        l->part[i] = (struct shm_send_part){total, counts[i] * size};
        total += counts[i] * size;
    }
    l->base = SHM_PRIVATE;
    l->stream_bytes = 0;
    if (total > 0 && shm_is_shared(g, src, (size_t)total)) {
        l->base = (uint64_t)(src - (uint8_t *)shm_of(g)->head);
        return;
    }
    for (int k = 1; k < g->n; k++) {
        struct shm_send_part *p = &l->part[(g->me + k) % g->n];
        p->at = l->stream_bytes;
        l->stream_bytes += p->bytes;
    }
}

/* Copies the intersection of the part and the block that begins at `begin` of the stream: with `in` from the packed
 * part to the block, else from the block to the packed part. */
static void copy_piece(const struct comm_group *g, const struct shm_send_part *p, int64_t begin, uint8_t *block,
                       uint8_t *packed, bool in)
{
    int64_t lo = p->at > begin ? p->at : begin, end = begin + (int64_t)SHM_BLOCK;
    int64_t hi = p->at + p->bytes < end ? p->at + p->bytes : end;
    if (lo >= hi)
        return;
    if (in)
        shm_pass(shm_of(g), block + (lo - begin), packed + (lo - p->at), (size_t)(hi - lo));
    else
        memcpy(packed + (lo - p->at), block + (lo - begin), (size_t)(hi - lo));
}

static void write_block(struct comm_group *g, const uint8_t *src, int64_t round)
{
    const struct shm_send_list *l = list_of(g, g->me);
    uint8_t *block = shm_window(g, g->me)->in[round & 1];
    for (int i = 0; i < g->n && l->base == SHM_PRIVATE; i++) {
        if (i != g->me)
            copy_piece(g, &l->part[i], round * (int64_t)SHM_BLOCK, block, (uint8_t *)src, true);
        src += l->part[i].bytes;
    }
}

/* Reads the pieces of streams in this round; in the first round also the parts that lie in shared bytes. */
static void read_round(struct comm_group *g, uint8_t *dst, int64_t round)
{
    for (int i = 0; i < g->n; i++) {
        const struct shm_send_list *l = list_of(g, i);
        const struct shm_send_part *p = &l->part[g->me];
        if (l->base == SHM_PRIVATE && i != g->me) {
            copy_piece(g, p, round * (int64_t)SHM_BLOCK, shm_window(g, i)->in[round & 1], dst, false);
        } else if (l->base != SHM_PRIVATE && round == 0 && p->bytes > 0) {
            memcpy(dst, (uint8_t *)shm_of(g)->head + l->base + p->at, (size_t)p->bytes);
        }
        dst += p->bytes;
    }
}

static err_t check_counts(struct comm_group *g, const int64_t *counts, int64_t size)
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
    write_block(g, src, 0);
    err_t err = shm_barrier(g);
    if (!err)
        err = check_counts(g, recv_counts, size);
    if (err)
        return err;
    if (list_of(g, g->me)->base == SHM_PRIVATE)
        copy_own(g, src, dst, send_counts, recv_counts, size);
    const int64_t rounds = rounds_of(g);
    read_round(g, dst, 0);
    for (int64_t round = 1; !err && round < rounds; round++) {
        write_block(g, src, round);
        err = shm_barrier(g);
        if (!err)
            read_round(g, dst, round);
    }
    return err ? err : shm_barrier(g);
}
