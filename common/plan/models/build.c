/* Building graphs. A model's file lists its tensors and operators; this file has what all models share: names, growth,
 * the checks of dimensions in the job file, and the counts that estimates read.
 *
 * Invariants: every node comes after the nodes that make its inputs; a tensor has one producer (except for rope, which
 * works in place); sizes are bounded so that no product of them, in bytes and with all optimizer state, overflows 63
 * bits. */
#include "common/plan/models/build.h"

#include "common/plan/models/models.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the builder ---- */

static struct graph_tensor *tensor_new(struct graph_builder *b)
{
    struct graph *g = b->g;
    if (b->err)
        return NULL;
    if (g->n_tensors == b->cap_tensors) {
        int cap = b->cap_tensors ? 2 * b->cap_tensors : 64;
        struct graph_tensor *t = realloc(g->tensors, (size_t)cap * sizeof(*t));
        if (!t) {
            b->err = ERR_NOMEM;
            return NULL;
        }
        g->tensors = t;
        b->cap_tensors = cap;
    }
    struct graph_tensor *t = &g->tensors[g->n_tensors++];
    memset(t, 0, sizeof(*t));
    t->unit = -1;
    return t;
}

int graph_add_param(struct graph_builder *b, struct graph_param p, const char *fmt, ...)
{
    struct graph_tensor *t = tensor_new(b);
    if (!t)
        return -1;
    va_list args;
    va_start(args, fmt);
    vsnprintf(t->name, sizeof(t->name), fmt, args);
    va_end(args);
    t->kind = GT_PARAM;
    t->ndim = p.cols ? 2 : 1;
    t->dim[0] = (struct graph_dim){SYM_ONE, p.rows};
    t->dim[1] = (struct graph_dim){SYM_ONE, p.cols};
    t->init = p.init;
    t->init_std = p.std;
    t->decay = p.cols != 0;
    t->unit = p.unit;
    b->g->n_params += p.rows * (p.cols ? p.cols : 1);
    if (p.unit >= b->g->n_units)
        b->g->n_units = p.unit + 1;
    return b->g->n_tensors - 1;
}

int graph_add_state(struct graph_builder *b, int layer, const char *name, int64_t experts, bool exact)
{
    struct graph_tensor *t = tensor_new(b);
    if (!t)
        return -1;
    snprintf(t->name, sizeof(t->name), "layers.%d.moe.%s", layer, name);
    t->kind = GT_STATE;
    t->exact = exact;
    t->ndim = 1;
    t->dim[0] = (struct graph_dim){SYM_ONE, experts};
    t->init = INIT_ZERO;
    return b->g->n_tensors - 1;
}

static void cut(struct graph_builder *b, int tensor, struct graph_cut cut)
{
    if (tensor >= 0 && !b->err)
        b->g->tensors[tensor].cut = cut;
}

void graph_stack_experts(struct graph_builder *b, int tensor, int64_t experts)
{
    if (tensor >= 0 && !b->err)
        b->g->tensors[tensor].experts = experts;
    cut(b, tensor, (struct graph_cut){.dim = 0, .segments = 1, .units = experts, .groups = experts, .experts = true});
}

void graph_cut_heads(struct graph_builder *b, int tensor, int dim, int segments, int64_t heads, int64_t kv_heads)
{
    cut(b, tensor, (struct graph_cut){dim, segments, heads, kv_heads, false, false});
}

void graph_cut_kv_heads(struct graph_builder *b, int tensor, int dim, int64_t kv_heads)
{
    cut(b, tensor, (struct graph_cut){dim, 1, kv_heads, kv_heads, false, true});
}

void graph_cut(struct graph_builder *b, int tensor, int dim, int64_t units)
{
    graph_cut_heads(b, tensor, dim, 1, units, units);
}

