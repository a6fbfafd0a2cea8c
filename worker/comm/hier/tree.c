/* The canonical sum over several cluster nodes. The ranks first exchange lists of the tree nodes that they hold. A
 * cluster node can evaluate some subtrees alone; the largest of them are its roots. In a round every member is
 * responsible for a slice of the elements:
 *
 *   each cluster node sends the slice's elements of its roots to the responsible member
 *   | the responsible member evaluates the rest of the tree over these and the tree nodes held on its own cluster node,
 *     writes the result to the ranks of its node, and sends it to one rank of each other cluster node
 *   | that rank writes it to the ranks of its node
 *
 * Every addition is an addition of the tree, whichever rank computes it. If `out` is private, results are written to
 * the two halves of the stage in turn, so a round needs one barrier. */
#include "worker/comm/shm/tree.h"
#include "worker/comm/hier/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ROOM ((int64_t)8 << 20) /* approximate limit for the bytes of parts in flight */
#define MAX_NODES ((int64_t)1 << 20)

/* A subtree [lo, hi) that one cluster node can evaluate alone. */
struct hier_root {
    int64_t lo, hi;
};

struct hier_tree_call {
    struct hier_group *g;
    const struct comm_tree_node *list; /* the held tree nodes of all members, member after member */
    const int64_t *counts;             /* number of tree nodes of each member */
    int64_t total, n_leaves, n, size, round, most_roots, all_roots;
    struct shm_tree here, whole; /* the tree nodes held on this cluster node; the same and the others' roots */
    struct shm_held *held;       /* memory for the nodes of `here` and `whole` */
    struct hier_root *roots;     /* of all cluster nodes, cluster node after cluster node */
    int64_t *first_root;         /* index of each cluster node's first root, and the number of roots */
    uint8_t *out, *in_parts, *out_parts;
    bool shared; /* whether `out` is */
};

static err_t tree_reserve(struct hier_comm *h, int which, size_t bytes)
{
    if (bytes <= h->tree_bytes[which])
        return OK;
    free(h->tree[which]);
    h->tree[which] = malloc(bytes);
    h->tree_bytes[which] = h->tree[which] ? bytes : 0;
    if (h->tree[which])
        return OK;
    hier_abort(&h->base); /* the others enter a sum to which this rank cannot contribute */
    return ERR_NOMEM;
}

/* ---- lists of held nodes ---- */

static err_t exchange_lists(struct hier_tree_call *c, const struct comm_tree_node *mine, int n_mine)
{
    struct hier_comm *h = hier_of(&c->g->base);
    int64_t *counts = h->numbers + h->base.world, own = n_mine, *ones = counts + h->base.world;
    for (int i = 0; i < c->g->base.n; i++)
        ones[i] = 1;
    err_t err = hier_all_gather(&c->g->base, NULL, &own, counts, ones, DT_I64);
    for (int i = 0; !err && i < c->g->base.n; i++) {
        c->total += counts[i];
        ones[i] = counts[i] * (int64_t)(sizeof(*mine) / sizeof(int64_t));
    }
    if (err || c->total > MAX_NODES)
        return err ? err : ERR_LIMIT;
    const size_t total = (size_t)c->total, held = (size_t)(3 * c->total + SHM_TREE_DEPTH);
    const size_t nodes = (size_t)c->g->n_nodes + 1;
    err = tree_reserve(
        h, 0, total * sizeof(*mine) + held * sizeof(struct shm_held) + total * sizeof(struct hier_root) + nodes * 8);
    if (err)
        return err;
    c->counts = counts;
    c->list = h->tree[0];
    c->held = (struct shm_held *)((struct comm_tree_node *)h->tree[0] + total);
    c->roots = (struct hier_root *)(c->held + held);
    c->first_root = (int64_t *)(c->roots + total);
    return hier_all_gather(&c->g->base, NULL, mine, h->tree[0], ones, DT_I64);
}

