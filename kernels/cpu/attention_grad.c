/* The gradient of attention, in the blocks of attention.c. o and lse belong to all keys; this call may have only some
 * of them.
 *
 * With D = rowsum(do o): p = exp(scale s - lse), dp = do v^T, ds = scale p (dp - D); dq = ds k, dk = ds^T q, dv = p^T
 * do. Gradients of keys and values are summed in scratch memory over the queries and heads of a group, then written
 * once. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/vmath.h"

/* Computes w->sum = rowsum(do o) and copies q and do to padded rows. */
static void take_queries(const struct attn_job *job, const struct attn_head *h, const struct attn_block *b,
                         struct attn_work *w)
{
    const struct kern_attention *a = h->a;
    const elem *o = (const elem *)a->o + h->o_at + b->q0 * a->o_stride;
    KERN_FN(tile_pack_rows)
    (b->nq, a->head_dim, w->padded, (const elem *)a->q + h->q_at + b->q0 * a->q_stride, a->q_stride, w->q);
    KERN_FN(tile_pack_rows)
    (b->nq, a->head_dim, w->padded, (const elem *)job->grad->d_o + h->o_at + b->q0 * a->o_stride, a->o_stride, w->d_o);
    for (int64_t i = 0; i < b->nq; i++) {
        vf sum = {0};
        for (int64_t j = 0; j < a->head_dim; j += VF) {
            const elem *row = o + i * a->o_stride;
            __builtin_prefetch(row + j + TILE_AHEAD * a->o_stride);
            vf x = e_load_part(row, j, a->head_dim);
            sum = v_fma(x, v_load(w->d_o + i * w->padded + j), sum);
        }
        w->sum[i] = v_sum(sum);
    }
}

/* One row: replaces the scores by weights p, and dp by ds. */
static void weights_grad_row(float *s, float *dp, int64_t n, float scale, float lse, float dot)
{
    vf k = v_set(scale), t = v_set(-lse), shift = v_set(-scale * dot);
    int64_t j = 0;
    for (; j + VF <= n; j += VF) {
        vf p = v_exp(v_fma(v_load(s + j), k, t));
        v_store(s + j, p);
        v_store(dp + j, p * v_fma(v_load(dp + j), k, shift));
    }
    if (j < n) {
        vf p = v_exp(v_fma(v_load_n(s + j, n - j), k, t));
        v_store_n(s + j, p, n - j);
        v_store_n(dp + j, p * v_fma(v_load_n(dp + j, n - j), k, shift), n - j);
    }
    memset(s + n, 0, TILE_ROWS * sizeof(float));
    memset(dp + n, 0, TILE_ROWS * sizeof(float));
}

/* Adds to sums of keys or values: out[nk, padded] += w^T rows, of the rows that see a key of a strip. */
static void add_transposed(const struct kern_attention *a, const struct attn_block *b, const float *w,
                           const float *rows, int64_t padded, float *out)
{
    for (int64_t j = 0; j < b->nk; j += TILE_ROWS) {
        int64_t strip = attn_min(TILE_ROWS, b->nk - j), first = attn_max(a->causal ? b->k0 + j - b->q0 : 0, 0);
        int64_t end = b->nq;
        while (end > first && b->from[end - 1] >= b->k0 + j + strip)
            end--;
        if (end == first)
            continue;
        KERN_FN(tile_block)
        (strip, padded / VF, end - first, w + first * ATTN_PITCH + j, 1, ATTN_PITCH, rows + first * padded, padded,
         out + (b->k0 + j) * padded, padded, true);
    }
}

