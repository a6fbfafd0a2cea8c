/* The function table of the shm backend, and its groups: a group is a barrier of the epoch's control block. All ranks
 * create the same groups in the same order, so they give a group the same number. */
#include "worker/comm/shm/shm.h"

#include <stdlib.h>
#include <string.h>

static void *get_shared(struct comm *c)
{
    return ((struct shm_comm *)c)->shared[c->rank];
}

const struct comm_backend comm_backend_shm = {
    .name = "shm",
    .open = shm_open_comm,
    .close = shm_close_comm,
    .abort = shm_abort,
    .shared = get_shared,
    .group_new = shm_group_new,
    .group_free = shm_group_free,
    .all_reduce = shm_all_reduce,
    .all_gather = shm_all_gather,
    .reduce_scatter = shm_reduce_scatter,
    .unit_gather = shm_unit_gather,
    .unit_scatter = shm_unit_scatter,
    .broadcast = shm_broadcast,
    .barrier = shm_barrier,
    .agree = shm_agree,
    .tree_reduce = shm_tree_reduce,
    .all_to_all = shm_all_to_all,
    .send_post = shm_send_post,
    .recv_post = shm_recv_post,
    .push = shm_push,
    .wait = shm_wait,
    .move = shm_move,
    .copy = shm_copy,
};

static int numa_node_of(const struct shm_comm *s, const struct shm_group *g, int index)
{
    return s->ctl->member[g->base.ranks[index]].numa_node;
}

/* Divides the group into NUMA nodes if they are as nodes.h requires. */
static void find_nodes(const struct shm_comm *s, struct shm_group *g)
{
    const int n = g->base.n;
    int per = 1;
    bool divided = n > 0 && numa_node_of(s, g, 0) >= 0;
    while (per < n && numa_node_of(s, g, per) == numa_node_of(s, g, 0))
        per++;
    for (int i = 0; i < n; i++) {
        const int node = numa_node_of(s, g, i);
        divided &= node >= 0 && node == numa_node_of(s, g, i / per * per);
        for (int k = 0; k < i / per; k++)
            divided &= node != numa_node_of(s, g, k * per);
    }
    divided &= per > 1 && n % per == 0;
    g->n_nodes = divided ? n / per : 1;
    g->per_node = divided ? per : n;
}

void shm_count_border(const struct comm_group *g, int index, int64_t bytes)
{
    struct shm_comm *s = shm_of(g);
    if (s->ctl->member[g->ranks[index]].numa_node != s->ctl->member[g->comm->rank].numa_node)
        s->border_bytes += bytes;
}

err_t shm_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret)
{
    struct shm_comm *s = (struct shm_comm *)c;
    if (s->n_groups == SHM_MAX_GROUPS)
        return ERR_LIMIT;
    struct shm_group *g = calloc(1, sizeof(*g) + (size_t)n * sizeof(int));
    if (!g)
        return ERR_NOMEM;
    g->base = (struct comm_group){.comm = c, .n = n, .me = me, .ranks = (int *)(g + 1)};
    memcpy(g->base.ranks, ranks, (size_t)n * sizeof(int));
    find_nodes(s, g);
    g->barrier = &s->ctl->barrier[s->n_groups++];
    *ret = &g->base;
    return OK;
}

void shm_group_free(struct comm_group *g)
{
    free(g);
}

void shm_slice(const struct comm_group *g, int64_t n, int index, int64_t *ret_lo, int64_t *ret_hi)
{
    const int64_t grain = 64;
    int64_t grains = (n + grain - 1) / grain;
    int64_t lo = grains * index / g->n * grain, hi = grains * (index + 1) / g->n * grain;
    *ret_lo = lo < n ? lo : n;
    *ret_hi = hi < n ? hi : n;
}
