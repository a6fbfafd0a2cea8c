/* All-reduce and broadcast: after them all members' buffers have the same contents.
 *
 * The ranks of a node access a member's buffer in place if it is shared, else block by block in its stage. On every
 * node one rank handles piece p, chosen by the piece's channel: it reads the members' elements and writes the result in
 * their place. So between two barriers the ranks of a node access different elements. A private buffer is copied into
 * the stage before the first barrier and out of it after the second. */
#include "worker/comm/hier/internal.h"

#include <string.h>

#define SMALL_BYTES 4096

struct hier_all_reduce_call {
    struct hier_relay relay;
    uint8_t *x;
    int64_t n, begin, end; /* all elements; this round's are [begin, end) */
    int64_t next;          /* number of the next piece */
    int channels, root;
    enum dtype dtype;
    enum reduce_op op;
    bool shared;                     /* whether this rank's buffer is */
    uint8_t *visible[SHM_MAX_WORLD]; /* for each inner member: the address that element 0 has or would have */
    const struct hier_route *route;
};

static const struct hier_all_reduce_call *call_of(const struct hier_relay *r)
{
    return (const struct hier_all_reduce_call *)r;
}

/* Returns the pieces whose channel this rank handles. */
static bool next_piece(struct hier_relay *r, struct hier_item *ret)
{
    struct hier_all_reduce_call *c = (struct hier_all_reduce_call *)r;
    const struct comm_group *inner = r->g->inner;
    for (; c->next * r->piece < c->end; c->next++) {
        const int64_t at = c->next * r->piece;
        const int channel = (int)(c->next % c->channels);
        if (channel % inner->n != inner->me)
            continue;
        *ret =
            (struct hier_item){.at = at, .m = hier_min(r->piece, c->end - at), .channel = channel, .route = c->route};
        c->next++;
        return true;
    }
    return false;
}

static void sum(const struct hier_relay *r, const struct hier_item *item, const struct hier_run *run, uint8_t *acc,
                bool first)
{
    const struct hier_all_reduce_call *c = call_of(r);
    const void **src = r->g->src;
    int n = 0;
    for (int i = run->first; i < run->first + run->n; i++)
        src[n++] = c->visible[r->g->local_at[i]] + item->at * r->size;
    shm_reduce_onto(acc, first, src, n, item->m, c->dtype, c->op == REDUCE_AVG ? REDUCE_SUM : c->op);
}

static void finish(const struct hier_relay *r, const struct hier_item *item, uint8_t *acc)
{
    shm_finish(acc, item->m, call_of(r)->dtype, call_of(r)->op == REDUCE_AVG ? r->g->base.n : 1);
}

/* On the root's node the root's buffer holds the result of a broadcast; elsewhere it arrives in this rank's buffer. */
static uint8_t *place(const struct hier_relay *r, const struct hier_item *item)
{
    const struct hier_all_reduce_call *c = call_of(r);
    const bool root_here = c->root >= 0 && r->g->node_at[c->root] == r->g->here;
    return c->visible[root_here ? r->g->local_at[c->root] : r->g->inner->me] + item->at * r->size;
}

static void deliver(const struct hier_relay *r, const struct hier_item *item, const uint8_t *result)
{
    for (int j = 0; j < r->g->inner->n; j++) {
        uint8_t *to = call_of(r)->visible[j] + item->at * r->size;
        if (to != result)
            memcpy(to, result, (size_t)(item->m * r->size));
    }
}

/* ---- rounds ---- */

static void find_buffers(struct hier_all_reduce_call *c)
{
    for (int j = 0; j < c->relay.g->inner->n; j++) {
        uint8_t *range = shm_peer_range(c->relay.g->inner, j, 0);
        c->visible[j] = range ? range : hier_stage(c->relay.g, j) - c->begin * c->relay.size;
    }
}

/* Elements of a round: as many whole pieces as a stage holds, or everything if no member of the node is private. */
static int64_t round_of(const struct hier_all_reduce_call *c)
{
    return shm_all_shared(c->relay.g->inner) ? c->n : HIER_STAGE / c->relay.size / c->relay.piece * c->relay.piece;
}

