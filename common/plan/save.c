/* Which boxes each rank writes in a save.
 *
 * Ranks whose pieces of a tensor are equal boxes are replicas of it; tensors with the same replicas form a class. The
 * bytes of a class form one line: all its parameters, then all first moments, then all second moments, each in the
 * graph's order. Replica i of n writes the part from i/n to (i+1)/n of the line:
 *
 *   |      parameters      |       exp_avg        |      exp_avg_sq     |
 *   |   replica 0    |   replica 1    |   replica 2    |   replica 3    |     n = 4
 *
 * A cut moves to the nearest row of the piece that it falls into. The parts of replicas therefore differ by at most a
 * row, and every rank computes its own part without communication. */
#include "common/plan/program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The replicas of a tensor of which this rank has a piece. */
struct replica_class {
    int tensor;
    bool divided;
    int n, index;
    uint64_t key; /* hash of the set of ranks; equal sets have equal keys */
};

static uint64_t mix(uint64_t key, int x)
{
    return (key ^ (uint64_t)x) * 0x100000001b3u;
}

/* Adds an axis on which `n` ranks hold the box; this rank is number `index` of them. `which` distinguishes sets of
 * ranks that have the same size on this axis. */
static void multiply_replicas(struct replica_class *r, int n, int index, int which)
{
    r->index = r->index * n + index;
    r->n *= n;
    r->key = mix(mix(r->key, which), n);
}

static void multiply_stages(struct replica_class *r, const struct sharding *p, const struct graph *g, int t)
{
    int n = 0, index = 0;
    if (p->param[t].stages == 1) {
        multiply_replicas(r, 1, 0, 0);
        return;
    }
    for (int i = 0; i < p->mesh.size[AXIS_PP]; i++)
        if (sharding_uses(p, i, t)) {
            index += i < p->coord[AXIS_PP];
            n++;
            r->key = mix(r->key, i + 1);
        }
    multiply_replicas(r, n, index, 1);
}

/* The ranks that differ from this one only on axis a and hold the same box. */
static void multiply_axis(struct replica_class *r, const struct sharding *p, const struct graph *g, int t, int a)
{
    int n = 0, index = 0, other[AXIS_COUNT];
    memcpy(other, p->coord, sizeof(other));
    for (other[a] = 0; other[a] < p->mesh.size[a]; other[a]++)
        if (sharding_same_box(p, g, t, other, p->coord)) {
            index += other[a] < p->coord[a];
            n++;
            r->key = mix(r->key, other[a] + 1);
        }
    multiply_replicas(r, n, index, 0);
}

static bool has_piece(const struct sharding *p, const struct graph *g, int t)
{
    return graph_is_stored(&g->tensors[t]) && p->param[t].held && p->param[t].lo < p->param[t].hi;
}

static struct replica_class replicas_of(const struct sharding *p, const struct graph *g, int t)
{
    struct replica_class r = {.tensor = t, .n = 1, .key = 0xcbf29ce484222325u};
    multiply_stages(&r, p, g, t);
    multiply_replicas(&r, p->mesh.size[AXIS_DP], p->coord[AXIS_DP], 0);
    if (p->param[t].pieces > 1)
        multiply_replicas(&r, 1, 0, 0);
    else
        multiply_axis(&r, p, g, t, AXIS_FSDP);
    multiply_axis(&r, p, g, t, AXIS_CP);
    multiply_axis(&r, p, g, t, AXIS_TP);
    return r;
}

static bool alike(const struct replica_class *a, const struct replica_class *b)
{
    return !b->divided && a->n == b->n && a->index == b->index && a->key == b->key;
}

struct save_planner {
    const struct program *p;
    const struct graph *g;
    struct replica_class *replicas; /* in the graph's order */
    struct save_item *items;
    int n_replicas, n;
};

static int64_t element_bytes(const struct program *p, const struct graph_tensor *t)
{
    return (int64_t)dtype_bytes(t->exact ? DT_F64 : p->wide);
}

/* States that are saved: a value, and the moments of a parameter. */
static int states_of(const struct save_planner *s, int t)
{
    return s->g->tensors[t].kind == GT_PARAM ? 3 : 1;
}

static int64_t row_bytes(const struct save_planner *s, int t)
{
    return s->p->sharding.param[t].cols * element_bytes(s->p, &s->g->tensors[t]);
}

static int64_t piece_rows(const struct save_planner *s, int t)
{
    return s->p->sharding.param[t].hi - s->p->sharding.param[t].lo;
}