static int add_named(struct graph_builder *b, enum graph_tensor_kind kind, int layer, const char *name)
{
    struct graph_tensor *t = tensor_new(b);
    if (!t)
        return -1;
    t->kind = kind;
    if (layer < 0)
        snprintf(t->name, sizeof(t->name), "%s", name);
    else
        snprintf(t->name, sizeof(t->name), "layer.%d.%s", layer, name);
    t->ndim = 1;
    t->dim[0] = (struct graph_dim){SYM_TOKENS, 1};
    return b->g->n_tensors - 1;
}

int graph_add_activation(struct graph_builder *b, int layer, const char *name, int64_t cols)
{
    int t = add_named(b, GT_ACTIVATION, layer, name);
    if (t >= 0) {
        b->g->tensors[t].ndim = 2;
        b->g->tensors[t].dim[1] = (struct graph_dim){SYM_ONE, cols};
    }
    return t;
}

int graph_add_stat(struct graph_builder *b, int layer, const char *name, int64_t per_token)
{
    int t = add_named(b, GT_STAT, layer, name);
    if (t >= 0)
        b->g->tensors[t].dim[0].factor = per_token;
    return t;
}

int graph_add_rows(struct graph_builder *b, int layer, const char *name, int64_t per_token, int64_t cols)
{
    int t = graph_add_activation(b, layer, name, cols);
    if (t >= 0)
        b->g->tensors[t].dim[0].factor = per_token;
    if (t >= 0)
        b->g->tensors[t].by_expert = true;
    return t;
}

int graph_add_index(struct graph_builder *b, int layer, const char *name, bool tokens, int64_t n)
{
    int t = add_named(b, GT_INDEX, layer, name);
    if (t >= 0)
        b->g->tensors[t].dim[0] = (struct graph_dim){tokens ? SYM_TOKENS : SYM_ONE, n};
    return t;
}

int graph_add_numbers(struct graph_builder *b, int layer, const char *name, bool samples, int64_t n)
{
    int t = add_named(b, GT_NUMBERS, layer, name);
    if (t >= 0)
        b->g->tensors[t].dim[0] = (struct graph_dim){samples ? SYM_SAMPLES : SYM_ONE, n};
    return t;
}

int graph_add_input(struct graph_builder *b, enum graph_tensor_kind kind, const char *name)
{
    int t = add_named(b, kind, -1, name);
    if (t >= 0 && kind == GT_IDS)
        b->g->ids = t;
    if (t >= 0 && kind == GT_TARGETS)
        b->g->targets = t;
    if (t >= 0 && kind == GT_BEGIN)
        b->g->begin = t;
    return t;
}

static void node_clear(struct graph_node *n, enum graph_op op, int layer)
{
    memset(n, 0, sizeof(*n));
    n->op = op;
    n->layer = layer;
    for (int i = 0; i < GRAPH_MAX_IN; i++)
        n->in[i] = -1;
    for (int i = 0; i < GRAPH_MAX_OUT; i++)
        n->out[i] = -1;
}

struct graph_node *graph_add_node(struct graph_builder *b, enum graph_op op, int layer)
{
    struct graph *g = b->g;
    if (!b->err && g->n_nodes == b->cap_nodes) {
        int cap = b->cap_nodes ? 2 * b->cap_nodes : 64;
        struct graph_node *n = realloc(g->nodes, (size_t)cap * sizeof(*n));
        if (n) {
            g->nodes = n;
            b->cap_nodes = cap;
        } else {
            b->err = ERR_NOMEM;
        }
    }
    struct graph_node *n = b->err ? &b->sink : &g->nodes[g->n_nodes++];
    node_clear(n, op, layer);
    return n;
}

void graph_add_linear(struct graph_builder *b, int layer, int x, int w, int bias, bool trans_w, int y)
{
    struct graph_node *n = graph_add_node(b, GO_LINEAR, layer);
    n->in[0] = x;
    n->in[1] = w;
    n->in[2] = bias;
    n->out[0] = y;
    n->trans_w = trans_w;
    if (!b->err)
        b->g->n_params_matmul += b->g->tensors[w].dim[0].factor * b->g->tensors[w].dim[1].factor;
}

