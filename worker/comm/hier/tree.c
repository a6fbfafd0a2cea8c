/* The canonical sum over several nodes. Everybody learns which nodes of the tree everybody holds. A node of the cluster
 * can finish some of the tree alone: its roots, the largest that its ranks' held nodes make up. In a round every member
 * is in charge of a slice of the elements:
 *
 *   each cluster node sends its roots' elements of the slice to the member in charge | who evaluates the rest of the
 * tree over them and its own node's, gives the result to its node, and sends it to one rank of each other, which does
 * so too
 *
 * Each addition is one of the tree, whoever makes it. Results go into the stage's halves in turn where `out` is
 * private, so that a round's end needs one barrier. */
#include "worker/comm/shm/tree.h"
#include "worker/comm/hier/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ROOM ((int64_t)8 << 20) /* bytes of parts on their way, about */
#define MAX_NODES ((int64_t)1 << 20)

/* A tree node's elements, which a cluster node finishes. */
struct root {
    int64_t lo, hi;
};

struct call {
    struct hier_group *g;
    const struct comm_tree_node *list; /* of all members, one behind another */
    const int64_t *counts;             /* of each */
    int64_t total, n_leaves, n, size, round, most_roots, all_roots;
    struct shm_tree here, whole; /* of what this cluster node holds; with the others' roots */
    struct shm_held *held;       /* room for a tree */
    struct root *roots;          /* of the cluster nodes, one behind another */
    int64_t *first_root;         /* of each cluster node, and their end */
    uint8_t *out, *in_parts, *out_parts;
    bool shared; /* `out` is */
};

static err_t grow(struct hier_comm *h, int which, size_t bytes)
{
    if (bytes <= h->tree_bytes[which])
        return OK;
    free(h->tree[which]);
    h->tree[which] = malloc(bytes);
    h->tree_bytes[which] = h->tree[which] ? bytes : 0;
    if (h->tree[which])
        return OK;
    hier_abort(&h->base); /* the others go on to a sum that this rank cannot contribute to */
    return ERR_NOMEM;
}

/* ---- who holds what ---- */

static err_t exchange_lists(struct call *c, const struct comm_tree_node *mine, int n_mine)
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
    err = grow(h, 0, total * sizeof(*mine) + held * sizeof(struct shm_held) + total * sizeof(struct root) + nodes * 8);
    if (err)
        return err;
    c->counts = counts;
    c->list = h->tree[0];
    c->held = (struct shm_held *)((struct comm_tree_node *)h->tree[0] + total);
    c->roots = (struct root *)(c->held + held);
    c->first_root = (int64_t *)(c->roots + total);
    return hier_all_gather(&c->g->base, NULL, mine, h->tree[0], ones, DT_I64);
}

/* Of one cluster node, or with -1 of all, sorted. */
static void held_by(const struct call *c, int node, struct shm_tree *t)
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

static struct root *find_roots(const struct shm_tree *t, int64_t lo, int64_t hi, struct root *at)
{
    int used = 0;
    if (!holds_any(t, lo, hi))
        return at;
    if (shm_tree_covered(t, lo, hi, &used)) {
        *at = (struct root){lo, hi};
        return at + 1;
    }
    at = find_roots(t, lo, shm_tree_middle(lo, hi), at);
    return find_roots(t, shm_tree_middle(lo, hi), hi, at);
}

/* All ranks see alike whether it is a tree. */
static err_t plan(struct call *c)
{
    struct shm_tree t = {.nodes = c->held};
    struct root *at = c->roots;
    int used = 0;
    held_by(c, -1, &t);
    if (!shm_tree_covered(&t, 0, c->n_leaves, &used) || used != t.n_nodes)
        return ERR_INVALID;
    for (int y = 0; y < c->g->n_nodes; y++) {
        c->first_root[y] = at - c->roots;
        held_by(c, y, &t);
        at = find_roots(&t, 0, c->n_leaves, at);
        c->most_roots = hier_max(c->most_roots, at - c->roots - c->first_root[y]);
    }
    c->all_roots = c->first_root[c->g->n_nodes] = at - c->roots;
    return OK;
}

static int64_t roots_of(const struct call *c, int node)
{
    return c->first_root[node + 1] - c->first_root[node];
}

/* Parts of other nodes on their way in, own ones on their way out, and the stack. */
static err_t make_room(struct call *c)
{
    assert(c->size > 0);
    const int64_t n = c->g->base.n, each = c->most_roots + c->all_roots / n + 1;
    c->round = hier_min(HIER_STAGE / 2 / c->size, ROOM / c->size / each) / 64 * 64;
    c->round = hier_max(c->round, 64);
    const int64_t in = c->all_roots * (c->round / n + 128) * c->size,
                  out = c->most_roots * (c->round + 64 * n) * c->size;
    const int64_t stack = (int64_t)SHM_TREE_DEPTH * SHM_TREE_BLOCK * 8;
    err_t err = grow(hier_of(&c->g->base), 1, (size_t)(in + out + stack));
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

/* Of a member: elements [lo, lo + m) of the whole, in the round that begins at `begin`. */
struct slice {
    int64_t lo, m;
};

static struct slice slice_of(const struct call *c, int64_t begin, int member)
{
    int64_t lo, hi;
    shm_slice(&c->g->base, hier_min(c->round, c->n - begin), member, &lo, &hi);
    return (struct slice){begin + lo, hi - lo};
}

/* What this cluster node holds, its elements from the slice's first on. */
static void hold_here(struct call *c, struct slice s)
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

static bool serves(const struct call *c, int member)
{
    const struct hier_group *g = c->g;
    return g->node_at[member] != g->here && g->local_at[member] % g->inner->n == g->inner->me;
}

/* This node's roots to the members in charge, theirs to this rank. */
static err_t exchange_parts(struct call *c, int64_t begin)
{
    struct hier_group *g = c->g;
    const struct slice mine = slice_of(c, begin, g->base.me);
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
        const struct slice s = slice_of(c, begin, i);
        uint8_t *part = out;
        if (!serves(c, i) || s.m * roots_of(c, g->here) == 0)
            continue;
        hold_here(c, s);
        for (int64_t k = c->first_root[g->here]; k < c->first_root[g->here + 1]; k++, out += s.m * c->size)
            evaluate(&c->here, c->roots[k].lo, c->roots[k].hi, s.m, c->size, out);
        hier_send(g, i, part, out - part, &g->ops[n++]);
    }
    return hier_wait_ops(hier_of(&g->base), g->ops, n);
}

