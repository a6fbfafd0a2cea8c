/* Attention in blocks of queries and keys (after Dao 2023, FlashAttention-2); blocks above the causal diagonal, and
 * those before the window or the document of every query of a block, are not computed.
 *
 * A block of queries visits the blocks of keys in turn and keeps a running largest score m and sum l; when m grows, the
 * earlier sums are scaled down. The backward needs only lse = m + log l to recompute the weights. Keys are packed once
 * per head as columns and values as rows, so the products stream them through the cache. The shapes fix the order of
 * every sum. Threads share the key-value heads, because no sum spans two of them. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/vmath.h"

#include <assert.h>

struct attn_head KERN_FN(attn_head)(const struct kern_attention *a, int64_t sample, int64_t head)
{
    int64_t kv = head / (a->heads / a->kv_heads), row = sample * a->seq, row_kv = sample * attn_keys(a);
    return (struct attn_head){.a = a,
                              .scale = (float)(a->softcap != 0 ? 1 : kern_attention_scale(a)),
                              .cap = (float)a->softcap,
                              .row = row,
                              .q_at = row * a->q_stride + head * a->head_dim,
                              .k_at = row_kv * a->k_stride + kv * a->head_dim,
                              .v_at = row_kv * a->v_stride + kv * a->head_dim,
                              .o_at = row * a->o_stride + head * a->head_dim,
                              .lse = (float *)a->lse + (sample * a->heads + head) * a->seq};
}

/* The key at which query i's window or document begins; below 0: it is before the keys of this call. */
static int64_t first_key(const struct attn_head *h, int64_t i)
{
    const struct kern_attention *a = h->a;
    int64_t first = a->k_pos0;
    if (a->window)
        first = attn_max(first, a->q_pos0 + i - a->window + 1);
    if (a->begin)
        first = attn_max(first, a->begin[h->row + i]);
    return first - a->k_pos0;
}

struct attn_block KERN_FN(attn_begin)(const struct attn_head *h, int64_t q0, struct attn_work *w)
{
    struct attn_block b = {.q0 = q0, .nq = attn_min(ATTN_QUERIES, h->a->seq - q0), .from = w->from};
    for (int64_t i = 0; i < b.nq; i++)
        w->from[i] = first_key(h, q0 + i);
    b.k0 = w->from[0] / ATTN_START * ATTN_START;
    if (w->from[0] >= attn_keys_until(h->a, q0 + b.nq)) {
        b.k0 = w->from[0];
        memset(w->out, 0, (size_t)(b.nq * w->padded) * sizeof(float));
    }
    return b;
}

/* s[0..n) = cap tanh(scale s / cap); dp[0..n), unless NULL, = scale (1 - tanh^2) (dp - dot). */
static void cap_row(const struct attn_head *h, int64_t n, float *s, float *dp, float dot)
{
    const float scale = (float)kern_attention_scale(h->a);
    const vf in = v_set(scale / h->cap), cap = v_set(h->cap);
    for (int64_t j = 0; j < n; j += VF) { /* rows have room for whole vectors */
        vf t = v_tanh(v_load(s + j) * in);
        v_store(s + j, t * cap);
        if (dp)
            v_store(dp + j, (v_load(dp + j) - v_set(dot)) * (1.0f - t * t) * v_set(scale));
    }
}

bool KERN_FN(attn_mask_row)(const struct attn_head *h, const struct attn_block *b, int64_t i, float *s, float *dp,
                            float dot)
{
    const int64_t strip = attn_strip(b, i), first = attn_first(b, i), n = attn_visible(h->a, b, i);
    const int64_t before = attn_min(strip, TILE_ROWS);
    memset(s + strip - before, 0, (size_t)before * sizeof(float));
    if (dp)
        memset(dp + strip - before, 0, (size_t)before * sizeof(float));
    if (first >= n) {
        memset(s + strip, 0, (size_t)(n - strip + TILE_ROWS) * sizeof(float));
        if (dp)
            memset(dp + strip, 0, (size_t)(n - strip + TILE_ROWS) * sizeof(float));
        return false;
    }
    if (h->cap != 0)
        cap_row(h, n - strip, s + strip, dp ? dp + strip : NULL, dot);
    for (int64_t j = strip; j < first; j++)
        s[j] = -INFINITY;
    return true;
}

