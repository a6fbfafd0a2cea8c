/* From samples to a table. */
#include "worker/measure_part.h"

#include <stdlib.h>
#include <string.h>

/* ---- the samples of all processes ---- */

static int by_call(const void *a, const void *b)
{
    const struct measure_sample *x = a, *y = b;
    if (x->call != y->call)
        return x->call < y->call ? -1 : 1;
    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

static err_t grow(struct measure_all *all, int more)
{
    if (all->n + more <= all->cap)
        return OK;
    const int cap = 2 * (all->n + more);
    struct measure_sample *list = realloc(all->list, (size_t)cap * sizeof(*list));
    if (!list)
        return ERR_NOMEM;
    all->list = list;
    all->cap = cap;
    return OK;
}

/* Keeps the first, which is the shortest, of each call in list[from..). */
static void keep_shortest(struct measure_all *all, int from)
{
    int kept = from;
    if (all->n == from)
        return;
    qsort(all->list + from, (size_t)(all->n - from), sizeof(*all->list), by_call);
    for (int i = from; i < all->n; i++)
        if (!all->list[i].call || i == from || all->list[i].call != all->list[i - 1].call)
            all->list[kept++] = all->list[i];
    all->n = kept;
}

err_t measure_collect(struct measure_all *all, const struct measure_samples *of, int world)
{
    const int from = all->n;
    for (int r = 0; r < world; r++) {
        err_t err = grow(all, of[r].n);
        if (err)
            return err;
        if (of[r].n)
            memcpy(all->list + all->n, of[r].list, (size_t)of[r].n * sizeof(*all->list));
        all->n += of[r].n;
    }
    keep_shortest(all, from);
    return OK;
}

void measure_all_fini(struct measure_all *all)
{
    free(all->list);
    *all = (struct measure_all){0};
}

/* ---- rows ---- */

/* The order of rows, and within a row that of times. */
static int by_sample(const void *a, const void *b)
{
    const struct measure_sample *x = a, *y = b;
    const int keys[] = {(int)x->key.kind - (int)y->key.kind, (int)x->key.dtype - (int)y->key.dtype,
                        x->key.form - y->key.form, x->key.ranks - y->key.ranks};
    int order = 0;
    for (int i = 0; !order && i < 4; i++)
        order = keys[i];
    for (int d = 0; !order && d < TABLE_DIMS; d++)
        order = (x->size[d] > y->size[d]) - (x->size[d] < y->size[d]);
    return order ? order : (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

static bool is_same_row(const struct measure_sample *a, const struct measure_sample *b)
{
    return memcmp(&a->key, &b->key, sizeof(a->key)) == 0 && memcmp(a->size, b->size, sizeof(a->size)) == 0;
}

/* Ranks of a collective wait for each other, so that a program that takes the core of one of them disturbs it several
 * times, and only lengthens it: the lower quartile counts instead of the median, with the lower tenth and the median
 * around it. */
static struct table_row row_of(const struct measure_sample *s, int n)
{
    static const int hundredths[2][TABLE_FIGURES] = {{50, 25, 75}, {25, 10, 50}};
    struct table_row row = {.key = s->key};
    for (int f = 0; f < TABLE_FIGURES; f++)
        row.seconds[f] = s[n * hundredths[s->key.ranks > 1][f] / 100].seconds;
    memcpy(row.size, s->size, sizeof(row.size));
    return row;
}

err_t measure_table(struct measure_all *all, struct buf *ret)
{
    struct table_row *rows = calloc((size_t)all->n + 1, sizeof(*rows));
    int n = 0;
    if (!rows)
        return ERR_NOMEM;
    if (all->n)
        qsort(all->list, (size_t)all->n, sizeof(*all->list), by_sample);
    for (int i = 0, end; i < all->n; i = end) {
        for (end = i + 1; end < all->n && is_same_row(&all->list[i], &all->list[end]); end++)
            ;
        rows[n++] = row_of(&all->list[i], end - i);
    }
    plan_table_sort(rows, n);
    err_t err = plan_table_print(rows, n, ret);
    free(rows);
    return err;
}