void graph_add_experts(struct graph_builder *b, int layer, const struct graph_router *router, int x, int w, int offsets,
                       int y)
{
    struct graph_node *n = graph_add_node(b, GO_EXPERTS, layer);
    n->in[0] = x;
    n->in[1] = w;
    n->in[2] = offsets;
    n->out[0] = y;
    n->router = *router;
    if (!b->err)
        b->g->n_params_matmul +=
            router->k * (b->g->tensors[w].dim[0].factor / router->experts) * b->g->tensors[w].dim[1].factor;
}

void graph_add_loss(struct graph_builder *b, int logits)
{
    int targets = graph_add_input(b, GT_TARGETS, "targets");
    struct graph_node *n = graph_add_node(b, GO_LOSS, -1);
    n->in[0] = logits;
    n->in[1] = targets;
    b->g->logits = logits;
    b->g->loss_node = b->g->n_nodes - 1;
}

/* Named and initialised as in GPT2ForSequenceClassification and its relatives. */
void graph_add_labels(struct graph_builder *b, int unit, const struct job_model *m, int x)
{
    const struct graph_param table = {unit, INIT_NORMAL, 0.02, m->labels, m->dim};
    int w = graph_add_param(b, table, "score.weight");
    int logits = graph_add_activation(b, -1, "logits", m->labels);
    graph_cut(b, w, 0, m->labels);
    graph_cut(b, logits, 1, m->labels);
    graph_add_linear(b, -1, x, w, -1, false, logits);
    graph_add_loss(b, logits);
}

void graph_set_scores(const struct graph_builder *b, struct graph_node *attention, const struct job_model *m, int layer)
{
    attention->window = job_layer_has_window(m, layer) && m->window < b->seq ? m->window : 0;
    attention->softcap = m->score_softcap;
    attention->scale = m->score_scale;
}

void graph_add_documents(struct graph_builder *b)
{
    int begin = graph_add_input(b, GT_BEGIN, "begin");
    for (int i = 0; i < b->g->n_nodes; i++)
        if (b->g->nodes[i].op == GO_ATTENTION)
            b->g->nodes[i].in[3] = begin;
}

/* ---- the rows of models.inc ---- */

static const struct arch {
    const char *name;
    void (*build)(struct graph_builder *b, const struct job_model *m);
    bool rotary, grouped;
    int64_t ffn, ffn_over, ffn_step; /* ffn / ffn_over dim, rounded down, then up to a multiple of ffn_step */
} archs[] = {
#define TIMES(m) m, 1, 1
#define RATIO(m, n, step) m, n, step
#define X(id, name, builder, rotary, grouped, head, ffn) [ARCH_##id] = {name, builder, rotary, grouped, ffn},
#include "common/conf/models.inc"
#undef X
#undef TIMES
#undef RATIO
};

/* ---- checks of the job's dimensions ---- */

#define MAX_WIDTH (1 << 17) /* of the residual stream, and of all heads */

static err_t check_range(const char *key, int64_t value, int64_t max, struct why *why)
{
    if (value >= 1 && value <= max)
        return OK;
    return why_set(why, ERR_INVALID, "%s is %lld; it must be 1 to %lld; the nearest legal value is %lld", key,
                   (long long)value, (long long)max, (long long)(value < 1 ? 1 : max));
}

/* The divisor of n that is nearest to x; of two equally near ones the smaller. */
static int64_t nearest_divisor(int64_t n, int64_t x)
{
    for (int64_t d = 0;; d++) {
        if (x - d >= 1 && n % (x - d) == 0)
            return x - d;
        if (x + d <= n && n % (x + d) == 0)
            return x + d;
    }
}

static err_t check_divides(const char *key, int64_t value, const char *of_key, int64_t of, struct why *why)
{
    if (value <= of && of % value == 0)
        return OK;
    int64_t near = value > of ? of : nearest_divisor(of, value);
    return why_set(why, ERR_INVALID, "%s is %lld, which does not divide %s (%lld); the nearest legal value is %lld",
                   key, (long long)value, of_key, (long long)of, (long long)near);
}