void KERN_FN(attn_scores)(const struct kern_attention *a, const struct attn_block *b, const float *x, int64_t x_stride,
                          const float *columns, float *out)
{
    for (int64_t p = 0; p < b->nk; p += PANEL)
        for (int64_t i = 0; i < b->nq; i += TILE_ROWS) {
            int64_t rows = attn_min(TILE_ROWS, b->nq - i), keys = attn_visible(a, b, i + rows - 1) - p;
            if (keys <= 0 || p + PANEL <= attn_strip(b, i))
                continue;
            int64_t vectors = attn_min(TILE_VECTORS, (keys + VF - 1) / VF);
            KERN_FN(tile)
            ((int)rows, (int)vectors, a->head_dim, x + i * x_stride, x_stride, 1, columns + (b->k0 + p) * a->head_dim,
             PANEL, out + i * ATTN_PITCH + p, ATTN_PITCH, false);
        }
}

void KERN_FN(attn_weighted)(const struct kern_attention *a, const struct attn_block *b, const float *w,
                            const float *rows, int64_t padded, float *out)
{
    for (int64_t i = 0; i < b->nq; i += TILE_ROWS) {
        int64_t strip = attn_min(TILE_ROWS, b->nq - i), from = attn_strip(b, i);
        KERN_FN(tile_block)
        (strip, padded / VF, attn_visible(a, b, i + strip - 1) - from, w + i * ATTN_PITCH + from, ATTN_PITCH, 1,
         rows + (b->k0 + from) * padded, padded, out + i * padded, padded, b->more);
    }
}

_Static_assert(ATTN_QUERIES % TILE_ROWS == 0 && ATTN_START % PANEL == 0 && ATTN_START % ATTN_QUERIES == 0 &&
                   ATTN_KEYS % ATTN_START == 0,
               "blocks fit");

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

/* x[0..n) = exp(scale x - shift); returns the sum. */
static float exp_row(float *x, int64_t n, float scale, float shift)
{
    vf sum = {0}, s = v_set(scale), t = v_set(-shift);
    int64_t j = 0;
    for (; j + VF <= n; j += VF) {
        vf e = v_exp(v_fma(v_load(x + j), s, t));
        v_store(x + j, e);
        sum += e;
    }
    if (j < n) {
        v_store_n(x + j, v_exp(v_fma(v_load_n(x + j, n - j), s, t)), n - j);
        sum += v_load_n(x + j, n - j);
    }
    memset(x + n, 0, TILE_ROWS * sizeof(float));
    return v_sum(sum);
}

static void scale_row(float *x, int64_t n, float factor)
{
    for (int64_t j = 0; j < n; j++)
        x[j] *= factor;
}

static void give_scaled(int64_t n, const float *restrict from, float factor, elem *restrict to)
{
    for (int64_t j = 0; j < n; j += VF)
        e_store_part(to, j, n, v_load_part(from, j, n) * factor);
}

/* Replaces scores by weights relative to the running maximum, and rescales the sums and outputs of earlier blocks of
 * keys. */
static void softmax_block(const struct attn_head *h, const struct attn_block *b, struct attn_work *w)
{
    for (int64_t i = 0; i < b->nq; i++) {
        int64_t strip = attn_strip(b, i), n = attn_visible(h->a, b, i) - strip;
        if (!KERN_FN(attn_mask_row)(h, b, i, w->s + i * ATTN_PITCH, NULL, 0)) {
            w->max[i] = b->more ? w->max[i] : -INFINITY;
            w->sum[i] = b->more ? w->sum[i] : 0;
            continue;
        }
        float *row = w->s + i * ATTN_PITCH + strip;
        float max = largest_of(row, n) * h->scale;
        if (!b->more) {
            w->max[i] = max;
            w->sum[i] = exp_row(row, n, h->scale, max);
            continue;
        }
        max = max > w->max[i] ? max : w->max[i];
        float down = expf(w->max[i] - max);
        if (down != 1)
            scale_row(w->out + i * w->padded, w->padded, down);
        w->sum[i] = w->sum[i] * down + exp_row(row, n, h->scale, max);
        w->max[i] = max;
    }
}

static void forward_queries(const struct attn_head *h, int64_t q0, struct attn_work *w)
{
    const struct kern_attention *a = h->a;
    struct attn_block b = KERN_FN(attn_begin)(h, q0, w);
    int64_t keys = attn_keys_until(a, b.q0 + b.nq);
    elem *o = (elem *)a->o + h->o_at + q0 * a->o_stride;
    const elem *q = (const elem *)a->q + h->q_at + q0 * a->q_stride;
    const bool in_place = KERN_CPU_BITS == 32;
    if (!in_place)
        KERN_FN(tile_pack_rows)(b.nq, a->head_dim, w->padded, q, a->q_stride, w->q);
    for (int64_t i = 0; i < b.nq && b.k0 >= keys; i++) {
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
    }
    for (; b.k0 < keys; b.k0 += ATTN_KEYS, b.more = true) {
        b.nk = attn_min(ATTN_KEYS, keys - b.k0);
        KERN_FN(attn_scores)
        (a, &b, in_place ? (const float *)q : w->q, in_place ? a->q_stride : w->padded, w->k_columns, w->s);
        softmax_block(h, &b, w);
        KERN_FN(attn_weighted)(a, &b, w->s, w->v_rows, w->padded, w->out);
    }
    for (int64_t i = 0; i < b.nq; i++) {
        tile_expect_row(o + (i + TILE_AHEAD) * a->o_stride, a->head_dim, 1);
        give_scaled(a->head_dim, w->out + i * w->padded, w->sum[i] != 0 ? 1 / w->sum[i] : 0, o + i * a->o_stride);
        h->lse[q0 + i] = w->max[i] + logf(w->sum[i]);
    }
}

