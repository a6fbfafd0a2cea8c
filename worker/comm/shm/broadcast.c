/* Broadcast: from the root's shared bytes everybody copies directly; out of private memory it goes in blocks through
 * the root's window, one barrier a block, since the root is always one block ahead in the other half. */
#include "worker/comm/shm/shm.h"

#include <string.h>

struct call {
    struct comm_group *g;
    uint8_t *x;
    int64_t bytes;
    int root;
};

static int64_t block_bytes(const struct call *c, int64_t round)
{
    int64_t left = c->bytes - round * (int64_t)SHM_BLOCK;
    return left < 0 ? 0 : left < (int64_t)SHM_BLOCK ? left : (int64_t)SHM_BLOCK;
}

static void fill(const struct call *c, int64_t round)
{
    if (c->g->me == c->root && !shm_said(c->g, c->root, 0))
        memcpy(shm_window(c->g, c->root)->in[round & 1], c->x + round * (int64_t)SHM_BLOCK,
               (size_t)block_bytes(c, round));
}

static void take(const struct call *c, int64_t round)
{
    if (c->g->me != c->root)
        memcpy(c->x + round * (int64_t)SHM_BLOCK, shm_window(c->g, c->root)->in[round & 1],
               (size_t)block_bytes(c, round));
}

static err_t copy_shared(const struct call *c)
{
    if (c->g->me != c->root)
        memcpy(c->x, shm_said(c->g, c->root, 0), (size_t)c->bytes);
    return shm_barrier(c->g);
}

err_t shm_broadcast(struct comm_group *g, struct kern_stream *stream, void *x, int64_t bytes, int root)
{
    const struct call c = {g, x, bytes, root};
    (void)stream;
    if (g->n == 1 || bytes == 0)
        return shm_barrier(g);
    if (g->me == root)
        shm_say(g, &(struct shm_range){x, (size_t)bytes}, 1);
    fill(&c, 0);
    err_t err = shm_barrier(g);
    if (!err && shm_said(g, root, 0))
        return copy_shared(&c);
    for (int64_t round = 0; !err && round * (int64_t)SHM_BLOCK < bytes; round++) {
        take(&c, round);
        if (block_bytes(&c, round + 1) > 0)
            fill(&c, round + 1);
        err = shm_barrier(g);
    }
    return err;
}
