/* Element-wise functions; memory bandwidth limits their speed. */
#include "kernels/cpu/map.h"
#include "kernels/cpu/vmath.h"
#include "kernels/normal_tail.h"

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

static ALWAYS_INLINE void geglu_lanes(const void *constants, const vf in[], vf out[])
{
    out[0] = in[0] * gelu_gate(in[0]) * in[1];
}

static ALWAYS_INLINE void geglu_grad_lanes(const void *constants, const vf in[], vf out[])
{
    vf a = in[0], k = gelu_gate(a);
    vf inner = v_fma(a * a, v_set(3 * GELU_CUBIC * GELU_SCALE2), v_set(GELU_SCALE2));
    out[0] = in[2] * in[1] * v_fma(a * k * (1.0f - k), inner, k);
    out[1] = in[2] * a * k;
}

/* P(X < x); *ret_bell is exp(-x^2 / 2). A NaN in x is one in both. */
static ALWAYS_INLINE vf normal_below(vf x, vf *ret_bell)
{
    static const float terms[] = NORMAL_TAIL_TERMS;
    const vf a = v_max(x, -x), square = x * x, rest = v_fma(x, x, -square);
    const vf t = 1.0f / v_fma(v_set(NORMAL_TAIL_STEP), a, v_set(1));
    vf p = v_set(terms[0]);
    for (size_t i = 1; i < sizeof(terms) / sizeof(terms[0]); i++)
        p = v_fma(p, t, v_set(terms[i]));
    *ret_bell = v_exp(-0.5f * square);
    *ret_bell =
        v_select(a < v_set(14), v_fma(-0.5f * rest, *ret_bell, *ret_bell), *ret_bell); /* rest may be infinite */
    const vf tail = *ret_bell * t * p;
    return v_select(x < (vf){0}, tail, 1.0f - tail);
}

static ALWAYS_INLINE void gelu_erf_lanes(const void *constants, const vf in[], vf out[])
{
    vf bell;
    out[0] = in[0] * normal_below(in[0], &bell);
}

static ALWAYS_INLINE void gelu_erf_grad_lanes(const void *constants, const vf in[], vf out[])
{
    vf bell, below = normal_below(in[0], &bell);
    out[0] = in[1] * v_fma(in[0] * NORMAL_PEAK, bell, below);
}

static ALWAYS_INLINE void scale_lanes(const void *constants, const vf in[], vf out[])
{
    out[0] = in[0] * *(const float *)constants;
}

/* constants: c, 1 / c */
static ALWAYS_INLINE void cap_lanes(const void *constants, const vf in[], vf out[])
{
    const float *c = constants;
    out[0] = c[0] * v_tanh(in[0] * c[1]);
}

/* 1 - tanh(u)^2 = 4 e / (1 + e)^2 with e = exp(-2 |u|), without its cancellation. */
static ALWAYS_INLINE void cap_grad_lanes(const void *constants, const vf in[], vf out[])
{
    const float *c = constants;
    vf u = in[0] * c[1], e = v_exp(-2.0f * v_max(u, -u)), k = 1.0f / (1.0f + e);
    out[0] = in[1] * (4.0f * e * k * k);
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
MAP_RANGE(geglu_range, 2, 1, ELEM, ELEM, geglu_lanes)
MAP_RANGE(geglu_grad_range, 3, 2, ELEM, ELEM, geglu_grad_lanes)
MAP_RANGE(gelu_erf_range, 1, 1, ELEM, ELEM, gelu_erf_lanes)
MAP_RANGE(gelu_erf_grad_range, 2, 1, ELEM, ELEM, gelu_erf_grad_lanes)
MAP_RANGE(scale_range, 1, 1, ELEM, ELEM, scale_lanes)
MAP_RANGE(cap_range, 1, 1, ELEM, ELEM, cap_lanes)
MAP_RANGE(cap_grad_range, 2, 1, ELEM, ELEM, cap_grad_lanes)
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

void KERN_FN(geglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    struct cpu_map m = {.in = {a, b}, .out = {y}};
    kern_stream_run(s, n, MAP_GRAIN, geglu_range, &m);
}

void KERN_FN(geglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                         void *db)
{
    struct cpu_map m = {.in = {a, b, dy}, .out = {da, db}};
    kern_stream_run(s, n, MAP_GRAIN, geglu_grad_range, &m);
}

void KERN_FN(gelu_erf)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    struct cpu_map m = {.in = {x}, .out = {y}};
    kern_stream_run(s, n, MAP_GRAIN, gelu_erf_range, &m);
}

void KERN_FN(gelu_erf_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    struct cpu_map m = {.in = {x, dy}, .out = {dx}};
    kern_stream_run(s, n, MAP_GRAIN, gelu_erf_grad_range, &m);
}

void KERN_FN(scale)(struct kern_stream *s, int64_t n, double c, const void *x, void *y)
{
    const float factor = (float)c;
    struct cpu_map m = {.in = {x}, .out = {y}, .constants = &factor};
    kern_stream_run(s, n, MAP_GRAIN, scale_range, &m);
}

void KERN_FN(cap)(struct kern_stream *s, int64_t n, double c, const void *x, void *y)
{
    const float constants[] = {(float)c, (float)(1 / c)};
    struct cpu_map m = {.in = {x}, .out = {y}, .constants = constants};
    kern_stream_run(s, n, MAP_GRAIN, cap_range, &m);
}

void KERN_FN(cap_grad)(struct kern_stream *s, int64_t n, double c, const void *x, const void *dy, void *dx)
{
    const float constants[] = {(float)c, (float)(1 / c)};
    struct cpu_map m = {.in = {x, dy}, .out = {dx}, .constants = constants};
    kern_stream_run(s, n, MAP_GRAIN, cap_grad_range, &m);
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