static err_t check_experts(const struct job_model *m, struct why *why)
{
    const struct {
        const char *key;
        int64_t value, max;
    } ranges[] = {
        {"model.experts", m->experts, JOB_MAX_EXPERTS},
        {"model.experts_per_token", m->experts_per_token, m->experts < JOB_MAX_CHOICES ? m->experts : JOB_MAX_CHOICES},
        {"model.expert_ffn", m->expert_ffn, 1 << 20},
        {"model.shared_experts + 1", m->shared_experts + 1, JOB_MAX_EXPERTS},
        {"model.router_groups_kept", m->router_groups_kept, m->router_groups},
        {"model.moe_every", m->moe_every, m->layers},
        {"model.dense_layers + 1", m->dense_layers + 1, m->layers / m->moe_every * m->moe_every},
    };
    err_t e = OK;
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]) && !e; i++)
        e = check_range(ranges[i].key, ranges[i].value, ranges[i].max, why);
    if (!e)
        e = check_divides("model.router_groups", m->router_groups, "model.experts", m->experts, why);
    int64_t each = m->experts / (m->router_groups > 0 ? m->router_groups : 1);
    if (!e)
        e = check_range("model.router_group_best", m->router_group_best, each, why);
    return e ? e : check_range("model.experts_per_token", m->experts_per_token, m->router_groups_kept * each, why);
}

/* model.head_dim is set. */
static err_t check_head_dim(const struct job_model *m, const struct arch *arch, struct why *why)
{
    if (m->arch != ARCH_LLAMA && m->head_dim * m->heads != m->dim)
        return why_set(why, ERR_INVALID,
                       "model.head_dim is %lld; the heads of %s have model.dim / model.heads columns: "
                       "set it to 0",
                       (long long)m->head_dim, arch->name);
    const int64_t most = MAX_WIDTH / m->heads / 2 * 2;
    if (m->head_dim >= 2 && m->head_dim <= most && m->head_dim % 2 == 0)
        return OK;
    return why_set(why, ERR_INVALID,
                   "model.head_dim is %lld; it must be even, because rotary positions turn pairs, and 2 to %lld; the "
                   "nearest legal value is %lld",
                   (long long)m->head_dim, (long long)most,
                   (long long)(m->head_dim < 2      ? 2
                               : m->head_dim > most ? most
                                                    : m->head_dim + 1));
}

static err_t check_attention(const struct job_model *m, const struct arch *arch, struct why *why)
{
    if (m->arch == ARCH_LLAMA || (!m->qkv_bias && m->qk_norm == QK_NORM_NONE))
        return OK;
    return why_set(why, ERR_INVALID, "%s is set, which %s does not have: leave the key out",
                   m->qkv_bias ? "model.qkv_bias" : "model.qk_norm", arch->name);
}

static err_t check_rope(const struct job_model *m, struct why *why)
{
    const int64_t pairs = (int64_t)((double)job_head_dim(m) * (m->rope_part > 0 ? m->rope_part : 1)) / 2;
    const char *local = m->rope_layers ? strchr(m->rope_layers, 'l') : NULL;
    if (m->rope_type == ROPE_LONGROPE && (m->n_rope_short != pairs || m->n_rope_long != pairs || m->rope_original < 2))
        return why_set(why, ERR_INVALID,
                       "model.rope_type longrope needs %lld numbers in model.rope_short and model.rope_long, and "
                       "model.rope_original",
                       (long long)pairs);
    return local && !(m->rope_local_theta > 1)
               ? why_set(why, ERR_INVALID,
                         "model.rope_layers has l, but model.rope_local_theta is %g; it must be above 1",
                         m->rope_local_theta)
               : OK;
}

