/* Llama: pre-norm with RMSNorm, rotary positions on neighbouring pairs, grouped-query attention, SwiGLU, no biases
 * (Touvron et al. 2023; Llama 2 and 3). Names are torchtitan's, so that its checkpoints open here and ours there.
 *
 * Initialisation is torchtitan's, torchtitan/models/llama3/model/model.py with depth_init: wq, wk, wv and w1 normal
 * 0.02; wo, w2 and w3 normal 0.02 / sqrt(2 (layer + 1)), layers counted from 0; the embedding normal 1; the head normal
 * 1 / sqrt(dim). It cuts the head's at 3 standard deviations, 0.27 % of the values, and the others' at 2, a hundred of
 * theirs; we cut nothing. A tied table is read by the head, so it starts as the head does.
 *
 * The residual sum is part of the norm that follows it: norm(x, res) -> y, and r = x + res goes on. */
#include "common/plan/models/models.h"

#include <math.h>
#include <stdio.h>

struct block {
    int layer;
    const struct job_model *m;
    int64_t head_dim, kv_dim;
    double residual_std;
};

static int weight(struct graph_builder *b, const struct block *k, const char *name, double std, int64_t rows,
                  int64_t cols)
{
    struct graph_param p = {.unit = 1 + k->layer, .init = INIT_NORMAL, .std = std, .rows = rows, .cols = cols};
    return graph_add_param(b, p, "layers.%d.%s.weight", k->layer, name);
}

static int linear(struct graph_builder *b, const struct block *k, int x, int w, const char *name, int64_t cols)
{
    int y = graph_add_activation(b, k->layer, name, cols);
    graph_add_linear(b, k->layer, x, w, -1, false, y);
    return y;
}

/* Returns the normed y; *x becomes the residual stream behind the sum. res -1: no sum yet. */
static int norm(struct graph_builder *b, const struct job_model *m, int layer, int w, const char *name, int *x, int res)
{
    char text[32];
    int y = graph_add_activation(b, layer, name, m->dim);
    snprintf(text, sizeof(text), "%s.rstd", name);
    int rstd = graph_add_stat(b, layer, text, 1);
    snprintf(text, sizeof(text), "%s.sum", name);
    int r = res < 0 ? -1 : graph_add_activation(b, layer, text, m->dim);
    struct graph_node *n = graph_add_node(b, GO_RMSNORM, layer);
    n->in[0] = *x;
    n->in[1] = res;
    n->in[2] = w;
    n->out[0] = y;
    n->out[1] = rstd;
    n->out[2] = r;
    n->eps = m->norm_eps;
    *x = r < 0 ? *x : r;
    return y;
}

static void rope(struct graph_builder *b, const struct block *k, int x, int64_t heads)
{
    struct graph_node *n = graph_add_node(b, GO_ROPE, k->layer);
    n->in[0] = n->out[0] = x;
    n->heads = heads;
    n->head_dim = k->head_dim;
    n->theta = k->m->rope_theta;
}

static int attention(struct graph_builder *b, const struct block *k, int x)
{
    const struct job_model *m = k->m;
    int wq = weight(b, k, "attention.wq", 0.02, m->dim, m->dim);
    int wk = weight(b, k, "attention.wk", 0.02, k->kv_dim, m->dim);
    int wv = weight(b, k, "attention.wv", 0.02, k->kv_dim, m->dim);
    int wo = weight(b, k, "attention.wo", k->residual_std, m->dim, m->dim);
    int q = linear(b, k, x, wq, "q", m->dim);
    int key = linear(b, k, x, wk, "k", k->kv_dim);
    int v = linear(b, k, x, wv, "v", k->kv_dim);
    const int by_kv_head[] = {wk, wv};
    graph_cut_heads(b, wq, 0, 1, m->heads, m->kv_heads);
    graph_cut_heads(b, q, 1, 1, m->heads, m->kv_heads);
    for (int i = 0; i < 2; i++) {
        graph_cut_kv_heads(b, by_kv_head[i], 0, m->kv_heads);
        graph_cut_kv_heads(b, i ? v : key, 1, m->kv_heads);
    }
    graph_cut_heads(b, wo, 1, 1, m->heads, m->kv_heads);
    rope(b, k, q, m->heads);
    rope(b, k, key, m->kv_heads);
    int o = graph_add_activation(b, k->layer, "o", m->dim);
    int lse = graph_add_stat(b, k->layer, "lse", m->heads);
    graph_cut_heads(b, o, 1, 1, m->heads, m->kv_heads);
    graph_cut_heads(b, lse, 0, 1, m->heads, m->kv_heads);
    struct graph_node *n = graph_add_node(b, GO_ATTENTION, k->layer);
    n->in[0] = q;
    n->in[1] = key;
    n->in[2] = v;
    n->out[0] = o;
    n->out[1] = lse;
    n->heads = m->heads;
    n->kv_heads = m->kv_heads;
    n->head_dim = k->head_dim;
    n->causal = true;
    return linear(b, k, o, wo, "attn", m->dim);
}

