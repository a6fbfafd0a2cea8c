/* Sinusoidal positions. Angles are float64 for the same reason as in rope.c. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#define CHUNK 256 /* columns of a row per chunk */

struct positions_args {
    int64_t d, seq, column, width; /* column, width: first column and width of the chunk */
    const int32_t *rows;
    const elem *x;
    elem *y;
    double frequency[CHUNK / 2]; /* radians per position, by pair of columns */
};

static void add_row(const struct positions_args *a, int64_t i)
{
    const elem *x = a->x + i * a->d + a->column;
    elem *y = a->y + i * a->d + a->column;
    float at[CHUNK];
    double pos = (double)(a->rows[i] % a->seq);
    for (int64_t j = 0; j < a->width; j += VF) {
        vd angle, sine, cosine;
        memcpy(&angle, a->frequency + j / 2, sizeof(angle));
        v_sincos(angle * pos, &sine, &cosine);
        for (int k = 0; k < VD; k++) {
            at[j + 2 * k] = (float)sine[k];
            at[j + 2 * k + 1] = (float)cosine[k];
        }
    }
    for (int64_t j = 0; j < a->width; j += VF)
        e_store_part(y, j, a->width, e_load_part(x, j, a->width) + v_load(at + j));
}

static void add_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        add_row(arg, i);
}

void KERN_FN(positions)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, const int32_t *rows, const void *x,
                        void *y)
{
    struct positions_args a = {.d = d, .seq = seq, .rows = rows, .x = x, .y = y};
    for (a.column = 0; a.column < d; a.column += CHUNK) {
        a.width = d - a.column < CHUNK ? d - a.column : CHUNK;
        for (int64_t j = 0; j < a.width; j += 2)
            a.frequency[j / 2] = pow(KERN_POSITIONS_BASE, -(double)(a.column + j) / (double)d);
        kern_stream_run(s, t, 16, add_rows, &a);
    }
}
