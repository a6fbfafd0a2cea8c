/* Who writes what in a save. All parameters, then all first moments, then all second ones, each in the graph's order,
 * are one line of bytes; rank r of W writes the part from r/W to (r+1)/W of it, the cuts moved to the nearest row of
 * the tensor they fall into. So shares differ by at most a row, every rank finds its own without asking, and a rank has
 * at most two partial tensors. */
#include "common/plan/compile.h"

#include <stdlib.h>

struct line {
    int world;
    int64_t total;
};

/* The row of a tensor lying at [start, start + rows * row_bytes) of the line that the cut before rank r falls to. */
static int64_t cut_row(const struct line *l, int r, int64_t start, int64_t rows, int64_t row_bytes)
{
    int64_t cut = (int64_t)((__int128)l->total * r / l->world) - start;
    if (r == l->world || cut >= rows * row_bytes)
        return rows;
    return cut <= 0 ? 0 : (cut + row_bytes / 2) / row_bytes;
}

static int64_t row_elements(const struct graph_tensor *t)
{
    int64_t n = 1;
    for (int d = 1; d < t->ndim; d++)
        n *= t->dim[d].factor;
    return n;
}

static int64_t params_bytes(const struct program *p, const struct graph *g)
{
    return g->n_params * (int64_t)dtype_bytes(p->wide);
}

static struct save_item item(const struct graph_tensor *t, int tensor, int state, int64_t lo, int64_t hi)
{
    struct save_item s = {.tensor = tensor, .state = state, .box = {.ndim = t->ndim}};
    for (int d = 0; d < t->ndim; d++)
        s.box.size[d] = t->dim[d].factor;
    s.box.offset[0] = lo;
    s.box.size[0] = hi - lo;
    s.buffer_offset = lo * row_elements(t);
    s.stride = row_elements(t);
    return s;
}

err_t plan_save_items(const struct program *p, const struct graph *g, struct save_item **ret, int *ret_n)
{
    struct line l = {mesh_workers(&p->mesh), 3 * params_bytes(p, g)};
    struct save_item *items = calloc(3 * (size_t)g->n_tensors + 1, sizeof(*items));
    int n = 0;
    if (!items)
        return ERR_NOMEM;
    int64_t start = 0;
    for (int state = 0; state < 3; state++) {
        for (int i = 0; i < g->n_tensors; i++) {
            const struct graph_tensor *t = &g->tensors[i];
            if (t->kind != GT_PARAM)
                continue;
            int64_t rows = t->dim[0].factor, row_bytes = row_elements(t) * (int64_t)dtype_bytes(p->wide);
            int64_t lo = cut_row(&l, p->rank, start, rows, row_bytes);
            int64_t hi = cut_row(&l, p->rank + 1, start, rows, row_bytes);
            if (lo < hi)
                items[n++] = item(t, i, state, lo, hi);
            start += rows * row_bytes;
        }
    }
    *ret = items;
    *ret_n = n;
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
