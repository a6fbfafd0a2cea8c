/* All-gather: from sources in the segment everybody copies directly; private ones travel in blocks through the windows,
 * as many rounds as the largest part needs. A part that already lies at its place is not copied. */
#include "worker/comm/shm/shm.h"

#include <string.h>

/* Shared means: all of every member's part lies in shared bytes; the parts may differ in size. */
static bool source_is_shared(const struct comm_group *g, const void *src, const int64_t *counts, size_t size)
{
    return counts[g->me] > 0 && shm_is_shared(g, src, (size_t)counts[g->me] * size);
}

static void put(uint8_t *dst, const void *src, int64_t bytes)
{
    if (dst != src && bytes > 0)
        memmove(dst, src, (size_t)bytes);
}

/* In place (src inside dst) the part of member i starts at another offset on each rank, so its offset is exchanged. */
static err_t gather_shared(struct comm_group *g, const void *src, uint8_t *dst, const int64_t *counts, int64_t size)
{
    struct shm_comm *s = shm_of(g);
    uint64_t offset = (uint64_t)((const uint8_t *)src - s->shared[g->comm->rank]);
    memcpy(shm_window(g, g->me)->in[0], &offset, sizeof(offset));
    err_t err = shm_barrier(g);
    for (int i = 0; !err && i < g->n; i++) {
        memcpy(&offset, shm_window(g, i)->in[0], sizeof(offset));
        put(dst, s->shared[g->ranks[i]] + offset, counts[i] * size);
        dst += counts[i] * size;
    }
    return err ? err : shm_barrier(g);
}

static int64_t clamp(int64_t n, int64_t lo, int64_t hi)
{
    return n < lo ? lo : n > hi ? hi : n;
}

static err_t gather_round(struct comm_group *g, const uint8_t *src, uint8_t *dst, const int64_t *counts, int64_t size,
                          int64_t at, int turn)
{
    const int64_t block = (int64_t)SHM_BLOCK;
    int64_t mine = clamp(counts[g->me] * size - at, 0, block);
    memcpy(shm_window(g, g->me)->in[turn], src + (mine > 0 ? at : 0), (size_t)mine);
    err_t err = shm_barrier(g);
    for (int i = 0; !err && i < g->n; i++) {
        put(dst + at, shm_window(g, i)->in[turn], clamp(counts[i] * size - at, 0, block));
        dst += counts[i] * size;
    }
    return err;
}

err_t shm_all_gather(struct comm_group *g, struct kern_stream *stream, const void *src, void *dst,
                     const int64_t *counts, enum dtype dtype)
{
    (void)stream;
    const int64_t size = (int64_t)dtype_bytes(dtype);
    int64_t most = 0;
    bool all = true;
    for (int i = 0; i < g->n; i++) {
        most = counts[i] > most ? counts[i] : most;
        all = all && counts[i] > 0;
    }
    if (all && source_is_shared(g, src, counts, (size_t)size))
        return gather_shared(g, src, dst, counts, size);
    int turn = 0;
    for (int64_t at = 0; at < most * size; at += (int64_t)SHM_BLOCK, turn ^= 1) {
        err_t err = gather_round(g, src, dst, counts, size, at, turn);
        if (err)
            return err;
    }
    return shm_barrier(g);
}
