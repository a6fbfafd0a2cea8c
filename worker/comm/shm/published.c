/* Before a collective, each rank publishes where its buffers lie in the shared segment, or that they are private
 * memory. Ranges are written before a barrier and read after it; the barrier at the end of the collective protects them
 * from the next write. */
#include "worker/comm/shm/shm.h"

bool shm_is_shared(const struct comm_group *g, const void *x, size_t bytes)
{
    const struct shm_comm *s = shm_of(g);
    uintptr_t at = (uintptr_t)x, base = (uintptr_t)s->shared[g->comm->rank];
    return bytes == 0 || (at >= base && bytes <= s->shared_bytes && at - base <= s->shared_bytes - bytes);
}

bool shm_publish_ranges(const struct comm_group *g, const struct shm_range *ranges, int n)
{
    uint64_t *published = shm_window(g, g->me)->ranges;
    bool shared = true;
    for (int k = 0; k < n && shared; k++)
        shared = shm_is_shared(g, ranges[k].x, ranges[k].bytes);
    for (int k = 0; k < n; k++)
        published[k] = shared ? (uint64_t)((uintptr_t)ranges[k].x - (uintptr_t)shm_of(g)->head) : SHM_PRIVATE;
    return shared;
}

uint8_t *shm_peer_range(const struct comm_group *g, int index, int k)
{
    uint64_t at = shm_window(g, index)->ranges[k];
    return at == SHM_PRIVATE ? NULL : (uint8_t *)shm_of(g)->head + at;
}

bool shm_all_shared(const struct comm_group *g)
{
    for (int i = 0; i < g->n; i++)
        if (!shm_peer_range(g, i, 0))
            return false;
    return true;
}
