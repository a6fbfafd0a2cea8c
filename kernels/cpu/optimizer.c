/* AdamW, a gradient's norm, and casts: memory bandwidth limits their speed, so each makes one pass. */
#include "kernels/cpu/map.h"

struct adamw_constants {
    float grad_scale, beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    float step_size, unbias_v, eps, decay; /* lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t), eps, lr * weight_decay */
};

/* The whole change is computed before it is added to p, so that p is rounded once: a decay of 1e-6 would be lost in 1 -
 * lr wd. */
static ALWAYS_INLINE void adamw_lanes(const void *constants, const vf in[], vf out[])
{
    const struct adamw_constants *c = constants;
    vf p = in[0], g = in[3] * c->grad_scale;
    vf m = v_fma(in[1], v_set(c->beta1), g * c->rest1);
    vf v = v_fma(in[2], v_set(c->beta2), g * g * c->rest2);
    vf change = m * c->step_size / v_fma(v_sqrt(v), v_set(c->unbias_v), v_set(c->eps));
    out[0] = p - v_fma(p, v_set(c->decay), change);
    out[1] = m;
    out[2] = v;
}

MAP_RANGE(adamw_range, 4, 3, WIDE, WIDE, adamw_lanes)

void KERN_FN(adamw)(struct kern_stream *s, const struct kern_adamw *a)
{
    if (!isfinite(*a->grad_scale))
        return;
    struct adamw_constants c = {.grad_scale = (float)*a->grad_scale,
                                .beta1 = (float)a->beta1,
                                .beta2 = (float)a->beta2,
                                .rest1 = (float)(1 - a->beta1),
                                .rest2 = (float)(1 - a->beta2),
                                .step_size = (float)(a->lr / (1 - pow(a->beta1, (double)a->step))),
                                .unbias_v = (float)(1 / sqrt(1 - pow(a->beta2, (double)a->step))),
                                .eps = (float)a->eps,
                                .decay = (float)(a->lr * a->weight_decay)};
    struct cpu_map m = {.in = {a->p, a->m, a->v, a->g}, .out = {a->p, a->m, a->v}, .constants = &c};
    kern_stream_run(s, a->n, MAP_GRAIN, adamw_range, &m);
}

struct sumsq_args {
    int64_t n, block;
    const float *x;
    double *blocks;
};

/* A missing tail counts as zeros, so the order of a block's sum does not depend on its length. */
static double sumsq_block(const float *x, int64_t n)
{
    vd low, high, sum_low = {0}, sum_high = {0};
    int64_t i = 0;
    for (; i + VF <= n; i += VF) {
        v_widen(v_load(x + i), &low, &high);
        sum_low = v_fma_d(low, low, sum_low);
        sum_high = v_fma_d(high, high, sum_high);
    }
    v_widen(v_load_n(x + i, n - i), &low, &high);
    return v_sum_d(v_fma_d(low, low, sum_low) + v_fma_d(high, high, sum_high));
}

static void sumsq_range(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct sumsq_args *a = arg;
    for (int64_t i = lo; i < hi; i += a->block)
        a->blocks[i / a->block] = sumsq_block(a->x + i, hi - i < a->block ? hi - i : a->block);
}

void KERN_FN(sumsq_blocks)(struct kern_stream *s, int64_t n, int64_t block, const void *x, double *blocks)
{
    struct sumsq_args a = {n, block, x, blocks};
    kern_stream_run(s, n, block, sumsq_range, &a);
}

static double sum_of(int64_t n, const double *x)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* Only a thousandth of the gradient's numbers is left to add here, which is not worth a second thread. */
void KERN_FN(clip)(struct kern_stream *s, const struct kern_clip *c)
{
    double norm = sqrt(sum_of(c->n_blocks, c->blocks)), losses = sum_of(c->n_losses, c->losses);
    bool whole = isfinite(norm) && isfinite(losses);
    *c->norm = norm;
    *c->factor = !whole ? NAN : c->limit > 0 && norm > c->limit ? c->limit / norm : 1;
}

static ALWAYS_INLINE void cast_lanes(const void *constants, const vf in[], vf out[])
{
    out[0] = in[0];
}

MAP_RANGE(cast_range, 1, 1, WIDE, ELEM, cast_lanes)

void KERN_FN(cast)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    struct cpu_map m = {.in = {x}, .out = {y}};
    kern_stream_run(s, n, MAP_GRAIN, cast_range, &m);
}
