/* Element-wise functions; memory bandwidth limits their speed. */
#include "kernels/cpu/map.h"
#include "kernels/cpu/vmath.h"

static ALWAYS_INLINE void swiglu_lanes(const void *constants, const vf in[], vf out[])
{
    out[0] = in[0] * v_sigmoid(in[0]) * in[1];
}

static ALWAYS_INLINE void swiglu_grad_lanes(const void *constants, const vf in[], vf out[])
{
    vf a = in[0], b = in[1], dy = in[2], k = v_sigmoid(a);
    out[0] = dy * b * k * v_fma(a, 1.0f - k, v_set(1));
    out[1] = dy * a * k;
}

/* tanh's argument in GPT-2's GELU is u = sqrt(2/pi) (x + 0.044715 x^3); 0.5 x (1 + tanh u) = x sigmoid(2u). */
#define GELU_SCALE2 1.59576912160573071176f /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

static ALWAYS_INLINE vf gelu_gate(vf x)
{
    return v_sigmoid(x * GELU_SCALE2 * v_fma(x * x, v_set(GELU_CUBIC), v_set(1)));
}

static ALWAYS_INLINE void gelu_lanes(const void *constants, const vf in[], vf out[])
{
    out[0] = in[0] * gelu_gate(in[0]);
}

static ALWAYS_INLINE void gelu_grad_lanes(const void *constants, const vf in[], vf out[])
{
    vf x = in[0], k = gelu_gate(x);
    vf inner = v_fma(x * x, v_set(3 * GELU_CUBIC * GELU_SCALE2), v_set(GELU_SCALE2));
    out[0] = in[1] * v_fma(x * k * (1.0f - k), inner, k);
}

static ALWAYS_INLINE void relu_lanes(const void *constants, const vf in[], vf out[])
{
    out[0] = v_select(in[0] <= (vf){0}, (vf){0}, in[0]); /* a NaN is passed on */
}

static ALWAYS_INLINE void relu_grad_lanes(const void *constants, const vf in[], vf out[])
{
    out[0] = v_select(in[0] <= (vf){0}, (vf){0}, in[1]);
}

static ALWAYS_INLINE void add_lanes(const void *constants, const vf in[], vf out[])
{
    out[0] = in[0] + in[1];
}

MAP_RANGE(swiglu_range, 2, 1, ELEM, ELEM, swiglu_lanes)
MAP_RANGE(swiglu_grad_range, 3, 2, ELEM, ELEM, swiglu_grad_lanes)
MAP_RANGE(gelu_range, 1, 1, ELEM, ELEM, gelu_lanes)
MAP_RANGE(gelu_grad_range, 2, 1, ELEM, ELEM, gelu_grad_lanes)
MAP_RANGE(relu_range, 1, 1, ELEM, ELEM, relu_lanes)
MAP_RANGE(relu_grad_range, 2, 1, ELEM, ELEM, relu_grad_lanes)
MAP_RANGE(add_range, 2, 1, ELEM, ELEM, add_lanes)

void KERN_FN(swiglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    struct cpu_map m = {.in = {a, b}, .out = {y}};
    kern_stream_run(s, n, MAP_GRAIN, swiglu_range, &m);
}

void KERN_FN(swiglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                          void *db)
{
    struct cpu_map m = {.in = {a, b, dy}, .out = {da, db}};
    kern_stream_run(s, n, MAP_GRAIN, swiglu_grad_range, &m);
}

void KERN_FN(gelu)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    struct cpu_map m = {.in = {x}, .out = {y}};
    kern_stream_run(s, n, MAP_GRAIN, gelu_range, &m);
}

void KERN_FN(gelu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    struct cpu_map m = {.in = {x, dy}, .out = {dx}};
    kern_stream_run(s, n, MAP_GRAIN, gelu_grad_range, &m);
}

struct row_args {
    const struct cpu_map *m;
    kern_range_fn *fn;
    int64_t n, stride;
};

static void map_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct row_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        struct cpu_map row = *a->m;
        for (int k = 0; k < MAP_MAX; k++) {
            row.in[k] = row.in[k] ? (const elem *)row.in[k] + i * a->stride : NULL;
            row.out[k] = row.out[k] ? (elem *)row.out[k] + i * a->stride : NULL;
        }
        a->fn(&row, part, 0, a->n);
    }
}

/* Processes contiguous rows as one long range. */
static void run_rows(struct kern_stream *s, struct cpu_map *m, kern_range_fn *fn, int64_t rows, int64_t n,
                     int64_t stride)
{
    struct row_args a = {m, fn, n, stride};
    if (stride == n)
        kern_stream_run(s, rows * n, MAP_GRAIN, fn, m);
    else
        kern_stream_run(s, rows, 1 + MAP_GRAIN / (n + 1), map_rows, &a);
}

void KERN_FN(gelu_rows)(struct kern_stream *s, int64_t rows, int64_t n, int64_t stride, const elem *x, elem *y)
{
    struct cpu_map m = {.in = {x}, .out = {y}};
    run_rows(s, &m, gelu_range, rows, n, stride);
}

void KERN_FN(gelu_grad_rows)(struct kern_stream *s, int64_t rows, int64_t n, int64_t stride, const elem *x,
                             const elem *dy, elem *dx)
{
    struct cpu_map m = {.in = {x, dy}, .out = {dx}};
    run_rows(s, &m, gelu_grad_range, rows, n, stride);
}

void KERN_FN(relu)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    struct cpu_map m = {.in = {x}, .out = {y}};
    kern_stream_run(s, n, MAP_GRAIN, relu_range, &m);
}

void KERN_FN(relu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    struct cpu_map m = {.in = {x, dy}, .out = {dx}};
    kern_stream_run(s, n, MAP_GRAIN, relu_grad_range, &m);
}

void KERN_FN(add)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    struct cpu_map m = {.in = {a, b}, .out = {y}};
    kern_stream_run(s, n, MAP_GRAIN, add_range, &m);
}