/* Lists the tree nodes held on one cluster node, or with -1 on all, sorted. */
static void list_held_by(const struct hier_tree_call *c, int node, struct shm_tree *t)
{
    int64_t at = 0;
    t->n_nodes = 0;
    for (int i = 0; i < c->g->base.n; at += c->counts[i], i++)
        for (int64_t k = 0; k < c->counts[i] && (node < 0 || c->g->node_at[i] == node); k++)
            t->nodes[t->n_nodes++] = (struct shm_held){c->list[at + k].lo, c->list[at + k].hi, NULL};
    shm_tree_sort(t);
}

static bool holds_any(const struct shm_tree *t, int64_t lo, int64_t hi)
{
    for (int i = 0; i < t->n_nodes; i++)
        if (t->nodes[i].lo < hi && t->nodes[i].hi > lo)
            return true;
    return false;
}

static struct hier_root *find_roots(const struct shm_tree *t, int64_t lo, int64_t hi, struct hier_root *at)
{
    int used = 0;
    if (!holds_any(t, lo, hi))
        return at;
    if (shm_tree_covered(t, lo, hi, &used)) {
        *at = (struct hier_root){lo, hi};
        return at + 1;
    }
    at = find_roots(t, lo, shm_tree_middle(lo, hi), at);
    return find_roots(t, shm_tree_middle(lo, hi), hi, at);
}

/* All ranks compute this from the same lists, so all return the same error. */
static err_t plan_roots(struct hier_tree_call *c)
{
    struct shm_tree t = {.nodes = c->held};
    struct hier_root *at = c->roots;
    int used = 0;
    list_held_by(c, -1, &t);
    if (!shm_tree_covered(&t, 0, c->n_leaves, &used) || used != t.n_nodes)
        return ERR_INVALID;
    for (int y = 0; y < c->g->n_nodes; y++) {
        c->first_root[y] = at - c->roots;
        list_held_by(c, y, &t);
        at = find_roots(&t, 0, c->n_leaves, at);
        c->most_roots = hier_max(c->most_roots, at - c->roots - c->first_root[y]);
    }
    c->all_roots = c->first_root[c->g->n_nodes] = at - c->roots;
    return OK;
}

static int64_t roots_of(const struct hier_tree_call *c, int node)
{
    return c->first_root[node + 1] - c->first_root[node];
}

/* Allocates memory for the parts that arrive from other cluster nodes, the parts to send, and the stack. */
static err_t allocate_parts(struct hier_tree_call *c)
{
    assert(c->size > 0);
    const int64_t n = c->g->base.n, each = c->most_roots + c->all_roots / n + 1;
    c->round = hier_min(HIER_STAGE / 2 / c->size, ROOM / c->size / each) / 64 * 64;
    c->round = hier_max(c->round, 64);
    const int64_t in = c->all_roots * (c->round / n + 128) * c->size,
                  out = c->most_roots * (c->round + 64 * n) * c->size;
    const int64_t stack = (int64_t)SHM_TREE_DEPTH * SHM_TREE_BLOCK * 8;
    err_t err = tree_reserve(hier_of(&c->g->base), 1, (size_t)(in + out + stack));
    if (err)
        return err;
    c->here.stack = c->whole.stack = hier_of(&c->g->base)->tree[1];
    c->in_parts = c->here.stack + stack;
    c->out_parts = c->in_parts + in;
    c->here.nodes = c->held;
    c->whole.nodes = c->held + c->total;
    return OK;
}

/* ---- a round ---- */

/* A member's slice of a round: elements [lo, lo + m). */
struct hier_slice {
    int64_t lo, m;
};

static struct hier_slice slice_of(const struct hier_tree_call *c, int64_t begin, int member)
{
    int64_t lo, hi;
    shm_slice(&c->g->base, hier_min(c->round, c->n - begin), member, &lo, &hi);
    return (struct hier_slice){begin + lo, hi - lo};
}

