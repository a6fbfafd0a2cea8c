/* All-reduce, three ways by where the data lies and how much it is.
 *  shared:  every rank reduces its slice of everybody's buffer and writes it into everybody's buffer: each byte crosses
 *           between cores once in and once out.
 *  tiny:    everybody publishes all and reduces all, which saves a barrier.
 *  private: the same as shared, in blocks through the windows.
 * All of them add in the order of the ranks, element by element, so that all give the same bits. */
#include "worker/comm/shm/shm.h"

#include <assert.h>
#include <string.h>

#define TINY_BYTES 4096
#define PIECE_BYTES ((int64_t)32 << 10) /* the piece is still in the first cache when it is copied to the others */

static void reduce_shared_slice(struct comm_group *g, uint8_t *x, int64_t lo, int64_t hi, enum dtype dtype,
                                enum reduce_op op)
{
    const int64_t size = (int64_t)dtype_bytes(dtype), piece = PIECE_BYTES / size;
    const void *src[SHM_MAX_WORLD];
    for (int64_t at = lo; at < hi; at += piece) {
        int64_t m = hi - at < piece ? hi - at : piece;
        uint8_t *mine = x + at * size;
        for (int i = 0; i < g->n; i++)
            src[i] = shm_peer(g, mine, i);
        shm_reduce(mine, src, g->n, m, dtype, op);
        for (int i = 0; i < g->n; i++)
            if (i != g->me)
                memcpy(shm_peer(g, mine, i), mine, (size_t)(m * size));
    }
}

static err_t reduce_shared(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op)
{
    err_t err = shm_barrier(g);
    if (err)
        return err;
    int64_t lo, hi;
    shm_slice(g, n, g->me, &lo, &hi);
    reduce_shared_slice(g, x, lo, hi, dtype, op);
    return shm_barrier(g);
}

static err_t reduce_tiny(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op)
{
    const void *src[SHM_MAX_WORLD];
    size_t bytes = (size_t)n * dtype_bytes(dtype);
    for (int i = 0; i < g->n; i++)
        src[i] = shm_window(g, i)->in[0];
    memcpy(shm_window(g, g->me)->in[0], x, bytes);
    err_t err = shm_barrier(g);
    if (err)
        return err;
    shm_reduce(x, src, g->n, n, dtype, op);
    return shm_barrier(g);
}

/* [0, n) but the own slice, which nobody else reads and which goes through no window. */
static void publish_block(struct comm_group *g, const uint8_t *x, int64_t n, int turn, int64_t size)
{
    uint8_t *window = shm_window(g, g->me)->in[turn];
    int64_t lo, hi;
    shm_slice(g, n, g->me, &lo, &hi);
    memcpy(window, x, (size_t)(lo * size));
    memcpy(window + hi * size, x + hi * size, (size_t)((n - hi) * size));
}

static void reduce_block_slice(struct comm_group *g, uint8_t *x, int64_t n, int turn, enum dtype dtype,
                               enum reduce_op op)
{
    const int64_t size = (int64_t)dtype_bytes(dtype), piece = PIECE_BYTES / size;
    uint8_t *out = shm_window(g, g->me)->out[turn];
    const void *src[SHM_MAX_WORLD];
    int64_t lo, hi;
    shm_slice(g, n, g->me, &lo, &hi);
    for (int64_t at = lo; at < hi; at += piece) {
        int64_t m = hi - at < piece ? hi - at : piece;
        for (int i = 0; i < g->n; i++)
            src[i] = i == g->me ? x + at * size : shm_window(g, i)->in[turn] + at * size;
        shm_reduce(x + at * size, src, g->n, m, dtype, op);
        memcpy(out + (at - lo) * size, x + at * size, (size_t)(m * size));
    }
}

static err_t reduce_block(struct comm_group *g, uint8_t *x, int64_t n, int turn, enum dtype dtype, enum reduce_op op)
{
    const int64_t size = (int64_t)dtype_bytes(dtype);
    publish_block(g, x, n, turn, size);
    err_t err = shm_barrier(g);
    if (err)
        return err;
    reduce_block_slice(g, x, n, turn, dtype, op);
    err = shm_barrier(g);
    for (int i = 0; !err && i < g->n; i++) {
        int64_t lo, hi;
        shm_slice(g, n, i, &lo, &hi);
        if (i == g->me)
            continue;
        memcpy(x + lo * size, shm_window(g, i)->out[turn], (size_t)((hi - lo) * size));
    }
    return err;
}

static err_t reduce_private(struct comm_group *g, uint8_t *x, int64_t n, enum dtype dtype, enum reduce_op op)
{
    const int64_t size = (int64_t)dtype_bytes(dtype);
    assert(size > 0);
    const int64_t block = (int64_t)SHM_BLOCK / size;
    int turn = 0;
    for (int64_t at = 0; at < n; at += block, turn ^= 1) {
        err_t err = reduce_block(g, x + at * size, n - at < block ? n - at : block, turn, dtype, op);
        if (err)
            return err;
    }
    return shm_barrier(g); /* the windows are free for the next collective, of whichever group */
}

err_t shm_all_reduce(struct comm_group *g, struct kern_stream *stream, void *x, int64_t n, enum dtype dtype,
                     enum reduce_op op)
{
    (void)stream;
    size_t bytes = (size_t)n * dtype_bytes(dtype);
    if (g->n == 1 || n == 0)
        return shm_barrier(g);
    if (bytes <= TINY_BYTES)
        return reduce_tiny(g, x, n, dtype, op);
    if (shm_is_shared(g, x, bytes))
        return reduce_shared(g, x, n, dtype, op);
    return reduce_private(g, x, n, dtype, op);
}

err_t shm_agree(struct comm_group *g, int64_t *x, enum reduce_op op)
{
    return shm_all_reduce(g, NULL, x, 1, DT_I64, op);
}
