/* Llama: pre-norm with RMSNorm, rotary positions on neighbouring pairs, grouped-query attention, SwiGLU, no biases
 * (Touvron et al. 2023; Llama 2 and 3). Names are torchtitan's, so that its checkpoints open here and ours there. Keys
 * of the job file change its parts to those of its relatives (docs/use/models.md): biases, heads of another width,
 * norms of queries and keys, LayerNorm, norms behind the branches, branches in parallel, a plain feed-forward, factors.
 *
 *   norm_place before    x + f(norm(x))        after    x + norm(f(x))        both    x + norm(f(norm(x)))
 *   branches parallel    x + attention(norm(x)) + feed_forward(norm(x))
 *
 * Initialisation is torchtitan's, torchtitan/models/llama3/model/model.py with depth_init: wq, wk, wv and w1 normal
 * 0.02; wo, w2 and w3 normal 0.02 / sqrt(2 (layer + 1)), layers counted from 0; the embedding normal 1; the head normal
 * 1 / sqrt(dim). It cuts the head's at 3 standard deviations, 0.27 % of the values, and the others' at 2, a hundred of
 * theirs; we cut nothing. A tied table is read by the head, so it starts as the head does.
 *
 * With model.experts, layers have a mixture of experts in place of the feed-forward (names and initialisation are
 * torchtitan's too). The weights of all experts are one tensor, one matrix below the other:
 *
 *   x -> router -> route -> ids, weights [-> drop -> ids]
 *   x, ids -> dispatch -> rows -> w1, w3, swiglu, w2 -> combine with the weights -> y
 *   x -> shared experts, a feed-forward [-> gate] -> added to y
 *
 * The residual sum is part of the norm that follows it: norm(x, res) -> y, and r = x + res goes on. */
#include "common/plan/models/models.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct block {
    int layer, unit; /* unit: FSDP unit of the layer; its experts have the next one */
    const struct job_model *m;
    int64_t q_dim, kv_dim; /* columns of all heads */
    double residual_std;
};

static int weight(struct graph_builder *b, const struct block *k, const char *name, double std, int64_t rows,
                  int64_t cols)
{
    struct graph_param p = {.unit = k->unit, .init = INIT_NORMAL, .std = std, .rows = rows, .cols = cols};
    return graph_add_param(b, p, "layers.%d.%s.weight", k->layer, name);
}

/* A vector of a layer. */
static int vector(struct graph_builder *b, const struct block *k, const char *name, enum graph_init init, int64_t rows)
{
    struct graph_param p = {.unit = k->unit, .init = init, .rows = rows};
    return graph_add_param(b, p, "layers.%d.%s", k->layer, name);
}

static int linear(struct graph_builder *b, const struct block *k, int x, int w, int bias, const char *name,
                  int64_t cols)
{
    int y = graph_add_activation(b, k->layer, name, cols);
    graph_add_linear(b, k->layer, x, w, bias, false, y);
    return y;
}

/* Operators without parameters of dim columns. */
static int sum(struct graph_builder *b, const struct job_model *m, int layer, const char *name, int x, int y)
{
    int z = graph_add_activation(b, layer, name, m->dim);
    struct graph_node *n = graph_add_node(b, GO_ADD, layer);
    n->in[0] = x;
    n->in[1] = y;
    n->out[0] = z;
    return z;
}

/* x itself for a factor of 1. */
static int scaled(struct graph_builder *b, int layer, const char *name, int x, double factor, int64_t cols)
{
    if (factor == 1)
        return x;
    int y = graph_add_activation(b, layer, name, cols);
    struct graph_node *n = graph_add_node(b, GO_SCALE, layer);
    n->in[0] = x;
    n->out[0] = y;
    n->factor = factor;
    return y;
}

/* ---- norms ---- */

