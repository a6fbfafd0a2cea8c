/* GPT-2 (Radford et al. 2019): pre-norm with LayerNorm, learned positions, one matrix for q, k and v, GELU in its tanh
 * form (or by model.activation the exact one), biases everywhere, the head shares the embedding's table. Names and
 * shapes are Hugging Face's, whose Conv1D stores weights [in, out]; the tied head has no tensor of its own. The
 * position table has as many rows as train.seq.
 *
 * Initialisation: normal 0.02, and 0.02 / sqrt(2 layers) for the two products that add to the residual stream (the
 * paper's scaling, as in Hugging Face's _init_weights); biases 0. */
#include "common/plan/models/models.h"

#include <math.h>
#include <stdio.h>

static const double std_normal = 0.02;

struct weights {
    int w, b;
};

static struct weights affine(struct graph_builder *b, int layer, const char *name, double std, int64_t in, int64_t out)
{
    struct graph_param w = {1 + layer, INIT_NORMAL, std, in, out};
    struct graph_param bias = {1 + layer, INIT_ZERO, 0, out, 0};
    int weight = graph_add_param(b, w, "transformer.h.%d.%s.weight", layer, name);
    return (struct weights){weight, graph_add_param(b, bias, "transformer.h.%d.%s.bias", layer, name)};
}

static struct weights scale(struct graph_builder *b, int unit, const char *name, int64_t dim)
{
    int w = graph_add_param(b, (struct graph_param){unit, INIT_ONE, 0, dim, 0}, "transformer.%s.weight", name);
    return (struct weights){
        w, graph_add_param(b, (struct graph_param){unit, INIT_ZERO, 0, dim, 0}, "transformer.%s.bias", name)};
}

/* Returns the normed y; *x becomes the residual stream behind the sum. res -1: no sum yet. */
static int norm(struct graph_builder *b, const struct job_model *m, int layer, const char *name, int *x, int res)
{
    char text[48];
    if (layer < 0)
        snprintf(text, sizeof(text), "%s", name);
    else
        snprintf(text, sizeof(text), "h.%d.%s", layer, name);
    struct weights s = scale(b, layer < 0 ? 1 + (int)m->layers : 1 + layer, text, m->dim);
    int y = graph_add_activation(b, layer, name, m->dim);
    snprintf(text, sizeof(text), "%s.mean", name);
    int mean = graph_add_stat(b, layer, text, 1);
    snprintf(text, sizeof(text), "%s.rstd", name);
    int rstd = graph_add_stat(b, layer, text, 1);
    snprintf(text, sizeof(text), "%s.sum", name);
    int r = res < 0 ? -1 : graph_add_activation(b, layer, text, m->dim);
    struct graph_node *n = graph_add_node(b, GO_LAYERNORM, layer);
    n->in[0] = *x;
    n->in[1] = res;
    n->in[2] = s.w;
    n->in[3] = s.b;
    n->out[0] = y;
    n->out[1] = mean;
    n->out[2] = rstd;
    n->out[3] = r;
    n->eps = m->norm_eps;
    *x = r < 0 ? *x : r;
    return y;
}

static int linear(struct graph_builder *b, int layer, int x, struct weights w, const char *name, int64_t cols)
{
    int y = graph_add_activation(b, layer, name, cols);
    graph_add_linear(b, layer, x, w.w, w.b, true, y);
    return y;
}

