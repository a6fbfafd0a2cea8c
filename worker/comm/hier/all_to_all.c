/* All-to-all: each rank sends one message to each rank of other nodes. Empty parts are sent too, because a message also
 * verifies the counts. Meanwhile the ranks of a node exchange their parts over shm. shm needs parts that are packed one
 * after another, so each call exchanges the parts between two runs; if the ranks of a node are consecutive, one call
 * exchanges all. */
#include "worker/comm/hier/internal.h"

#include <string.h>

struct hier_all_to_all_call {
    struct hier_group *g;
    const uint8_t *src;
    uint8_t *dst;
    const int64_t *send_counts, *recv_counts;
    enum dtype dtype;
};

static int64_t sum_counts(const int64_t *counts, int n)
{
    int64_t total = 0;
    for (int i = 0; i < n; i++)
        total += counts[i];
    return total;
}

/* Exchanges the parts from the members of one run for those of another, both on this node. */
static err_t exchange_runs(const struct hier_all_to_all_call *c, struct kern_stream *s, const struct hier_run *from,
                           const struct hier_run *to)
{
    const struct hier_group *g = c->g;
    const int me = g->base.me;
    const int64_t size = (int64_t)dtype_bytes(c->dtype);
    int64_t out[SHM_MAX_WORLD] = {0}, in[SHM_MAX_WORLD] = {0};
    const bool sends = me >= from->first && me < from->first + from->n;
    const bool receives = me >= to->first && me < to->first + to->n;
    for (int i = to->first; i < to->first + to->n && sends; i++)
        out[g->local_at[i]] = c->send_counts[i];
    for (int i = from->first; i < from->first + from->n && receives; i++)
        in[g->local_at[i]] = c->recv_counts[i];
    return shm_all_to_all(g->inner, s, c->src + sum_counts(c->send_counts, to->first) * size, out,
                          c->dst + sum_counts(c->recv_counts, from->first) * size, in, c->dtype);
}

static err_t exchange_here(const struct hier_all_to_all_call *c, struct kern_stream *s)
{
    const struct hier_group *g = c->g;
    err_t err = OK;
    for (int a = 0; !err && a < g->n_runs; a++)
        for (int b = 0; !err && b < g->n_runs; b++)
            if (g->runs[a].node == g->here && g->runs[b].node == g->here)
                err = exchange_runs(c, s, &g->runs[a], &g->runs[b]);
    return err;
}

static int post_messages(const struct hier_all_to_all_call *c)
{
    const struct hier_group *g = c->g;
    const int64_t size = (int64_t)dtype_bytes(c->dtype);
    const uint8_t *src = c->src;
    uint8_t *dst = c->dst;
    int n = 0;
    for (int i = 0; i < g->base.n; i++) {
        const int64_t out = c->send_counts[i] * size, in = c->recv_counts[i] * size;
        if (g->node_at[i] != g->here) {
            hier_recv(g, i, dst, in, &g->ops[n++]);
            hier_send(g, i, (uint8_t *)src, out, &g->ops[n++]);
        }
        src += out;
        dst += in;
    }
    return n;
}

err_t hier_all_to_all(struct comm_group *group, struct kern_stream *s, const void *src, const int64_t *send_counts,
                      void *dst, const int64_t *recv_counts, enum dtype dtype)
{
    struct hier_group *g = hier_group_of(group);
    const struct hier_all_to_all_call c = {g, src, dst, send_counts, recv_counts, dtype};
    int turn = 0;
    if (g->one_node)
        return hier_result(group, shm_all_to_all(g->inner, s, src, send_counts, dst, recv_counts, dtype));
    const int n = post_messages(&c);
    err_t err = hier_turn(hier_of(group), true, &turn);
    err = err ? err : exchange_here(&c, s);
    err = err ? err : hier_wait_ops(hier_of(group), g->ops, n);
    return hier_result(group, err);
}