static void norm_node(struct graph_builder *b, const struct job_model *m, int layer, const int in[4], const int out[4])
{
    const bool centred = m->norm == NORM_LAYER; /* y, mean, rstd, sum; else y, rstd, sum */
    struct graph_node *n = graph_add_node(b, centred ? GO_LAYERNORM : GO_RMSNORM, layer);
    memcpy(n->in, in, 4 * sizeof(*in));
    n->out[0] = out[0];
    n->out[1] = centred ? out[1] : out[2];
    n->out[2] = centred ? out[2] : out[3];
    n->out[3] = centred ? out[3] : -1;
    n->plus_one = m->norm == NORM_RMS1;
    n->eps = m->norm_eps;
}

/* Its parameters are "layers.L.NAME.weight" and .bias, or those of NAME outside the layers. Returns the normed y; *x
 * becomes the residual stream behind the sum. res -1: no sum yet. */
static int norm(struct graph_builder *b, const struct job_model *m, int unit, int layer, const char *name, int *x,
                int res)
{
    const bool centred = m->norm == NORM_LAYER;
    const struct graph_param scale = {unit, m->norm == NORM_RMS1 ? INIT_ZERO : INIT_ONE, 0, m->dim, 0};
    const struct graph_param shift = {unit, INIT_ZERO, 0, m->dim, 0};
    char text[48], at[32] = "";
    if (layer >= 0)
        snprintf(at, sizeof(at), "layers.%d.", layer);
    int w = graph_add_param(b, scale, "%s%s.weight", at, name);
    int bias = centred ? graph_add_param(b, shift, "%s%s.bias", at, name) : -1;
    int y = graph_add_activation(b, layer, name, m->dim);
    snprintf(text, sizeof(text), "%s.mean", name);
    int mean = centred ? graph_add_stat(b, layer, text, 1) : -1;
    snprintf(text, sizeof(text), "%s.rstd", name);
    int rstd = graph_add_stat(b, layer, text, 1);
    snprintf(text, sizeof(text), "%s.sum", name);
    int r = res < 0 ? -1 : graph_add_activation(b, layer, text, m->dim);
    norm_node(b, m, layer, (const int[]){*x, res, w, bias}, (const int[]){y, mean, rstd, r});
    *x = r < 0 ? *x : r;
    return y;
}

/* What a branch adds to the residual stream. */
static int branch_end(struct graph_builder *b, const struct block *k, const char *norm_name, const char *name, int y)
{
    const struct job_model *m = k->m;
    if (m->norm_place != NORM_BEFORE)
        y = norm(b, m, k->unit, k->layer, norm_name, &y, -1);
    return scaled(b, k->layer, name, y, m->residual_scale, m->dim);
}

/* ---- attention ---- */

/* Cuts dimension `dim` of a tensor by query heads, or by key-value heads. */
static void cut_heads(struct graph_builder *b, const struct block *k, int tensor, int dim, bool kv)
{
    if (kv)
        graph_cut_kv_heads(b, tensor, dim, k->m->kv_heads);
    else
        graph_cut_heads(b, tensor, dim, 1, k->m->heads, k->m->kv_heads);
}

/* Positions of queries or keys; none where the layer does not rotate them. */
static void rope(struct graph_builder *b, const struct block *k, int x, int64_t heads)
{
    const char kind = job_rope_of(k->m, k->layer);
    if (kind == '0')
        return;
    struct graph_node *n = graph_add_node(b, GO_ROPE, k->layer);
    n->in[0] = n->out[0] = x;
    n->heads = heads;
    n->head_dim = k->m->head_dim;
    n->rope = kind == 'l';
}

/* Queries, keys and values: in this order in what follows. */
struct projection {
    const char *weight, *bias, *norm_weight, *value, *normed, *rstd;
    bool kv;
};
static const struct projection projections[3] = {
    {"attention.wq", "attention.wq.bias", "attention.q_norm.weight", "q", "q_norm", "q_norm.rstd", false},
    {"attention.wk", "attention.wk.bias", "attention.k_norm.weight", "k", "k_norm", "k_norm.rstd", true},
    {"attention.wv", "attention.wv.bias", NULL, "v", NULL, NULL, true},
};

static int64_t columns(const struct block *k, const struct projection *p)
{
    return p->kv ? k->kv_dim : k->q_dim;
}

