/* Broadcast: members copy directly from the root's shared bytes. Private memory is sent in blocks through the root's
 * window. This takes one barrier per block, because the root writes the next block to the other half meanwhile. */
#include "worker/comm/shm/shm.h"

#include <string.h>

struct shm_broadcast_call {
    struct comm_group *g;
    uint8_t *x;
    int64_t bytes;
    int root;
};

static int64_t block_bytes(const struct shm_broadcast_call *c, int64_t round)
{
    int64_t left = c->bytes - round * (int64_t)SHM_BLOCK;
    return left < 0 ? 0 : left < (int64_t)SHM_BLOCK ? left : (int64_t)SHM_BLOCK;
}

static void write_block(const struct shm_broadcast_call *c, int64_t round)
{
    if (c->g->me == c->root && !shm_peer_range(c->g, c->root, 0))
        shm_pass(shm_of(c->g), shm_window(c->g, c->root)->in[round & 1], c->x + round * (int64_t)SHM_BLOCK,
                 (size_t)block_bytes(c, round));
}

static void read_block(const struct shm_broadcast_call *c, int64_t round)
{
    if (c->g->me != c->root)
        memcpy(c->x + round * (int64_t)SHM_BLOCK, shm_window(c->g, c->root)->in[round & 1],
               (size_t)block_bytes(c, round));
}

static err_t copy_shared(const struct shm_broadcast_call *c)
{
    if (c->g->me != c->root)
        memcpy(c->x, shm_peer_range(c->g, c->root, 0), (size_t)c->bytes);
    return shm_barrier(c->g);
}

err_t shm_broadcast(struct comm_group *g, struct kern_stream *stream, void *x, int64_t bytes, int root)
{
    const struct shm_broadcast_call c = {g, x, bytes, root};
    (void)stream;
    if (g->n == 1 || bytes == 0)
        return shm_barrier(g);
    if (g->me == root)
        shm_publish_ranges(g, &(struct shm_range){x, (size_t)bytes}, 1);
    write_block(&c, 0);
    err_t err = shm_barrier(g);
    if (!err && shm_peer_range(g, root, 0))
        return copy_shared(&c);
    for (int64_t round = 0; !err && round * (int64_t)SHM_BLOCK < bytes; round++) {
        read_block(&c, round);
        if (block_bytes(&c, round + 1) > 0)
            write_block(&c, round + 1);
        err = shm_barrier(g);
    }
    return err;
}