/* The tree that this rank's slice is evaluated over: what is held here, and the others' roots as they came. */
static void hold_whole(struct call *c, struct slice s)
{
    const struct hier_group *g = c->g;
    const uint8_t *in = c->in_parts;
    hold_here(c, s);
    memcpy(c->whole.nodes, c->here.nodes, (size_t)c->here.n_nodes * sizeof(*c->here.nodes));
    c->whole.n_nodes = c->here.n_nodes;
    for (int y = 0; y < g->n_nodes; y++)
        for (int64_t k = c->first_root[y]; k < c->first_root[y + 1] && y != g->here; k++, in += s.m * c->size)
            c->whole.nodes[c->whole.n_nodes++] = (struct shm_held){c->roots[k].lo, c->roots[k].hi, in};
    shm_tree_sort(&c->whole);
}

/* Element `at` of the result, as a member of this node is given it. */
static uint8_t *out_of(const struct call *c, int inner_index, int64_t at, int64_t begin)
{
    uint8_t *said = shm_said(c->g->inner, inner_index, 0);
    if (said)
        return said + at * c->size;
    return hier_stage(c->g, inner_index) + (begin / c->round & 1) * (HIER_STAGE / 2) + (at - begin) * c->size;
}

static void give(const struct call *c, struct slice s, int64_t begin)
{
    const struct comm_group *inner = c->g->inner;
    const uint8_t *from = out_of(c, inner->me, s.lo, begin);
    for (int j = 0; j < inner->n; j++)
        if (j != inner->me && s.m > 0)
            memcpy(out_of(c, j, s.lo, begin), from, (size_t)(s.m * c->size));
}

static err_t exchange_results(struct call *c, int64_t begin)
{
    struct hier_group *g = c->g;
    const struct slice mine = slice_of(c, begin, g->base.me);
    int n = 0;
    for (int i = 0; i < g->base.n; i++) {
        const struct slice s = slice_of(c, begin, i);
        if (serves(c, i) && s.m > 0)
            hier_recv(g, i, out_of(c, g->inner->me, s.lo, begin), s.m * c->size, &g->ops[n++]);
    }
    for (int y = 0; y < g->n_nodes && mine.m > 0; y++)
        if (y != g->here)
            hier_send(g, hier_owner(g, y, g->local_at[g->base.me]), out_of(c, g->inner->me, mine.lo, begin),
                      mine.m * c->size, &g->ops[n++]);
    err_t err = hier_wait_ops(hier_of(&g->base), g->ops, n);
    for (int i = 0; !err && i < g->base.n; i++)
        if (serves(c, i))
            give(c, slice_of(c, begin, i), begin);
    return err;
}

static err_t one_round(struct call *c, int64_t begin)
{
    struct comm_group *inner = c->g->inner;
    const struct slice mine = slice_of(c, begin, c->g->base.me);
    err_t err = exchange_parts(c, begin);
    if (err)
        return err;
    hold_whole(c, mine);
    evaluate(&c->whole, 0, c->n_leaves, mine.m, c->size, out_of(c, inner->me, mine.lo, begin));
    give(c, mine, begin);
    err = exchange_results(c, begin);
    err = err ? err : shm_barrier(inner);
    if (!err && !c->shared)
        memcpy(c->out + begin * c->size, out_of(c, inner->me, begin, begin),
               (size_t)(hier_min(c->round, c->n - begin) * c->size));
    return err;
}

static err_t sum(struct call *c, const struct comm_tree_node *mine, int n_mine)
{
    struct comm_group *inner = c->g->inner;
    err_t err = exchange_lists(c, mine, n_mine);
    err = err ? err : plan(c);
    err = err ? err : make_room(c);
    if (err)
        return err;
    c->shared = shm_say(inner, &(struct shm_range){c->out, (size_t)(c->n * c->size)}, 1);
    err = shm_barrier(inner);
    for (int64_t begin = 0; !err && begin < c->n; begin += c->round)
        err = one_round(c, begin);
    return err ? err : shm_barrier(inner);
}

err_t hier_tree_reduce(struct comm_group *group, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves,
                       void *out, int64_t n, enum dtype dtype)
{
    struct hier_group *g = hier_group_of(group);
    struct call c = {.g = g, .n_leaves = n_leaves, .n = n, .size = (int64_t)dtype_bytes(dtype), .out = out};
    if (g->one_node)
        return hier_result(group, shm_tree_reduce(g->inner, mine, n_mine, n_leaves, out, n, dtype));
    c.here.dtype = c.whole.dtype = dtype;
    return hier_result(group, sum(&c, mine, n_mine));
}
