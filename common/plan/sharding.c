/* The sharding of every parameter. sharding_cut has the rule for tensor parallelism and sharding_piece the rule for
 * ZeRO; sharding_boxes combines both. The layers are cut into stages so that the most expensive stage is as cheap as
 * possible. */
#include "common/plan/sharding.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Largest number of elements in a block of squares, unless a row is longer. A block is a whole number of rows, so the
 * order of the norm's sum does not depend on the layout; 1024 keeps the array of blocks small beside the tensor. */
#define BLOCK 1024

/* ---- cuts ---- */

/* With fewer groups than parts: the group to which part i belongs, the part's index in the group, and the number of the
 * group's parts. */
static int64_t group_of_part(const struct graph_cut *cut, int parts, int i, int *ret_index, int *ret_n)
{
    for (int64_t g = 0; g < cut->groups; g++) {
        int64_t lo, hi;
        layout_split(parts, (int)cut->groups, (int)g, &lo, &hi);
        if (i >= lo && i < hi) {
            *ret_index = i - (int)lo;
            *ret_n = (int)(hi - lo);
            return g;
        }
    }
    assert(0);
    return 0;
}

void sharding_cut(const struct graph_cut *cut, int parts, int i, int64_t *ret_lo, int64_t *ret_hi)
{
    int64_t each = cut->units / cut->groups, lo, hi;
    int index, n;
    if (cut->groups >= parts) {
        layout_split(cut->groups, parts, i, &lo, &hi);
        *ret_lo = lo * each;
        *ret_hi = hi * each;
        return;
    }
    int64_t g = group_of_part(cut, parts, i, &index, &n);
    if (MUTANT(KV_HEAD_OF_THE_NEIGHBOUR) && cut->shared)
        g = (g + 1) % cut->groups;
    if (cut->shared)
        lo = 0, hi = each;
    else
        layout_split(each, n, index, &lo, &hi);
    *ret_lo = g * each + lo;
    *ret_hi = g * each + hi;
}

int sharding_cut_box(const struct graph_cut *cut, int parts, int i, int *ret_boxes)
{
    int index, n;
    bool shared = cut->shared && cut->units < parts;
    *ret_boxes = cut->segments == 0 ? 1 : shared ? (int)cut->groups : parts;
    if (cut->segments == 0)
        return 0;
    return shared ? (int)group_of_part(cut, parts, i, &index, &n) : i;
}

int64_t sharding_cut_extent(const struct graph_cut *cut, int64_t extent, int parts, int i)
{
    int64_t lo, hi;
    if (cut->segments == 0)
        return extent;
    sharding_cut(cut, parts, i, &lo, &hi);
    return (hi - lo) * (extent / cut->units);
}

int sharding_parts(const struct sharding *p, const struct graph_cut *cut)
{
    int n = 1;
    if (!cut->experts)
        return p->mesh.size[AXIS_TP];
    for (int a = 0; a < AXIS_COUNT; a++)
        n *= p->ep.share[a];
    return n;
}

int sharding_part(const struct sharding *p, const struct graph_cut *cut, const int coord[AXIS_COUNT])
{
    int i = 0;
    if (!cut->experts)
        return coord[AXIS_TP];
    for (int a = 0; a < AXIS_COUNT; a++)
        i = i * p->ep.share[a] + coord[a] % p->ep.share[a];
    return i;
}

bool sharding_same_box(const struct sharding *p, const struct graph *g, int t, const int a[AXIS_COUNT],
                       const int b[AXIS_COUNT])
{
    const struct graph_cut *cut = &g->tensors[t].cut;
    int parts = sharding_parts(p, cut), boxes;
    return sharding_cut_box(cut, parts, sharding_part(p, cut, a), &boxes) ==
           sharding_cut_box(cut, parts, sharding_part(p, cut, b), &boxes);
}

int sharding_rest(const struct sharding *p, int axis)
{
    return p->mesh.size[axis] / p->ep.share[axis];
}

