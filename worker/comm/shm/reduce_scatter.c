/* Reduce-scatter: each rank reduces its own part, straight from the members' buffers when they lie in the segment, else
 * in rounds: a window then holds one cell per member, with the next bytes of that member's part. dst may be the rank's
 * own part of src: nobody else reads that. */
#include "worker/comm/shm/shm.h"

#include <assert.h>
#include <string.h>

static int64_t clamp(int64_t n, int64_t lo, int64_t hi)
{
    return n < lo ? lo : n > hi ? hi : n;
}

static err_t scatter_shared(struct comm_group *g, const uint8_t *src, void *dst, int64_t skip, int64_t n,
                            enum dtype dtype, enum reduce_op op)
{
    const void *from[SHM_MAX_WORLD];
    err_t err = shm_barrier(g);
    if (err)
        return err;
    for (int i = 0; i < g->n; i++)
        from[i] = shm_peer(g, src + skip * (int64_t)dtype_bytes(dtype), i);
    shm_reduce(dst, from, g->n, n, dtype, op);
    return shm_barrier(g);
}

static err_t scatter_round(struct comm_group *g, const uint8_t *src, uint8_t *dst, const int64_t *counts,
                           enum dtype dtype, enum reduce_op op, int64_t at, int64_t cell, int turn)
{
    const int64_t size = (int64_t)dtype_bytes(dtype);
    const void *from[SHM_MAX_WORLD];
    const uint8_t *own = src;
    for (int i = 0; i < g->n; i++) {
        int64_t m = clamp(counts[i] - at, 0, cell);
        if (i == g->me)
            own = src + at * size; /* nobody else reads it */
        else if (m > 0)
            memcpy(shm_window(g, g->me)->in[turn] + i * cell * size, src + at * size, (size_t)(m * size));
        src += counts[i] * size;
    }
    err_t err = shm_barrier(g);
    int64_t mine = clamp(counts[g->me] - at, 0, cell);
    if (err || mine == 0)
        return err;
    for (int i = 0; i < g->n; i++)
        from[i] = i == g->me ? own : shm_window(g, i)->in[turn] + g->me * cell * size;
    shm_reduce(dst + at * size, from, g->n, mine, dtype, op);
    return OK;
}

err_t shm_reduce_scatter(struct comm_group *g, struct kern_stream *stream, const void *src, void *dst,
                         const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    (void)stream;
    assert(dtype_bytes(dtype));
    const int64_t size = (int64_t)dtype_bytes(dtype), cell = (int64_t)SHM_BLOCK / size / g->n;
    int64_t most = 0, total = 0, skip = 0;
    for (int i = 0; i < g->n; i++) {
        most = counts[i] > most ? counts[i] : most;
        skip += i < g->me ? counts[i] : 0;
        total += counts[i];
    }
    if (shm_is_shared(g, src, (size_t)(total * size)) && total > 0)
        return scatter_shared(g, src, dst, skip, counts[g->me], dtype, op);
    int turn = 0;
    for (int64_t at = 0; at < most; at += cell, turn ^= 1) {
        err_t err = scatter_round(g, src, dst, counts, dtype, op, at, cell, turn);
        if (err)
            return err;
    }
    return shm_barrier(g);
}