static err_t check_model(const struct job_model *m, int64_t seq, struct why *why)
{
    const struct {
        const char *key;
        int64_t value, max;
    } ranges[] = {
        {"model.dim", m->dim, MAX_WIDTH},   {"model.layers", m->layers, 1 << 11},
        {"model.heads", m->heads, 1 << 14}, {"model.kv_heads", m->kv_heads, 1 << 14},
        {"model.ffn", m->ffn, 1 << 20},     {"model.vocab", m->vocab, 1 << 24},
        {"train.seq", seq, 1 << 24},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        err_t e = check_range(ranges[i].key, ranges[i].value, ranges[i].max, why);
        if (e)
            return e;
    }
    const struct arch *arch = &archs[m->arch];
    if (arch->rotary && m->dim % 2)
        return why_set(why, ERR_INVALID,
                       "model.dim is %lld; rotary positions turn pairs, so it must be even; %lld is legal",
                       (long long)m->dim, (long long)m->dim + 1);
    err_t e = m->head_dim ? check_head_dim(m, arch, why)
                          : check_divides("model.heads", m->heads, arch->rotary ? "model.dim / 2" : "model.dim",
                                          arch->rotary ? m->dim / 2 : m->dim, why);
    if (e)
        return e;
    if (!arch->grouped && m->kv_heads != m->heads)
        return why_set(why, ERR_INVALID, "model.kv_heads is %lld; %s has as many as heads: set it to %lld or 0",
                       (long long)m->kv_heads, arch->name, (long long)m->heads);
    if (!(m->norm_eps > 0))
        return why_set(why, ERR_INVALID, "model.norm_eps is %g; it must be above 0; 1e-5 is usual", m->norm_eps);
    if (arch->rotary && !(m->rope_theta > 1))
        return why_set(why, ERR_INVALID, "model.rope_theta is %g; it must be above 1; 10000 is usual", m->rope_theta);
    e = check_attention(m, arch, why);
    e = e ? e : check_rope(m, why);
    e = e ? e : check_divides("model.kv_heads", m->kv_heads, "model.heads", m->heads, why);
    return e || !m->experts ? e : check_experts(m, why);
}

struct job_model graph_model(const struct job_model *model)
{
    struct job_model m = *model;
    const struct arch *arch = &archs[m.arch];
    if (m.kv_heads == 0)
        m.kv_heads = m.heads;
    m.moe_every = m.moe_every ? m.moe_every : 1;
    m.router_groups = m.router_groups ? m.router_groups : 1;
    m.router_groups_kept = m.router_groups_kept ? m.router_groups_kept : 1;
    m.router_group_best = m.router_group_best ? m.router_group_best : 1;
    double *const factors[] = {&m.router_scale, &m.embed_scale, &m.residual_scale, &m.logit_scale};
    for (size_t i = 0; i < sizeof(factors) / sizeof(factors[0]); i++)
        *factors[i] = *factors[i] != 0 ? *factors[i] : 1;
    if (m.activation == ACTIVATION_AUTO)
        m.activation = m.arch == ARCH_GPT2 ? ACTIVATION_GELU : ACTIVATION_SILU;
    if (m.ffn == 0 && m.dim > 0 && m.dim <= MAX_WIDTH)
        m.ffn = (arch->ffn * m.dim / arch->ffn_over + arch->ffn_step - 1) / arch->ffn_step * arch->ffn_step;
    m.expert_ffn = m.expert_ffn ? m.expert_ffn : m.ffn;
    return m;
}

/* ---- build ---- */

err_t graph_build(const struct job_model *model, int64_t seq, struct graph *ret, struct why *why)
{
    if ((size_t)model->arch >= sizeof(archs) / sizeof(archs[0]))
        return why_set(why, ERR_INVALID, "there is no model architecture number %d", (int)model->arch);
    struct job_model m = graph_model(model);
    err_t e = check_model(&m, seq, why);
    if (e)
        return e;
    m.head_dim = job_head_dim(&m);
    struct graph g = {.begin = -1};
    struct graph_builder b = {.g = &g, .seq = seq};
    archs[m.arch].build(&b, &m);
    if (m.documents)
        graph_add_documents(&b);
    if (b.err) {
        graph_fini(&g);
        return why_set(why, b.err, "no memory for the graph of a model of %lld layers", (long long)m.layers);
    }
    *ret = g;
    return OK;
}