/* RMSNorm of queries or keys: of each head's columns with one weight for all heads, or of all columns. */
static int qk_norm(struct graph_builder *b, const struct block *k, const struct projection *p, int x)
{
    const struct job_model *m = k->m;
    const bool whole = m->qk_norm == QK_NORM_WHOLE;
    const int64_t heads = p->kv ? m->kv_heads : m->heads, cols = columns(k, p);
    int w = vector(b, k, p->norm_weight, m->norm == NORM_RMS1 ? INIT_ZERO : INIT_ONE, whole ? cols : m->head_dim);
    int y = graph_add_activation(b, k->layer, p->normed, cols);
    int rstd = graph_add_stat(b, k->layer, p->rstd, whole ? 1 : heads);
    cut_heads(b, k, y, 1, p->kv);
    cut_heads(b, k, whole ? w : rstd, 0, p->kv);
    struct graph_node *n = graph_add_node(b, GO_RMSNORM, k->layer);
    n->in[0] = x;
    n->in[2] = w;
    n->out[0] = y;
    n->out[1] = rstd;
    n->heads = whole ? 0 : heads;
    n->head_dim = whole ? 0 : m->head_dim;
    n->plus_one = m->norm == NORM_RMS1;
    n->eps = m->norm_eps;
    return y;
}

/* A key's bias adds q . b to every score of a row, and softmax does not see it, unless it rotates with the position or
 * a norm follows. */
static void mark_key_bias(struct graph_builder *b, const struct block *k, int bias)
{
    const struct job_model *m = k->m;
    const int64_t turned = job_rope_of(m, k->layer) == '0' ? 0 : 2 * b->g->ropes[0].pairs;
    if (b->err || bias < 0 || m->qk_norm != QK_NORM_NONE || turned >= m->head_dim)
        return;
    struct graph_tensor *t = &b->g->tensors[bias];
    t->zero_lo = turned;
    t->zero_hi = t->zero_every = m->head_dim;
}

/* ret: queries, keys, values as attention reads them; ret_out: weight and bias of its output. */
static void project(struct graph_builder *b, const struct block *k, int x, int ret[3], int ret_out[2])
{
    const struct job_model *m = k->m;
    int w[3], bias[3] = {-1, -1, -1};
    for (int i = 0; i < 3; i++)
        w[i] = weight(b, k, projections[i].weight, 0.02, columns(k, &projections[i]), m->dim);
    ret_out[0] = weight(b, k, "attention.wo", k->residual_std, m->dim, k->q_dim);
    for (int i = 0; i < 3 && m->qkv_bias; i++)
        bias[i] = vector(b, k, projections[i].bias, INIT_ZERO, columns(k, &projections[i]));
    ret_out[1] = m->out_bias ? vector(b, k, "attention.wo.bias", INIT_ZERO, m->dim) : -1;
    mark_key_bias(b, k, bias[1]);
    for (int i = 0; i < 3; i++) {
        const struct projection *p = &projections[i];
        ret[i] = linear(b, k, x, w[i], bias[i], p->value, columns(k, p));
        cut_heads(b, k, w[i], 0, p->kv);
        cut_heads(b, k, bias[i], 0, p->kv);
        cut_heads(b, k, ret[i], 1, p->kv);
    }
    cut_heads(b, k, ret_out[0], 1, false);
    for (int i = 0; i < 2 && m->qk_norm != QK_NORM_NONE; i++)
        ret[i] = qk_norm(b, k, &projections[i], ret[i]);
}

static int attention(struct graph_builder *b, const struct block *k, int x)
{
    const struct job_model *m = k->m;
    int qkv[3], out[2];
    project(b, k, x, qkv, out);
    rope(b, k, qkv[0], m->heads);
    rope(b, k, qkv[1], m->kv_heads);
    int o = graph_add_activation(b, k->layer, "o", k->q_dim);
    int lse = graph_add_stat(b, k->layer, "lse", m->heads);
    cut_heads(b, k, o, 1, false);
    cut_heads(b, k, lse, 0, false);
    struct graph_node *n = graph_add_node(b, GO_ATTENTION, k->layer);
    for (int i = 0; i < 3; i++)
        n->in[i] = qkv[i];
    n->out[0] = o;
    n->out[1] = lse;
    n->heads = m->heads;
    n->kv_heads = m->kv_heads;
    n->head_dim = m->head_dim;
    n->causal = true;
    graph_set_scores(b, n, m, k->layer);
    return linear(b, k, o, out[0], out[1], "attn", m->dim);
}

