/* The order of rows by expert, their gathering and weighted sums, and gates. Memory bandwidth limits all of them. */
#include "kernels/cpu/cpu.h"

#define TOKENS 8 /* a part's least number of tokens: a few KiB of rows each */

/* A counting sort, O(t k + experts). It runs on one thread: a choice takes about a nanosecond, while a token's products
 * take microseconds. offsets[e + 1] counts the rows of e, then is the next free row of e. Choices that were dropped
 * have no row; the end of `source` has none of the rows. */
void KERN_FN(route_sort)(struct kern_stream *s, int64_t t, int64_t k, int64_t experts, const int32_t *ids,
                         int32_t *place, int32_t *source, int32_t *offsets)
{
    int32_t row = 0;
    memset(offsets, 0, (size_t)(experts + 1) * sizeof(*offsets));
    for (int64_t i = 0; i < t * k; i++)
        if (ids[i] >= 0)
            offsets[ids[i] + 1]++;
    for (int64_t e = 0; e < experts; e++) {
        int32_t rows = offsets[e + 1];
        offsets[e + 1] = row;
        row += rows;
    }
    for (int64_t i = 0; i < t * k; i++) {
        place[i] = ids[i] < 0 ? -1 : offsets[ids[i] + 1]++;
        if (place[i] >= 0)
            source[place[i]] = (int32_t)i;
    }
    for (int64_t i = row; i < t * k; i++)
        source[i] = -1;
}

/* Row `first` and those behind it are the n rows of one member for one expert; its first is arrived row `at` and home
 * row `home` of the member, whose home rows begin at `base`. */
static void write_run(const struct kern_arrive *a, int32_t first, int32_t n, int32_t at, int32_t home, int32_t base)
{
    for (int32_t i = 0; i < n && a->index; i++)
        a->index[first + i] = at + i;
    for (int32_t i = 0; i < n && a->inverse; i++)
        a->inverse[at + i] = first + i;
    for (int32_t i = 0; i < n && a->choices; i++)
        a->choices[first + i] = base + a->sources[base + home + i];
}

/* One thread, as for route_sort. */
void KERN_FN(arrive)(struct kern_stream *s, const struct kern_arrive *a)
{
    int32_t row = 0;
    for (int64_t e = a->lo; e < a->hi; e++) {
        int32_t sent = 0, base = 0;
        if (a->offsets)
            a->offsets[e - a->lo] = row;
        for (int64_t i = 0; i < a->members; i++) {
            const int32_t *first = a->all + i * (a->experts + 1), n = first[e + 1] - first[e];
            write_run(a, row, n, sent + first[e] - first[a->lo], first[e], base);
            row += n;
            sent += first[a->hi] - first[a->lo];
            base += first[a->experts];
        }
    }
    if (a->offsets)
        a->offsets[a->hi - a->lo] = row;
}

struct rows_args {
    int64_t k, d;
    const int32_t *index; /* source or place */
    const float *weights;
    const elem *x, *dy;
    elem *y, *dx;
    float *d_weights;
};

static void gather_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct rows_args *a = arg;
    for (int64_t r = lo; r < hi && a->index[r] >= 0; r++) {
        const elem *x = a->x + a->index[r] / a->k * a->d;
        if (!a->weights)
            memcpy(a->y + r * a->d, x, (size_t)a->d * sizeof(elem));
        for (int64_t c = 0; c < a->d && a->weights; c += VF)
            e_store_part(a->y + r * a->d, c, a->d, e_load_part(x, c, a->d) * a->weights[a->index[r]]);
    }
}

void KERN_FN(rows_gather)(struct kern_stream *s, int64_t rows, int64_t k, int64_t d, const int32_t *source,
                          const void *weights, const void *x, void *y)
{
    struct rows_args a = {.k = k, .d = d, .index = source, .weights = weights, .x = x, .y = y};
    kern_stream_run(s, rows, TOKENS, gather_rows, &a);
}

static void sum_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct rows_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        const int32_t *place = a->index + i * a->k;
        const float *weights = a->weights ? a->weights + i * a->k : NULL;
        for (int64_t c = 0; c < a->d; c += VF) {
            vf sum = {0};
            for (int64_t j = 0; j < a->k; j++)
                if (place[j] >= 0)
                    sum = v_fma(v_set(weights ? weights[j] : 1), e_load_part(a->x + place[j] * a->d, c, a->d), sum);
            e_store_part(a->y + i * a->d, c, a->d, sum);
        }
    }
}

void KERN_FN(rows_sum)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                       const void *weights, const void *x, void *y)
{
    struct rows_args a = {.k = k, .d = d, .index = place, .weights = weights, .x = x, .y = y};
    kern_stream_run(s, t, TOKENS, sum_rows, &a);
}

/* dx = factor dy. Returns the product of dy and x; dx may be x or dy, or NULL. */
static float scale_and_multiply(int64_t d, float factor, const elem *x, const elem *dy, elem *dx)
{
    vf sum = {0};
    for (int64_t c = 0; c < d; c += VF) {
        vf g = e_load_part(dy, c, d);
        sum = v_fma(g, e_load_part(x, c, d), sum);
        if (dx)
            e_store_part(dx, c, d, g * factor);
    }
    return v_sum(sum);
}

static void sum_rows_grad(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct rows_args *a = arg;
    for (int64_t i = lo * a->k; i < hi * a->k; i++) {
        int64_t row = a->index[i] * a->d;
        if (row < 0)
            a->d_weights[i] = 0;
        else
            a->d_weights[i] = scale_and_multiply(a->d, a->weights[i], a->x + row, a->dy + i / a->k * a->d,
                                                 a->dx ? a->dx + row : NULL);
    }
}

void KERN_FN(rows_sum_grad)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                            const void *weights, const void *x, const void *dy, void *dx, void *d_weights)
{
    struct rows_args a = {
        .k = k, .d = d, .index = place, .weights = weights, .x = x, .dy = dy, .dx = dx, .d_weights = d_weights};
    kern_stream_run(s, t, TOKENS, sum_rows_grad, &a);
}

/* ---- gates ---- */

struct gate_args {
    int64_t d;
    const elem *x, *z, *dy;
    elem *y, *dx, *dz;
};

static double opening(float z)
{
    return 1 / (1 + exp(-(double)z));
}

static void gate_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct gate_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        const elem *x = a->x + i * a->d;
        float open = (float)opening(e_value(a->z[i]));
        for (int64_t c = 0; c < a->d; c += VF)
            e_store_part(a->y + i * a->d, c, a->d, e_load_part(x, c, a->d) * open);
    }
}

void KERN_FN(gate)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, void *y)
{
    struct gate_args a = {.d = d, .x = x, .z = z, .y = y};
    kern_stream_run(s, t, TOKENS, gate_rows, &a);
}

static void gate_grad_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct gate_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        double open = opening(e_value(a->z[i]));
        float product = scale_and_multiply(a->d, (float)open, a->x + i * a->d, a->dy + i * a->d, a->dx + i * a->d);
        a->dz[i] = e_of((float)(open * (1 - open) * (double)product));
    }
}

void KERN_FN(gate_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, const void *dy,
                        void *dx, void *dz)
{
    struct gate_args a = {.d = d, .x = x, .z = z, .dy = dy, .dx = dx, .dz = dz};
    kern_stream_run(s, t, TOKENS, gate_grad_rows, &a);
}
