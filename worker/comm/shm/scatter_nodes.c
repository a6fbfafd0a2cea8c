/* Reduce-scatter over several NUMA nodes (nodes.h). A column sums the streams of its own members: its blocks are the
 * first blocks of these streams, one after another, then their second blocks, and so on. In step b + K node K - 1 has
 * the sum of block b. If the block belongs to a member of another node, that member reads it in the next step. */
#include "worker/comm/shm/nodes.h"
#include "worker/comm/shm/scatter.h"

struct shm_scatter_nodes {
    const struct shm_scatter_call *c;
    int64_t block, blocks; /* elements; number of blocks of all streams of the column */
    int nodes, per, node, column;
};

/* The owner of block b, and the elements of its stream that belong to the block. */
struct shm_scatter_range {
    int owner;
    int64_t lo, hi;
};

static struct shm_scatter_range range_of(const struct shm_scatter_nodes *s, int64_t b)
{
    struct shm_scatter_range r = {.owner = (int)(b % s->nodes) * s->per + s->column};
    if (b < 0 || b >= s->blocks)
        return r;
    r.lo = b / s->nodes * s->block;
    r.hi = r.lo + s->block;
    return r;
}

/* Calls `fn` for the intersection of the range with each part: elements [skip, skip + n) of the owner's part k, which
 * are elements [at, at + n) of the range. Returns the number of elements of the range. */
static int64_t each_part(const struct shm_scatter_nodes *s, struct shm_scatter_range r, int64_t step,
                         void (*fn)(const struct shm_scatter_nodes *s, int owner, int k, int64_t skip, int64_t at,
                                    int64_t n, int64_t step))
{
    int64_t begin = 0, n = 0; /* begin: of the part in the stream */
    for (int k = 0; k < s->c->n && begin < r.hi; k++) {
        const int64_t count = s->c->parts[k].counts[r.owner];
        const int64_t lo = begin > r.lo ? begin : r.lo, hi = begin + count < r.hi ? begin + count : r.hi;
        if (lo < hi)
            fn(s, r.owner, k, lo - begin, lo - r.lo, hi - lo, step);
        n += lo < hi ? hi - lo : 0;
        begin += count;
    }
    return n;
}

static void add_part(const struct shm_scatter_nodes *s, int owner, int k, int64_t skip, int64_t at, int64_t n,
                     int64_t step)
{
    const struct shm_scatter_call *c = s->c;
    const int64_t from = shm_scatter_before(c, k, owner) + skip;
    const void *src[SHM_MAX_WORLD];
    for (int i = 0; i < s->per; i++) {
        const int member = s->node * s->per + i;
        const uint8_t *tensor =
            member == c->g->me ? c->local + c->parts[k].local * c->size : shm_peer_range(c->g, member, k);
        src[i] = tensor + from * c->size;
    }
    shm_nodes_add(c->g, step, at, src, n, c->dtype, c->op);
}

/* Writes a finished sum into this rank's piece. */
static void write_part(const struct shm_scatter_nodes *s, int owner, int k, int64_t skip, int64_t at, int64_t n,
                       int64_t step)
{
    const struct shm_scatter_call *c = s->c;
    const bool last = s->node == s->nodes - 1;
    const uint8_t *sum = last ? shm_nodes_partial(c->g, step) : shm_nodes_partial_before(c->g, step, s->nodes - 1);
    const void *src = sum + at * c->size;
    (void)owner;
    shm_reduce(c->pieces + (c->parts[k].piece + skip) * c->size, &src, 1, n, c->dtype, REDUCE_SUM, c->add);
    if (!last)
        shm_count_border(c->g, (s->nodes - 1) * s->per, n * c->size);
}

static void take_step(const struct shm_scatter_nodes *s, int64_t step)
{
    const bool last = s->node == s->nodes - 1;
    const struct shm_scatter_range added = range_of(s, step - s->node);
    const struct shm_scatter_range taken = range_of(s, step - s->nodes + last);
    int64_t n = each_part(s, added, step, add_part);
    if (last && n > 0)
        shm_finish(shm_nodes_partial(s->c->g, step), n, s->c->dtype, s->c->op == REDUCE_AVG ? s->c->g->n : 1);
    if (taken.owner == s->c->g->me)
        each_part(s, taken, step, write_part);
}

err_t shm_scatter_nodes(const struct shm_scatter_call *c)
{
    const struct shm_group *g = (const struct shm_group *)c->g;
    struct shm_scatter_nodes s = {.c = c,
                                  .block = shm_nodes_block(shm_scatter_longest(c) * g->n_nodes, c->dtype),
                                  .nodes = g->n_nodes,
                                  .per = g->per_node,
                                  .node = c->g->me / g->per_node,
                                  .column = c->g->me % g->per_node};
    s.blocks = (shm_scatter_longest(c) + s.block - 1) / s.block * s.nodes;
    err_t err = OK;
    for (int64_t step = 0; !err && step < s.blocks + s.nodes; step++) {
        take_step(&s, step);
        err = shm_barrier(c->g);
    }
    return err;
}