/* ---- feed-forward ---- */

static int activation(struct graph_builder *b, const struct block *k, enum graph_op op, const char *at, int x, int y,
                      int64_t ffn)
{
    char text[GRAPH_NAME_MAX / 2];
    snprintf(text, sizeof(text), "%s%s", at, graph_op_name(op));
    int z = graph_add_activation(b, k->layer, text, ffn);
    struct graph_node *n = graph_add_node(b, op, k->layer);
    n->in[0] = x;
    n->in[1] = y;
    n->out[0] = z;
    return z;
}

/* A product of the feed-forward `name`, by matrix `which` of `w` and its bias. */
static int ffn_linear(struct graph_builder *b, const struct block *k, int x, const int w[3], const int bias[3],
                      int which, const char *at, const char *name, int64_t cols)
{
    char text[GRAPH_NAME_MAX / 2];
    snprintf(text, sizeof(text), "%s%s", at, name);
    return linear(b, k, x, w[which], bias[which], text, cols);
}

/* The feed-forward with matrices of `name`: w2(f(w1 x) * w3 x), or w2(f(w1 x)) without a gate. `at` is the prefix of
 * its activations. */
static int feed_forward(struct graph_builder *b, const struct block *k, int x, const char *name, const char *at,
                        int64_t ffn)
{
    const struct job_model *m = k->m;
    const int n = m->ffn_plain ? 2 : 3;
    char text[GRAPH_NAME_MAX / 2];
    int w[3] = {-1, -1, -1}, bias[3] = {-1, -1, -1};
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof(text), "%s.w%d", name, i + 1);
        w[i] = i == 1 ? weight(b, k, text, k->residual_std, m->dim, ffn)
                      : weight(b, k, text, i ? k->residual_std : 0.02, ffn, m->dim);
    }
    for (int i = 0; i < n && m->ffn_bias; i++) {
        snprintf(text, sizeof(text), "%s.w%d.bias", name, i + 1);
        bias[i] = vector(b, k, text, INIT_ZERO, i == 1 ? m->dim : ffn);
    }
    int gate = ffn_linear(b, k, x, w, bias, 0, at, m->ffn_plain ? "up" : "gate", ffn);
    int up = m->ffn_plain ? -1 : ffn_linear(b, k, x, w, bias, 2, at, "up", ffn);
    const enum graph_op op = m->ffn_plain ? m->activation == ACTIVATION_GELU ? GO_GELU : GO_GELU_ERF
                             : m->activation == ACTIVATION_GELU ? GO_GEGLU
                                                                : GO_SWIGLU;
    int y = activation(b, k, op, at, gate, up, ffn);
    const int by_row[] = {w[0], w[2], bias[0], bias[2]}, by_col[] = {w[1], gate, up, y};
    for (int i = 0; i < 4; i++)
        graph_cut(b, by_row[i], 0, ffn);
    for (int i = 0; i < 4; i++)
        graph_cut(b, by_col[i], 1, ffn);
    return ffn_linear(b, k, y, w, bias, 1, at, "ffn", m->dim);
}

/* ---- experts ---- */

static int expert_weight(struct graph_builder *b, const struct block *k, int which, double std, int64_t rows,
                         int64_t cols)
{
    int64_t experts = k->m->experts;
    struct graph_param p = {k->unit + 1, INIT_NORMAL, std, experts * rows, cols};
    int t = graph_add_param(b, p, "layers.%d.moe.experts.w%d", k->layer, which);
    graph_stack_experts(b, t, experts);
    return t;
}

