/* Attention, the long way: the whole matrix of weights of one head, in double, row by row.
 *
 * With p = softmax(s), s = scale q k^T, the gradient of s is p (dp - rowsum(p dp)), dp = do v^T. The forward's lse is
 * not trusted to be more exact than its type: the backward computes the weights again. */
#include "kernels/ref/ref.h"
#include "kernels/stream.h"

#include <assert.h>
#include <math.h>

/* One head of one sample: rows of the matrices as this head sees them. */
struct head {
    const struct kern_attention *a;
    const real *q, *k, *v, *o;
    int64_t q_at, k_at, v_at, o_at; /* element offsets, for the gradients' matrices too */
};

static struct head head_of(const struct kern_attention *a, int64_t sample, int64_t h)
{
    int64_t kv = h / (a->heads / a->kv_heads), row = sample * a->seq;
    struct head r = {.a = a,
                     .q_at = row * a->q_stride + h * a->head_dim,
                     .k_at = row * a->k_stride + kv * a->head_dim,
                     .v_at = row * a->v_stride + kv * a->head_dim,
                     .o_at = row * a->o_stride + h * a->head_dim};
    r.q = (const real *)a->q + r.q_at;
    r.k = (const real *)a->k + r.k_at;
    r.v = (const real *)a->v + r.v_at;
    r.o = (const real *)a->o + r.o_at;
    return r;
}

static double dot(int64_t n, const real *a, const real *b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static int64_t visible_keys(const struct kern_attention *a, int64_t i)
{
    return a->causal ? i + 1 : a->seq;
}

/* p[seq] = the weights of query i, zero where masked; returns the row's log of the sum of exp. */
static double weights(const struct head *h, int64_t i, double *p)
{
    const struct kern_attention *a = h->a;
    int64_t n = visible_keys(a, i);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        p[j] = dot(a->head_dim, h->q + i * a->q_stride, h->k + j * a->k_stride) / sqrt((double)a->head_dim);
        max = p[j] > max ? p[j] : max;
    }
    for (int64_t j = 0; j < n; j++)
        sum += exp(p[j] - max);
    for (int64_t j = 0; j < a->seq; j++)
        p[j] = j < n ? exp(p[j] - max) / sum : 0;
    return max + log(sum);
}

err_t KERN_FN(attention)(struct kern_stream *s, const struct kern_attention *a)
{
    assert(a->heads % a->kv_heads == 0);
    void *scratch;
    err_t err = kern_stream_scratch(s, (size_t)a->seq * sizeof(double), &scratch);
    if (err != OK)
        return err;
    double *p = scratch;
    for (int64_t hb = 0; hb < a->batch * a->heads; hb++) {
        struct head h = head_of(a, hb / a->heads, hb % a->heads);
        for (int64_t i = 0; i < a->seq; i++) {
            ((real *)a->lse)[hb * a->seq + i] = (real)weights(&h, i, p);
            for (int64_t d = 0; d < a->head_dim; d++) {
                double sum = 0;
                for (int64_t j = 0; j < visible_keys(a, i); j++)
                    sum += p[j] * (double)h.v[j * a->v_stride + d];
                ((real *)a->o + h.o_at)[i * a->o_stride + d] = (real)sum;
            }
        }
    }
    return OK;
}

/* p and ds, [seq, seq], of one head; the scale is in ds. */
static void weights_grad(const struct head *h, const real *d_o, double *p, double *ds)
{
    const struct kern_attention *a = h->a;
    for (int64_t i = 0; i < a->seq; i++, p += a->seq, ds += a->seq) {
        double sum = 0;
        weights(h, i, p);
        for (int64_t j = 0; j < a->seq; j++) {
            ds[j] = dot(a->head_dim, d_o + i * a->o_stride, h->v + j * a->v_stride);
            sum += p[j] * ds[j];
        }
        for (int64_t j = 0; j < a->seq; j++)
            ds[j] = p[j] * (ds[j] - sum) / sqrt((double)a->head_dim);
    }
}

/* out[i, d] (= | +=) sum over j of w[i, j] x[j, d]; w is read transposed when `trans`. */
static void weighted_rows(const struct kern_attention *a, const double *w, bool trans, const real *x, int64_t x_stride,
                          bool accumulate, real *out, int64_t out_stride)
{
    for (int64_t i = 0; i < a->seq; i++)
        for (int64_t d = 0; d < a->head_dim; d++) {
            double sum = accumulate ? (double)out[i * out_stride + d] : 0;
            for (int64_t j = 0; j < a->seq; j++)
                sum += w[trans ? j * a->seq + i : i * a->seq + j] * (double)x[j * x_stride + d];
            out[i * out_stride + d] = (real)sum;
        }
}

err_t KERN_FN(attention_grad)(struct kern_stream *s, const struct kern_attention_grad *g)
{
    const struct kern_attention *a = &g->fwd;
    int64_t group = a->heads / a->kv_heads;
    void *scratch;
    err_t err = kern_stream_scratch(s, (size_t)(a->seq * a->seq) * 2 * sizeof(double), &scratch);
    if (err != OK)
        return err;
    double *p = scratch, *ds = p + a->seq * a->seq;
    for (int64_t hb = 0; hb < a->batch * a->heads; hb++) {
        struct head h = head_of(a, hb / a->heads, hb % a->heads);
        const real *d_o = (const real *)g->d_o + h.o_at;
        bool more = hb % group != 0; /* heads of a group share their keys' and values' gradients */
        weights_grad(&h, d_o, p, ds);
        weighted_rows(a, ds, false, h.k, a->k_stride, false, (real *)g->d_q + h.q_at, a->q_stride);
        weighted_rows(a, ds, true, h.q, a->q_stride, more, (real *)g->d_k + h.k_at, a->k_stride);
        weighted_rows(a, p, true, d_o, a->o_stride, more, (real *)g->d_v + h.v_at, a->v_stride);
    }
    return OK;
}
