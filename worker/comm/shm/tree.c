/* The canonical sum: one binary tree over the leaves, independent of which rank holds which node.
 *
 * Every rank publishes the finished nodes that it holds, so every rank has the addresses of all nodes. Each rank
 * evaluates the tree for its slice of the elements, block by block: a held node is read from its holder, any other node
 * is the sum of its two children. The tree alone determines the order of additions, so the bits do not depend on the
 * distribution of the nodes. A rank writes its result into the `out` of every member if that is shared; members with a
 * private `out` read it from the windows, one block of elements after another. If the published nodes do not make up
 * the tree, all ranks detect this before anything is written. */
#include "worker/comm/shm/tree.h"

#include <stdlib.h>
#include <string.h>

struct shm_node_list {
    int64_t n;
    struct comm_tree_node node[];
};
#define MAX_NODES ((int)((SHM_BLOCK - sizeof(struct shm_node_list)) / sizeof(struct comm_tree_node)))

int64_t shm_tree_middle(int64_t lo, int64_t hi)
{
    int64_t half = 1;
    while (half * 2 < hi - lo)
        half *= 2;
    return lo + half;
}

static int by_lo(const void *a, const void *b)
{
    const struct shm_held *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void shm_tree_sort(struct shm_tree *t)
{
    qsort(t->nodes, (size_t)t->n_nodes, sizeof(*t->nodes), by_lo);
}

static const struct shm_held *find_node(const struct shm_tree *t, int64_t lo)
{
    const struct shm_held key = {.lo = lo};
    return bsearch(&key, t->nodes, (size_t)t->n_nodes, sizeof(key), by_lo);
}

bool shm_tree_covered(const struct shm_tree *t, int64_t lo, int64_t hi, int *used)
{
    const struct shm_held *h = find_node(t, lo);
    if (h && h->hi == hi) {
        (*used)++;
        return true;
    }
    return hi - lo > 1 && shm_tree_covered(t, lo, shm_tree_middle(lo, hi), used) &&
           shm_tree_covered(t, shm_tree_middle(lo, hi), hi, used);
}

static void add(void *dst, const void *a, const void *b, int64_t m, enum dtype dtype)
{
    const void *src[2] = {a, b};
    shm_reduce(dst, src, 2, m, dtype, REDUCE_SUM, false);
}

const uint8_t *shm_tree_evaluate(const struct shm_tree *t, int64_t lo, int64_t hi, int depth)
{
    const struct shm_held *h = find_node(t, lo);
    size_t size = dtype_bytes(t->dtype);
    if (h && h->hi == hi)
        return h->data + (size_t)t->at * size;
    uint8_t *own = t->stack + (size_t)depth * SHM_TREE_BLOCK * 8;
    const uint8_t *left = shm_tree_evaluate(t, lo, shm_tree_middle(lo, hi), depth);
    const uint8_t *right = shm_tree_evaluate(t, shm_tree_middle(lo, hi), hi, depth + 1);
    add(own, left, right, t->m, t->dtype);
    return own;
}

static void publish(struct comm_group *g, const struct comm_tree_node *mine, int n_mine)
{
    struct shm_node_list *l = (struct shm_node_list *)shm_window(g, g->me)->in[0];
    l->n = n_mine;
    if (n_mine <= MAX_NODES && n_mine > 0)
        memcpy(l->node, mine, (size_t)n_mine * sizeof(*mine));
}

/* The memory is kept for the next sum, so that a training step allocates nothing. */
static err_t scratch_reserve(struct shm_comm *s, struct shm_tree *t, size_t n)
{
    if (!s->tree_stack)
        s->tree_stack = malloc((size_t)SHM_TREE_DEPTH * SHM_TREE_BLOCK * 8);
    if (n > s->tree_cap || !s->tree_nodes) {
        free(s->tree_nodes);
        s->tree_cap = n + 64;
        s->tree_nodes = malloc(s->tree_cap * sizeof(*t->nodes));
    }
    t->stack = s->tree_stack;
    t->nodes = s->tree_nodes;
    return t->stack && t->nodes ? OK : ERR_NOMEM;
}

static err_t collect_nodes(struct comm_group *g, int64_t n_leaves, struct shm_tree *t)
{
    int64_t total = 0;
    for (int i = 0; i < g->n; i++) {
        const struct shm_node_list *l = (const struct shm_node_list *)shm_window(g, i)->in[0];
        if (l->n > MAX_NODES)
            return ERR_LIMIT;
        total += l->n;
    }
    err_t err = scratch_reserve(shm_of(g), t, (size_t)total);
    if (err)
        return err;
    for (int i = 0; i < g->n; i++) {
        const struct shm_node_list *l = (const struct shm_node_list *)shm_window(g, i)->in[0];
        for (int64_t k = 0; k < l->n; k++)
            t->nodes[t->n_nodes++] = (struct shm_held){
                .lo = l->node[k].lo, .hi = l->node[k].hi, .data = shm_of(g)->shared[g->ranks[i]] + l->node[k].offset};
    }
    shm_tree_sort(t);
    int used = 0;
    return shm_tree_covered(t, 0, n_leaves, &used) && used == t->n_nodes ? OK : ERR_INVALID;
}

/* Writes the block to every member whose `out` lies in the segment, and to the window for the other members. */
static void write_results(struct comm_group *g, const struct shm_tree *t, const uint8_t *root, uint8_t *out,
                          uint8_t *window)
{
    const size_t size = dtype_bytes(t->dtype), bytes = (size_t)t->m * size;
    for (int i = 0; i < g->n; i++) {
        uint8_t *peer = i == g->me ? out : shm_peer_range(g, i, 0);
        if (peer)
            memmove(peer + (size_t)t->at * size, root, bytes);
    }
    if (window)
        shm_pass(shm_of(g), window, root, bytes);
}

/* Sums this rank's slice of elements [begin, begin + n). */
static void sum_slice(struct comm_group *g, struct shm_tree *t, int64_t n_leaves, uint8_t *out, int64_t begin,
                      int64_t n, uint8_t *window)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype);
    int64_t lo, hi;
    shm_slice(g, n, g->me, &lo, &hi);
    for (int64_t at = lo; at < hi; at += SHM_TREE_BLOCK) {
        t->at = begin + at;
        t->m = hi - at < SHM_TREE_BLOCK ? hi - at : SHM_TREE_BLOCK;
        write_results(g, t, shm_tree_evaluate(t, 0, n_leaves, 0), out, window ? window + at * size : NULL);
    }
}