/* The ids that are left where experts have a capacity. */
static int drop(struct graph_builder *b, const struct block *k, const struct graph_router *r, int ids, int weights)
{
    if (r->capacity <= 0)
        return ids;
    int kept = graph_add_index(b, k->layer, "router.kept", true, r->k);
    struct graph_node *n = graph_add_node(b, GO_DROP, k->layer);
    n->in[0] = ids;
    n->in[1] = weights;
    n->out[0] = kept;
    n->router = *r;
    return kept;
}

/* Returns the weights of the chosen experts; *ret_ids: the experts. */
static int route(struct graph_builder *b, const struct block *k, const struct graph_router *r, int x, int *ret_ids)
{
    const struct job_model *m = k->m;
    int w = weight(b, k, "moe.router.gate", k->residual_std, m->experts, m->dim), bias = -1;
    if (m->router_bias)
        bias = graph_add_param(b, (struct graph_param){k->unit, INIT_ZERO, 0, m->experts, 0},
                               "layers.%d.moe.router.gate.bias", k->layer);
    int logits = graph_add_activation(b, k->layer, "router.logits", m->experts);
    graph_add_linear(b, k->layer, x, w, bias, false, logits);
    int ids = graph_add_index(b, k->layer, "router.ids", true, r->k);
    int weights = graph_add_activation(b, k->layer, "router.weights", r->k);
    int numbers = -1, biases = -1, last = -1;
    if (r->bias > 0)
        biases = graph_add_state(b, k->layer, "expert_bias", r->experts, false);
    if (r->aux > 0 && r->scope == AUX_BATCH)
        last = graph_add_state(b, k->layer, "expert_counts", r->experts, true);
    else if (r->aux > 0)
        numbers = graph_add_numbers(b, k->layer, "router.numbers", r->scope == AUX_SAMPLE, 2 * r->experts + 2);
    if (!b->err)
        b->g->tensors[logits].wide = b->g->tensors[weights].wide = true;
    struct graph_node *n = graph_add_node(b, GO_ROUTE, k->layer);
    n->in[0] = logits;
    n->in[1] = biases;
    n->in[2] = last;
    n->out[0] = ids;
    n->out[1] = weights;
    n->out[2] = numbers;
    n->router = *r;
    *ret_ids = drop(b, k, r, ids, weights);
    return weights;
}

static int routed_experts(struct graph_builder *b, const struct block *k, const struct graph_router *r, int x, int ids,
                          int weights)
{
    const struct job_model *m = k->m;
    int w1 = expert_weight(b, k, 1, 0.02, m->expert_ffn, m->dim);
    int w2 = expert_weight(b, k, 2, k->residual_std, m->dim, m->expert_ffn);
    int w3 = expert_weight(b, k, 3, k->residual_std, m->expert_ffn, m->dim);
    int rows = graph_add_rows(b, k->layer, "experts.rows", r->k, m->dim);
    int place = graph_add_index(b, k->layer, "experts.place", true, r->k);
    int source = graph_add_index(b, k->layer, "experts.source", true, r->k);
    int offsets = graph_add_index(b, k->layer, "experts.offsets", false, r->experts + 1);
    struct graph_node *n = graph_add_node(b, GO_DISPATCH, k->layer);
    int all = graph_add_index(b, k->layer, "experts.all", false, r->experts + 1);
    int index = graph_add_index(b, k->layer, "experts.index", true, r->k);
    int inverse = graph_add_index(b, k->layer, "experts.inverse", true, r->k);
    const int in[] = {x, ids}, out[] = {rows, place, source, offsets, all, index, inverse};
    if (!b->err)
        b->g->tensors[index].by_expert = b->g->tensors[inverse].by_expert = true;
    memcpy(n->in, in, sizeof(in));
    memcpy(n->out, out, sizeof(out));
    n->router = *r;
    int gate = graph_add_rows(b, k->layer, "experts.gate", r->k, m->expert_ffn);
    int up = graph_add_rows(b, k->layer, "experts.up", r->k, m->expert_ffn);
    int h = graph_add_rows(b, k->layer, "experts.swiglu", r->k, m->expert_ffn);
    int back = graph_add_rows(b, k->layer, "experts.out", r->k, m->dim);
    graph_add_experts(b, k->layer, r, rows, w1, offsets, gate);
    graph_add_experts(b, k->layer, r, rows, w3, offsets, up);
    n = graph_add_node(b, GO_SWIGLU, k->layer);
    n->in[0] = gate;
    n->in[1] = up;
    n->out[0] = h;
    graph_add_experts(b, k->layer, r, h, w2, offsets, back);
    int y = graph_add_activation(b, k->layer, "experts", m->dim);
    n = graph_add_node(b, GO_COMBINE, k->layer);
    const int from[] = {back, weights, place, all, index, inverse};
    memcpy(n->in, from, sizeof(from));
    n->out[0] = y;
    n->router = *r;
    return y;
}

