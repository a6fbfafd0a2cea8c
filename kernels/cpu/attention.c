/* Attention in blocks of queries and keys (after Dao 2023, FlashAttention-2): the products are oneDNN's, the softmax
 * between them is ours and never leaves the cache. Blocks above the causal diagonal are not computed.
 *
 * Forward, per block of queries: keys go by in blocks with a running largest score m and sum l; what was summed under a
 * smaller m is scaled down. lse = m + log l is all that the backward needs to make the weights again.
 * Backward: D = rowsum(do o), dp = do v^T, ds = scale p (dp - D); dq = ds k, dk = ds^T q, dv = p^T do. Query blocks go
 * downwards: the last one meets every key, so each sum over them starts there with "=" and no zeroing pass.
 * The order of all sums is fixed by the shapes. Threads share the key-value heads, which sum into no common memory. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#include <assert.h>

#define QUERIES 128 /* a multiple of it is a block of keys, so a row's first key block always has a visible key */
#define KEYS 1024
#define PITCH (KEYS + 16) /* a power of two would put a column into few cache sets */

struct block {
    int64_t q0, nq, k0, nk;
};

/* Scratch of one thread. */
struct work {
    float s[QUERIES * PITCH], dp[QUERIES * PITCH];
    float max[QUERIES], sum[QUERIES]; /* forward; backward: sum holds D */
};

struct head {
    const struct kern_attention *a;
    float scale;
    const float *q, *k, *v;
    float *o, *lse;
    const float *d_o;
    float *d_q, *d_k, *d_v;
    bool more; /* another head has summed into d_k and d_v already */
};

