#include "worker/comm/shm/nodes.h"

#include <string.h>

/* Elements that are summed at once: partial sums of them stay in the first-level cache. */
#define PIECE 2048
/* Bytes of a block. More small blocks fill the nodes sooner, fewer large ones need fewer barriers. */
#define BLOCK_LEAST ((int64_t)16 << 10)
#define BLOCKS 64 /* with more, the steps in which some nodes have no block yet are below 5 % for 4 nodes */

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static const struct shm_group *shape(const struct comm_group *g)
{
    return (const struct shm_group *)g;
}

int64_t shm_nodes_block(int64_t n, enum dtype dtype)
{
    const int64_t size = (int64_t)dtype_bytes(shm_partial_type(dtype)), most = (int64_t)SHM_BLOCK / size;
    int64_t block = (n / BLOCKS + 63) / 64 * 64;
    block = block < BLOCK_LEAST / size ? BLOCK_LEAST / size : block;
    return min_of(block, most);
}

bool shm_nodes_pay(const struct comm_group *g, int64_t n, enum dtype dtype)
{
    const int nodes = shape(g)->n_nodes;
    return nodes > 1 && n / shm_nodes_block(n, dtype) >= 2 * nodes;
}

uint8_t *shm_nodes_partial(const struct comm_group *g, int64_t step)
{
    return shm_window(g, g->me)->out[step & 1];
}

const uint8_t *shm_nodes_partial_before(const struct comm_group *g, int64_t step, int node)
{
    const int per = shape(g)->per_node;
    return shm_window(g, node * per + g->me % per)->out[(step - 1) & 1];
}

void shm_nodes_add(const struct comm_group *g, int64_t step, int64_t at, const void *const *src, int64_t n,
                   enum dtype dtype, enum reduce_op op)
{
    const int per = shape(g)->per_node, node = g->me / per;
    const int64_t size = (int64_t)dtype_bytes(dtype), wide = (int64_t)dtype_bytes(shm_partial_type(dtype));
    const uint8_t *before = node ? shm_nodes_partial_before(g, step, node - 1) + at * wide : NULL;
    uint8_t *acc = shm_nodes_partial(g, step) + at * wide;
    const void *piece[SHM_MAX_WORLD];
    for (int64_t from = 0; from < n; from += PIECE) {
        const int64_t m = min_of(n - from, PIECE);
        for (int i = 0; i < per; i++)
            piece[i] = (const uint8_t *)src[i] + from * size;
        if (before)
            memcpy(acc + from * wide, before + from * wide, (size_t)(m * wide));
        shm_reduce_onto(acc + from * wide, !before, piece, per, m, dtype, op);
    }
    if (before)
        shm_count_border(g, (node - 1) * per, n * wide);
}

/* ---- all-reduce ----
 *
 * With K nodes, node k adds its members to block b in step b + k. Node K - 1 then has the sum and writes it to its
 * members. It returns through the nodes: node k takes it from node k + 1 in step b + 2 (K - 1) - k, and writes it to
 * its own members. Until then only the member of the column has read that block of their buffers. */

struct shm_nodes_call {
    struct comm_group *g;
    uint8_t *x;
    int64_t n, size, block;
    enum dtype dtype;
    enum reduce_op op;
    int nodes, per, node, column;
};

/* The elements of this column's part of block b; an empty range if there is no such block. */
static int64_t part_of(const struct shm_nodes_call *c, int64_t b, int64_t *ret_lo)
{
    const int64_t lo = (b * c->per + c->column) * c->block;
    *ret_lo = lo;
    return b < 0 || lo >= c->n ? 0 : min_of(c->n - lo, c->block);
}

static uint8_t *buffer_of(const struct shm_nodes_call *c, int index)
{
    return index == c->g->me ? c->x : shm_peer_range(c->g, index, 0);
}

static void write_node(const struct shm_nodes_call *c, int64_t lo, int64_t m, const uint8_t *sum)
{
    for (int i = 0; i < c->per; i++) {
        uint8_t *to = buffer_of(c, c->node * c->per + i) + lo * c->size;
        if (to != sum)
            memcpy(to, sum, (size_t)(m * c->size));
    }
}

static void add_block(const struct shm_nodes_call *c, int64_t step)
{
    const void *src[SHM_MAX_WORLD];
    int64_t lo, m = part_of(c, step - c->node, &lo);
    if (m == 0)
        return;
    for (int i = 0; i < c->per; i++)
        src[i] = buffer_of(c, c->node * c->per + i) + lo * c->size;
    shm_nodes_add(c->g, step, 0, src, m, c->dtype, c->op);
    if (c->node < c->nodes - 1)
        return;
    uint8_t *sum = shm_nodes_partial(c->g, step);
    shm_finish(sum, m, c->dtype, c->op == REDUCE_AVG ? c->g->n : 1);
    write_node(c, lo, m, sum);
}

static void take_block(const struct shm_nodes_call *c, int64_t step)
{
    int64_t lo, m = part_of(c, step - 2 * (c->nodes - 1) + c->node, &lo);
    if (m == 0 || c->node == c->nodes - 1)
        return;
    const int from = (c->node + 1) * c->per + c->column;
    uint8_t *mine = c->x + lo * c->size;
    memcpy(mine, buffer_of(c, from) + lo * c->size, (size_t)(m * c->size));
    shm_count_border(c->g, from, m * c->size);
    write_node(c, lo, m, mine);
}

err_t shm_nodes_all_reduce(struct comm_group *g, uint8_t *x, int64_t n, enum dtype dtype, enum reduce_op op)
{
    const int per = shape(g)->per_node, nodes = shape(g)->n_nodes;
    const struct shm_nodes_call c = {.g = g,
                                     .x = x,
                                     .n = n,
                                     .size = (int64_t)dtype_bytes(dtype),
                                     .block = shm_nodes_block(n / per, dtype),
                                     .dtype = dtype,
                                     .op = op,
                                     .nodes = nodes,
                                     .per = per,
                                     .node = g->me / per,
                                     .column = g->me % per};
    const int64_t blocks = (n + c.per * c.block - 1) / (c.per * c.block);
    err_t err = OK;
    for (int64_t step = 0; !err && step < blocks + 2 * (nodes - 1); step++) {
        add_block(&c, step);
        take_block(&c, step);
        err = shm_barrier(g);
    }
    return err;
}