/* Lists the tree nodes held on this cluster node; their data begin at the slice's first element. */
static void list_held_here(struct hier_tree_call *c, struct hier_slice s)
{
    const struct hier_group *g = c->g;
    int64_t at = 0;
    c->here.n_nodes = 0;
    for (int i = 0; i < g->base.n; at += c->counts[i], i++)
        for (int64_t k = 0; k < c->counts[i] && g->node_at[i] == g->here; k++) {
            const uint8_t *base = shm_of(g->inner)->shared[g->inner->ranks[g->local_at[i]]];
            const struct comm_tree_node *node = &c->list[at + k];
            c->here.nodes[c->here.n_nodes++] =
                (struct shm_held){node->lo, node->hi, base + node->offset + s.lo * c->size};
        }
    shm_tree_sort(&c->here);
}

static void evaluate(struct shm_tree *t, int64_t lo, int64_t hi, int64_t m, int64_t size, uint8_t *to)
{
    for (int64_t at = 0; at < m; at += SHM_TREE_BLOCK) {
        t->at = at;
        t->m = hier_min(m - at, SHM_TREE_BLOCK);
        memmove(to + at * size, shm_tree_evaluate(t, lo, hi, 0), (size_t)(t->m * size));
    }
}

static bool exchanges_with(const struct hier_tree_call *c, int member)
{
    const struct hier_group *g = c->g;
    return g->node_at[member] != g->here && g->local_at[member] % g->inner->n == g->inner->me;
}

/* Sends the parts of this cluster node's roots to the members that this rank serves, and receives the other cluster
 * nodes' parts of this rank's slice. */
static err_t exchange_parts(struct hier_tree_call *c, int64_t begin)
{
    struct hier_group *g = c->g;
    const struct hier_slice mine = slice_of(c, begin, g->base.me);
    uint8_t *in = c->in_parts, *out = c->out_parts;
    int n = 0;
    for (int y = 0; y < g->n_nodes; y++) {
        const int64_t bytes = roots_of(c, y) * mine.m * c->size;
        if (y == g->here || bytes == 0)
            continue;
        hier_recv(g, hier_owner(g, y, g->local_at[g->base.me]), in, bytes, &g->ops[n++]);
        in += bytes;
    }
    for (int i = 0; i < g->base.n; i++) {
        const struct hier_slice s = slice_of(c, begin, i);
        uint8_t *part = out;
        if (!exchanges_with(c, i) || s.m * roots_of(c, g->here) == 0)
            continue;
        list_held_here(c, s);
        for (int64_t k = c->first_root[g->here]; k < c->first_root[g->here + 1]; k++, out += s.m * c->size)
            evaluate(&c->here, c->roots[k].lo, c->roots[k].hi, s.m, c->size, out);
        hier_send(g, i, part, out - part, &g->ops[n++]);
    }
    return hier_wait_ops(hier_of(&g->base), g->ops, n);
}

/* The tree over which this rank's slice is evaluated: the nodes held here and the received roots of other nodes. */
static void list_held(struct hier_tree_call *c, struct hier_slice s)
{
    const struct hier_group *g = c->g;
    const uint8_t *in = c->in_parts;
    list_held_here(c, s);
    memcpy(c->whole.nodes, c->here.nodes, (size_t)c->here.n_nodes * sizeof(*c->here.nodes));
    c->whole.n_nodes = c->here.n_nodes;
    for (int y = 0; y < g->n_nodes; y++)
        for (int64_t k = c->first_root[y]; k < c->first_root[y + 1] && y != g->here; k++, in += s.m * c->size)
            c->whole.nodes[c->whole.n_nodes++] = (struct shm_held){c->roots[k].lo, c->roots[k].hi, in};
    shm_tree_sort(&c->whole);
}