static void read_slices(struct comm_group *g, uint8_t *out, int64_t n, int64_t size, int turn)
{
    for (int i = 0; i < g->n; i++) {
        int64_t lo, hi;
        shm_slice(g, n, i, &lo, &hi);
        if (i != g->me)
            memcpy(out + lo * size, shm_window(g, i)->out[turn] + lo * size, (size_t)((hi - lo) * size));
    }
}

/* For groups in which some `out` is private. A rank writes a half of its window in every second round; the barrier of
 * the round between them separates the readers from the next write. */
static err_t sum_in_rounds(struct comm_group *g, struct shm_tree *t, int64_t n_leaves, uint8_t *out, int64_t n)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype), block = (int64_t)SHM_BLOCK / size;
    err_t err = OK;
    int turn = 0;
    for (int64_t at = 0; !err && at < n; at += block, turn ^= 1) {
        int64_t m = n - at < block ? n - at : block;
        sum_slice(g, t, n_leaves, out, at, m, shm_window(g, g->me)->out[turn]);
        err = shm_barrier(g);
        if (!err && !shm_peer_range(g, g->me, 0))
            read_slices(g, out + at * size, m, size, turn);
    }
    return err;
}

err_t shm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                      int64_t n, enum dtype dtype)
{
    struct shm_tree t = {.dtype = dtype};
    publish(g, mine, n_mine);
    shm_publish_ranges(g, &(struct shm_range){out, (size_t)n * dtype_bytes(dtype)}, 1);
    err_t err = shm_barrier(g);
    if (err)
        return err;
    err = collect_nodes(g, n_leaves, &t);
    if (err == ERR_NOMEM)
        shm_abort(g->comm); /* the others enter a sum to which this rank cannot contribute */
    else if (!err && shm_all_shared(g))
        sum_slice(g, &t, n_leaves, out, 0, n, NULL);
    else if (!err)
        err = sum_in_rounds(g, &t, n_leaves, out, n);
    err_t last = shm_barrier(g);
    return err ? err : last;
}