static void backward_block(const struct attn_head *h, const struct attn_block *b, struct attn_work *w)
{
    const struct kern_attention *a = h->a;
    KERN_FN(attn_scores)(a, b, w->q, w->padded, w->k_columns, w->s);
    KERN_FN(attn_scores)(a, b, w->d_o, w->padded, w->v_columns, w->dp);
    for (int64_t i = 0; i < b->nq; i++) {
        float *s = w->s + i * ATTN_PITCH, *dp = w->dp + i * ATTN_PITCH;
        int64_t strip = attn_strip(b, i);
        if (KERN_FN(attn_mask_row)(h, b, i, s, dp, w->sum[i]))
            weights_grad_row(s + strip, dp + strip, attn_visible(a, b, i) - strip, h->scale, h->lse[b->q0 + i],
                             h->cap != 0 ? 0 : w->sum[i]);
    }
    add_transposed(a, b, w->s, w->d_o, w->padded, w->dv_rows);
    add_transposed(a, b, w->dp, w->q, w->padded, w->dk_rows);
    KERN_FN(attn_weighted)(a, b, w->dp, w->k_rows, w->padded, w->out);
}

static void give_rows(int64_t n, int64_t width, bool add, const float *from, int64_t padded, elem *to, int64_t stride)
{
    for (int64_t i = 0; i < n; i++, from += padded, to += stride) {
        tile_expect_row(to + TILE_AHEAD * stride, width, 1);
        for (int64_t j = 0; j < width; j += VF) {
            vf x = v_load_part(from, j, width);
            e_store_part(to, j, width, add ? e_load_part(to, j, width) + x : x);
        }
    }
}

static void backward_head(const struct attn_job *job, const struct attn_head *h, struct attn_work *w)
{
    const struct kern_attention *a = h->a;
    for (int64_t q0 = 0; q0 < a->seq; q0 += ATTN_QUERIES) {
        struct attn_block b = KERN_FN(attn_begin)(h, q0, w);
        int64_t keys = attn_keys_until(a, b.q0 + b.nq);
        take_queries(job, h, &b, w);
        for (; b.k0 < keys; b.k0 += ATTN_KEYS, b.more = true) {
            b.nk = attn_min(ATTN_KEYS, keys - b.k0);
            backward_block(h, &b, w);
        }
        give_rows(b.nq, a->head_dim, job->grad->acc_q, w->out, w->padded,
                  (elem *)job->grad->d_q + h->q_at + q0 * a->q_stride, a->q_stride);
    }
}

static void backward_group(const struct attn_job *job, int64_t sample, int64_t kv, struct attn_work *w)
{
    const struct kern_attention *a = job->a;
    const struct kern_attention_grad *g = job->grad;
    int64_t group = a->heads / a->kv_heads, keys = attn_keys(a);
    size_t bytes = (size_t)(keys * w->padded) * sizeof(float);
    struct attn_head h = KERN_FN(attn_head)(a, sample, kv * group);
    KERN_FN(tile_pack_transposed)(keys, a->head_dim, (const elem *)a->k + h.k_at, a->k_stride, w->k_columns);
    KERN_FN(tile_pack_transposed)(keys, a->head_dim, (const elem *)a->v + h.v_at, a->v_stride, w->v_columns);
    KERN_FN(tile_pack_rows)(keys, a->head_dim, w->padded, (const elem *)a->k + h.k_at, a->k_stride, w->k_rows);
    memset(w->dk_rows, 0, bytes);
    memset(w->dv_rows, 0, bytes);
    for (int64_t i = 0; i < group; i++) {
        h = KERN_FN(attn_head)(a, sample, kv * group + i);
        backward_head(job, &h, w);
    }
    give_rows(keys, a->head_dim, g->acc_kv, w->dk_rows, w->padded, (elem *)g->d_k + h.k_at, a->k_stride);
    give_rows(keys, a->head_dim, g->acc_kv, w->dv_rows, w->padded, (elem *)g->d_v + h.v_at, a->v_stride);
}

err_t KERN_FN(attention_grad)(struct kern_stream *s, const struct kern_attention_grad *g)
{
    struct attn_job job = {.a = &g->fwd, .grad = g, .fn = backward_group};
    return KERN_FN(attn_run)(s, &job);
}
