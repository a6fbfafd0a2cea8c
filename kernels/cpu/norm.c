/* Root-mean-square norm and layer norm, preceded by the residual sum; formulas as in ref/norm.c. The
 * statistics are those of the stored residual sum, which is what the backward reads.
 *
 * A row is read from memory once and then from cache. The backward processes blocks of 16 rows: first their input
 * gradients, then, while the rows are still in cache, their contribution to the weights' gradients, column by column.
 * Threads share the first half by rows and the second by columns; the blocks, and so the bits, stay the same. */
#include "kernels/cpu/cpu.h"

#define BLOCK 16

struct norm_args {
    int64_t t, d;
    float eps, one; /* factors are one + w */
    bool centered;  /* layer norm */
    const elem *x, *res, *w, *b;
    elem *r, *y;
    float *mean, *rstd;
    /* the backward uses x, w, the statistics, and these */
    const elem *dy, *d_res;
    const float *c_mean, *c_rstd;
    elem *dx;
    float *dw, *db;
    /* of a norm whose columns are sharded; `whole`: the number of all */
    int64_t whole;
    double *dots;
    const double *sums;
};

/* Returns the sums of x (after the residual sum, which is written) and of its squares. */
static ALWAYS_INLINE float row_sum(const struct norm_args *a, const elem *x, const elem *res, elem *r, bool squares)
{
    vf sum = {0};
    for (int64_t j = 0; j < a->d; j += VF) {
        vf v = e_load_part(x, j, a->d);
        if (res) {
            v = e_rounded(v + e_load_part(res, j, a->d));
            e_store_part(r, j, a->d, v);
        }
        sum = squares ? v_fma(v, v, sum) : sum + v;
    }
    return v_sum(sum);
}

static float squares_around(const elem *x, int64_t d, float mean)
{
    vf sum = {0};
    int64_t j = 0;
    for (; j + VF <= d; j += VF) {
        vf v = e_load(x + j) - mean;
        sum = v_fma(v, v, sum);
    }
    float rest = 0;
    for (; j < d; j++)
        rest += (e_value(x[j]) - mean) * (e_value(x[j]) - mean);
    return v_sum(sum) + rest;
}

static void rms_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct norm_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        const elem *x = a->x + i * a->d, *res = a->res ? a->res + i * a->d : NULL;
        elem *r = res ? a->r + i * a->d : NULL, *y = a->y + i * a->d;
        float mean_square = row_sum(a, x, res, r, true) / (float)a->d, k = 1 / sqrtf(mean_square + a->eps);
        const elem *row = res ? r : x;
        for (int64_t j = 0; j < a->d; j += VF) {
            v_expect_store((const float *)(y + j));
            e_store_part(y, j, a->d, e_load_part(row, j, a->d) * k * (a->one + e_load_part(a->w, j, a->d)));
        }
        a->rstd[i] = k;
    }
}

static void layer_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct norm_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        const elem *x = a->x + i * a->d, *res = a->res ? a->res + i * a->d : NULL;
        elem *r = res ? a->r + i * a->d : NULL, *y = a->y + i * a->d;
        float mean = row_sum(a, x, res, r, false) / (float)a->d;
        const elem *row = res ? r : x;
        float k = 1 / sqrtf(squares_around(row, a->d, mean) / (float)a->d + a->eps);
        for (int64_t j = 0; j < a->d; j += VF) {
            vf h = (e_load_part(row, j, a->d) - mean) * k;
            v_expect_store((const float *)(y + j));
            e_store_part(y, j, a->d, v_fma(h, e_load_part(a->w, j, a->d), e_load_part(a->b, j, a->d)));
        }
        a->mean[i] = mean;
        a->rstd[i] = k;
    }
}

void KERN_FN(rmsnorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, bool plus_one, const void *x,
                      const void *res, const void *w, void *r, void *y, void *rstd)
{
    struct norm_args a = {
        .t = t, .d = d, .eps = (float)eps, .one = plus_one, .x = x, .res = res, .w = w, .r = r, .y = y, .rstd = rstd};
    kern_stream_run(s, t, BLOCK, rms_rows, &a);
}

void KERN_FN(layernorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, const void *x, const void *res,
                        const void *w, const void *b, void *r, void *y, void *mean, void *rstd)
{
    struct norm_args a = {.t = t,
                          .d = d,
                          .eps = (float)eps,
                          .centered = true,
                          .x = x,
                          .res = res,
                          .w = w,
                          .b = b,
                          .r = r,
                          .y = y,
                          .mean = mean,
                          .rstd = rstd};
    kern_stream_run(s, t, BLOCK, layer_rows, &a);
}

static void input_grad_row(const struct norm_args *a, int64_t i)
{
    const elem *x = a->x + i * a->d, *dy = a->dy + i * a->d, *past = a->d_res ? a->d_res + i * a->d : NULL;
    elem *dx = a->dx + i * a->d;
    float mean = a->centered ? a->c_mean[i] : 0, k = a->c_rstd[i];
    vf sum_g = {0}, sum_gh = {0};
    for (int64_t j = 0; j < a->d; j += VF) {
        vf g = e_load_part(dy, j, a->d) * (a->one + e_load_part(a->w, j, a->d));
        sum_g += g;
        sum_gh = v_fma(g, (e_load_part(x, j, a->d) - mean) * k, sum_gh);
    }
    float mean_g = a->centered ? v_sum(sum_g) / (float)a->d : 0, mean_gh = v_sum(sum_gh) / (float)a->d;
    for (int64_t j = 0; j < a->d; j += VF) {
        vf g = e_load_part(dy, j, a->d) * (a->one + e_load_part(a->w, j, a->d)),
           h = (e_load_part(x, j, a->d) - mean) * k;
        vf v = (g - mean_g - h * mean_gh) * k;
        if (past)
            v += e_load_part(past, j, a->d);
        e_store_part(dx, j, a->d, v);
    }
}