unsigned sharding_norm_axes(const struct sharding *p)
{
    bool shards = p->zero && p->mesh.size[AXIS_FSDP] > 1;
    return 1u << AXIS_PP | 1u << AXIS_TP | (shards ? 1u << AXIS_FSDP : 0) | p->ep.axes;
}

int64_t sharding_grain(int64_t cols)
{
    return cols >= BLOCK ? 1 : BLOCK / cols;
}

/* ---- stages ---- */

static double node_cost(const struct graph *g, const struct graph_node *n)
{
    if (n->op == GO_LINEAR)
        return (double)g->tensors[n->in[1]].dim[0].factor * (double)g->tensors[n->in[1]].dim[1].factor;
    if (n->op == GO_EXPERTS)
        return (double)g->tensors[n->in[1]].dim[0].factor / (double)n->router.experts * (double)n->router.k *
               (double)g->tensors[n->in[1]].dim[1].factor;
    return 0;
}

/* The number of layers, from the nodes' layer numbers. Nodes without a layer belong to the first layer's stage when
 * they come before all layers (embedding), else to the last layer's (head). */
static int layers_of(const struct graph *g)
{
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++)
        n = g->nodes[i].layer >= n ? g->nodes[i].layer + 1 : n;
    return n;
}

/* cost[l]: of layer l; the embedding counts to the first layer, the head to the last. end[l]: the node after it. */
static void layer_costs(const struct graph *g, int layers, double *cost, int *end)
{
    int at = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].layer >= 0)
            at = g->nodes[i].layer;
        else if (i > 0 && end[0] > 0)
            at = layers - 1;
        cost[at] += node_cost(g, &g->nodes[i]) + 1;
        end[at] = i + 1;
    }
}

/* The fewest stages that cost at most `most` each. */
static int stages_needed(const double *cost, int layers, double most)
{
    int n = 1;
    double sum = 0;
    for (int l = 0; l < layers; l++) {
        if (sum > 0 && sum + cost[l] > most) {
            n++;
            sum = 0;
        }
        sum += cost[l];
    }
    return n;
}

/* `most` is the smallest possible cost of the most expensive stage. Every stage gets at least one layer. */
static void fill_stages(struct sharding *p, const double *cost, const int *end, int layers, double most)
{
    int l = 0;
    for (int s = 0; s < p->n_stages; s++) {
        int left = p->n_stages - s - 1;
        double sum = 0;
        p->stage[s].first_node = l ? end[l - 1] : 0;
        do
            sum += cost[l++];
        while (l < layers - left && (sum + cost[l] <= most || left == 0));
        p->stage[s].end_node = end[l - 1];
    }
}

static err_t stages_init(struct sharding *p, const struct graph *g, struct why *why)
{
    int layers = layers_of(g);
    p->n_stages = p->mesh.size[AXIS_PP] * p->chunks;
    if (p->n_stages > (layers ? layers : 1))
        return why_set(why, ERR_INVALID,
                       "parallel.pp x parallel.chunks is %d, more than the model's %d layers; lower parallel.pp or "
                       "parallel.chunks, or raise model.layers",
                       p->n_stages, layers);
    p->stage = calloc((size_t)p->n_stages, sizeof(*p->stage));
    double *cost = calloc((size_t)layers + 1, sizeof(*cost)), most = 0, sum = 0;
    int *end = calloc((size_t)layers + 1, sizeof(*end));
    err_t e = p->stage && cost && end ? OK : ERR_NOMEM;
    if (!e) {
        layers = layers ? layers : 1;
        layer_costs(g, layers, cost, end);
        for (int l = 0; l < layers; l++) {
            most = cost[l] > most ? cost[l] : most;
            sum += cost[l];
        }
        /* Binary search between the most expensive layer and the sum of all; costs are whole numbers. */
        for (double lo = most; lo < sum;) {
            double mid = lo + (double)(int64_t)((sum - lo) / 2);
            if (stages_needed(cost, layers, mid) <= p->n_stages)
                sum = mid;
            else
                lo = mid + 1;
        }
        fill_stages(p, cost, end, layers, sum);
    }
    free(cost);
    free(end);
    return e;
}

