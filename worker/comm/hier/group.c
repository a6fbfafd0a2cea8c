/* Groups: which members are on which node, the runs (consecutive members on one node), and the steps that this rank
 * takes for a piece. All of it is computed when the group is created; collectives only read it.
 *
 * A piece's sum visits the runs in order. All-reduce: from the node of the last run the result passes through the other
 * nodes one after another, in the reverse order of their last runs. Reduce-scatter: it goes directly to the owner's
 * node. */
#include "worker/comm/hier/internal.h"

#include <stdlib.h>
#include <string.h>

struct hier_plan {
    struct hier_group *g;
    int *ids;   /* number of each node in the comm, by index */
    int *order; /* indices of the nodes in the order in which results reach them */
    int n_routes, steps_each;
};

/* ---- nodes and runs ---- */

static int node_index(struct hier_plan *p, int id)
{
    for (int y = 0; y < p->g->n_nodes; y++)
        if (p->ids[y] == id)
            return y;
    p->ids[p->g->n_nodes] = id;
    return p->g->n_nodes++;
}

static void find_nodes(struct hier_plan *p, const struct hier_comm *h)
{
    struct hier_group *g = p->g;
    g->here = -1;
    for (int i = 0; i < g->base.n; i++) {
        int y = node_index(p, h->node_of[g->base.ranks[i]]);
        g->node_at[i] = y;
        g->local_at[i] = g->nodes[y].n++;
        if (p->ids[y] == h->node)
            g->here = y;
        if (i > 0 && g->node_at[i - 1] == y)
            g->runs[g->n_runs - 1].n++;
        else
            g->runs[g->n_runs++] = (struct hier_run){y, i, 1};
    }
    int *at = g->members;
    for (int y = 0; y < g->n_nodes; y++) {
        g->nodes[y].members = at;
        at += g->nodes[y].n;
    }
    for (int i = 0; i < g->base.n; i++)
        g->members[g->nodes[g->node_at[i]].members - g->members + g->local_at[i]] = i;
    g->one_node = g->n_nodes == 1 && g->here == 0;
}

/* The node of the last run first, then the others in the reverse order of their last runs. */
static void find_order(struct hier_plan *p)
{
    const struct hier_group *g = p->g;
    int n = 0;
    for (int k = g->n_runs - 1; k >= 0; k--) {
        bool seen = false;
        for (int y = 0; y < n; y++)
            seen |= p->order[y] == g->runs[k].node;
        if (!seen)
            p->order[n++] = g->runs[k].node;
    }
}

/* ---- routes ---- */

static void add_step(struct hier_route *r, enum hier_step_kind kind, int with)
{
    r->step[r->n++] = (struct hier_step){kind, with};
}

static void route_sum(const struct hier_group *g, struct hier_route *r)
{
    for (int k = 0; k < g->n_runs; k++) {
        if (g->runs[k].node != g->here)
            continue;
        if (k > 0)
            add_step(r, STEP_RECV_SUM, g->runs[k - 1].node);
        add_step(r, STEP_SUM, k);
        if (k < g->n_runs - 1)
            add_step(r, STEP_SEND_SUM, g->runs[k + 1].node);
        else
            add_step(r, STEP_FINISH, 0);
    }
}

/* order[first] has the result; the nodes pass it on in that order. */
static void route_spread(const struct hier_group *g, struct hier_route *r, const int *order, int first)
{
    const int n = g->n_nodes;
    for (int k = 0; k < n; k++) {
        if (order[(first + k) % n] != g->here)
            continue;
        if (k > 0)
            add_step(r, STEP_RECV, order[(first + k - 1) % n]);
        if (k < n - 1)
            add_step(r, STEP_SEND, order[(first + k + 1) % n]);
        add_step(r, STEP_DELIVER, 0);
    }
}

static void route_to(const struct hier_group *g, struct hier_route *r, int from, int to)
{
    if (g->here == from && from != to)
        add_step(r, STEP_SEND, to);
    if (g->here == to && from != to)
        add_step(r, STEP_RECV, from);
    if (g->here == to)
        add_step(r, STEP_DELIVER, 0);
}

static void make_routes(struct hier_plan *p)
{
    struct hier_group *g = p->g;
    struct hier_step *at = g->steps;
    g->all_reduce.step = at;
    route_sum(g, &g->all_reduce);
    route_spread(g, &g->all_reduce, p->order, 0);
    for (int y = 0; y < g->n_nodes; y++) {
        g->scatter[y].step = at += p->steps_each;
        route_sum(g, &g->scatter[y]);
        route_to(g, &g->scatter[y], p->order[0], y);
        p->ids[y] = y; /* reused below as the order of the nodes by index */
    }
    for (int y = 0; y < g->n_nodes; y++) {
        g->broadcast[y].step = at += p->steps_each;
        route_spread(g, &g->broadcast[y], p->ids, y);
    }
}

