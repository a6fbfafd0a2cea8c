/* Who writes what in a save. Ranks whose pieces of a tensor are equal boxes are its replicas; tensors with the same
 * replicas are a class. All parameters of a class, then all its first moments, then all second ones, each in the
 * graph's order, are one line of bytes; replica i of n writes the part from i/n to (i+1)/n of it, the cuts moved to the
 * nearest row of the piece they fall into. So shares of a class differ by at most a row, and every rank finds its own
 * without asking. */
#include "common/plan/compile.h"

#include <assert.h>
#include <stdlib.h>

struct replicas {
    bool held;
    int n, index;
    uint64_t key; /* which ranks they are, in terms of what differs between tensors */
};

static uint64_t mix(uint64_t key, int x)
{
    return (key ^ (uint64_t)x) * 0x100000001b3u;
}

/* An axis on which `n` ranks hold the box, of which this one is number `index`; `which` tells apart what tensors may
 * differ in. */
static void times(struct replicas *r, int n, int index, int which)
{
    r->index = r->index * n + index;
    r->n *= n;
    r->key = mix(mix(r->key, which), n);
}

static void times_stages(struct replicas *r, const struct place *p, const struct graph *g, int t)
{
    int n = 0, index = 0;
    if (p->param[t].stages == 1) {
        times(r, 1, 0, 0);
        return;
    }
    for (int i = 0; i < p->mesh.size[AXIS_PP]; i++)
        if (place_uses(p, i, t)) {
            index += i < p->coord[AXIS_PP];
            n++;
            r->key = mix(r->key, i + 1);
        }
    times(r, n, index, 1);
}

static void times_tp(struct replicas *r, const struct place *p, const struct graph *g, int t)
{
    const int tp = p->mesh.size[AXIS_TP], boxes = p->param[t].tp_boxes;
    int n = 0, index = 0, any;
    if (boxes == 1 || boxes == tp) {
        times(r, boxes == 1 ? tp : 1, boxes == 1 ? p->coord[AXIS_TP] : 0, boxes == tp);
        return;
    }
    for (int i = 0; i < tp; i++)
        if (place_cut_box(&g->tensors[t].cut, tp, i, &any) == p->param[t].tp_box) {
            index += i < p->coord[AXIS_TP];
            n++;
        }
    times(r, n, index, 2 + p->param[t].tp_box);
}

static struct replicas replicas_of(const struct place *p, const struct graph *g, int t)
{
    const struct place_param *q = &p->param[t];
    struct replicas r = {.n = 1, .key = 0xcbf29ce484222325u};
    r.held = g->tensors[t].kind == GT_PARAM && q->held && q->lo < q->hi;
    if (!r.held)
        return r;
    times_stages(&r, p, g, t);
    times(&r, p->mesh.size[AXIS_DP], p->coord[AXIS_DP], 0);
    times(&r, p->zero ? 1 : p->mesh.size[AXIS_FSDP], p->zero ? 0 : p->coord[AXIS_FSDP], 0);
    times(&r, p->mesh.size[AXIS_CP], p->coord[AXIS_CP], 0);
    times_tp(&r, p, g, t);
    return r;
}

static bool alike(const struct replicas *a, const struct replicas *b)
{
    return b->held && a->n == b->n && a->index == b->index && a->key == b->key;
}

struct saver {
    const struct program *p;
    const struct graph *g;
    struct replicas *replicas; /* by graph tensor; held: not yet dealt */
    struct save_item *items;
    int n;
};

static int64_t row_bytes(const struct saver *s, int t)
{
    return s->p->place.param[t].cols * (int64_t)dtype_bytes(s->p->wide);
}

static int64_t piece_rows(const struct saver *s, int t)
{
    return s->p->place.param[t].hi - s->p->place.param[t].lo;
}

/* The row of a piece lying at `start` of a line of `total` bytes that the cut before replica i of n falls to. */
static int64_t cut_row(int64_t total, int i, int n, int64_t start, int64_t rows, int64_t row)
{
    assert(n > 0 && row > 0);
    int64_t cut = (int64_t)((__int128)total * i / n) - start;
    if (i == n || cut >= rows * row)
        return rows;
    return cut <= 0 ? 0 : (cut + row / 2) / row;
}

/* Rows [lo, hi) of the own piece. */
static void add(struct saver *s, int t, int state, int64_t lo, int64_t hi)
{
    const struct place_param *q = &s->p->place.param[t];
    struct place_box boxes[PLACE_MAX_BOXES];
    int n = place_boxes(&s->p->place, s->g, t, q->lo + lo, q->lo + hi, boxes);
    for (int i = 0; i < n; i++)
        s->items[s->n++] = (struct save_item){.tensor = t,
                                              .state = state,
                                              .box = boxes[i].box,
                                              .buffer_offset = lo * q->cols + boxes[i].offset,
                                              .stride = boxes[i].stride};
}

/* Deals out the class of tensor t. */
static void deal(struct saver *s, int t)
{
    const struct replicas class = s->replicas[t];
    int64_t total = 0, start = 0;
    for (int i = t; i < s->g->n_tensors; i++)
        total += alike(&class, &s->replicas[i]) ? 3 * piece_rows(s, i) * row_bytes(s, i) : 0;
    for (int state = 0; state < 3; state++)
        for (int i = t; i < s->g->n_tensors; i++) {
            if (!alike(&class, &s->replicas[i]))
                continue;
            int64_t rows = piece_rows(s, i), row = row_bytes(s, i);
            int64_t lo = cut_row(total, class.index, class.n, start, rows, row);
            add(s, i, state, lo, cut_row(total, class.index + 1, class.n, start, rows, row));
            start += rows * row;
        }
    for (int i = s->g->n_tensors - 1; i >= t; i--)
        s->replicas[i].held &= !alike(&class, &s->replicas[i]);
}

err_t plan_save_items(const struct program *p, const struct graph *g, struct save_item **ret, int *ret_n)
{
    struct saver s = {.p = p, .g = g};
    size_t room = 1;
    s.replicas = calloc((size_t)g->n_tensors + 1, sizeof(*s.replicas));
    for (int t = 0; t < g->n_tensors && s.replicas; t++) {
        s.replicas[t] = replicas_of(&p->place, g, t);
        room += s.replicas[t].held ? 3 * (size_t)(g->tensors[t].cut.segments + 1) : 0;
    }
    s.items = calloc(room, sizeof(*s.items));
    err_t e = s.replicas && s.items ? OK : ERR_NOMEM;
    for (int t = 0; t < g->n_tensors && !e; t++)
        if (s.replicas[t].held)
            deal(&s, t);
    free(s.replicas);
    if (e) {
        free(s.items);
        return e;
    }
    *ret = s.items;
    *ret_n = s.n;
    return OK;
}

err_t plan_arena_bytes(const struct program *p, const struct graph *g, int64_t *ret)
{
    struct save_item *items;
    int n;
    err_t e = plan_save_items(p, g, &items, &n);
    if (e)
        return e;
    int64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += (box_elements(&items[i].box) * (int64_t)dtype_bytes(p->wide) + 63) / 64 * 64;
    free(items);
    *ret = (bytes + 4095) / 4096 * 4096;
    return OK;
}
