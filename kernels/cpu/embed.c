/* Token and position embeddings. The gradient runs over tokens in ascending order whatever the threads: they share the
 * columns, not the tokens. */
#include "kernels/cpu/cpu.h"

struct embed_args {
    int64_t t, d, seq;
    const int32_t *ids;
    const float *table, *pos, *dy;
    float *y, *d_table, *d_pos;
};

static void embed_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct embed_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        const float *row = a->table + a->ids[i] * a->d;
        float *y = a->y + i * a->d;
        if (!a->pos) {
            memcpy(y, row, (size_t)a->d * sizeof(float));
            continue;
        }
        const float *pos = a->pos + i % a->seq * a->d;
        for (int64_t j = 0; j < a->d; j++)
            y[j] = row[j] + pos[j];
    }
}

void KERN_FN(embed)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, const int32_t *ids, const void *table,
                    const void *pos, void *y)
{
    struct embed_args a = {.t = t, .d = d, .seq = seq, .ids = ids, .table = table, .pos = pos, .y = y};
    kern_stream_run(s, t, 8, embed_rows, &a);
}

static void embed_grad_columns(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct embed_args *a = arg;
    for (int64_t i = 0; i < a->t; i++) {
        const float *dy = a->dy + i * a->d;
        float *row = a->d_table + a->ids[i] * a->d;
        for (int64_t j = lo; j < hi; j++)
            row[j] += dy[j];
        if (!a->d_pos)
            continue;
        float *pos = a->d_pos + i % a->seq * a->d;
        for (int64_t j = lo; j < hi; j++)
            pos[j] += dy[j];
    }
}

void KERN_FN(embed_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, const int32_t *ids, const void *dy,
                         void *d_table, void *d_pos)
{
    struct embed_args a = {.t = t, .d = d, .seq = seq, .ids = ids, .dy = dy, .d_table = d_table, .d_pos = d_pos};
    kern_stream_run(s, d, 64, embed_grad_columns, &a);
}
