/* Broadcast: in blocks through the root's window; one barrier a block, since the root is always one block ahead in the
 * other half. From shared bytes everybody copies directly. */
#include "worker/comm/shm/shm.h"

#include <string.h>

static err_t broadcast_shared(struct comm_group *g, void *x, int64_t bytes, int root)
{
    err_t err = shm_barrier(g);
    if (err)
        return err;
    if (g->me != root) {
        memcpy(x, shm_peer(g, x, root), (size_t)bytes);
    }
    return shm_barrier(g);
}

err_t shm_broadcast(struct comm_group *g, struct kern_stream *stream, void *x, int64_t bytes, int root)
{
    (void)stream;
    if (g->n == 1 || bytes == 0)
        return shm_barrier(g);
    if (shm_is_shared(g, x, (size_t)bytes))
        return broadcast_shared(g, x, bytes, root);
    int turn = 0;
    for (int64_t at = 0; at < bytes; at += (int64_t)SHM_BLOCK, turn ^= 1) {
        size_t m = (size_t)(bytes - at < (int64_t)SHM_BLOCK ? bytes - at : (int64_t)SHM_BLOCK);
        uint8_t *window = shm_window(g, root)->in[turn];
        if (g->me == root)
            memcpy(window, (uint8_t *)x + at, m);
        err_t err = shm_barrier(g);
        if (err)
            return err;
        if (g->me != root) {
            memcpy((uint8_t *)x + at, window, m);
        }
    }
    return shm_barrier(g);
}
