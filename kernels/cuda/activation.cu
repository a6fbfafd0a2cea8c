/* Element-wise functions in one pass. The floor of a kernel's memory traffic is what it must read plus what it must
 * write; it is stated at each kernel as a number of arrays of elements (2 bytes in bfloat16, 4 in float32). A thread
 * reads all its operands before it writes, so outputs may be inputs.
 *
 * Sigmoids are 1 / (1 + exp(-x)): exp is exact to 2 units in the last place and reaches 0 and infinity at the ends. */
#include "kernels/cuda/vec.h"
#include "kernels/normal_tail.h"

#define OPERANDS 3

struct map {
    struct span span;
    const elem *in[OPERANDS];
    elem *out[2];
    float c[2]; /* constants of the operation */
};

static struct map map_of(int64_t n, const void *a, const void *b, const void *c, void *y, void *z)
{
    const struct span_array arrays[] = {
        {a, sizeof(elem)}, {b, sizeof(elem)}, {c, sizeof(elem)}, {y, sizeof(elem)}, {z, sizeof(elem)}};
    return map{span_of(n, VEC, 5, arrays),
               {(const elem *)a, (const elem *)b, (const elem *)c},
               {(elem *)y, (elem *)z},
               {0, 0}};
}

/* N contiguous elements from i on. */
template <class OP, int N> static __device__ __forceinline__ void map_at(const struct map &m, int64_t i)
{
    float in[OP::IN][N], out[OP::OUT][N];
#pragma unroll
    for (int j = 0; j < OP::IN; j++)
        vec_load(m.in[j] + i, in[j]);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float x[OP::IN], y[OP::OUT];
#pragma unroll
        for (int j = 0; j < OP::IN; j++)
            x[j] = in[j][k];
        OP::at(m.c, x, y);
#pragma unroll
        for (int j = 0; j < OP::OUT; j++)
            out[j][k] = y[j];
    }
#pragma unroll
    for (int j = 0; j < OP::OUT; j++)
        vec_store(m.out[j] + i, out[j]);
}

template <class OP> static __global__ void __launch_bounds__(SPAN_THREADS) map_elements(struct map m)
{
    for (int64_t i = grid_index(); i < m.span.vectors; i += grid_threads())
        map_at<OP, VEC>(m, m.span.head + i * VEC);
    for (int64_t i = grid_index(); i < span_singles(m.span); i += grid_threads())
        map_at<OP, 1>(m, span_single(m.span, i));
}

#define MAP_LAUNCH(s, op, m) CUDA_LAUNCH(s, map_elements<op>, span_grid(s, (m).span), SPAN_THREADS, 0, m)

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* tanh's argument in GPT-2's GELU is u = sqrt(2/pi) (x + 0.044715 x^3); 0.5 x (1 + tanh u) = x sigmoid(2u). */
#define GELU_SCALE2 1.59576912160573071176f /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

static __device__ __forceinline__ float gelu_gate(float x)
{
    return sigmoid(x * GELU_SCALE2 * fmaf(x * x, GELU_CUBIC, 1.0f));
}

struct op_swiglu {
    enum { IN = 2, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        y[0] = x[0] * sigmoid(x[0]) * x[1];
    }
};

struct op_swiglu_grad {
    enum { IN = 3, OUT = 2 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        float a = x[0], b = x[1], dy = x[2], k = sigmoid(a);
        y[0] = dy * b * k * fmaf(a, 1.0f - k, 1.0f);
        y[1] = dy * a * k;
    }
};

struct op_gelu {
    enum { IN = 1, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        y[0] = x[0] * gelu_gate(x[0]);
    }
};

struct op_gelu_grad {
    enum { IN = 2, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        float v = x[0], k = gelu_gate(v);
        float inner = fmaf(v * v, 3 * GELU_CUBIC * GELU_SCALE2, GELU_SCALE2);
        y[0] = x[1] * fmaf(v * k * (1.0f - k), inner, k);
    }
};

struct op_geglu {
    enum { IN = 2, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        y[0] = x[0] * gelu_gate(x[0]) * x[1];
    }
};

struct op_geglu_grad {
    enum { IN = 3, OUT = 2 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        float a = x[0], k = gelu_gate(a);
        float inner = fmaf(a * a, 3 * GELU_CUBIC * GELU_SCALE2, GELU_SCALE2);
        y[0] = x[2] * x[1] * fmaf(a * k * (1.0f - k), inner, k);
        y[1] = x[2] * a * k;
    }
};

/* P(X < x); *ret_bell is exp(-x^2 / 2). */
static __device__ __forceinline__ float normal_below(float x, float *ret_bell)
{
    const float terms[] = NORMAL_TAIL_TERMS;
    float a = fabsf(x), square = x * x, t = 1.0f / fmaf(NORMAL_TAIL_STEP, a, 1.0f), p = terms[0];
#pragma unroll
    for (int i = 1; i < 10; i++)
        p = fmaf(p, t, terms[i]);
    float bell = expf(-0.5f * square);
    if (a < 14) /* beyond, the rest of the square may be infinite */
        bell = fmaf(-0.5f * fmaf(x, x, -square), bell, bell);
    *ret_bell = bell;
    return x < 0 ? bell * t * p : 1.0f - bell * t * p;
}

