/* Attention of few queries over many keys. A query of one head reads the keys, and then the values, once and in the
 * order of the tokens; nothing is packed, since each is used by few queries. Threads share the pairs of query and head.
 * The order of every sum depends on the number of visible tokens alone. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#include <assert.h>

#define COLUMNS 4 /* vectors of a value that are summed at a time, in registers */
#define KEYS 4    /* keys whose scores are computed at a time, so that their sums overlap */

struct cached_job {
    const struct kern_attention_cached *a;
    float scale;
    char *scratch; /* of all threads */
    size_t part_bytes;
};

/* score[0..n) = the products of q with n <= KEYS keys; n is a constant where this is inlined. */
static ALWAYS_INLINE void key_scores(const int n, int64_t head_dim, const elem *q, const elem *k, int64_t stride,
                                     float *score)
{
    vf sum[KEYS];
    for (int i = 0; i < n; i++)
        sum[i] = (vf){0};
    for (int64_t d = 0; d < head_dim; d += VF) {
        const vf x = e_load_part(q, d, head_dim);
        for (int i = 0; i < n; i++)
            sum[i] = v_fma(x, e_load_part(k + i * stride, d, head_dim), sum[i]);
    }
    for (int i = 0; i < n; i++)
        score[i] = v_sum(sum[i]);
}

static void scores(const struct cached_job *job, const elem *q, const elem *k, int64_t n, float *score)
{
    const struct kern_attention_cached *a = job->a;
    int64_t j = 0;
    for (; j + KEYS <= n; j += KEYS)
        key_scores(KEYS, a->head_dim, q, k + j * a->k_stride, a->k_stride, score + j);
    for (; j < n; j++)
        key_scores(1, a->head_dim, q, k + j * a->k_stride, a->k_stride, score + j);
    for (j = 0; j < n; j++)
        score[j] *= job->scale;
    for (j = 0; j < n && a->softcap > 0; j++)
        score[j] = (float)a->softcap * tanhf(score[j] / (float)a->softcap);
}

/* Replaces scores by their exponentials relative to the largest; returns the sum of these. */
static float weights(int64_t n, float *score)
{
    vf max = v_set(-INFINITY), sum = {0};
    int64_t j = 0;
    for (; j + VF <= n; j += VF)
        max = v_max(max, v_load(score + j));
    float largest = v_largest(max);
    for (; j < n; j++)
        largest = score[j] > largest ? score[j] : largest;
    for (j = 0; j < n; j += VF) {
        const int64_t lanes = n - j < VF ? n - j : VF;
        v_store_n(score + j, v_exp(v_load_n(score + j, lanes) - v_set(largest)), lanes);
        sum += v_load_n(score + j, lanes);
    }
    return v_sum(sum);
}

/* o = factor times the sum of n values by their weights. */
static void weighted(const struct kern_attention_cached *a, const float *w, const elem *v, int64_t n, float factor,
                     elem *o)
{
    for (int64_t d = 0; d < a->head_dim; d += COLUMNS * VF) {
        const int64_t left = a->head_dim - d;
        vf sum[COLUMNS] = {{0}};
        if (left >= COLUMNS * VF)
            for (int64_t j = 0; j < n; j++)
                for (int c = 0; c < COLUMNS; c++)
                    sum[c] = v_fma(v_set(w[j]), e_load(v + j * a->v_stride + d + c * VF), sum[c]);
        else
            for (int64_t j = 0; j < n; j++)
                for (int c = 0; c < COLUMNS && c * VF < left; c++)
                    sum[c] = v_fma(v_set(w[j]), e_load_part(v + j * a->v_stride + d, c * VF, left), sum[c]);
        for (int c = 0; c < COLUMNS && c * VF < left; c++)
            e_store_part(o + d, c * VF, left, sum[c] * factor);
    }
}

static void attend(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct cached_job *job = arg;
    const struct kern_attention_cached *a = job->a;
    float *score = (float *)(void *)(job->scratch + (size_t)part * job->part_bytes);
    for (int64_t at = lo; at < hi; at++) {
        const int64_t i = at / a->heads, head = at % a->heads, kv = head / (a->heads / a->kv_heads);
        const int64_t end = a->pos0 + i + 1, first = a->window > 0 && end > a->window ? end - a->window : 0;
        const elem *q = (const elem *)a->q + i * a->q_stride + head * a->head_dim;
        const elem *k = (const elem *)a->k + first * a->k_stride + kv * a->head_dim;
        const elem *v = (const elem *)a->v + first * a->v_stride + kv * a->head_dim;
        scores(job, q, k, end - first, score);
        const float sum = weights(end - first, score);
        weighted(a, score, v, end - first, 1 / sum, (elem *)a->o + i * a->o_stride + head * a->head_dim);
    }
}

err_t KERN_FN(attention_cached)(struct kern_stream *s, const struct kern_attention_cached *a)
{
    struct cached_job job = {.a = a, .scale = (float)(a->scale > 0 ? a->scale : 1 / sqrt((double)a->head_dim))};
    void *scratch;
    assert(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->head_dim > 0 && a->pos0 >= 0);
    job.part_bytes = ((size_t)(a->pos0 + a->n) * sizeof(float) + 63) / 64 * 64;
    err_t err = kern_stream_scratch(s, (size_t)kern_stream_threads(s) * job.part_bytes, &scratch);
    if (err != OK)
        return err;
    job.scratch = scratch;
    kern_stream_run(s, a->n * a->heads, 1, attend, &job);
    return OK;
}