static int shared_experts(struct graph_builder *b, const struct block *k, int x)
{
    const struct job_model *m = k->m;
    int y = feed_forward(b, k, x, "moe.shared_experts", "shared.", m->shared_experts * m->expert_ffn);
    if (!m->shared_gate)
        return y;
    int w = weight(b, k, "moe.shared_gate", k->residual_std, 1, m->dim);
    int z = linear(b, k, x, w, -1, "shared.z", 1), gated = graph_add_activation(b, k->layer, "shared.gated", m->dim);
    struct graph_node *n = graph_add_node(b, GO_GATE, k->layer);
    n->in[0] = y;
    n->in[1] = z;
    n->out[0] = gated;
    return gated;
}

static int mixture(struct graph_builder *b, const struct block *k, int x)
{
    const struct job_model *m = k->m;
    struct graph_router r = {.experts = m->experts,
                             .k = m->experts_per_token,
                             .groups = m->router_groups,
                             .groups_kept = m->router_groups_kept,
                             .group_best = m->router_group_best,
                             .kind = m->router,
                             .norm = m->router_norm,
                             .scale = m->router_scale,
                             .aux = m->aux_loss,
                             .z = m->z_loss,
                             .bias = m->expert_bias,
                             .scope = m->aux_scope,
                             .capacity = m->expert_capacity,
                             .drop = m->expert_drop,
                             .index = b->g->n_routers++};
    int ids, weights = route(b, k, &r, x, &ids), y = routed_experts(b, k, &r, x, ids, weights);
    if (!m->shared_experts)
        return y;
    return sum(b, m, k->layer, "ffn", y, shared_experts(b, k, x));
}

static bool has_experts(const struct job_model *m, int layer)
{
    return m->experts && layer >= m->dense_layers && (layer + 1) % m->moe_every == 0;
}

static int feed_forward_or_experts(struct graph_builder *b, const struct block *k, int y)
{
    return has_experts(k->m, k->layer) ? mixture(b, k, y) : feed_forward(b, k, y, "feed_forward", "", k->m->ffn);
}

/* The residual stream is *x, to which the next norm adds *res; -1: nothing. */
static void layer_serial(struct graph_builder *b, const struct block *k, int *x, int *res)
{
    const struct job_model *m = k->m;
    int y = norm(b, m, k->unit, k->layer, "attention_norm", x, *res);
    *res = branch_end(b, k, "attention_post_norm", "attn.scaled", attention(b, k, y));
    y = norm(b, m, k->unit, k->layer, "ffn_norm", x, *res);
    *res = branch_end(b, k, "ffn_post_norm", "ffn.scaled", feed_forward_or_experts(b, k, y));
}

static void layer_parallel(struct graph_builder *b, const struct block *k, int *x, int *res)
{
    const struct job_model *m = k->m;
    int y = norm(b, m, k->unit, k->layer, "attention_norm", x, *res);
    int z = m->branches == BRANCHES_ONE_NORM ? y : norm(b, m, k->unit, k->layer, "ffn_norm", x, -1);
    int a = branch_end(b, k, "attention_post_norm", "attn.scaled", attention(b, k, y));
    int f = branch_end(b, k, "ffn_post_norm", "ffn.scaled", feed_forward_or_experts(b, k, z));
    *res = sum(b, m, k->layer, "branches", a, f);
}

