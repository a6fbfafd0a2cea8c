/* Attention over cached keys by definition: the weights of one query, then its sum of values, in double. */
#include "kernels/ref/ref.h"
#include "kernels/stream.h"

#include <assert.h>
#include <math.h>

/* p[j - first] = the weight of token j for the token at `pos`, j from `first` to pos. */
static void weights(const struct kern_attention_cached *a, const real *q, const real *k, int64_t first, int64_t pos,
                    double *p)
{
    const double scale = a->scale > 0 ? a->scale : 1 / sqrt((double)a->head_dim);
    double max = -INFINITY, sum = 0;
    for (int64_t j = first; j <= pos; j++) {
        double score = 0;
        for (int64_t d = 0; d < a->head_dim; d++)
            score += (double)q[d] * (double)k[j * a->k_stride + d];
        score *= scale;
        p[j - first] = a->softcap > 0 ? a->softcap * tanh(score / a->softcap) : score;
        max = fmax(max, p[j - first]);
    }
    for (int64_t j = first; j <= pos; j++)
        sum += p[j - first] = exp(p[j - first] - max);
    for (int64_t j = first; j <= pos; j++)
        p[j - first] /= sum;
}

static void attend(const struct kern_attention_cached *a, int64_t i, int64_t head, double *p)
{
    const int64_t kv = head / (a->heads / a->kv_heads), pos = a->pos0 + i;
    const int64_t first = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    const real *v = (const real *)a->v + kv * a->head_dim;
    real *o = (real *)a->o + i * a->o_stride + head * a->head_dim;
    weights(a, (const real *)a->q + i * a->q_stride + head * a->head_dim, (const real *)a->k + kv * a->head_dim, first,
            pos, p);
    for (int64_t d = 0; d < a->head_dim; d++) {
        double sum = 0;
        for (int64_t j = first; j <= pos; j++)
            sum += p[j - first] * (double)v[j * a->v_stride + d];
        o[d] = (real)sum;
    }
}

err_t KERN_FN(attention_cached)(struct kern_stream *s, const struct kern_attention_cached *a)
{
    void *p;
    assert(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->pos0 >= 0);
    err_t err = kern_stream_scratch(s, (size_t)(a->pos0 + a->n) * sizeof(double), &p);
    if (err != OK)
        return err;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t head = 0; head < a->heads; head++)
            attend(a, i, head, p);
    return OK;
}
