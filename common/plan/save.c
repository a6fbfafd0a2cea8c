/* Who writes what in a save. Ranks whose pieces of a tensor are equal boxes are its replicas; tensors with the same
 * replicas are a class. All parameters of a class, then all its first moments, then all second ones, each in the
 * graph's order, are one line of bytes; replica i of n writes the part from i/n to (i+1)/n of it, the cuts moved to the
 * nearest row of the piece they fall into. So shares of a class differ by at most a row, and every rank finds its own
 * without asking. */
#include "common/plan/compile.h"

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

/* `same` of the `n` indices on an axis, of which `mine` is one, have it too: they multiply the replicas. */
static void times(struct replicas *r, const bool *same, int n, int mine)
{
    int count = 0, before = 0;
    for (int i = 0; i < n; i++) {
        if (!same[i])
            continue;
        before += i < mine;
        count++;
        r->key = mix(r->key, i);
    }
    r->key = mix(r->key, -1);
    r->index = r->index * count + before;
    r->n *= count;
}

/* `same` has room for the longest axis. */
static struct replicas replicas_of(const struct place *p, const struct graph *g, int t, bool *same)
{
    const struct place_param *q = &p->param[t];
    struct replicas r = {.n = 1, .key = 0xcbf29ce484222325u};
    r.held = g->tensors[t].kind == GT_PARAM && q->held && q->lo < q->hi;
    for (int a = 0; a < AXIS_COUNT && r.held; a++) {
        for (int i = 0; i < p->mesh.size[a]; i++) {
            int boxes;
            same[i] = true;
            if (a == AXIS_PP)
                same[i] = q->stages > 1 ? place_uses(p, g, i, t) : i == p->coord[a];
            else if (a == AXIS_FSDP)
                same[i] = !p->zero || i == p->coord[a];
            else if (a == AXIS_TP)
                same[i] = place_cut_box(&g->tensors[t].cut, p->mesh.size[a], i, &boxes) == q->tp_box;
        }
        times(&r, same, p->mesh.size[a], p->coord[a]);
    }
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

static int longest_axis(const struct mesh *m)
{
    int n = 1;
    for (int a = 0; a < AXIS_COUNT; a++)
        n = m->size[a] > n ? m->size[a] : n;
    return n;
}

err_t plan_save_items(const struct program *p, const struct graph *g, struct save_item **ret, int *ret_n)
{
    struct saver s = {.p = p, .g = g};
    bool *same = calloc((size_t)longest_axis(&p->mesh), sizeof(*same));
    size_t room = 1;
    for (int t = 0; t < g->n_tensors; t++)
        room += g->tensors[t].kind == GT_PARAM ? 3 * (size_t)(g->tensors[t].cut.segments + 1) : 0;
    s.replicas = calloc((size_t)g->n_tensors + 1, sizeof(*s.replicas));
    s.items = calloc(room, sizeof(*s.items));
    err_t e = same && s.replicas && s.items ? OK : ERR_NOMEM;
    for (int t = 0; t < g->n_tensors && !e; t++)
        s.replicas[t] = replicas_of(&p->place, g, t, same);
    for (int t = 0; t < g->n_tensors && !e; t++)
        if (s.replicas[t].held)
            deal(&s, t);
    free(same);
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