/* ---- parameters ---- */

/* `stage`: the last stage that has used the parameter so far, -1; it is set to `s`. */
static void add_use(struct sharding *p, int t, int s, int *stage)
{
    struct sharding_param *q = &p->param[t];
    const int pp = placement_rank(p->placement, p->mesh.size[AXIS_PP], s);
    const bool again = sharding_uses(p, pp, t);
    q->chunks |= again && pp == p->coord[AXIS_PP] && *stage != s;
    *stage = s;
    if (again)
        return;
    p->use[++p->n_uses] = (struct sharding_use){pp, q->use};
    q->use = p->n_uses;
    q->stages++;
    q->held |= pp == p->coord[AXIS_PP];
}

static err_t uses_init(struct sharding *p, const struct graph *g)
{
    int *stage = malloc(((size_t)g->n_tensors + 1) * sizeof(*stage)); /* by parameter: see add_use */
    p->use = calloc((size_t)g->n_nodes * GRAPH_MAX_IN + 1, sizeof(*p->use));
    for (int t = 0; stage && t < g->n_tensors; t++)
        stage[t] = -1;
    for (int s = 0; p->use && stage && s < p->n_stages; s++)
        for (int i = p->stage[s].first_node; i < p->stage[s].end_node; i++)
            for (int k = 0; k < GRAPH_MAX_IN; k++) {
                int t = g->nodes[i].in[k];
                if (t >= 0 && graph_is_stored(&g->tensors[t]))
                    add_use(p, t, s, &stage[t]);
            }
    free(stage);
    return p->use && stage ? OK : ERR_NOMEM;
}

bool sharding_uses(const struct sharding *p, int pp, int t)
{
    for (int u = p->param[t].use; u; u = p->use[u].next)
        if (p->use[u].pp == pp)
            return true;
    return false;
}

static void local_size(const struct graph_tensor *t, int parts, int i, int64_t *ret_rows, int64_t *ret_cols)
{
    int64_t d[2] = {t->dim[0].factor, t->ndim > 1 ? t->dim[1].factor : 1};
    if (t->cut.segments)
        d[t->cut.dim] = sharding_cut_extent(&t->cut, d[t->cut.dim], parts, i);
    *ret_rows = d[0];
    *ret_cols = d[1];
}

static void piece_of(int64_t rows, int64_t grain, int parts, int i, int64_t *lo, int64_t *hi)
{
    layout_split((rows + grain - 1) / grain, parts, i, lo, hi);
    *lo = *lo * grain < rows ? *lo * grain : rows;
    *hi = *hi * grain < rows ? *hi * grain : rows;
}

static int64_t blocks_of(int64_t rows, int64_t cols)
{
    int64_t grain = sharding_grain(cols);
    return (rows + grain - 1) / grain;
}

/* The ranks of an fsdp group have the same local tensor. Slots are as large as the largest tp rank needs. */
static void size_slots(struct sharding *p, const struct graph *g, int t)
{
    struct sharding_param *q = &p->param[t];
    int parts = sharding_parts(p, &g->tensors[t].cut), seen = -1;
    q->block0 = p->n_blocks;
    for (int i = 0; i < parts; i++) {
        int64_t rows, cols, lo, hi;
        int boxes, box = sharding_cut_box(&g->tensors[t].cut, parts, i, &boxes);
        local_size(&g->tensors[t], parts, i, &rows, &cols);
        piece_of(rows, sharding_grain(cols), q->pieces, 0, &lo, &hi);
        q->slot = (hi - lo) * cols > q->slot ? (hi - lo) * cols : q->slot;
        q->full_slot = rows * cols > q->full_slot ? rows * cols : q->full_slot;
        if (box == seen)
            continue;
        seen = box;
        if (box == q->box && !MUTANT(SQUARES_IN_ONE_PLACE))
            q->block0 = p->n_blocks;
        p->n_blocks += blocks_of(rows, cols);
    }
}

