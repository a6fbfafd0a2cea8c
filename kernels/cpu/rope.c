/* Rotary positions. Angles and their sines are float64: at position 100,000 a float32 angle has lost its third digit. A
 * position's factors are computed once per call and used for all samples and heads. They depend on nothing else, so no
 * table is stored. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#include <assert.h>

#define CHUNK 256 /* columns of a head per chunk */

struct rope_args {
    int64_t t, seq, pos0, heads, head_dim, stride, column,
        width;           /* column, width: first column and width of the chunk */
    double cosine, sine; /* factors; a negative one of the sine rotates by the negative angle */
    elem *x;
    double frequency[CHUNK / 2]; /* radians per position, by pair */
};

/* Factors of pairs of neighbours: y = x c + swapped(x) s, with c = cos cos and s = -sin sin per pair. */
struct factors {
    float c[CHUNK], s[CHUNK];
};

static void factors_at(const struct rope_args *a, int64_t pos, struct factors *f)
{
    for (int64_t j = 0; j < a->width; j += VF) {
        vd angle, sine, cosine;
        memcpy(&angle, a->frequency + j / 2, sizeof(angle));
        v_sincos(angle * (double)pos, &sine, &cosine);
        for (int k = 0; k < VD; k++) {
            f->c[j + 2 * k] = f->c[j + 2 * k + 1] = (float)(cosine[k] * a->cosine);
            f->s[j + 2 * k + 1] = (float)(sine[k] * a->sine);
            f->s[j + 2 * k] = -f->s[j + 2 * k + 1];
        }
    }
}

static ALWAYS_INLINE vf swap_neighbours(vf x)
{
#if VF == 16
    return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif VF == 8
    return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#else
    return __builtin_shufflevector(x, x, 1, 0, 3, 2);
#endif
}

static ALWAYS_INLINE vf turn(vf x, const struct factors *f, int64_t j)
{
    return v_fma(x, v_load(f->c + j), swap_neighbours(x) * v_load(f->s + j));
}

static void turn_row(const struct rope_args *a, const struct factors *f, elem *x)
{
    for (int64_t h = 0; h < a->heads; h++, x += a->head_dim)
        for (int64_t j = 0; j < a->width; j += VF)
            e_store_part(x, j, a->width, turn(e_load_part(x, j, a->width), f, j));
}

static void turn_positions(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct rope_args *a = arg;
    struct factors f;
    for (int64_t pos = lo; pos < hi; pos++) {
        factors_at(a, a->pos0 + pos, &f);
        for (int64_t i = pos; i < a->t; i += a->seq)
            turn_row(a, &f, a->x + i * a->stride + a->column);
    }
}

void KERN_FN(rope)(struct kern_stream *s, int64_t t, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                   int64_t stride, const struct kern_rope *rope, bool inverse, void *x)
{
    assert(2 * rope->pairs <= head_dim && stride >= heads * head_dim);
    struct rope_args a = {.t = t,
                          .seq = seq,
                          .pos0 = pos0,
                          .heads = heads,
                          .head_dim = head_dim,
                          .stride = stride,
                          .cosine = rope->factor,
                          .sine = inverse ? -rope->factor : rope->factor,
                          .x = x};
    const int64_t columns = 2 * rope->pairs;
    for (a.column = 0; a.column < columns; a.column += CHUNK) {
        a.width = columns - a.column < CHUNK ? columns - a.column : CHUNK;
        memcpy(a.frequency, rope->frequency + a.column / 2, (size_t)a.width / 2 * sizeof(a.frequency[0]));
        kern_stream_run(s, seq < t ? seq : t, 16, turn_positions, &a);
    }
}
