/* Products by expert, on the tiles of tile.h.
 *
 * oneDNN's product gives a row other bits when it has fewer than 16 rows, and when threads cut the matrix elsewhere; it
 * is no faster at these sizes. A tile adds the terms of each element in the order of k, whatever stands beside it, so
 * the work may be cut anywhere.
 *
 * A job is one panel of columns of one expert. Its part of B is packed, BLOCK terms at a time, and multiplied by all
 * rows. A bfloat16 result has all of its terms packed at once, because its sums stay float32 until the last term.
 * Threads share the rows of all jobs, laid end to end; packing counts as PACKING rows, so that experts with few rows
 * are shared fairly too. */
#include "kernels/cpu/tile.h"

#include <assert.h>

#define BLOCK 512             /* terms: a packed panel then takes half of a small second-level cache at most */
#define PACKING 16            /* rows whose product takes about as long as packing a panel from memory */
#define STRIP (8 * TILE_ROWS) /* rows that are widened at a time: a cache line of columns of a transposed A */

/* The product of one expert: c[m, n] (+)= a[m, k] b[k, n]; a[i, l] is at a + i a_row + l a_step. */
struct one_product {
    int64_t m, n, k, a_row, a_step, ldb;
    bool trans_b, add, wide_c;
    const elem *a, *b;
    void *c;
};

struct grouped_args {
    const struct kern_grouped *g;
    int64_t terms; /* packed at a time */
    float *panels; /* [threads][terms * (PANEL + STRIP)] */
};

static struct one_product product_of(const struct kern_grouped *g, int64_t e)
{
    const int64_t lo = g->offsets[e], rows = g->offsets[e + 1] - lo, own = g->experts - g->borrowed;
    const int64_t matrix = (e < own ? e : e - own) * g->n * (g->trans_a ? g->m : g->k); /* where it begins */
    struct one_product p = {.n = g->n, .add = g->accumulate && (e < own || !g->trans_a), .wide_c = g->wide_c};
    p.c = (char *)(g->trans_a && e >= own ? g->more : g->c) +
          (g->trans_a ? matrix : lo * g->n) * (int64_t)(g->wide_c ? sizeof(float) : sizeof(elem));
    if (g->trans_a) {
        p.m = g->m;
        p.k = rows;
        p.a_row = 1;
        p.a_step = g->m;
        p.ldb = g->n;
        p.a = (const elem *)g->a + lo * g->m;
        p.b = (const elem *)g->b + lo * g->n;
        return p;
    }
    p.m = rows;
    p.k = g->k;
    p.a_row = g->k;
    p.a_step = 1;
    p.ldb = g->trans_b ? g->k : g->n;
    p.trans_b = g->trans_b;
    p.a = (const elem *)g->a + lo * g->k;
    p.b = (const elem *)(e < own ? g->b : g->more) + matrix;
    return p;
}

static vf c_load(const struct one_product *p, int64_t at, int64_t j, int64_t n)
{
    return p->wide_c ? v_load_part((const float *)p->c + at, j, n) : e_load_part((const elem *)p->c + at, j, n);
}

static void c_store(const struct one_product *p, int64_t at, int64_t j, int64_t n, vf x)
{
    if (p->wide_c)
        v_store_part((float *)p->c + at, j, n, x);
    else
        e_store_part((elem *)p->c + at, j, n, x);
}

/* Rows of a panel of columns through a buffer: the last columns of a matrix, fewer than whole vectors, and results that
 * are not float32. */
static void multiply_buffered(const struct one_product *p, int64_t column, int64_t columns, int64_t row, int64_t rows,
                              int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *panel, bool add)
{
    const int64_t vectors = (columns + VF - 1) / VF;
    float buffer[TILE_ROWS * PANEL] = {0};
    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        int64_t n = rows - i < TILE_ROWS ? rows - i : TILE_ROWS;
        for (int64_t r = 0; r < n && add; r++)
            for (int64_t j = 0; j < columns; j += VF)
                v_store(buffer + r * PANEL + j, c_load(p, (row + i + r) * p->n + column, j, columns));
        KERN_FN(tile_block)(n, vectors, k, a + i * a_row, a_row, a_step, panel, PANEL, buffer, PANEL, add);
        for (int64_t r = 0; r < n; r++)
            for (int64_t j = 0; j < columns; j += VF)
                c_store(p, (row + i + r) * p->n + column, j, columns, v_load(buffer + r * PANEL + j));
    }
}