struct attention_args {
    const struct kern_attention *a;
    const struct kern_attention_grad *grad; /* NULL in the forward */
    struct work *work;                      /* by part */
    err_t *err;                             /* by part */
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static struct head head_of(const struct attention_args *args, int64_t sample, int64_t h)
{
    const struct kern_attention *a = args->a;
    const struct kern_attention_grad *g = args->grad;
    int64_t group = a->heads / a->kv_heads, kv = h / group, row = sample * a->seq;
    int64_t q = row * a->q_stride + h * a->head_dim, k = row * a->k_stride + kv * a->head_dim;
    int64_t v = row * a->v_stride + kv * a->head_dim, o = row * a->o_stride + h * a->head_dim;
    struct head r = {.a = a,
                     .scale = (float)(1 / sqrt((double)a->head_dim)),
                     .q = (const float *)a->q + q,
                     .k = (const float *)a->k + k,
                     .v = (const float *)a->v + v,
                     .o = (float *)a->o + o,
                     .lse = (float *)a->lse + (sample * a->heads + h) * a->seq,
                     .more = h % group != 0};
    if (g) {
        r.d_o = (const float *)g->d_o + o;
        r.d_q = (float *)g->d_q + q;
        r.d_k = (float *)g->d_k + k;
        r.d_v = (float *)g->d_v + v;
    }
    return r;
}

/* Keys of the block that row i of it sees. */
static int64_t visible(const struct head *h, const struct block *b, int64_t i)
{
    return h->a->causal ? smaller(b->nk, b->q0 + i + 1 - b->k0) : b->nk;
}

/* rows of x (query or gradient of output) times rows of y (keys or values): out[nq, nk] */
static err_t scores(const struct head *h, const struct block *b, float alpha, const float *x, int64_t x_stride,
                    const float *y, int64_t y_stride, float *out)
{
    return KERN_FN(sgemm)(false, true, b->nq, b->nk, h->a->head_dim, alpha, x + b->q0 * x_stride, x_stride,
                          y + b->k0 * y_stride, y_stride, 0, out, PITCH);
}

static float largest_of(const float *x, int64_t n)
{
    vf max = v_set(-INFINITY);
    int64_t j = 0;
    for (; j + VF <= n; j += VF)
        max = v_max(max, v_load(x + j));
    float r = v_largest(max);
    for (; j < n; j++)
        r = x[j] > r ? x[j] : r;
    return r;
}

/* x[0..n) = exp(x - shift), x[n..end) = 0; returns the sum. */
static float exp_row(float *x, int64_t n, int64_t end, float shift)
{
    vf sum = {0};
    int64_t j = 0;
    for (; j + VF <= n; j += VF) {
        vf e = v_exp(v_load(x + j) - shift);
        v_store(x + j, e);
        sum += e;
    }
    if (j < n) {
        v_store_n(x + j, v_exp(v_load_n(x + j, n - j) - shift), n - j);
        sum += v_load_n(x + j, n - j);
    }
    memset(x + n, 0, (size_t)(end - n) * sizeof(float));
    return v_sum(sum);
}

static void scale_row(float *x, int64_t n, float factor)
{
    for (int64_t j = 0; j < n; j++)
        x[j] *= factor;
}

/* Scores become weights under the running maximum; sums and outputs of earlier key blocks follow it. */
static void softmax_block(const struct head *h, const struct block *b, struct work *w)
{
    for (int64_t i = 0; i < b->nq; i++) {
        float *row = w->s + i * PITCH;
        int64_t n = visible(h, b, i);
        float max = largest_of(row, n);
        if (b->k0 == 0) {
            w->max[i] = max;
            w->sum[i] = exp_row(row, n, b->nk, max);
            continue;
        }
        max = max > w->max[i] ? max : w->max[i];
        float down = expf(w->max[i] - max);
        if (down != 1)
            scale_row(h->o + (b->q0 + i) * h->a->o_stride, h->a->head_dim, down);
        w->sum[i] = w->sum[i] * down + exp_row(row, n, b->nk, max);
        w->max[i] = max;
    }
}

static err_t forward_queries(const struct head *h, int64_t q0, struct work *w)
{
    const struct kern_attention *a = h->a;
    struct block b = {.q0 = q0, .nq = smaller(QUERIES, a->seq - q0)};
    int64_t keys = a->causal ? b.q0 + b.nq : a->seq;
    for (b.k0 = 0; b.k0 < keys; b.k0 += KEYS) {
        b.nk = smaller(KEYS, keys - b.k0);
        err_t err = scores(h, &b, h->scale, h->q, a->q_stride, h->k, a->k_stride, w->s);
        if (err != OK)
            return err;
        softmax_block(h, &b, w);
        err = KERN_FN(sgemm)(false, false, b.nq, a->head_dim, b.nk, 1, w->s, PITCH, h->v + b.k0 * a->v_stride,
                             a->v_stride, b.k0 > 0, h->o + b.q0 * a->o_stride, a->o_stride);
        if (err != OK)
            return err;
    }
    for (int64_t i = 0; i < b.nq; i++) {
        scale_row(h->o + (q0 + i) * a->o_stride, a->head_dim, 1 / w->sum[i]);
        h->lse[q0 + i] = w->max[i] + logf(w->sum[i]);
    }
    return OK;
}

static void forward_heads(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct attention_args *args = arg;
    const struct kern_attention *a = args->a;
    for (int64_t i = lo; i < hi && args->err[part] == OK; i++) {
        struct head h = head_of(args, i / a->heads, i % a->heads);
        for (int64_t q0 = 0; q0 < a->seq && args->err[part] == OK; q0 += QUERIES)
            args->err[part] = forward_queries(&h, q0, &args->work[part]);
    }
}

/* w->sum = rowsum(do o) */
static void output_dots(const struct head *h, const struct block *b, struct work *w)
{
    int64_t d = h->a->head_dim, stride = h->a->o_stride;
    for (int64_t i = 0; i < b->nq; i++) {
        const float *x = h->o + (b->q0 + i) * stride, *y = h->d_o + (b->q0 + i) * stride;
        vf sum = {0};
        int64_t j = 0;
        for (; j + VF <= d; j += VF)
            sum = v_fma(v_load(x + j), v_load(y + j), sum);
        w->sum[i] = v_sum(v_fma(v_load_n(x + j, d - j), v_load_n(y + j, d - j), sum));
    }
}

/* One row: scores become weights p, dp becomes ds. */
static void weights_grad_row(float *s, float *dp, int64_t n, int64_t end, float lse, float dot, float scale)
{
    int64_t j = 0;
    for (; j + VF <= n; j += VF) {
        vf p = v_exp(v_load(s + j) - lse);
        v_store(s + j, p);
        v_store(dp + j, p * (v_load(dp + j) - dot) * scale);
    }
    if (j < n) {
        vf p = v_exp(v_load_n(s + j, n - j) - lse);
        v_store_n(s + j, p, n - j);
        v_store_n(dp + j, p * (v_load_n(dp + j, n - j) - dot) * scale, n - j);
    }
    memset(s + n, 0, (size_t)(end - n) * sizeof(float));
    memset(dp + n, 0, (size_t)(end - n) * sizeof(float));
}

static err_t backward_block(const struct head *h, const struct block *b, struct work *w)
{
    const struct kern_attention *a = h->a;
    bool last = b->q0 + b->nq == a->seq; /* the first to be computed: starts the keys' sums, unless a head did */
    float keep = last && !h->more ? 0 : 1;
    const float *q = h->q + b->q0 * a->q_stride, *k = h->k + b->k0 * a->k_stride, *d_o = h->d_o + b->q0 * a->o_stride;
    err_t err = scores(h, b, h->scale, h->q, a->q_stride, h->k, a->k_stride, w->s);
    if (err == OK)
        err = scores(h, b, 1, h->d_o, a->o_stride, h->v, a->v_stride, w->dp);
    if (err != OK)
        return err;
    for (int64_t i = 0; i < b->nq; i++)
        weights_grad_row(w->s + i * PITCH, w->dp + i * PITCH, visible(h, b, i), b->nk, h->lse[b->q0 + i], w->sum[i],
                         h->scale);
    err = KERN_FN(sgemm)(true, false, b->nk, a->head_dim, b->nq, 1, w->s, PITCH, d_o, a->o_stride, keep,
                         h->d_v + b->k0 * a->v_stride, a->v_stride);
    if (err == OK)
        err = KERN_FN(sgemm)(true, false, b->nk, a->head_dim, b->nq, 1, w->dp, PITCH, q, a->q_stride, keep,
                             h->d_k + b->k0 * a->k_stride, a->k_stride);
    if (err == OK)
        err = KERN_FN(sgemm)(false, false, b->nq, a->head_dim, b->nk, 1, w->dp, PITCH, k, a->k_stride, b->k0 > 0,
                             h->d_q + b->q0 * a->q_stride, a->q_stride);
    return err;
}

static err_t backward_head(const struct head *h, struct work *w)
{
    const struct kern_attention *a = h->a;
    err_t err = OK;
    for (int64_t q0 = (a->seq - 1) / QUERIES * QUERIES; q0 >= 0; q0 -= QUERIES) {
        struct block b = {.q0 = q0, .nq = smaller(QUERIES, a->seq - q0)};
        int64_t keys = a->causal ? b.q0 + b.nq : a->seq;
        output_dots(h, &b, w);
        for (b.k0 = 0; b.k0 < keys && err == OK; b.k0 += KEYS) {
            b.nk = smaller(KEYS, keys - b.k0);
            err = backward_block(h, &b, w);
        }
    }
    return err;
}

static void backward_groups(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct attention_args *args = arg;
    const struct kern_attention *a = args->a;
    int64_t group = a->heads / a->kv_heads;
    for (int64_t i = lo * group; i < hi * group && args->err[part] == OK; i++) {
        struct head h = head_of(args, i / a->heads, i % a->heads);
        args->err[part] = backward_head(&h, &args->work[part]);
    }
}

static err_t attention_run(struct kern_stream *s, struct attention_args *args, int64_t n, kern_range_fn *fn)
{
    void *scratch;
    assert(args->a->heads % args->a->kv_heads == 0 && args->a->head_dim > 0);
    size_t work_bytes = (size_t)s->threads * sizeof(struct work);
    err_t err = kern_stream_scratch(s, work_bytes + (size_t)s->threads * sizeof(err_t), &scratch);
    if (err != OK)
        return err;
    args->work = scratch;
    args->err = (err_t *)((char *)scratch + work_bytes);
    for (int i = 0; i < s->threads; i++)
        args->err[i] = OK;
    kern_stream_limit(1); /* threads share heads; a product cut among them would have other bits */
    kern_stream_run(s, n, 1, fn, args);
    for (int i = 0; i < s->threads && err == OK; i++)
        err = args->err[i];
    return err;
}

err_t KERN_FN(attention)(struct kern_stream *s, const struct kern_attention *a)
{
    struct attention_args args = {.a = a};
    return attention_run(s, &args, a->batch * a->heads, forward_heads);
}

err_t KERN_FN(attention_grad)(struct kern_stream *s, const struct kern_attention_grad *g)
{
    struct attention_args args = {.a = &g->fwd, .grad = g};
    return attention_run(s, &args, g->fwd.batch * g->fwd.kv_heads, backward_groups);
}
