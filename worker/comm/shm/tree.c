/* The canonical sum: one binary tree over the leaves, whoever holds them.
 *
 * Every rank publishes which finished nodes it holds; all then know where every node lies. Each rank evaluates the tree
 * for its slice of the elements, block by block: a node that somebody holds is read there, any other is the sum of its
 * two children. So each addition happens in the order of the tree and of nothing else, and the bits do not depend on
 * who held what. The result goes into everybody's `out` where that is shared; for members whose `out` is private it
 * goes through the windows, a part of the elements after another. A list that does not make up the tree is seen alike
 * by all ranks, before anything is written. */
#include "worker/comm/shm/tree.h"

#include <stdlib.h>
#include <string.h>

struct list {
    int64_t n;
    struct comm_tree_node node[];
};
#define MAX_NODES ((int)((SHM_BLOCK - sizeof(struct list)) / sizeof(struct comm_tree_node)))

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

static const struct shm_held *find(const struct shm_tree *t, int64_t lo)
{
    const struct shm_held key = {.lo = lo};
    return bsearch(&key, t->nodes, (size_t)t->n_nodes, sizeof(key), by_lo);
}

bool shm_tree_covered(const struct shm_tree *t, int64_t lo, int64_t hi, int *used)
{
    const struct shm_held *h = find(t, lo);
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
    const struct shm_held *h = find(t, lo);
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
    struct list *l = (struct list *)shm_window(g, g->me)->in[0];
    l->n = n_mine;
    if (n_mine <= MAX_NODES && n_mine > 0)
        memcpy(l->node, mine, (size_t)n_mine * sizeof(*mine));
}

/* Kept for the next sum: a step allocates nothing. */
static err_t scratch(struct shm_comm *s, struct shm_tree *t, size_t n)
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

static err_t collect(struct comm_group *g, int64_t n_leaves, struct shm_tree *t)
{
    int64_t total = 0;
    for (int i = 0; i < g->n; i++) {
        const struct list *l = (const struct list *)shm_window(g, i)->in[0];
        if (l->n > MAX_NODES)
            return ERR_LIMIT;
        total += l->n;
    }
    err_t err = scratch(shm_of(g), t, (size_t)total);
    if (err)
        return err;
    for (int i = 0; i < g->n; i++) {
        const struct list *l = (const struct list *)shm_window(g, i)->in[0];
        for (int64_t k = 0; k < l->n; k++)
            t->nodes[t->n_nodes++] = (struct shm_held){
                .lo = l->node[k].lo, .hi = l->node[k].hi, .data = shm_of(g)->shared[g->ranks[i]] + l->node[k].offset};
    }
    shm_tree_sort(t);
    int used = 0;
    return shm_tree_covered(t, 0, n_leaves, &used) && used == t->n_nodes ? OK : ERR_INVALID;
}

/* To all who have `out` in the segment, and into the window for those who have not. */
static void give(struct comm_group *g, const struct shm_tree *t, const uint8_t *root, uint8_t *out, uint8_t *window)
{
    const size_t size = dtype_bytes(t->dtype), bytes = (size_t)t->m * size;
    for (int i = 0; i < g->n; i++) {
        uint8_t *said = i == g->me ? out : shm_said(g, i, 0);
        if (said)
            memmove(said + (size_t)t->at * size, root, bytes);
    }
    if (window)
        memcpy(window, root, bytes);
}

/* Elements [begin, begin + n), each rank its slice of them. */
static void sum_slice(struct comm_group *g, struct shm_tree *t, int64_t n_leaves, uint8_t *out, int64_t begin,
                      int64_t n, uint8_t *window)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype);
    int64_t lo, hi;
    shm_slice(g, n, g->me, &lo, &hi);
    for (int64_t at = lo; at < hi; at += SHM_TREE_BLOCK) {
        t->at = begin + at;
        t->m = hi - at < SHM_TREE_BLOCK ? hi - at : SHM_TREE_BLOCK;
        give(g, t, shm_tree_evaluate(t, 0, n_leaves, 0), out, window ? window + at * size : NULL);
    }
}

static void take_slices(struct comm_group *g, uint8_t *out, int64_t n, int64_t size, int turn)
{
    for (int i = 0; i < g->n; i++) {
        int64_t lo, hi;
        shm_slice(g, n, i, &lo, &hi);
        if (i != g->me)
            memcpy(out + lo * size, shm_window(g, i)->out[turn] + lo * size, (size_t)((hi - lo) * size));
    }
}

/* Some member's `out` is private. A half of a window is written again behind the barrier after its readers' one. */
static err_t sum_in_rounds(struct comm_group *g, struct shm_tree *t, int64_t n_leaves, uint8_t *out, int64_t n)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype), block = (int64_t)SHM_BLOCK / size;
    err_t err = OK;
    int turn = 0;
    for (int64_t at = 0; !err && at < n; at += block, turn ^= 1) {
        int64_t m = n - at < block ? n - at : block;
        sum_slice(g, t, n_leaves, out, at, m, shm_window(g, g->me)->out[turn]);
        err = shm_barrier(g);
        if (!err && !shm_said(g, g->me, 0))
            take_slices(g, out + at * size, m, size, turn);
    }
    return err;
}

err_t shm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                      int64_t n, enum dtype dtype)
{
    struct shm_tree t = {.dtype = dtype};
    publish(g, mine, n_mine);
    shm_say(g, &(struct shm_range){out, (size_t)n * dtype_bytes(dtype)}, 1);
    err_t err = shm_barrier(g);
    if (err)
        return err;
    err = collect(g, n_leaves, &t);
    if (err == ERR_NOMEM)
        shm_abort(g->comm); /* the others go on to a sum that this rank cannot contribute to */
    else if (!err && shm_all_shared(g))
        sum_slice(g, &t, n_leaves, out, 0, n, NULL);
    else if (!err)
        err = sum_in_rounds(g, &t, n_leaves, out, n);
    err_t last = shm_barrier(g);
    return err ? err : last;
}
