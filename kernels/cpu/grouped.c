/* Products by expert, on the tiles of tile.h.
 *
 * oneDNN's product gives a row other bits when it has fewer than 16 rows, and when threads cut the matrix elsewhere; it
 * is no faster at these sizes. A tile adds the terms of each element in the order of k, whatever stands beside it, so
 * the work may be cut anywhere.
 *
 * A job is one panel of columns of one expert. Its part of B is packed, BLOCK terms at a time, and multiplied by all
 * rows. Threads share the rows of all jobs, laid end to end; packing counts as PACKING rows, so that experts with few
 * rows are shared fairly too. */
#include "kernels/cpu/tile.h"

#include <assert.h>

#define BLOCK 512  /* terms: a packed panel then takes half of a small second-level cache at most */
#define PACKING 16 /* rows whose product takes about as long as packing a panel from memory */

/* The product of one expert: c[m, n] (+)= a[m, k] b[k, n]; a[i, l] is at a + i a_row + l a_step. */
struct one_product {
    int64_t m, n, k, a_row, a_step, ldb;
    bool trans_b, add;
    const float *a, *b;
    float *c;
};

struct grouped_args {
    const struct kern_grouped *g;
    float *panels; /* [threads][BLOCK * PANEL] */
};

static struct one_product product_of(const struct kern_grouped *g, int64_t e)
{
    const int64_t lo = g->offsets[e], rows = g->offsets[e + 1] - lo, own = g->experts - g->borrowed;
    const int64_t at = (e < own ? e : e - own) * g->n * (g->trans_a ? g->m : g->k); /* of its matrix */
    if (g->trans_a)
        return (struct one_product){.m = g->m,
                                    .n = g->n,
                                    .k = rows,
                                    .a_row = 1,
                                    .a_step = g->m,
                                    .ldb = g->n,
                                    .add = g->accumulate && e < own,
                                    .a = (const float *)g->a + lo * g->m,
                                    .b = (const float *)g->b + lo * g->n,
                                    .c = (float *)(e < own ? g->c : g->more) + at};
    return (struct one_product){.m = rows,
                                .n = g->n,
                                .k = g->k,
                                .a_row = g->k,
                                .a_step = 1,
                                .ldb = g->trans_b ? g->k : g->n,
                                .trans_b = g->trans_b,
                                .add = g->accumulate,
                                .a = (const float *)g->a + lo * g->k,
                                .b = (const float *)(e < own ? g->b : g->more) + at,
                                .c = (float *)g->c + lo * g->n};
}

/* The last columns of a matrix, fewer than whole vectors, through a buffer. */
static void multiply_edge(const struct one_product *p, int64_t columns, int64_t row, int64_t rows, int64_t k,
                          const float *a, const float *panel, float *c, bool add)
{
    const int64_t vectors = (columns + VF - 1) / VF;
    float edge[TILE_ROWS * PANEL] = {0};
    for (int64_t i = row; i < row + rows; i += TILE_ROWS) {
        int64_t n = row + rows - i < TILE_ROWS ? row + rows - i : TILE_ROWS;
        for (int64_t r = 0; r < n && add; r++)
            memcpy(edge + r * PANEL, c + (i + r) * p->n, (size_t)columns * sizeof(float));
        KERN_FN(tile_block)(n, vectors, k, a + i * p->a_row, p->a_row, p->a_step, panel, PANEL, edge, PANEL, add);
        for (int64_t r = 0; r < n; r++)
            memcpy(c + (i + r) * p->n, edge + r * PANEL, (size_t)columns * sizeof(float));
    }
}

/* Rows [row, row + rows) of the panel of columns that begins at `column`. */
static void multiply_panel(const struct one_product *p, int64_t column, int64_t row, int64_t rows, float *panel)
{
    const int64_t columns = p->n - column < PANEL ? p->n - column : PANEL;
    for (int64_t l = 0; l < p->k; l += BLOCK) {
        const int64_t k = p->k - l < BLOCK ? p->k - l : BLOCK;
        const float *a = p->a + l * p->a_step;
        float *c = p->c + column;
        bool add = p->add || l > 0;
        if (p->trans_b)
            KERN_FN(tile_pack_transposed)(columns, k, p->b + column * p->ldb + l, p->ldb, panel);
        else
            KERN_FN(tile_pack_rows)(k, columns, PANEL, p->b + l * p->ldb + column, p->ldb, panel);
        if (columns % VF)
            multiply_edge(p, columns, row, rows, k, a, panel, c, add);
        else
            KERN_FN(tile_block)
        (rows, columns / VF, k, a + row * p->a_row, p->a_row, p->a_step, panel, PANEL, c + row * p->n, p->n, add);
    }
    for (int64_t i = row; i < row + rows && p->k == 0 && !p->add; i++)
        memset(p->c + i * p->n + column, 0, (size_t)columns * sizeof(float));
}

/* The rows that a panel of the expert counts for. */
static int64_t cost_of(const struct one_product *p)
{
    return p->m ? p->m + PACKING : 0;
}

static int64_t panels_of(const struct kern_grouped *g)
{
    return (g->n + PANEL - 1) / PANEL;
}

static void multiply_range(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct grouped_args *a = arg;
    float *panel = a->panels + (int64_t)part * BLOCK * PANEL;
    int64_t start = 0;
    for (int64_t e = 0; e < a->g->experts && start < hi; e++) {
        struct one_product p = product_of(a->g, e);
        for (int64_t column = 0; column < p.n && start < hi; column += PANEL, start += cost_of(&p)) {
            int64_t from = lo - start - PACKING, to = hi - start - PACKING;
            from = from > 0 ? from : 0;
            to = to < p.m ? to : p.m;
            if (from < to)
                multiply_panel(&p, column, from, to - from, panel);
        }
    }
}

err_t KERN_FN(grouped_gemm)(struct kern_stream *s, const struct kern_grouped *g)
{
    assert(g->offsets[0] == 0 && g->offsets[g->experts] <= g->rows);
    struct grouped_args a = {.g = g};
    int64_t cost = 0;
    for (int64_t e = 0; e < g->experts; e++) {
        struct one_product p = product_of(g, e);
        cost += cost_of(&p) * panels_of(g);
    }
    err_t err =
        kern_stream_scratch(s, (size_t)kern_stream_threads(s) * BLOCK * PANEL * sizeof(float), (void **)&a.panels);
    if (!err)
        kern_stream_run(s, cost, TILE_ROWS, multiply_range, &a);
    return err;
}