static void copy_private(const struct hier_all_reduce_call *c, bool in)
{
    const int64_t at = c->begin * c->relay.size;
    uint8_t *stage = hier_stage(c->relay.g, c->relay.g->inner->me);
    if (c->shared || c->end <= c->begin)
        return;
    if (in)
        memcpy(stage, c->x + at, (size_t)((c->end - c->begin) * c->relay.size));
    else
        memcpy(c->x + at, stage, (size_t)((c->end - c->begin) * c->relay.size));
}

/* In a broadcast only the root has input to copy. */
static bool has_input(const struct hier_all_reduce_call *c)
{
    return c->root < 0 || c->root == c->relay.g->base.me;
}

/* The first copy precedes the barrier that shows which buffers are private, so it covers what a stage holds. */
static err_t run_rounds(struct hier_all_reduce_call *c)
{
    struct comm_group *inner = c->relay.g->inner;
    c->shared = shm_publish_ranges(inner, &(struct shm_range){c->x, (size_t)(c->n * c->relay.size)}, 1);
    c->end = hier_min(HIER_STAGE / c->relay.size / c->relay.piece * c->relay.piece, c->n);
    if (has_input(c))
        copy_private(c, true);
    err_t err = shm_barrier(inner);
    const int64_t round = err ? 1 : round_of(c);
    while (!err && c->begin < c->n) {
        c->end = hier_min(c->begin + round, c->n);
        find_buffers(c);
        err = hier_relay(&c->relay);
        err = err ? err : shm_barrier(inner);
        if (!err && (c->root < 0 || !has_input(c)))
            copy_private(c, false);
        c->begin = c->end;
        c->end = hier_min(c->begin + round, c->n);
        if (err || c->begin == c->n)
            break;
        if (has_input(c))
            copy_private(c, true);
        err = shm_barrier(inner);
    }
    return err;
}

static int largest_node(const struct hier_group *g)
{
    int most = 1;
    for (int y = 0; y < g->n_nodes; y++)
        most = g->nodes[y].n > most ? g->nodes[y].n : most;
    return most;
}

static void set_up(struct hier_all_reduce_call *c, struct hier_group *g, void *x, int64_t n, enum dtype dtype)
{
    const int64_t size = (int64_t)dtype_bytes(dtype), sum_size = (int64_t)dtype_bytes(shm_partial_type(dtype));
    *c = (struct hier_all_reduce_call){.x = x, .n = n, .root = -1, .channels = largest_node(g), .dtype = dtype};
    c->relay = (struct hier_relay){.g = g,
                                   .size = size,
                                   .sum_size = sum_size,
                                   .piece = hier_piece(g, n, HIER_STAGE / size, sum_size),
                                   .next = next_piece,
                                   .sum = sum,
                                   .finish = finish,
                                   .place = place,
                                   .deliver = deliver};
}

err_t hier_all_reduce(struct comm_group *group, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                      enum reduce_op op)
{
    struct hier_group *g = hier_group_of(group);
    const int64_t size = (int64_t)dtype_bytes(dtype);
    struct hier_all_reduce_call c;
    if (g->one_node)
        return hier_result(group, shm_all_reduce(g->inner, s, x, n, dtype, op));
    if (n * size <= SMALL_BYTES && n * size * group->n <= HIER_STAGE)
        return hier_result(group, hier_reduce_small(g, x, n, dtype, op));
    set_up(&c, g, x, n, dtype);
    c.op = op;
    c.route = &g->all_reduce;
    return hier_result(group, run_rounds(&c));
}

err_t hier_broadcast(struct comm_group *group, struct kern_stream *s, void *x, int64_t bytes, int root)
{
    struct hier_group *g = hier_group_of(group);
    struct hier_all_reduce_call c;
    if (g->one_node)
        return hier_result(group, shm_broadcast(g->inner, s, x, bytes, root));
    if (bytes == 0)
        return hier_barrier(group);
    set_up(&c, g, x, bytes, DT_U8);
    c.root = root;
    c.route = &g->broadcast[g->node_at[root]];
    return hier_result(group, run_rounds(&c));
}
