/* The transformer that courses teach (Vaswani et al. 2017, the encoder, trained to predict the next word): sinusoidal
 * positions added to the embedding, layers that normalise behind the residual sum, ReLU, biases everywhere, a head of
 * its own. By its letter every token sees the whole sample, later words too; model.causal masks them.
 *
 * Names are those of the course's module: embed, layers.N.self_attn.linear_{Q,K,V,O}, layers.N.norm1, linear1, linear2,
 * norm2, norm, fc. Initialisation has the mean and variance of PyTorch's defaults: embedding normal 1; products normal
 * 1 / sqrt(3 in), which is the variance of its uniform; biases 0; norms 1 and 0.
 *
 * Dropout (train.dropout) stands behind the positions, the attention's output, the activation and the feed-forward. */
#include "common/plan/models/models.h"

#include <math.h>

struct layer {
    const struct job_model *m;
    int layer; /* -1: outside */
};

struct affine {
    int w, b;
};

static int unit_of(const struct layer *l, bool head)
{
    return head ? 1 + (int)l->m->layers : 1 + l->layer;
}

static struct affine affine(struct graph_builder *b, const struct layer *l, const char *name, int64_t out, int64_t in)
{
    int unit = unit_of(l, l->layer < 0);
    struct graph_param w = {unit, INIT_NORMAL, 1 / sqrt(3.0 * (double)in), out, in};
    struct graph_param bias = {unit, INIT_ZERO, 0, out, 0};
    if (l->layer < 0)
        return (struct affine){graph_add_param(b, w, "%s.weight", name), graph_add_param(b, bias, "%s.bias", name)};
    int weight = graph_add_param(b, w, "layers.%d.%s.weight", l->layer, name);
    return (struct affine){weight, graph_add_param(b, bias, "layers.%d.%s.bias", l->layer, name)};
}

static int linear(struct graph_builder *b, const struct layer *l, int x, struct affine a, const char *name, int64_t out)
{
    int y = graph_add_activation(b, l->layer, name, out);
    graph_add_linear(b, l->layer, x, a.w, a.b, false, y);
    return y;
}

/* norm(x + res), or norm(x) with res -1: behind the sum only the norm's gradient reads the sum itself. */
static int norm(struct graph_builder *b, const struct layer *l, const char *name, int x, int res)
{
    int64_t d = l->m->dim;
    int unit = unit_of(l, l->layer < 0);
    struct graph_param ones = {unit, INIT_ONE, 0, d, 0}, zeros = {unit, INIT_ZERO, 0, d, 0};
    struct graph_node *n;
    int w, bias, y = graph_add_activation(b, l->layer, name, d);
    int mean = graph_add_stat(b, l->layer, "mean", 1), rstd = graph_add_stat(b, l->layer, "rstd", 1);
    int sum = res < 0 ? -1 : graph_add_activation(b, l->layer, "sum", d);
    if (l->layer < 0) {
        w = graph_add_param(b, ones, "%s.weight", name);
        bias = graph_add_param(b, zeros, "%s.bias", name);
    } else {
        w = graph_add_param(b, ones, "layers.%d.%s.weight", l->layer, name);
        bias = graph_add_param(b, zeros, "layers.%d.%s.bias", l->layer, name);
    }
    n = graph_add_node(b, GO_LAYERNORM, l->layer);
    n->in[0] = x;
    n->in[1] = res;
    n->in[2] = w;
    n->in[3] = bias;
    n->out[0] = y;
    n->out[1] = mean;
    n->out[2] = rstd;
    n->out[3] = sum;
    n->eps = l->m->norm_eps;
    return y;
}

static int unary(struct graph_builder *b, const struct layer *l, enum graph_op op, const char *name, int x,
                 int64_t cols)
{
    int y = graph_add_activation(b, l->layer, name, cols);
    struct graph_node *n = graph_add_node(b, op, l->layer);
    n->in[0] = x;
    n->out[0] = y;
    if (op == GO_DROPOUT)
        n->site = b->n_sites++;
    return y;
}