static void forward_group(const struct attn_job *job, int64_t sample, int64_t kv, struct attn_work *w)
{
    const struct kern_attention *a = job->a;
    int64_t group = a->heads / a->kv_heads;
    struct attn_head h = KERN_FN(attn_head)(a, sample, kv * group);
    KERN_FN(tile_pack_transposed)(attn_keys(a), a->head_dim, (const elem *)a->k + h.k_at, a->k_stride, w->k_columns);
    KERN_FN(tile_pack_rows)(attn_keys(a), a->head_dim, w->padded, (const elem *)a->v + h.v_at, a->v_stride, w->v_rows);
    for (int64_t i = 0; i < group; i++) {
        h = KERN_FN(attn_head)(a, sample, kv * group + i);
        for (int64_t q0 = 0; q0 < a->seq; q0 += ATTN_QUERIES)
            forward_queries(&h, q0, w);
    }
}

/* ---- scratch and threads ---- */

/* Allocates arrays of floats from `at` on; with NULL it only counts the bytes. */
struct carver {
    char *at;
    size_t bytes;
};

static float *carve(struct carver *c, int64_t floats)
{
    char *p = c->at ? c->at + c->bytes : NULL;
    c->bytes += ((size_t)floats * sizeof(float) + 63) / 64 * 64;
    return (float *)p;
}

static size_t work_layout(const struct kern_attention *a, bool grad, char *at, struct attn_work *w)
{
    struct carver c = {.at = at};
    int64_t padded = (a->head_dim + VF - 1) / VF * VF, rows = attn_keys(a) * padded;
    int64_t columns = (attn_keys(a) + PANEL - 1) / PANEL * PANEL * a->head_dim, scores = ATTN_QUERIES * ATTN_PITCH;
    *w = (struct attn_work){.padded = padded};
    w->s = carve(&c, scores);
    w->from = (int64_t *)(void *)carve(&c, 2 * ATTN_QUERIES);
    w->max = carve(&c, ATTN_QUERIES);
    w->sum = carve(&c, ATTN_QUERIES);
    w->out = carve(&c, ATTN_QUERIES * padded);
    w->q = carve(&c, ATTN_QUERIES * padded);
    w->k_columns = carve(&c, columns);
    if (!grad) {
        w->v_rows = carve(&c, rows);
        return c.bytes;
    }
    w->dp = carve(&c, scores);
    w->d_o = carve(&c, ATTN_QUERIES * padded);
    w->v_columns = carve(&c, columns);
    w->k_rows = carve(&c, rows);
    w->dk_rows = carve(&c, rows);
    w->dv_rows = carve(&c, rows);
    return c.bytes;
}

static void run_groups(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct attn_job *job = arg;
    struct attn_work w;
    work_layout(job->a, job->grad != NULL, job->scratch + (size_t)part * job->part_bytes, &w);
    for (int64_t i = lo; i < hi; i++)
        job->fn(job, i / job->a->kv_heads, i % job->a->kv_heads, &w);
}

err_t KERN_FN(attn_run)(struct kern_stream *s, struct attn_job *job)
{
    void *scratch;
    struct attn_work w;
    assert(job->a->kv_heads > 0 && job->a->heads % job->a->kv_heads == 0 && job->a->head_dim > 0);
    assert(!job->a->causal || (attn_keys(job->a) == job->a->seq && job->a->q_pos0 == job->a->k_pos0));
    job->part_bytes = work_layout(job->a, job->grad != NULL, NULL, &w);
    err_t err = kern_stream_scratch(s, (size_t)kern_stream_threads(s) * job->part_bytes, &scratch);
    if (err != OK)
        return err;
    job->scratch = scratch;
    kern_stream_run(s, job->a->batch * job->a->kv_heads, 1, run_groups, job);
    return OK;
}

err_t KERN_FN(attention)(struct kern_stream *s, const struct kern_attention *a)
{
    struct attn_job job = {.a = a, .fn = forward_group};
    return KERN_FN(attn_run)(s, &job);
}
