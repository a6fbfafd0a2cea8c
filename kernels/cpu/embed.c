/* Token and position embeddings, for the whole vocabulary or a part of it. The gradient visits tokens in ascending
 * order for any number of threads: threads share the columns, not the tokens. */
#include "kernels/cpu/cpu.h"

struct embed_args {
    int64_t t, d, seq, lo, hi;
    const int32_t *ids;
    const elem *table, *pos, *dy;
    elem *y;
    float *d_table, *d_pos;
};

static bool is_here(const struct embed_args *a, int64_t token)
{
    return a->ids[token] >= a->lo && a->ids[token] < a->hi;
}

/* row, pos: may be NULL */
static void embed_row(int64_t d, const elem *restrict row, const elem *restrict pos, elem *restrict y)
{
    if (row && pos)
        for (int64_t j = 0; j < d; j += VF)
            e_store_part(y, j, d, e_load_part(row, j, d) + e_load_part(pos, j, d));
    else if (row || pos)
        memcpy(y, row ? row : pos, (size_t)d * sizeof(elem));
    else
        memset(y, 0, (size_t)d * sizeof(elem));
}

static void embed_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct embed_args *a = arg;
    for (int64_t i = lo; i < hi; i++)
        embed_row(a->d, is_here(a, i) ? a->table + (a->ids[i] - a->lo) * a->d : NULL,
                  a->pos ? a->pos + i % a->seq * a->d : NULL, a->y + i * a->d);
}

void KERN_FN(embed)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                    const int32_t *ids, const void *table, const void *pos, void *y)
{
    struct embed_args a = {
        .t = t, .d = d, .seq = seq, .lo = lo, .hi = hi, .ids = ids, .table = table, .pos = pos, .y = y};
    kern_stream_run(s, t, 8, embed_rows, &a);
}

static void add_row(int64_t lo, int64_t hi, const elem *restrict from, float *restrict to)
{
    for (int64_t j = lo; j < hi; j += VF)
        v_store_part(to, j, hi, v_load_part(to, j, hi) + e_load_part(from, j, hi));
}

static void embed_grad_columns(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct embed_args *a = arg;
    for (int64_t i = 0; i < a->t; i++) {
        const elem *dy = a->dy + i * a->d;
        if (is_here(a, i))
            add_row(lo, hi, dy, a->d_table + (a->ids[i] - a->lo) * a->d);
        if (a->d_pos)
            add_row(lo, hi, dy, a->d_pos + i % a->seq * a->d);
    }
}

void KERN_FN(embed_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                         const int32_t *ids, const void *dy, void *d_table, void *d_pos)
{
    struct embed_args a = {
        .t = t, .d = d, .seq = seq, .lo = lo, .hi = hi, .ids = ids, .dy = dy, .d_table = d_table, .d_pos = d_pos};
    kern_stream_run(s, d, 64, embed_grad_columns, &a);
}