static int attention(struct graph_builder *b, const struct job_model *m, int layer, double residual_std, int x)
{
    int64_t d = m->dim;
    struct weights c_attn = affine(b, layer, "attn.c_attn", std_normal, d, 3 * d);
    struct weights c_proj = affine(b, layer, "attn.c_proj", residual_std, d, d);
    if (!b->err) { /* a key bias adds q . b to every score of a row, and softmax does not see it */
        b->g->tensors[c_attn.b].zero_lo = d;
        b->g->tensors[c_attn.b].zero_hi = 2 * d;
    }
    int qkv = linear(b, layer, x, c_attn, "qkv", 3 * d);
    int o = graph_add_activation(b, layer, "o", d);
    int lse = graph_add_stat(b, layer, "lse", m->heads);
    graph_cut_heads(b, c_attn.w, 1, 3, m->heads, m->heads);
    graph_cut_heads(b, c_attn.b, 0, 3, m->heads, m->heads);
    graph_cut_heads(b, qkv, 1, 3, m->heads, m->heads);
    graph_cut_heads(b, o, 1, 1, m->heads, m->heads);
    graph_cut_heads(b, lse, 0, 1, m->heads, m->heads);
    graph_cut_heads(b, c_proj.w, 0, 1, m->heads, m->heads);
    struct graph_node *n = graph_add_node(b, GO_ATTENTION, layer);
    for (int i = 0; i < 3; i++) {
        n->in[i] = qkv;
        n->in_col[i] = i * d;
    }
    n->out[0] = o;
    n->out[1] = lse;
    n->heads = n->kv_heads = m->heads;
    n->head_dim = d / m->heads;
    n->causal = true;
    return linear(b, layer, o, c_proj, "attn", d);
}

static int mlp(struct graph_builder *b, const struct job_model *m, int layer, double residual_std, int x)
{
    struct weights c_fc = affine(b, layer, "mlp.c_fc", std_normal, m->dim, m->ffn);
    struct weights c_proj = affine(b, layer, "mlp.c_proj", residual_std, m->ffn, m->dim);
    int h = linear(b, layer, x, c_fc, "fc", m->ffn);
    const enum graph_op op = m->activation == ACTIVATION_GELU_ERF ? GO_GELU_ERF : GO_GELU;
    int y = graph_add_activation(b, layer, graph_op_name(op), m->ffn);
    const int by_col[] = {c_fc.w, h, y};
    for (int i = 0; i < 3; i++)
        graph_cut(b, by_col[i], 1, m->ffn);
    graph_cut(b, c_fc.b, 0, m->ffn);
    graph_cut(b, c_proj.w, 0, m->ffn);
    struct graph_node *n = graph_add_node(b, op, layer);
    n->in[0] = h;
    n->out[0] = y;
    return linear(b, layer, y, c_proj, "mlp", m->dim);
}

void graph_build_gpt2(struct graph_builder *b, const struct job_model *m)
{
    double residual_std = std_normal / sqrt(2.0 * (double)m->layers);
    struct graph_param table = {0, INIT_NORMAL, std_normal, m->vocab, m->dim};
    struct graph_param positions = {0, INIT_NORMAL, std_normal, b->seq, m->dim};
    int wte = graph_add_param(b, table, "transformer.wte.weight");
    int wpe = graph_add_param(b, positions, "transformer.wpe.weight");
    graph_cut(b, wte, 0, m->vocab);
    int ids = graph_add_input(b, GT_IDS, "ids");
    int x = graph_add_activation(b, -1, "embed", m->dim);
    struct graph_node *n = graph_add_node(b, GO_EMBED, -1);
    n->in[0] = ids;
    n->in[1] = wte;
    n->in[2] = wpe;
    n->out[0] = x;
    int res = -1;
    for (int l = 0; l < m->layers; l++) {
        res = attention(b, m, l, residual_std, norm(b, m, l, "ln_1", &x, res));
        res = mlp(b, m, l, residual_std, norm(b, m, l, "ln_2", &x, res));
    }
    int y = norm(b, m, -1, "ln_f", &x, res);
    if (m->labels) {
        graph_add_labels(b, 1 + (int)m->layers, m, y);
        return;
    }
    int logits = graph_add_activation(b, -1, "logits", m->vocab);
    graph_cut(b, logits, 1, m->vocab);
    graph_add_linear(b, -1, y, wte, -1, false, logits);
    graph_add_loss(b, logits);
}