static void multiply_rows(const struct one_product *p, int64_t column, int64_t columns, int64_t row, int64_t rows,
                          int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *panel, bool add)
{
    if (columns % VF || (KERN_CPU_BITS == 16 && !p->wide_c))
        multiply_buffered(p, column, columns, row, rows, k, a, a_row, a_step, panel, add);
    else
        KERN_FN(tile_block)
    (rows, columns / VF, k, a, a_row, a_step, panel, PANEL, (float *)p->c + row * p->n + column, p->n, add);
}

#if KERN_CPU_BITS == 32
static void multiply_strips(const struct one_product *p, int64_t column, int64_t columns, int64_t row, int64_t rows,
                            int64_t l, int64_t k, const float *panel, float *strip, bool add)
{
    multiply_rows(p, column, columns, row, rows, k, p->a + row * p->a_row + l * p->a_step, p->a_row, p->a_step, panel,
                  add);
}
#else
/* Widens a strip of A, as it is stored, before it is multiplied. */
static void multiply_strips(const struct one_product *p, int64_t column, int64_t columns, int64_t row, int64_t rows,
                            int64_t l, int64_t k, const float *panel, float *strip, bool add)
{
    const bool by_columns = p->a_row == 1;
    for (int64_t i = 0; i < rows; i += STRIP) {
        int64_t n = rows - i < STRIP ? rows - i : STRIP;
        const elem *a = p->a + (row + i) * p->a_row + l * p->a_step;
        for (int64_t x = 0; x < (by_columns ? k : n); x++)
            if (by_columns)
                e_widen_row(n, a + x * p->a_step, strip + x * STRIP);
            else
                e_widen_row(k, a + x * p->a_row, strip + x * k);
        multiply_rows(p, column, columns, row + i, n, k, strip, by_columns ? 1 : k, by_columns ? STRIP : 1, panel, add);
    }
}
#endif

/* Rows [row, row + rows) of the panel of columns that begins at `column`. */
static void multiply_panel(const struct one_product *p, int64_t terms, int64_t column, int64_t row, int64_t rows,
                           float *panel)
{
    const int64_t columns = p->n - column < PANEL ? p->n - column : PANEL;
    for (int64_t l = 0; l < p->k; l += terms) {
        const int64_t k = p->k - l < terms ? p->k - l : terms;
        if (p->trans_b)
            KERN_FN(tile_pack_transposed)(columns, k, p->b + column * p->ldb + l, p->ldb, panel);
        else
            KERN_FN(tile_pack_rows)(k, columns, PANEL, p->b + l * p->ldb + column, p->ldb, panel);
        multiply_strips(p, column, columns, row, rows, l, k, panel, panel + terms * PANEL, p->add || l > 0);
    }
    for (int64_t i = row; i < row + rows && p->k == 0 && !p->add; i++)
        for (int64_t j = 0; j < columns; j += VF)
            c_store(p, i * p->n + column, j, columns, (vf){0});
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
    float *panel = a->panels + part * a->terms * (PANEL + STRIP);
    int64_t start = 0;
    for (int64_t e = 0; e < a->g->experts && start < hi; e++) {
        struct one_product p = product_of(a->g, e);
        for (int64_t column = 0; column < p.n && start < hi; column += PANEL, start += cost_of(&p)) {
            int64_t from = lo - start - PACKING, to = hi - start - PACKING;
            from = from > 0 ? from : 0;
            to = to < p.m ? to : p.m;
            if (from < to)
                multiply_panel(&p, a->terms, column, from, to - from, panel);
        }
    }
}

err_t KERN_FN(grouped_gemm)(struct kern_stream *s, const struct kern_grouped *g)
{
    assert(g->offsets[0] == 0 && g->offsets[g->experts] <= g->rows);
    struct grouped_args a = {.g = g, .terms = BLOCK};
    int64_t cost = 0;
    for (int64_t e = 0; e < g->experts; e++) {
        struct one_product p = product_of(g, e);
        cost += cost_of(&p) * panels_of(g);
        if (KERN_CPU_BITS == 16 && !g->wide_c && p.k > a.terms)
            a.terms = p.k;
    }
    size_t each = (size_t)a.terms * (PANEL + STRIP) * sizeof(float);
    err_t err = kern_stream_scratch(s, (size_t)kern_stream_threads(s) * each, (void **)&a.panels);
    if (!err)
        kern_stream_run(s, cost, TILE_ROWS, multiply_range, &a);
    return err;
}