/* ---- cells of a gather ---- */

/* Member i sends its parts to one rank of each other node: the rank with number (i's place in its node) modulo (the
 * number of ranks there). */
static void find_cells(struct hier_group *g, int *used)
{
    for (int y = 0; y < g->n_nodes; y++) {
        memset(used, 0, (size_t)g->nodes[y].n * sizeof(*used));
        for (int i = 0; i < g->base.n; i++) {
            int receiver = g->local_at[i] % g->nodes[y].n;
            if (g->node_at[i] == y)
                continue;
            if (y == g->here)
                g->cell_at[i] = used[receiver];
            used[receiver]++;
            g->max_cells = used[receiver] > g->max_cells ? used[receiver] : g->max_cells;
        }
    }
}

/* ---- creation ---- */

static err_t allocate(struct hier_plan *p, int n)
{
    struct hier_group *g = p->g;
    const size_t count = (size_t)n;
    g->base.ranks = calloc(count * 6, sizeof(int));
    g->nodes = calloc(count, sizeof(*g->nodes));
    g->runs = calloc(count, sizeof(*g->runs));
    g->scatter = calloc(count * 2, sizeof(*g->scatter));
    g->ops = calloc(count * 4 + 4, sizeof(*g->ops));
    g->src = calloc(count + 2, sizeof(*g->src));
    p->ids = calloc(count * 3, sizeof(int));
    if (!g->base.ranks || !g->nodes || !g->runs || !g->scatter || !g->ops || !g->src || !p->ids)
        return ERR_NOMEM;
    g->members = g->base.ranks + n;
    g->node_at = g->members + n;
    g->local_at = g->node_at + n;
    g->cell_at = g->local_at + n;
    g->broadcast = g->scatter + n;
    p->order = p->ids + n;
    return OK;
}

static err_t make_steps(struct hier_plan *p)
{
    struct hier_group *g = p->g;
    int runs_here = 0;
    for (int k = 0; k < g->n_runs; k++)
        runs_here += g->runs[k].node == g->here;
    p->steps_each = 3 * runs_here + 3;
    g->steps = calloc((size_t)(1 + 2 * g->n_nodes) * (size_t)p->steps_each, sizeof(*g->steps));
    return g->steps ? OK : ERR_NOMEM;
}

static err_t make_inner(struct hier_group *g, const struct hier_comm *h)
{
    const struct hier_node *node = &g->nodes[g->here < 0 ? 0 : g->here];
    int me = -1, *ranks = g->here < 0 ? NULL : calloc((size_t)node->n, sizeof(int));
    if (g->here < 0)
        return OK;
    if (!ranks)
        return ERR_NOMEM;
    for (int j = 0; j < node->n; j++) {
        ranks[j] = h->local_of[g->base.ranks[node->members[j]]];
        me = node->members[j] == g->base.me ? j : me;
    }
    err_t err = shm_group_new(&h->shm->base, ranks, node->n, me, &g->inner);
    free(ranks);
    return err;
}

err_t hier_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret)
{
    struct hier_comm *h = (struct hier_comm *)c;
    struct hier_group *g = calloc(1, sizeof(*g));
    struct hier_plan p = {.g = g};
    if (!g)
        return ERR_NOMEM;
    g->base = (struct comm_group){.comm = c, .n = n, .me = me};
    err_t err = allocate(&p, n);
    if (!err) {
        memcpy(g->base.ranks, ranks, (size_t)n * sizeof(int));
        find_nodes(&p, h);
        find_order(&p);
        err = make_steps(&p);
    }
    if (!err) {
        make_routes(&p);
        find_cells(g, p.order + n);
        err = make_inner(g, h);
    }
    free(p.ids);
    if (err)
        hier_group_free(&g->base);
    else
        *ret = &g->base;
    return err;
}

void hier_group_free(struct comm_group *group)
{
    struct hier_group *g = (struct hier_group *)group;
    if (g->inner)
        shm_group_free(g->inner);
    free(g->src);
    free(g->ops);
    free(g->steps);
    free(g->scatter);
    free(g->runs);
    free(g->nodes);
    free(g->base.ranks);
    free(g);
}
