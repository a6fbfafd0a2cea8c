/* Frequencies of rotary positions. All ways to stretch positions change the frequencies once, before the training, and
 * one of them the size of what rotates, so no kernel knows them. They follow modeling_rope_utils.py of transformers:
 *
 *   default   f = theta^(-2 i / columns)
 *   linear    f / s
 *   llama3    by the wavelength w = 2 pi / f: f below original / high, f / s above original / low, a mixture between
 *   dynamic   default up to `original` positions; longer sequences are refused (job_rules.c)
 *   yarn      by the index i: f below the pair that turns `fast` times within `original` positions, f / s above that
 *             which turns `slow` times, a mixture between (Peng et al. 2023)
 *   longrope  f / short_i, or f / long_i for sequences above `original` (Ding et al. 2024). transformers chooses by the
 *             longest sequence of each forward, dtd by train.seq */
#include "common/plan/models/models.h"

#include <math.h>
#include <stdlib.h>

static double llama3(const struct job_model *m, double f)
{
    const double turns = (double)m->rope_original * f / (2 * M_PI); /* within the original positions */
    if (turns > m->rope_high)
        return f;
    if (turns < m->rope_low)
        return f / m->rope_factor;
    const double t = (turns - m->rope_low) / (m->rope_high - m->rope_low);
    return (1 - t) * f / m->rope_factor + t * f;
}

/* The index of the pair that turns so many times within the original positions. */
static double yarn_index(const struct job_model *m, int64_t pairs, double turns)
{
    return (double)pairs * log((double)m->rope_original / (2 * M_PI * turns)) / log(m->rope_theta);
}

static double yarn(const struct job_model *m, int64_t pairs, int64_t i, double f)
{
    double lo = yarn_index(m, pairs, m->rope_fast), hi = yarn_index(m, pairs, m->rope_slow);
    lo = m->rope_exact ? lo : floor(lo);
    hi = m->rope_exact ? hi : ceil(hi);
    lo = lo > 0 ? lo : 0;
    hi = hi < (double)(2 * pairs - 1) ? hi : (double)(2 * pairs - 1);
    hi += hi == lo ? 0.001 : 0;
    double stretched = ((double)i - lo) / (hi - lo);
    stretched = stretched < 0 ? 0 : stretched > 1 ? 1 : stretched;
    return f / m->rope_factor * stretched + f * (1 - stretched);
}

static double magnitude(double factor, double scale)
{
    return factor > 1 ? 0.1 * scale * log(factor) + 1 : 1;
}

static double yarn_factor(const struct job_model *m)
{
    if (m->rope_attention > 0)
        return m->rope_attention;
    if (m->rope_mscale > 0 && m->rope_mscale_all > 0)
        return magnitude(m->rope_factor, m->rope_mscale) / magnitude(m->rope_factor, m->rope_mscale_all);
    return magnitude(m->rope_factor, 1);
}

static double longrope_factor(const struct job_model *m)
{
    if (m->rope_attention > 0)
        return m->rope_attention;
    return m->rope_factor > 1 ? sqrt(1 + log(m->rope_factor) / log((double)m->rope_original)) : 1;
}

/* The divisor of pair i. Where there are fewer than pairs, graph_build has refused the model. */
static double longrope_divisor(const struct job_model *m, int64_t seq, int64_t i)
{
    const bool is_long = seq > m->rope_original;
    const int n = is_long ? m->n_rope_long : m->n_rope_short;
    return i < n ? strtod((is_long ? m->rope_long : m->rope_short)[i], NULL) : 1;
}

static double frequency(const struct graph_builder *b, const struct job_model *m, int64_t pairs, int64_t i)
{
    const double f = pow(m->rope_theta, -(double)(2 * i) / (double)(2 * pairs));
    switch (m->rope_type) {
    case ROPE_LINEAR:
        return f / m->rope_factor;
    case ROPE_LLAMA3:
        return llama3(m, f);
    case ROPE_YARN:
        return yarn(m, pairs, i, f);
    case ROPE_LONGROPE:
        return f / longrope_divisor(m, b->seq, i);
    default:
        return f;
    }
}

static void rope_fill(struct graph_builder *b, const struct job_model *m, struct graph_rope *r)
{
    const double part = m->rope_part > 0 ? m->rope_part : 1;
    r->pairs = (int64_t)((double)job_head_dim(m) * part) / 2;
    r->factor = m->rope_type == ROPE_YARN ? yarn_factor(m) : m->rope_type == ROPE_LONGROPE ? longrope_factor(m) : 1;
    r->frequency = calloc((size_t)r->pairs + 1, sizeof(*r->frequency));
    if (!r->frequency) {
        b->err = b->err ? b->err : ERR_NOMEM;
        return;
    }
    for (int64_t i = 0; i < r->pairs; i++)
        r->frequency[i] = frequency(b, m, r->pairs, i);
}

void graph_set_rope(struct graph_builder *b, const struct job_model *m)
{
    struct job_model local = *m;
    rope_fill(b, m, &b->g->ropes[0]);
    if (!(m->rope_local_theta > 0))
        return;
    local.rope_type = ROPE_DEFAULT;
    local.rope_theta = m->rope_local_theta;
    rope_fill(b, &local, &b->g->ropes[1]);
}