/* No norm reads the stream, so the sums are nodes of their own. */
static void layer_after(struct graph_builder *b, const struct block *k, int *x)
{
    const struct job_model *m = k->m;
    int a = branch_end(b, k, "attention_post_norm", "attn.scaled", attention(b, k, *x));
    *x = sum(b, m, k->layer, "attn.sum", a, *x);
    a = branch_end(b, k, "ffn_post_norm", "ffn.scaled", feed_forward_or_experts(b, k, *x));
    *x = sum(b, m, k->layer, "ffn.sum", a, *x);
}

static void layer(struct graph_builder *b, const struct block *k, int *x, int *res)
{
    if (k->m->norm_place == NORM_AFTER)
        layer_after(b, k, x);
    else if (k->m->branches == BRANCHES_SERIAL)
        layer_serial(b, k, x, res);
    else
        layer_parallel(b, k, x, res);
}

static int capped(struct graph_builder *b, const struct job_model *m, int x)
{
    if (m->logit_cap == 0)
        return x;
    int y = graph_add_activation(b, -1, "logits.capped", m->vocab);
    struct graph_node *n = graph_add_node(b, GO_CAP, -1);
    n->in[0] = x;
    n->out[0] = y;
    n->factor = m->logit_cap;
    graph_cut(b, y, 1, m->vocab);
    return y;
}

/* The logits' factor is applied to the input of the head, which is smaller, unless the head has a bias. */
static void head(struct graph_builder *b, const struct job_model *m, int unit, int w_embed, int x)
{
    if (m->labels) { /* without a bias, a factor or a cap, as in transformers */
        graph_add_labels(b, unit, m, x);
        return;
    }
    const struct graph_param table = {unit, INIT_NORMAL, 1 / sqrt((double)m->dim), m->vocab, m->dim};
    int w = m->tied ? w_embed : graph_add_param(b, table, "output.weight");
    int bias =
        m->head_bias ? graph_add_param(b, (struct graph_param){unit, INIT_ZERO, 0, m->vocab, 0}, "output.bias") : -1;
    const double before = m->head_bias ? 1 : m->logit_scale, behind = m->head_bias ? m->logit_scale : 1;
    int y = scaled(b, -1, "norm.scaled", x, before, m->dim);
    int logits = graph_add_activation(b, -1, "logits", m->vocab);
    graph_cut(b, w, 0, m->vocab);
    graph_cut(b, bias, 0, m->vocab);
    graph_cut(b, logits, 1, m->vocab);
    graph_add_linear(b, -1, y, w, bias, false, logits);
    logits = scaled(b, -1, "logits.scaled", logits, behind, m->vocab);
    graph_cut(b, logits, 1, m->vocab);
    graph_add_loss(b, capped(b, m, logits));
}

void graph_build_llama(struct graph_builder *b, const struct job_model *m)
{
    const int units = m->experts ? 2 : 1; /* of a layer */
    int head_unit = 1 + units * (int)m->layers;
    struct graph_param table = {0, INIT_NORMAL, m->tied ? 1 / sqrt((double)m->dim) : 1, m->vocab, m->dim};
    graph_set_rope(b, m);
    int w_embed = graph_add_param(b, table, "tok_embeddings.weight");
    graph_cut(b, w_embed, 0, m->vocab);
    int ids = graph_add_input(b, GT_IDS, "ids");
    int x = graph_add_activation(b, -1, "embed", m->dim);
    struct graph_node *n = graph_add_node(b, GO_EMBED, -1);
    n->in[0] = ids;
    n->in[1] = w_embed;
    n->out[0] = x;
    x = scaled(b, -1, "embed.scaled", x, m->embed_scale, m->dim);
    int res = -1;
    for (int l = 0; l < m->layers; l++) {
        struct block k = {
            l, 1 + units * l, m, m->heads * m->head_dim, m->kv_heads * m->head_dim, 0.02 / sqrt(2.0 * (l + 1))};
        layer(b, &k, &x, &res);
    }
    head(b, m, head_unit, w_embed, norm(b, m, head_unit, -1, "norm", &x, res));
}