static int attention(struct graph_builder *b, const struct layer *l, int x)
{
    static const char *const names[3] = {"self_attn.linear_Q", "self_attn.linear_K", "self_attn.linear_V"};
    static const char *const values[3] = {"q", "k", "v"};
    const struct job_model *m = l->m;
    int in[3], o, lse;
    for (int i = 0; i < 3; i++) {
        struct affine a = affine(b, l, names[i], m->dim, m->dim);
        if (i == 1 && !b->err) { /* a key's bias adds q . b to every score of a row, and softmax does not see it */
            b->g->tensors[a.b].zero_lo = 0;
            b->g->tensors[a.b].zero_hi = m->dim;
        }
        in[i] = linear(b, l, x, a, values[i], m->dim);
        graph_cut_heads(b, a.w, 0, 1, m->heads, m->heads);
        graph_cut_heads(b, a.b, 0, 1, m->heads, m->heads);
        graph_cut_heads(b, in[i], 1, 1, m->heads, m->heads);
    }
    struct affine out = affine(b, l, "self_attn.linear_O", m->dim, m->dim);
    o = graph_add_activation(b, l->layer, "o", m->dim);
    lse = graph_add_stat(b, l->layer, "lse", m->heads);
    graph_cut_heads(b, o, 1, 1, m->heads, m->heads);
    graph_cut_heads(b, lse, 0, 1, m->heads, m->heads);
    graph_cut_heads(b, out.w, 1, 1, m->heads, m->heads);
    struct graph_node *n = graph_add_node(b, GO_ATTENTION, l->layer);
    for (int i = 0; i < 3; i++)
        n->in[i] = in[i];
    n->out[0] = o;
    n->out[1] = lse;
    n->heads = n->kv_heads = m->heads;
    n->head_dim = m->dim / m->heads;
    n->causal = m->causal;
    return linear(b, l, o, out, "attn", m->dim);
}

static int feed_forward(struct graph_builder *b, const struct layer *l, int x)
{
    const struct job_model *m = l->m;
    struct affine up = affine(b, l, "linear1", m->ffn, m->dim), down = affine(b, l, "linear2", m->dim, m->ffn);
    int h = linear(b, l, x, up, "linear1", m->ffn), y = unary(b, l, GO_RELU, "relu", h, m->ffn);
    int kept = unary(b, l, GO_DROPOUT, "relu.kept", y, m->ffn);
    const int by_col[] = {down.w, h, y, kept};
    graph_cut(b, up.w, 0, m->ffn);
    graph_cut(b, up.b, 0, m->ffn);
    for (int i = 0; i < 4; i++)
        graph_cut(b, by_col[i], 1, m->ffn);
    return linear(b, l, kept, down, "linear2", m->dim);
}

void graph_build_transformer(struct graph_builder *b, const struct job_model *m)
{
    struct layer l = {m, -1};
    int table = graph_add_param(b, (struct graph_param){0, INIT_NORMAL, 1, m->vocab, m->dim}, "embed.weight");
    int ids = graph_add_input(b, GT_IDS, "ids"), x = graph_add_activation(b, -1, "embed", m->dim);
    struct graph_node *n = graph_add_node(b, GO_EMBED, -1);
    n->in[0] = ids;
    n->in[1] = table;
    n->out[0] = x;
    graph_cut(b, table, 0, m->vocab);
    x = unary(b, &l, GO_POSITIONS, "positions", x, m->dim);
    x = unary(b, &l, GO_DROPOUT, "positions.kept", x, m->dim);
    for (l.layer = 0; l.layer < m->layers; l.layer++) {
        int a = unary(b, &l, GO_DROPOUT, "attn.kept", attention(b, &l, x), m->dim);
        x = norm(b, &l, "norm1", x, a);
        a = unary(b, &l, GO_DROPOUT, "linear2.kept", feed_forward(b, &l, x), m->dim);
        x = norm(b, &l, "norm2", x, a);
    }
    l.layer = -1;
    x = norm(b, &l, "norm", x, -1);
    struct affine fc = affine(b, &l, "fc", m->vocab, m->dim);
    int logits = linear(b, &l, x, fc, "logits", m->vocab);
    graph_cut(b, fc.w, 0, m->vocab);
    graph_cut(b, fc.b, 0, m->vocab);
    graph_cut(b, logits, 1, m->vocab);
    graph_add_loss(b, logits);
}