static void param_init(struct sharding *p, const struct graph *g, int t)
{
    struct sharding_param *q = &p->param[t];
    const struct graph_cut *cut = &g->tensors[t].cut;
    int parts = sharding_parts(p, cut), part = sharding_part(p, cut, p->coord);
    q->box = sharding_cut_box(cut, parts, part, &q->boxes);
    q->share = cut->experts ? p->ep.share[AXIS_FSDP] : 1;
    q->pieces = p->zero && g->tensors[t].kind == GT_PARAM ? p->mesh.size[AXIS_FSDP] / q->share : 1;
    local_size(&g->tensors[t], parts, part, &q->rows, &q->cols);
    q->grain = sharding_grain(q->cols);
    sharding_piece(p, t, p->coord[AXIS_FSDP], &q->lo, &q->hi);
    if (g->tensors[t].kind == GT_PARAM) /* states are in no line and in no norm */
        size_slots(p, g, t);
}

/* Every rank must have a part of every tensor that is cut. */
static err_t check_cuts(const struct sharding *p, const struct graph *g, struct why *why)
{
    for (int t = 0; t < g->n_tensors; t++) {
        const struct graph_cut *c = &g->tensors[t].cut;
        int tp = sharding_parts(p, c);
        if (!c->segments || c->shared)
            continue;
        if (c->experts && c->units < tp)
            return why_set(why, ERR_INVALID,
                           "parallel.ep is %d, but the model has only %lld experts; the nearest legal value is %lld",
                           tp, (long long)c->units, (long long)c->units);
        if (c->units < tp)
            return why_set(why, ERR_INVALID,
                           "parallel.tp is %d, but %s has only %lld parts; the nearest legal value "
                           "is %lld",
                           tp, g->tensors[t].name, (long long)c->units, (long long)c->units);
        for (int i = 0; i < tp; i++) {
            int64_t lo, hi;
            sharding_cut(c, tp, i, &lo, &hi);
            if (lo == hi)
                return why_set(why, ERR_INVALID,
                               "parallel.tp is %d, which leaves a worker without heads of %s (%lld in %lld groups); "
                               "the nearest legal value is %lld",
                               tp, g->tensors[t].name, (long long)c->units, (long long)c->groups, (long long)c->groups);
        }
    }
    return OK;
}

err_t sharding_init(struct sharding *p, const struct graph *g, const struct mesh *mesh, int rank,
                    struct sharding_choice choice, struct why *why)
{
    *p = (struct sharding){.mesh = *mesh,
                           .rank = rank,
                           .zero = choice.zero,
                           .chunks = choice.chunks,
                           .ep = choice.ep,
                           .placement = choice.placement};
    for (int a = 0; a < AXIS_COUNT; a++)
        p->ep.share[a] = p->ep.share[a] ? p->ep.share[a] : 1;
    mesh_coords(mesh, rank, p->coord);
    p->param = calloc((size_t)g->n_tensors + 1, sizeof(*p->param));
    err_t e = p->param ? check_cuts(p, g, why) : ERR_NOMEM;
    e = e ? e : stages_init(p, g, why);
    e = e ? e : uses_init(p, g);
    for (int t = 0; t < g->n_tensors && !e; t++)
        if (graph_is_stored(&g->tensors[t]))
            param_init(p, g, t);
    if (e)
        sharding_fini(p);
    return e;
}

void sharding_fini(struct sharding *p)
{
    free(p->param);
    free(p->stage);
    free(p->use);
    memset(p, 0, sizeof(*p));
}

/* ---- pieces, boxes, groups ---- */

void sharding_piece(const struct sharding *p, int t, int i, int64_t *ret_lo, int64_t *ret_hi)
{
    const struct sharding_param *q = &p->param[t];
    *ret_lo = 0;
    *ret_hi = q->rows;
    if (q->pieces > 1)
        piece_of(q->rows, q->grain, q->pieces, i / q->share, ret_lo, ret_hi);
    if (MUTANT(PIECE_BEGINS_EARLY) && *ret_lo > 0)
        *ret_lo -= q->grain;
}