/* Address of element `at` of the result for a member of this node: in its `out`, or in its stage. */
static uint8_t *out_of(const struct hier_tree_call *c, int inner_index, int64_t at, int64_t begin)
{
    uint8_t *range = shm_peer_range(c->g->inner, inner_index, 0);
    if (range)
        return range + at * c->size;
    return hier_stage(c->g, inner_index) + (begin / c->round & 1) * (HIER_STAGE / 2) + (at - begin) * c->size;
}

static void deliver(const struct hier_tree_call *c, struct hier_slice s, int64_t begin)
{
    const struct comm_group *inner = c->g->inner;
    const uint8_t *from = out_of(c, inner->me, s.lo, begin);
    for (int j = 0; j < inner->n; j++)
        if (j != inner->me && s.m > 0)
            memcpy(out_of(c, j, s.lo, begin), from, (size_t)(s.m * c->size));
}

static err_t exchange_results(struct hier_tree_call *c, int64_t begin)
{
    struct hier_group *g = c->g;
    const struct hier_slice mine = slice_of(c, begin, g->base.me);
    int n = 0;
    for (int i = 0; i < g->base.n; i++) {
        const struct hier_slice s = slice_of(c, begin, i);
        if (exchanges_with(c, i) && s.m > 0)
            hier_recv(g, i, out_of(c, g->inner->me, s.lo, begin), s.m * c->size, &g->ops[n++]);
    }
    for (int y = 0; y < g->n_nodes && mine.m > 0; y++)
        if (y != g->here)
            hier_send(g, hier_owner(g, y, g->local_at[g->base.me]), out_of(c, g->inner->me, mine.lo, begin),
                      mine.m * c->size, &g->ops[n++]);
    err_t err = hier_wait_ops(hier_of(&g->base), g->ops, n);
    for (int i = 0; !err && i < g->base.n; i++)
        if (exchanges_with(c, i))
            deliver(c, slice_of(c, begin, i), begin);
    return err;
}

static err_t one_round(struct hier_tree_call *c, int64_t begin)
{
    struct comm_group *inner = c->g->inner;
    const struct hier_slice mine = slice_of(c, begin, c->g->base.me);
    err_t err = exchange_parts(c, begin);
    if (err)
        return err;
    list_held(c, mine);
    evaluate(&c->whole, 0, c->n_leaves, mine.m, c->size, out_of(c, inner->me, mine.lo, begin));
    deliver(c, mine, begin);
    err = exchange_results(c, begin);
    err = err ? err : shm_barrier(inner);
    if (!err && !c->shared)
        memcpy(c->out + begin * c->size, out_of(c, inner->me, begin, begin),
               (size_t)(hier_min(c->round, c->n - begin) * c->size));
    return err;
}

static err_t sum_tree(struct hier_tree_call *c, const struct comm_tree_node *mine, int n_mine)
{
    struct comm_group *inner = c->g->inner;
    err_t err = exchange_lists(c, mine, n_mine);
    err = err ? err : plan_roots(c);
    err = err ? err : allocate_parts(c);
    if (err)
        return err;
    c->shared = shm_publish_ranges(inner, &(struct shm_range){c->out, (size_t)(c->n * c->size)}, 1);
    err = shm_barrier(inner);
    for (int64_t begin = 0; !err && begin < c->n; begin += c->round)
        err = one_round(c, begin);
    return err ? err : shm_barrier(inner);
}

err_t hier_tree_reduce(struct comm_group *group, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves,
                       void *out, int64_t n, enum dtype dtype)
{
    struct hier_group *g = hier_group_of(group);
    struct hier_tree_call c = {.g = g, .n_leaves = n_leaves, .n = n, .size = (int64_t)dtype_bytes(dtype), .out = out};
    if (g->one_node)
        return hier_result(group, shm_tree_reduce(g->inner, mine, n_mine, n_leaves, out, n, dtype));
    c.here.dtype = c.whole.dtype = dtype;
    return hier_result(group, sum_tree(&c, mine, n_mine));
}