static int feed_forward(struct graph_builder *b, const struct block *k, int x)
{
    const struct job_model *m = k->m;
    int w1 = weight(b, k, "feed_forward.w1", 0.02, m->ffn, m->dim);
    int w2 = weight(b, k, "feed_forward.w2", k->residual_std, m->dim, m->ffn);
    int w3 = weight(b, k, "feed_forward.w3", k->residual_std, m->ffn, m->dim);
    int gate = linear(b, k, x, w1, "gate", m->ffn);
    int up = linear(b, k, x, w3, "up", m->ffn);
    int y = graph_add_activation(b, k->layer, "swiglu", m->ffn);
    const int by_row[] = {w1, w3}, by_col[] = {w2, gate, up, y};
    for (int i = 0; i < 2; i++)
        graph_cut(b, by_row[i], 0, m->ffn);
    for (int i = 0; i < 4; i++)
        graph_cut(b, by_col[i], 1, m->ffn);
    struct graph_node *n = graph_add_node(b, GO_SWIGLU, k->layer);
    n->in[0] = gate;
    n->in[1] = up;
    n->out[0] = y;
    return linear(b, k, y, w2, "ffn", m->dim);
}

void graph_build_llama(struct graph_builder *b, const struct job_model *m)
{
    int head_unit = 1 + (int)m->layers;
    double head_std = 1 / sqrt((double)m->dim);
    struct graph_param table = {0, INIT_NORMAL, m->tied ? head_std : 1, m->vocab, m->dim};
    struct graph_param head = {head_unit, INIT_NORMAL, head_std, m->vocab, m->dim};
    int w_embed = graph_add_param(b, table, "tok_embeddings.weight");
    graph_cut(b, w_embed, 0, m->vocab);
    int ids = graph_add_input(b, GT_IDS, "ids");
    int x = graph_add_activation(b, -1, "embed", m->dim);
    struct graph_node *n = graph_add_node(b, GO_EMBED, -1);
    n->in[0] = ids;
    n->in[1] = w_embed;
    n->out[0] = x;
    int res = -1;
    for (int l = 0; l < m->layers; l++) {
        int64_t head_dim = m->dim / m->heads;
        struct block k = {l, m, head_dim, m->kv_heads * head_dim, 0.02 / sqrt(2.0 * (l + 1))};
        struct graph_param scale = {1 + l, INIT_ONE, 0, m->dim, 0};
        int w = graph_add_param(b, scale, "layers.%d.attention_norm.weight", l);
        res = attention(b, &k, norm(b, m, l, w, "attention_norm", &x, res));
        w = graph_add_param(b, scale, "layers.%d.ffn_norm.weight", l);
        res = feed_forward(b, &k, norm(b, m, l, w, "ffn_norm", &x, res));
    }
    int w = graph_add_param(b, (struct graph_param){head_unit, INIT_ONE, 0, m->dim, 0}, "norm.weight");
    int y = norm(b, m, -1, w, "norm", &x, res);
    int w_head = m->tied ? w_embed : graph_add_param(b, head, "output.weight");
    int logits = graph_add_activation(b, -1, "logits", m->vocab);
    graph_cut(b, w_head, 0, m->vocab);
    graph_cut(b, logits, 1, m->vocab);
    graph_add_linear(b, -1, y, w_head, -1, false, logits);
    graph_add_loss(b, logits);
}