static struct sharding_box box_of(int ndim, int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t offset,
                                  int64_t stride)
{
    struct sharding_box b = {
        .box = {.ndim = ndim, .offset = {row, col}, .size = {rows, cols}}, .offset = offset, .stride = stride};
    if (ndim < 2)
        b.box.offset[1] = b.box.size[1] = 0;
    return b;
}

int sharding_boxes(const struct sharding *p, const struct graph *g, int t, int64_t lo, int64_t hi,
                   struct sharding_box ret[SHARDING_MAX_BOXES])
{
    const struct sharding_param *q = &p->param[t];
    const struct graph_tensor *gt = &g->tensors[t];
    const struct graph_cut *c = &gt->cut;
    int64_t cols = gt->ndim > 1 ? gt->dim[1].factor : 1, u_lo = 0, u_hi = 0;
    if (lo >= hi)
        return 0;
    if (!c->segments) {
        ret[0] = box_of(gt->ndim, lo, hi - lo, 0, cols, 0, cols);
        return 1;
    }
    sharding_cut(c, sharding_parts(p, c), sharding_part(p, c, p->coord), &u_lo, &u_hi);
    int64_t extent = gt->dim[c->dim].factor / c->segments, unit = extent / c->units;
    int64_t size = (u_hi - u_lo) * unit;
    int n = 0;
    assert(c->segments <= SHARDING_MAX_BOXES);
    for (int s = 0; s < c->segments; s++) {
        int64_t global = s * extent + u_lo * unit, local = s * size;
        if (c->dim == 1) {
            ret[n++] = box_of(gt->ndim, lo, hi - lo, global, size, local, q->cols);
            continue;
        }
        int64_t a = lo > local ? lo : local, b = hi < local + size ? hi : local + size;
        if (a < b)
            ret[n++] = box_of(gt->ndim, global + a - local, b - a, 0, cols, (a - lo) * q->cols, q->cols);
    }
    return n;
}

/* Whether a rank that differs from this one only on axis a, with a lower coordinate, holds the same rows of t. */
static bool held_before(const struct sharding *p, const struct graph *g, int t, int a)
{
    int other[AXIS_COUNT];
    memcpy(other, p->coord, sizeof(other));
    if (a == AXIS_FSDP && p->param[t].pieces > 1)
        return false;
    for (other[a] = 0; other[a] < p->coord[a]; other[a]++)
        if (sharding_same_box(p, g, t, other, p->coord))
            return true;
    return false;
}

bool sharding_counts(const struct sharding *p, const struct graph *g, int t)
{
    const struct sharding_param *q = &p->param[t];
    const unsigned axes = sharding_norm_axes(p) & ~(1u << AXIS_PP);
    if (!q->held || q->lo >= q->hi)
        return false;
    for (int a = 0; a < AXIS_COUNT && !MUTANT(NORM_COUNTS_REPLICAS); a++)
        if (axes >> a & 1 && held_before(p, g, t, a))
            return false;
    for (int u = q->use; u && !MUTANT(NORM_COUNTS_STAGES); u = p->use[u].next)
        if (p->use[u].pp < p->coord[AXIS_PP])
            return false;
    return true;
}

/* Counts the coordinates up, the innermost axis fastest, so the ranks ascend. */
int sharding_group(const struct sharding *p, unsigned axes, int *ret)
{
    int at[AXIS_COUNT], n = 0, axis;
    for (int a = 0; a < AXIS_COUNT; a++)
        at[a] = axes & (1u << a) ? 0 : p->coord[a];
    do {
        int rank = 0;
        for (int a = 0; a < AXIS_COUNT; a++)
            rank = rank * p->mesh.size[a] + at[a];
        ret[n++] = rank;
        for (axis = AXIS_COUNT - 1; axis >= 0; axis--) {
            if (!(axes & (1u << axis)))
                continue;
            if (++at[axis] < p->mesh.size[axis])
                break;
            at[axis] = 0;
        }
    } while (axis >= 0);
    return n;
}