struct op_gelu_erf {
    enum { IN = 1, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        float bell;
        y[0] = x[0] * normal_below(x[0], &bell);
    }
};

struct op_gelu_erf_grad {
    enum { IN = 2, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        float bell, below = normal_below(x[0], &bell);
        y[0] = x[1] * fmaf(x[0] * NORMAL_PEAK, bell, below);
    }
};

struct op_scale {
    enum { IN = 1, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        y[0] = x[0] * c[0];
    }
};

struct op_cap {
    enum { IN = 1, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        y[0] = c[0] * tanhf(x[0] * c[1]);
    }
};

/* 1 - tanh(u)^2 = 4 e / (1 + e)^2 with e = exp(-2 |u|), without its cancellation. */
struct op_cap_grad {
    enum { IN = 2, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        float e = expf(-2.0f * fabsf(x[0] * c[1])), k = 1.0f / (1.0f + e);
        y[0] = x[1] * (4.0f * e * k * k);
    }
};

struct op_relu {
    enum { IN = 1, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        y[0] = x[0] <= 0 ? 0 : x[0]; /* a NaN is passed on */
    }
};

struct op_relu_grad {
    enum { IN = 2, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        y[0] = x[0] <= 0 ? 0 : x[1];
    }
};

struct op_add {
    enum { IN = 2, OUT = 1 };
    static __device__ __forceinline__ void at(const float *c, const float *x, float *y)
    {
        y[0] = x[0] + x[1];
    }
};

/* Floor: 3 arrays. */
void KERN_FN(swiglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    struct map m = map_of(n, a, b, NULL, y, NULL);
    MAP_LAUNCH(s, op_swiglu, m);
}

/* Floor: 5 arrays. */
void KERN_FN(swiglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                          void *db)
{
    struct map m = map_of(n, a, b, dy, da, db);
    MAP_LAUNCH(s, op_swiglu_grad, m);
}

/* Floor: 2 arrays. */
void KERN_FN(gelu)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    struct map m = map_of(n, x, NULL, NULL, y, NULL);
    MAP_LAUNCH(s, op_gelu, m);
}

/* Floor: 3 arrays. */
void KERN_FN(gelu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    struct map m = map_of(n, x, dy, NULL, dx, NULL);
    MAP_LAUNCH(s, op_gelu_grad, m);
}

/* Floor: 3 arrays. */
void KERN_FN(geglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    struct map m = map_of(n, a, b, NULL, y, NULL);
    MAP_LAUNCH(s, op_geglu, m);
}

/* Floor: 5 arrays. */
void KERN_FN(geglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                         void *db)
{
    struct map m = map_of(n, a, b, dy, da, db);
    MAP_LAUNCH(s, op_geglu_grad, m);
}

/* Floor: 2 arrays. */
void KERN_FN(gelu_erf)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    struct map m = map_of(n, x, NULL, NULL, y, NULL);
    MAP_LAUNCH(s, op_gelu_erf, m);
}

/* Floor: 3 arrays. */
void KERN_FN(gelu_erf_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    struct map m = map_of(n, x, dy, NULL, dx, NULL);
    MAP_LAUNCH(s, op_gelu_erf_grad, m);
}

static struct map map_with(struct map m, double c)
{
    m.c[0] = (float)c;
    m.c[1] = (float)(1 / c);
    return m;
}

/* Floor: 2 arrays. */
void KERN_FN(scale)(struct kern_stream *s, int64_t n, double c, const void *x, void *y)
{
    struct map m = map_with(map_of(n, x, NULL, NULL, y, NULL), c);
    MAP_LAUNCH(s, op_scale, m);
}

/* Floor: 2 arrays. */
void KERN_FN(cap)(struct kern_stream *s, int64_t n, double c, const void *x, void *y)
{
    struct map m = map_with(map_of(n, x, NULL, NULL, y, NULL), c);
    MAP_LAUNCH(s, op_cap, m);
}

/* Floor: 3 arrays. */
void KERN_FN(cap_grad)(struct kern_stream *s, int64_t n, double c, const void *x, const void *dy, void *dx)
{
    struct map m = map_with(map_of(n, x, dy, NULL, dx, NULL), c);
    MAP_LAUNCH(s, op_cap_grad, m);
}

/* Floor: 2 arrays. */
void KERN_FN(relu)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    struct map m = map_of(n, x, NULL, NULL, y, NULL);
    MAP_LAUNCH(s, op_relu, m);
}

/* Floor: 3 arrays. */
void KERN_FN(relu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    struct map m = map_of(n, x, dy, NULL, dx, NULL);
    MAP_LAUNCH(s, op_relu_grad, m);
}

/* Floor: 3 arrays. */
void KERN_FN(add)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    struct map m = map_of(n, a, b, NULL, y, NULL);
    MAP_LAUNCH(s, op_add, m);
}
