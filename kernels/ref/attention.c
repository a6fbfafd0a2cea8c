/* Attention by definition: the whole matrix of weights of one head, in double, row by row.
 *
 * With p = exp(s - lse), s = cap(scale q k^T), the gradient of s is p (dp - rowsum(do o)), dp = do v^T, and that of
 * scale q k^T is cap' times it. o and lse belong to all keys that a query sees; this call may have only some of those
 * keys. */
#include "kernels/ref/ref.h"
#include "kernels/stream.h"

#include <assert.h>
#include <math.h>

/* One head of one sample: the matrices' rows and columns that belong to this head. */
struct head {
    const struct kern_attention *a;
    const real *q, *k, *v, *o;
    int64_t q_at, k_at, v_at, o_at; /* element offsets, also in the matrices of gradients */
    int64_t row;                    /* first query of the sample */
};

/* The number of keys of a sample. */
static int64_t keys_of(const struct kern_attention *a)
{
    return a->seq_kv ? a->seq_kv : a->seq;
}

static struct head head_of(const struct kern_attention *a, int64_t sample, int64_t h)
{
    int64_t kv = h / (a->heads / a->kv_heads), row = sample * a->seq, row_kv = sample * keys_of(a);
    struct head r = {.a = a,
                     .q_at = row * a->q_stride + h * a->head_dim,
                     .k_at = row_kv * a->k_stride + kv * a->head_dim,
                     .v_at = row_kv * a->v_stride + kv * a->head_dim,
                     .o_at = row * a->o_stride + h * a->head_dim,
                     .row = row};
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

static bool sees(const struct head *h, int64_t i, int64_t j)
{
    const struct kern_attention *a = h->a;
    const int64_t query = a->q_pos0 + i, key = a->k_pos0 + j;
    return (!a->causal || key <= query) && (!a->window || key > query - a->window) &&
           (!a->begin || key >= a->begin[h->row + i]);
}

/* cap(scale q k^T), and its derivative by scale q k^T. */
static double score(const struct head *h, int64_t i, int64_t j, double *slope)
{
    const struct kern_attention *a = h->a;
    const double s = dot(a->head_dim, h->q + i * a->q_stride, h->k + j * a->k_stride) * kern_attention_scale(a);
    const double t = a->softcap != 0 ? tanh(s / a->softcap) : 0;
    *slope = 1 - t * t;
    return a->softcap != 0 ? a->softcap * t : s;
}

/* p[keys] = the weights of query i; returns the log of the row's sum of exp. */
static double weights(const struct head *h, int64_t i, double *p)
{
    const int64_t n = keys_of(h->a);
    double max = -INFINITY, sum = 0, slope;
    for (int64_t j = 0; j < n; j++) {
        p[j] = sees(h, i, j) ? score(h, i, j, &slope) : -INFINITY;
        max = p[j] > max ? p[j] : max;
    }
    for (int64_t j = 0; j < n; j++) {
        p[j] = sees(h, i, j) ? exp(p[j] - max) : 0;
        sum += p[j];
    }
    for (int64_t j = 0; j < n && sum != 0; j++)
        p[j] /= sum;
    return sum != 0 ? max + log(sum) : -INFINITY;
}

err_t KERN_FN(attention)(struct kern_stream *s, const struct kern_attention *a)
{
    assert(a->heads % a->kv_heads == 0 && (!a->causal || (keys_of(a) == a->seq && a->q_pos0 == a->k_pos0)));
    void *scratch;
    err_t err = kern_stream_scratch(s, (size_t)keys_of(a) * sizeof(double), &scratch);
    if (err != OK)
        return err;
    double *p = scratch;
    for (int64_t hb = 0; hb < a->batch * a->heads; hb++) {
        struct head h = head_of(a, hb / a->heads, hb % a->heads);
        for (int64_t i = 0; i < a->seq; i++) {
            ((real *)a->lse)[hb * a->seq + i] = (real)weights(&h, i, p);
            for (int64_t d = 0; d < a->head_dim; d++) {
                double sum = 0;
                for (int64_t j = 0; j < keys_of(a); j++)
                    sum += p[j] != 0 ? p[j] * (double)h.v[j * a->v_stride + d] : 0; /* unseen v may be infinite */
                ((real *)a->o + h.o_at)[i * a->o_stride + d] = (real)sum;
            }
        }
    }
    return OK;
}

/* Computes p and ds, [seq, keys], of one head; ds includes the scale. */
static void weights_grad(const struct head *h, const real *lse, const real *d_o, double *p, double *ds)
{
    const struct kern_attention *a = h->a;
    for (int64_t i = 0; i < a->seq; i++, p += keys_of(a), ds += keys_of(a)) {
        double sum = dot(a->head_dim, d_o + i * a->o_stride, h->o + i * a->o_stride);
        for (int64_t j = 0; j < keys_of(a); j++) {
            double dp = dot(a->head_dim, d_o + i * a->o_stride, h->v + j * a->v_stride), slope = 0;
            p[j] = sees(h, i, j) ? exp(score(h, i, j, &slope) - (double)lse[i]) : 0;
            ds[j] = p[j] * (dp - sum) * slope * kern_attention_scale(a);
        }
    }
}

/* A matrix of weights [rows, cols], read transposed when `trans`. */
struct weight_matrix {
    const double *w;
    int64_t rows, cols;
    bool trans;
};

/* out[i, d] (= | +=) sum over j of w[i, j] x[j, d] */
static void weighted_rows(int64_t head_dim, struct weight_matrix m, const real *x, int64_t x_stride, bool accumulate,
                          real *out, int64_t out_stride)
{
    for (int64_t i = 0; i < (m.trans ? m.cols : m.rows); i++)
        for (int64_t d = 0; d < head_dim; d++) {
            double sum = accumulate ? (double)out[i * out_stride + d] : 0;
            for (int64_t j = 0; j < (m.trans ? m.rows : m.cols); j++)
                sum += m.w[m.trans ? j * m.cols + i : i * m.cols + j] * (double)x[j * x_stride + d];
            out[i * out_stride + d] = (real)sum;
        }
}

/* The gradient of one head; the heads of a group add to the same gradients of keys and values. */
static void head_grad(const struct kern_attention_grad *g, int64_t hb, double *p, double *ds)
{
    const struct kern_attention *a = &g->fwd;
    struct head h = head_of(a, hb / a->heads, hb % a->heads);
    const real *d_o = (const real *)g->d_o + h.o_at;
    struct weight_matrix by_key = {ds, a->seq, keys_of(a), false}, by_query = {ds, a->seq, keys_of(a), true};
    bool more = g->acc_kv || hb % (a->heads / a->kv_heads) != 0;
    weights_grad(&h, (const real *)a->lse + hb * a->seq, d_o, p, ds);
    weighted_rows(a->head_dim, by_key, h.k, a->k_stride, g->acc_q, (real *)g->d_q + h.q_at, a->q_stride);
    weighted_rows(a->head_dim, by_query, h.q, a->q_stride, more, (real *)g->d_k + h.k_at, a->k_stride);
    by_query.w = p;
    weighted_rows(a->head_dim, by_query, d_o, a->o_stride, more, (real *)g->d_v + h.v_at, a->v_stride);
}

err_t KERN_FN(attention_grad)(struct kern_stream *s, const struct kern_attention_grad *g)
{
    const struct kern_attention *a = &g->fwd;
    assert(a->heads % a->kv_heads == 0 && (!a->causal || (keys_of(a) == a->seq && a->q_pos0 == a->k_pos0)));
    void *scratch;
    err_t err = kern_stream_scratch(s, (size_t)(a->seq * keys_of(a)) * 2 * sizeof(double), &scratch);
    if (err != OK)
        return err;
    double *p = scratch, *ds = p + a->seq * keys_of(a);
    for (int64_t hb = 0; hb < a->batch * a->heads; hb++)
        head_grad(g, hb, p, ds);
    return OK;
}