static void input_grad_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        input_grad_row(arg, i);
}

/* Adds to columns [lo, hi) of the weights' gradients from rows [row, end), at most BLOCK rows. */
static void weight_grad_block(const struct norm_args *a, int64_t row, int64_t end, int64_t lo, int64_t hi)
{
    for (int64_t j = lo; j < hi; j += VF) {
        vf sum_w = {0}, sum_b = {0};
        for (int64_t i = row; i < end; i++) {
            vf dy = e_load_part(a->dy + i * a->d, j, hi), x = e_load_part(a->x + i * a->d, j, hi);
            float mean = a->centered ? a->c_mean[i] : 0;
            sum_w = v_fma(dy, (x - mean) * a->c_rstd[i], sum_w);
            sum_b += dy;
        }
        v_store_part(a->dw, j, hi, v_load_part(a->dw, j, hi) + sum_w);
        if (a->centered)
            v_store_part(a->db, j, hi, v_load_part(a->db, j, hi) + sum_b);
    }
}

static void weight_grad_columns(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct norm_args *a = arg;
    for (int64_t i = 0; i < a->t; i += BLOCK)
        weight_grad_block(a, i, i + BLOCK < a->t ? i + BLOCK : a->t, lo, hi);
}

static void norm_grad(struct kern_stream *s, struct norm_args *a)
{
    if (kern_stream_threads(s) > 1) {
        kern_stream_run(s, a->d, 64, weight_grad_columns, a);
        kern_stream_run(s, a->t, BLOCK, input_grad_rows, a);
        return;
    }
    for (int64_t i = 0; i < a->t; i += BLOCK) {
        int64_t end = i + BLOCK < a->t ? i + BLOCK : a->t;
        input_grad_rows(a, 0, i, end);
        weight_grad_block(a, i, end, 0, a->d);
    }
}

void KERN_FN(rmsnorm_grad)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *x, const void *w,
                           const void *rstd, const void *dy, const void *d_res, void *dx, void *dw)
{
    struct norm_args a = {
        .t = t, .d = d, .one = plus_one, .x = x, .w = w, .c_rstd = rstd, .dy = dy, .d_res = d_res, .dx = dx, .dw = dw};
    norm_grad(s, &a);
}

void KERN_FN(layernorm_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *w,
                             const void *mean, const void *rstd, const void *dy, const void *d_res, void *dx, void *dw,
                             void *db)
{
    struct norm_args a = {.t = t,
                          .d = d,
                          .centered = true,
                          .x = x,
                          .w = w,
                          .c_mean = mean,
                          .c_rstd = rstd,
                          .dy = dy,
                          .d_res = d_res,
                          .dx = dx,
                          .dw = dw,
                          .db = db};
    norm_grad(s, &a);
}

/* ---- columns of a row on several ranks ---- */

static void dot_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct norm_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        vf sum = {0};
        for (int64_t j = 0; j < a->d; j += VF) {
            vf v = e_load_part(a->dy + i * a->d, j, a->d);
            if (a->w)
                v *= a->one + e_load_part(a->w, j, a->d);
            sum = v_fma(e_load_part(a->x + i * a->d, j, a->d), v, sum);
        }
        a->dots[i] = (double)v_sum(sum);
    }
}

void KERN_FN(row_dots)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *a, const void *b,
                       const void *w, double *sums)
{
    struct norm_args args = {.t = t, .d = d, .one = plus_one, .x = a, .dy = b, .w = w, .dots = sums};
    kern_stream_run(s, t, BLOCK, dot_rows, &args);
}

static void part_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct norm_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        float k = 1 / sqrtf((float)(a->sums[i] / (double)a->whole) + a->eps);
        for (int64_t j = 0; j < a->d; j += VF)
            e_store_part(a->y + i * a->d, j, a->d,
                         e_load_part(a->x + i * a->d, j, a->d) * k * (a->one + e_load_part(a->w, j, a->d)));
        a->rstd[i] = k;
    }
}

void KERN_FN(rmsnorm_part)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, double eps, bool plus_one,
                           const void *x, const void *w, const double *sums, void *y, void *rstd)
{
    struct norm_args a = {.t = t,
                          .d = d,
                          .eps = (float)eps,
                          .one = plus_one,
                          .x = x,
                          .w = w,
                          .y = y,
                          .rstd = rstd,
                          .whole = whole,
                          .sums = sums};
    kern_stream_run(s, t, BLOCK, part_rows, &a);
}

static void part_grad_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct norm_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        float k = a->c_rstd[i], mean = a->sums ? (float)(a->sums[i] / (double)a->whole) * k : 0;
        for (int64_t j = 0; j < a->d; j += VF) {
            vf g = e_load_part(a->dy + i * a->d, j, a->d) * (a->one + e_load_part(a->w, j, a->d)),
               h = e_load_part(a->x + i * a->d, j, a->d) * k;
            e_store_part(a->dx + i * a->d, j, a->d, (g - h * mean) * k);
        }
    }
}

void KERN_FN(rmsnorm_part_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, bool plus_one,
                                const void *x, const void *w, const void *rstd, const double *sums, const void *dy,
                                void *dx, void *dw)
{
    struct norm_args a = {.t = t,
                          .d = d,
                          .one = plus_one,
                          .x = x,
                          .w = w,
                          .c_rstd = rstd,
                          .dy = dy,
                          .dx = dx,
                          .dw = dw,
                          .whole = whole,
                          .sums = sums};
    kern_stream_run(s, d, 64, weight_grad_columns, &a);
    kern_stream_run(s, t, BLOCK, part_grad_rows, &a);
}