/* The row of a piece at which the cut before replica i of n falls; the piece begins at byte `start` of a line of
 * `total` bytes. */
static int64_t cut_row(int64_t total, int i, int n, int64_t start, int64_t rows, int64_t row)
{
    assert(n > 0 && row > 0);
    int64_t cut = (int64_t)((__int128)total * i / n) - start;
    if (i == n || cut >= rows * row)
        return rows;
    return cut <= 0 ? 0 : (cut + row / 2) / row;
}

/* Adds rows [lo, hi) of this rank's piece. */
static void add_items(struct save_planner *s, int t, int state, int64_t lo, int64_t hi)
{
    const struct sharding_param *q = &s->p->sharding.param[t];
    struct sharding_box boxes[SHARDING_MAX_BOXES];
    int n = sharding_boxes(&s->p->sharding, s->g, t, q->lo + lo, q->lo + hi, boxes);
    for (int i = 0; i < n; i++)
        s->items[s->n++] = (struct save_item){.tensor = t,
                                              .state = state,
                                              .box = boxes[i].box,
                                              .buffer_offset = lo * q->cols + boxes[i].offset,
                                              .stride = boxes[i].stride};
}

/* Divides the class whose first tensor is replicas[from]. */
static void divide_class(struct save_planner *s, int from)
{
    const struct replica_class class = s->replicas[from];
    int64_t total = 0, start = 0;
    for (int i = from; i < s->n_replicas; i++) {
        int t = s->replicas[i].tensor;
        total += alike(&class, &s->replicas[i]) ? states_of(s, t) * piece_rows(s, t) * row_bytes(s, t) : 0;
    }
    for (int state = 0; state < 3; state++)
        for (int i = from; i < s->n_replicas; i++) {
            int t = s->replicas[i].tensor;
            if (!alike(&class, &s->replicas[i]) || state >= states_of(s, t))
                continue;
            int64_t rows = piece_rows(s, t), row = row_bytes(s, t);
            int64_t lo = cut_row(total, class.index, class.n, start, rows, row);
            add_items(s, t, state, lo, cut_row(total, class.index + 1, class.n, start, rows, row));
            start += rows * row;
        }
    for (int i = s->n_replicas - 1; i >= from; i--)
        s->replicas[i].divided |= alike(&class, &s->replicas[i]);
}

err_t plan_save_items(const struct program *p, const struct graph *g, struct save_item **ret, int *ret_n)
{
    struct save_planner s = {.p = p, .g = g};
    size_t pieces = 0, room = 1;
    for (int t = 0; t < g->n_tensors; t++) {
        bool has = has_piece(&p->sharding, g, t);
        pieces += has;
        room += has ? 3 * (size_t)(g->tensors[t].cut.segments + 1) : 0;
    }
    s.replicas = calloc(pieces + 1, sizeof(*s.replicas));
    s.items = calloc(room, sizeof(*s.items));
    err_t e = s.replicas && s.items ? OK : ERR_NOMEM;
    for (int t = 0; t < g->n_tensors && !e; t++)
        if (has_piece(&p->sharding, g, t))
            s.replicas[s.n_replicas++] = replicas_of(&p->sharding, g, t);
    for (int i = 0; i < s.n_replicas; i++)
        if (!s.replicas[i].divided)
            divide_class(&s, i);
    free(s.replicas);
    if (e) {
        free(s.items);
        return e;
    }
    *ret = s.items;
    *ret_n = s.n;
    return OK;
}

static int64_t arena_aligned(int64_t bytes)
{
    return (bytes + PLAN_ARENA_ALIGN - 1) / PLAN_ARENA_ALIGN * PLAN_ARENA_ALIGN;
}

err_t plan_arena_bytes(const struct program *p, const struct graph *g, int64_t *ret)
{
    struct save_item *items;
    int n;
    err_t e = plan_save_items(p, g, &items, &n);
    if (e)
        return e;
    int64_t bytes = p->rank == 0 ? PLAN_ARENA_ALIGN : 0; /* the optimizer's step, which rank 0 saves */
    for (int i = 0; i < n; i++) {
        struct box boxes[GRAPH_BOXES_MAX];
        int parts = graph_boxes(&g->tensors[items[i].tensor], &items[i].box, boxes);
        for (int k = 0; k < parts; k++)
            bytes += arena_aligned(box_elements(&boxes[k]) * element_bytes(p, &g->tensors[items[i].tensor]));
    }
    free(items);
    *ret = bytes;
    return OK;
}
