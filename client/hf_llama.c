/* One row per family describes all of it. Reading, writing, names and the choice of a family use the same rows.
 *
 * A default is what the class of transformers assumes where config.json does not have the field. */
#include "client/hf_llama.h"
#include "client/hf_window.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

#define ATTENTION(q, k, v, o)                                                                         \
    {"attention.wq.weight", q ".weight", HF_TURNED}, {"attention.wk.weight", k ".weight", HF_TURNED}, \
        {"attention.wv.weight", v ".weight", 0}, {"attention.wo.weight", o ".weight", 0},             \
        {"attention.wq.bias", q ".bias", HF_TURNED}, {"attention.wk.bias", k ".bias", HF_TURNED},     \
        {"attention.wv.bias", v ".bias", 0},                                                          \
    {                                                                                                 \
        "attention.wo.bias", o ".bias", 0                                                             \
    }
#define QK_NORMS                                                        \
    {"attention.q_norm.weight", "self_attn.q_norm.weight", HF_TURNED},  \
    {                                                                   \
        "attention.k_norm.weight", "self_attn.k_norm.weight", HF_TURNED \
    }
#define AFFINE(ours, theirs)               \
    {ours ".weight", theirs ".weight", 0}, \
    {                                      \
        ours ".bias", theirs ".bias", 0    \
    }
#define GATED                                                                               \
    AFFINE("feed_forward.w1", "mlp.gate_proj"), AFFINE("feed_forward.w2", "mlp.down_proj"), \
        AFFINE("feed_forward.w3", "mlp.up_proj")
#define SELF ATTENTION("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")

static const struct hf_name llama_layer[] = {
    SELF, QK_NORMS, GATED, AFFINE("attention_norm", "input_layernorm"), AFFINE("ffn_norm", "post_attention_layernorm"),
    {0}};
static const struct hf_name llama_rest[] = {{"tok_embeddings.weight", "model.embed_tokens.weight", 0},
                                            AFFINE("norm", "model.norm"),
                                            AFFINE("output", "lm_head"),
                                            {0}};

/* post_attention_layernorm is behind the attention here, and before the feed-forward in llama. */
static const struct hf_name olmo2_layer[] = {SELF,
                                             QK_NORMS,
                                             GATED,
                                             AFFINE("attention_post_norm", "post_attention_layernorm"),
                                             AFFINE("ffn_post_norm", "post_feedforward_layernorm"),
                                             {0}};
static const struct hf_name gemma2_layer[] = {SELF,
                                              QK_NORMS,
                                              GATED,
                                              AFFINE("attention_norm", "input_layernorm"),
                                              AFFINE("attention_post_norm", "post_attention_layernorm"),
                                              AFFINE("ffn_norm", "pre_feedforward_layernorm"),
                                              AFFINE("ffn_post_norm", "post_feedforward_layernorm"),
                                              {0}};
static const struct hf_name phi3_layer[] = {{"attention.wq.weight", "self_attn.qkv_proj.weight", HF_FUSED | HF_TURNED},
                                            {"attention.wk.weight", "self_attn.qkv_proj.weight", HF_FUSED | HF_TURNED},
                                            {"attention.wv.weight", "self_attn.qkv_proj.weight", HF_FUSED},
                                            {"attention.wo.weight", "self_attn.o_proj.weight", 0},
                                            {"feed_forward.w1.weight", "mlp.gate_up_proj.weight", HF_FUSED},
                                            {"feed_forward.w3.weight", "mlp.gate_up_proj.weight", HF_FUSED},
                                            {"feed_forward.w2.weight", "mlp.down_proj.weight", 0},
                                            AFFINE("attention_norm", "input_layernorm"),
                                            AFFINE("ffn_norm", "post_attention_layernorm"),
                                            {0}};
static const struct hf_name phi_layer[] = {
    ATTENTION("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense"),
    AFFINE("feed_forward.w1", "mlp.fc1"),
    AFFINE("feed_forward.w2", "mlp.fc2"),
    AFFINE("attention_norm", "input_layernorm"),
    {0}};
static const struct hf_name phi_rest[] = {{"tok_embeddings.weight", "model.embed_tokens.weight", 0},
                                          AFFINE("norm", "model.final_layernorm"),
                                          AFFINE("output", "lm_head"),
                                          {0}};
static const struct hf_name neox_layer[] = {
    {"attention.wq.weight", "attention.query_key_value.weight", HF_FUSED | HF_BY_HEAD | HF_TURNED},
    {"attention.wk.weight", "attention.query_key_value.weight", HF_FUSED | HF_BY_HEAD | HF_TURNED},
    {"attention.wv.weight", "attention.query_key_value.weight", HF_FUSED | HF_BY_HEAD},
    {"attention.wq.bias", "attention.query_key_value.bias", HF_FUSED | HF_BY_HEAD | HF_TURNED},
    {"attention.wk.bias", "attention.query_key_value.bias", HF_FUSED | HF_BY_HEAD | HF_TURNED},
    {"attention.wv.bias", "attention.query_key_value.bias", HF_FUSED | HF_BY_HEAD},
    AFFINE("attention.wo", "attention.dense"),
    AFFINE("feed_forward.w1", "mlp.dense_h_to_4h"),
    AFFINE("feed_forward.w2", "mlp.dense_4h_to_h"),
    AFFINE("attention_norm", "input_layernorm"),
    AFFINE("ffn_norm", "post_attention_layernorm"),
    {0}};
static const struct hf_name neox_rest[] = {{"tok_embeddings.weight", "gpt_neox.embed_in.weight", 0},
                                           AFFINE("norm", "gpt_neox.final_layer_norm"),
                                           AFFINE("output", "embed_out"),
                                           {0}};
static const struct hf_name starcoder2_layer[] = {SELF,
                                                  AFFINE("feed_forward.w1", "mlp.c_fc"),
                                                  AFFINE("feed_forward.w2", "mlp.c_proj"),
                                                  AFFINE("attention_norm", "input_layernorm"),
                                                  AFFINE("ffn_norm", "post_attention_layernorm"),
                                                  {0}};

/* ---- fields ---- */

#define PART(p) (1u << (HF_##p))
#define OF(member) offsetof(struct job_model, member)
#define ATTENTION_BIAS(otherwise)                                                        \
    {                                                                                    \
        "attention_bias", HF_FIELD_BIAS, PART(QKV_BIAS) | PART(OUT_BIAS), 0, (otherwise) \
    }
#define MLP_BIAS                                            \
    {                                                       \
        "mlp_bias", HF_FIELD_BIAS, PART(FFN_BIAS), 0, false \
    }

static const struct hf_field llama_fields[] = {ATTENTION_BIAS(false), MLP_BIAS, {0}};
static const struct hf_field attention_fields[] = {ATTENTION_BIAS(false), {0}};
static const struct hf_field neox_fields[] = {
    ATTENTION_BIAS(true), {"use_parallel_residual", HF_FIELD_PARALLEL, PART(BRANCHES), 0, true}, {0}};
static const struct hf_field starcoder2_fields[] = {
    {"use_bias", HF_FIELD_BIAS, PART(QKV_BIAS) | PART(OUT_BIAS) | PART(FFN_BIAS), 0, true}, {0}};
static const struct hf_field gemma2_fields[] = {
    ATTENTION_BIAS(false),
    {"query_pre_attn_scalar", HF_FIELD_ROOT, PART(SCORE_SCALE), OF(score_scale), 256},
    {"final_logit_softcapping", HF_FIELD_CAP, PART(LOGIT_CAP), OF(logit_cap), 30},
    {"attn_logit_softcapping", HF_FIELD_CAP, PART(SCORE_CAP), OF(score_softcap), 50},
    {0}};
static const struct hf_field gemma3_fields[] = {
    ATTENTION_BIAS(false),
    {"query_pre_attn_scalar", HF_FIELD_ROOT, PART(SCORE_SCALE), OF(score_scale), 256},
    {"final_logit_softcapping", HF_FIELD_CAP, PART(LOGIT_CAP), OF(logit_cap), 0},
    {"attn_logit_softcapping", HF_FIELD_UNUSED, 0, 0, 0},
    {0}};
static const struct hf_field granite_fields[] = {
    ATTENTION_BIAS(false),
    MLP_BIAS,
    {"embedding_multiplier", HF_FIELD_FACTOR, PART(EMBED_SCALE), OF(embed_scale), 1},
    {"residual_multiplier", HF_FIELD_FACTOR, PART(RESIDUAL_SCALE), OF(residual_scale), 1},
    {"attention_multiplier", HF_FIELD_FACTOR, PART(SCORE_SCALE), OF(score_scale), 1},
    {"logits_scaling", HF_FIELD_DIVISOR, PART(LOGIT_SCALE), OF(logit_scale), 1},
    {0}};

static const char *const phi_refused[] = {"qk_layernorm", NULL};
static const char *const gemma_refused[] = {"use_bidirectional_attention", NULL};

#define WIDE (PART(HEAD_DIM) | PART(GROUPED))
#define LAYER_NORM [HF_NORM] = NORM_LAYER
#define GEMMA                                                                                                    \
    .act = "hidden_activation", .act_2 = "hidden_act", .act_default = "gelu_pytorch_tanh", .gelu_is_tanh = true, \
    .head_dim = 256, .tied = true, .refused = gemma_refused, .any = WIDE

/* The first family that fits is chosen where nothing else is known, so the order matters. */
const struct hf_llama hf_llamas[] = {
    {.type = "llama", .architecture = "LlamaForCausalLM", .any = WIDE, .positions = 2048, .fields = llama_fields},
    {.type = "qwen2",
     .kv_heads = 32,
     .architecture = "Qwen2ForCausalLM",
     .part = {[HF_QKV_BIAS] = 1},
     .any = WIDE,
     .positions = 32768,
     .window = HF_WINDOW_SWITCH,
     .window_default = 4096},
    {.type = "qwen3",
     .kv_heads = 32,
     .architecture = "Qwen3ForCausalLM",
     .part = {[HF_QK_NORM] = QK_NORM_HEAD},
     .any = WIDE,
     .head_dim = 128,
     .positions = 32768,
     .window = HF_WINDOW_SWITCH,
     .window_default = 4096,
     .fields = attention_fields},
    {.type = "mistral",
     .kv_heads = 8,
     .architecture = "MistralForCausalLM",
     .any = WIDE,
     .positions = 131072,
     .window = HF_WINDOW_ALL,
     .window_default = 4096},
    {.type = "granite", .architecture = "GraniteForCausalLM", .any = WIDE, .positions = 2048, .fields = granite_fields},
    {.type = "smollm3",
     .kv_heads = 4,
     .architecture = "SmolLM3ForCausalLM",
     .any = WIDE | PART(ROPE_LAYERS),
     .positions = 32768,
     .window = HF_WINDOW_OFF,
     .tied = true,
     .rope = {.theta = 2e6},
     .fields = llama_fields,
     .no_rope_layers = true},
    {.type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .layer = phi3_layer,
     .any = WIDE | PART(ROPE_PART) | PART(LONGROPE),
     .positions = 4096,
     .window = HF_WINDOW_ALL,
     .eps_default = 1e-5,
     .rope = {.original = 4096}},
    {.type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .layer = olmo2_layer,
     .part = {[HF_NORM_PLACE] = NORM_AFTER, [HF_QK_NORM] = QK_NORM_WHOLE},
     .any = WIDE,
     .positions = 2048,
     .eps_default = 1e-5,
     .fields = attention_fields},
    {.type = "gpt_neox",
     .architecture = "GPTNeoXForCausalLM",
     .layer = neox_layer,
     .rest = neox_rest,
     .layers = "gpt_neox.layers.",
     .model = "gpt_neox.",
     .part = {LAYER_NORM, [HF_FFN_BIAS] = 1, [HF_FFN_PLAIN] = 1},
     .any = PART(ROPE_PART),
     .positions = 2048,
     .eps = "layer_norm_eps",
     .eps_default = 1e-5,
     .act_default = "gelu",
     .rope = {.part = 0.25, .theta_key = "rotary_emb_base", .part_key = "rotary_pct"},
     .fields = neox_fields},
    {.type = "phi",
     .architecture = "PhiForCausalLM",
     .layer = phi_layer,
     .rest = phi_rest,
     .part = {LAYER_NORM, [HF_QKV_BIAS] = 1, [HF_OUT_BIAS] = 1, [HF_FFN_BIAS] = 1, [HF_HEAD_BIAS] = 1,
              [HF_FFN_PLAIN] = 1, [HF_BRANCHES] = BRANCHES_ONE_NORM},
     .any = PART(ROPE_PART) | PART(GROUPED),
     .positions = 2048,
     .eps = "layer_norm_eps",
     .eps_default = 1e-5,
     .act_default = "gelu_new",
     .rope = {.part = 0.5},
     .refused = phi_refused},
    {.type = "starcoder2",
     .kv_heads = 2,
     .architecture = "Starcoder2ForCausalLM",
     .layer = starcoder2_layer,
     .part = {LAYER_NORM, [HF_FFN_PLAIN] = 1},
     .any = PART(GROUPED),
     .positions = 4096,
     .window = HF_WINDOW_ALL,
     .eps = "norm_epsilon",
     .eps_default = 1e-5,
     .act_default = "gelu_pytorch_tanh",
     .tied = true,
     .fields = starcoder2_fields},
    {.type = "gemma",
     .kv_heads = 16,
     .architecture = "GemmaForCausalLM",
     .part = {[HF_NORM] = NORM_RMS1, [HF_EMBED_SCALE] = 1},
     .positions = 8192,
     .fields = attention_fields,
     GEMMA},
    {.type = "gemma2",
     .kv_heads = 4,
     .architecture = "Gemma2ForCausalLM",
     .layer = gemma2_layer,
     .part = {[HF_NORM] = NORM_RMS1, [HF_NORM_PLACE] = NORM_BOTH, [HF_EMBED_SCALE] = 1},
     .positions = 8192,
     .window = HF_WINDOW_LAYERS,
     .window_default = 4096,
     .window_every = 2,
     .fields = gemma2_fields,
     GEMMA},
    {.type = "gemma3_text",
     .kv_heads = 4,
     .architecture = "Gemma3ForCausalLM",
     .layer = gemma2_layer,
     .part = {[HF_NORM] = NORM_RMS1,
              [HF_NORM_PLACE] = NORM_BOTH,
              [HF_EMBED_SCALE] = 1,
              [HF_QK_NORM] = QK_NORM_HEAD,
              [HF_ROPE_LAYERS] = 2},
     .positions = 131072,
     .window = HF_WINDOW_LAYERS,
     .window_default = 4096,
     .window_every = 6,
     .rope = {.theta = 1e6, .local = 1e4},
     .fields = gemma3_fields,
     GEMMA},
};
const int n_hf_llamas = sizeof(hf_llamas) / sizeof(hf_llamas[0]);

/* ---- parts ---- */

static const char *const part_keys[HF_PARTS] = {[HF_QKV_BIAS] = "model.qkv_bias",
                                                [HF_OUT_BIAS] = "model.out_bias",
                                                [HF_FFN_BIAS] = "model.ffn_bias",
                                                [HF_HEAD_BIAS] = "model.head_bias",
                                                [HF_QK_NORM] = "model.qk_norm",
                                                [HF_FFN_PLAIN] = "model.ffn_plain",
                                                [HF_NORM] = "model.norm",
                                                [HF_NORM_PLACE] = "model.norm_place",
                                                [HF_BRANCHES] = "model.branches",
                                                [HF_EMBED_SCALE] = "model.embed_scale",
                                                [HF_RESIDUAL_SCALE] = "model.residual_scale",
                                                [HF_SCORE_SCALE] = "model.score_scale",
                                                [HF_LOGIT_SCALE] = "model.logit_scale",
                                                [HF_LOGIT_CAP] = "model.logit_cap",
                                                [HF_SCORE_CAP] = "model.score_softcap",
                                                [HF_WINDOWS] = "model.window",
                                                [HF_ROPE_LAYERS] = "model.rope_layers",
                                                [HF_ROPE_PART] = "model.rope_part",
                                                [HF_LONGROPE] = "model.rope_type",
                                                [HF_HEAD_DIM] = "model.head_dim",
                                                [HF_GROUPED] = "model.kv_heads"};

const char *hf_part_key(enum hf_part part)
{
    return part < HF_PARTS ? part_keys[part] : "";
}

static bool is_factor(double x)
{
    return x != 0 && x != 1;
}

static int embed_part(const struct job_model *m)
{
    if (!is_factor(m->embed_scale))
        return 0;
    return fabs(m->embed_scale / sqrt((double)m->dim) - 1) < 1e-12 ? 1 : 2;
}

static int rope_part(const struct job_model *m)
{
    if (!m->rope_layers)
        return 0;
    return strchr(m->rope_layers, 'l') ? 2 : strchr(m->rope_layers, '0') ? 1 : 0;
}

int hf_part_of(const struct job_model *m, enum hf_part part)
{
    const int64_t kv_heads = m->kv_heads ? m->kv_heads : m->heads;
    const int values[HF_PARTS] = {
        [HF_QKV_BIAS] = m->qkv_bias,
        [HF_OUT_BIAS] = m->out_bias,
        [HF_FFN_BIAS] = m->ffn_bias,
        [HF_HEAD_BIAS] = m->head_bias,
        [HF_QK_NORM] = m->qk_norm,
        [HF_FFN_PLAIN] = m->ffn_plain,
        [HF_NORM] = m->norm,
        [HF_NORM_PLACE] = m->norm_place,
        [HF_BRANCHES] = m->branches,
        [HF_EMBED_SCALE] = embed_part(m),
        [HF_RESIDUAL_SCALE] = is_factor(m->residual_scale),
        [HF_SCORE_SCALE] = m->score_scale > 0,
        [HF_LOGIT_SCALE] = is_factor(m->logit_scale),
        [HF_LOGIT_CAP] = m->logit_cap > 0,
        [HF_SCORE_CAP] = m->score_softcap > 0,
        [HF_WINDOWS] = hf_window_any(m),
        [HF_ROPE_LAYERS] = rope_part(m),
        [HF_ROPE_PART] = is_factor(m->rope_part),
        [HF_LONGROPE] = m->rope_type == ROPE_LONGROPE,
        [HF_HEAD_DIM] = job_head_dim(m) * m->heads != m->dim,
        [HF_GROUPED] = kv_heads != m->heads,
    };
    return values[part];
}

/* Sets the parts of a family that are no sizes and no numbers. */
static void parts_set(const struct hf_llama *f, struct job_model *m)
{
    m->qkv_bias = f->part[HF_QKV_BIAS];
    m->out_bias = f->part[HF_OUT_BIAS];
    m->ffn_bias = f->part[HF_FFN_BIAS];
    m->head_bias = f->part[HF_HEAD_BIAS];
    m->qk_norm = (enum qk_norm)f->part[HF_QK_NORM];
    m->ffn_plain = f->part[HF_FFN_PLAIN];
    m->norm = (enum norm_kind)f->part[HF_NORM];
    m->norm_place = (enum norm_place)f->part[HF_NORM_PLACE];
    m->branches = (enum branches)f->part[HF_BRANCHES];
    m->embed_scale = f->part[HF_EMBED_SCALE] ? sqrt((double)m->dim) : 1;
}

/* Whether the field can have a value that gives the model all its parts. */
static bool field_fits(const struct hf_field *x, const struct job_model *m)
{
    int value = -1;
    for (int p = 0; p < HF_PARTS && x->kind == HF_FIELD_BIAS; p++)
        if (x->parts >> p & 1) {
            if (value >= 0 && value != hf_part_of(m, (enum hf_part)p))
                return false;
            value = hf_part_of(m, (enum hf_part)p);
        }
    return x->kind != HF_FIELD_PARALLEL || m->branches != BRANCHES_ONE_NORM;
}

enum hf_part hf_llama_misfit(const struct hf_llama *f, const struct job_model *m)
{
    unsigned any = f->any | (hf_window_fits(f, m) ? PART(WINDOWS) : 0);
    for (const struct hf_field *x = f->fields; x && x->key; x++)
        any |= field_fits(x, m) ? x->parts : 0;
    for (int p = 0; p < HF_PARTS; p++)
        if (!(any >> p & 1) && f->part[p] != hf_part_of(m, (enum hf_part)p))
            return (enum hf_part)p;
    return HF_PARTS;
}

static int misfits(const struct hf_llama *f, const struct job_model *m)
{
    struct hf_llama rest = *f;
    int n = 0;
    for (enum hf_part p; (p = hf_llama_misfit(&rest, m)) != HF_PARTS; n++)
        rest.any |= 1u << p;
    return n;
}

const struct hf_llama *hf_llama_find(const char *type)
{
    for (int i = 0; type && i < n_hf_llamas; i++)
        if (strcmp(hf_llamas[i].type, type) == 0)
            return &hf_llamas[i];
    return NULL;
}

err_t hf_llama_choose(const struct job_model *m, const char *type, const struct hf_llama **ret, struct why *why)
{
    const struct hf_llama *known = hf_llama_find(type), *nearest = &hf_llamas[0];
    if (is_factor(m->rope_part) && (int64_t)((double)job_head_dim(m) * m->rope_part) % 2)
        return why_set(why, ERR_UNSUPPORTED,
                       "model.rope_part %g is an odd number of the %lld columns of a head, where transformers turns "
                       "other pairs than dtd",
                       m->rope_part, (long long)job_head_dim(m));
    if (known && hf_llama_misfit(known, m) == HF_PARTS) {
        *ret = known;
        return OK;
    }
    for (int i = 0; i < n_hf_llamas; i++) {
        if (hf_llama_misfit(&hf_llamas[i], m) == HF_PARTS) {
            *ret = &hf_llamas[i];
            return OK;
        }
        if (misfits(&hf_llamas[i], m) < misfits(nearest, m))
            nearest = &hf_llamas[i];
    }
    return why_set(why, ERR_UNSUPPORTED,
                   "Hugging Face has no model with these parts that dtd can write; the nearest, %s, has another %s "
                   "(docs/use/models.md). dtd and PyTorch read the checkpoint itself",
                   nearest->type, hf_part_key(hf_llama_misfit(nearest, m)));
}

/* ---- names of tensors ---- */

static const struct hf_name *name_find(const struct hf_name *rows, const char *ours)
{
    for (; rows->ours; rows++)
        if (strcmp(rows->ours, ours) == 0)
            return rows;
    return NULL;
}

bool hf_llama_name(const struct hf_llama *f, const struct job_model *m, struct hf_tensor *ret)
{
    const char *ours = ret->tensor->name, *prefix = f->layers ? f->layers : "model.layers.";
    int layer = 0, n = 0;
    bool in_layer = sscanf(ours, "layers.%d.%n", &layer, &n) == 1 && n;
    const struct hf_name *row = in_layer ? name_find(f->layer ? f->layer : llama_layer, ours + n)
                                         : name_find(f->rest ? f->rest : llama_rest, ours);
    if (!row)
        return false;
    if (in_layer)
        snprintf(ret->name, sizeof(ret->name), "%s%d.%s", prefix, layer, row->theirs);
    else
        snprintf(ret->name, sizeof(ret->name), "%s", row->theirs);
    ret->head_dim = row->how & HF_TURNED ? job_head_dim(m) : 0;
    ret->turned = (int64_t)((double)ret->head_dim * (m->rope_part > 0 ? m->rope_part : 1)) / 2 * 2;
    ret->unit = row->how & HF_BY_HEAD ? job_head_dim(m) : row->how & HF_FUSED ? ret->rows : 0;
    return true;
}

const char *hf_llama_rest(const struct hf_llama *f, const char *ours)
{
    const struct hf_name *row = name_find(f->rest ? f->rest : llama_rest, ours);
    return row ? row->theirs : "";
}

/* ---- reading ---- */

err_t hf_activation_read(const struct hf_config *c, const char *key, const char *otherwise, bool gelu_is_tanh,
                         bool gated, enum activation *ret)
{
    static const struct {
        const char *name;
        enum activation is;
        bool gated, plain;
    } rows[] = {{"silu", ACTIVATION_SILU, true, false},
                {"swish", ACTIVATION_SILU, true, false},
                {"gelu_new", ACTIVATION_GELU, true, true},
                {"gelu_pytorch_tanh", ACTIVATION_GELU, true, true},
                {"gelu_python_tanh", ACTIVATION_GELU, true, true},
                {"gelu", ACTIVATION_GELU_ERF, false, true}};
    const json_t *value = hf_config_get(c, key);
    const char *name = value ? json_string_value(value) : otherwise;
    if (gelu_is_tanh && name && strcmp(name, "gelu") == 0)
        name = "gelu_pytorch_tanh";
    for (size_t i = 0; name && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(name, rows[i].name) == 0 && (gated ? rows[i].gated : rows[i].plain)) {
            *ret = rows[i].is;
            return OK;
        }
    return why_set(c->why, ERR_UNSUPPORTED, "%s: %s is \"%.60s\"; dtd supports %s", HF_CONFIG, key, name ? name : "",
                   gated ? "\"silu\" and the tanh form of GELU, \"gelu_pytorch_tanh\""
                         : "\"gelu\" and its tanh form, \"gelu_new\" or \"gelu_pytorch_tanh\"");
}

static err_t bias_read(const struct hf_config *c, const struct hf_field *x, struct job_model *m)
{
    bool on;
    err_t err = hf_config_bool(c, x->key, x->otherwise != 0, &on);
    bool *const at[] = {[HF_QKV_BIAS] = &m->qkv_bias, [HF_OUT_BIAS] = &m->out_bias, [HF_FFN_BIAS] = &m->ffn_bias};
    for (int p = 0; !err && p <= HF_FFN_BIAS; p++)
        if (x->parts >> p & 1)
            *at[p] = on;
    return err;
}

static err_t number_read(const struct hf_config *c, const struct hf_field *x, struct job_model *m)
{
    double *at = (double *)(void *)((char *)m + x->at), value;
    const json_t *null = json_object_get(c->root, x->key);
    err_t err = hf_config_real(c, x->key, x->otherwise, &value);
    if (err)
        return err;
    if (x->kind == HF_FIELD_CAP)
        value = json_is_null(null) ? 0 : value;
    *at = x->kind == HF_FIELD_DIVISOR ? 1 / value : x->kind == HF_FIELD_ROOT ? 1 / sqrt(value) : value;
    return OK;
}

static err_t fields_read(const struct hf_config *c, const struct hf_llama *f, struct job_model *m)
{
    bool parallel = false;
    err_t err = OK;
    for (const struct hf_field *x = f->fields; x && x->key && !err; x++)
        if (x->kind == HF_FIELD_BIAS) {
            err = bias_read(c, x, m);
        } else if (x->kind == HF_FIELD_PARALLEL) {
            err = hf_config_bool(c, x->key, x->otherwise != 0, &parallel);
            m->branches = parallel ? BRANCHES_PARALLEL : BRANCHES_SERIAL;
        } else if (x->kind == HF_FIELD_UNUSED) {
            (void)hf_config_get(c, x->key);
        } else {
            err = number_read(c, x, m);
        }
    /* The scale of Gemma 2 and 3 that attention has anyway. */
    const double usual = 1 / sqrt((double)job_head_dim(m));
    if (!err && fabs(m->score_scale / usual - 1) < 1e-15)
        m->score_scale = 0;
    return err;
}

/* ---- windows and layers that rotate otherwise ---- */

/* The shortest text that gives the same layers when it is repeated. */
static void period_find(char *text)
{
    const size_t n = strlen(text);
    for (size_t p = 1; p < n; p++) {
        size_t i = p;
        while (i < n && text[i] == text[i - p])
            i++;
        if (i == n) {
            text[p] = '\0';
            return;
        }
    }
}

/* Appends a character for each layer. */
static err_t rope_layers_set(const struct hf_config *c, struct job_model *m, const bool *special, char is)
{
    char *text = malloc((size_t)m->layers + 1);
    if (!text)
        return why_set(c->why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (int64_t l = 0; l < m->layers; l++)
        text[l] = special[l] ? is : '1';
    text[m->layers] = '\0';
    period_find(text);
    free(m->rope_layers);
    m->rope_layers = text;
    return OK;
}

/* SmolLM3: a 1 for each layer that rotates. */
static err_t no_rope_read(const struct hf_config *c, struct job_model *m)
{
    const json_t *list = hf_config_get(c, "no_rope_layers");
    int64_t every;
    err_t err = hf_config_int(c, "no_rope_layer_interval", 4, &every);
    if (!err && list && (!json_is_array(list) || (int64_t)json_array_size(list) != m->layers))
        err = why_set(c->why, ERR_INVALID, "%s: no_rope_layers is not a list of num_hidden_layers numbers", HF_CONFIG);
    bool *special = err ? NULL : calloc((size_t)m->layers, sizeof(*special));
    for (int64_t l = 0; special && l < m->layers; l++) {
        const json_t *x = list ? json_array_get(list, (size_t)l) : NULL;
        if (x && (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) > 1))
            err = why_set(c->why, ERR_INVALID, "%s: no_rope_layers has an element other than 0 and 1", HF_CONFIG);
        special[l] = list ? json_integer_value(x) == 0 : (l + 1) % every == 0;
    }
    if (!err)
        err = special ? rope_layers_set(c, m, special, '0') : why_set(c->why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    free(special);
    return err;
}

static err_t layers_read(const struct hf_config *c, const struct hf_llama *f, struct job_model *m, int64_t positions)
{
    bool *sliding = calloc((size_t)m->layers, sizeof(*sliding));
    if (!sliding)
        return why_set(c->why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    err_t err = hf_window_read(c, f, positions, m, sliding);
    if (!err && f->rope.local > 0)
        err = rope_layers_set(c, m, sliding, 'l');
    if (!err && f->no_rope_layers)
        err = no_rope_read(c, m);
    free(sliding);
    return err;
}

static err_t sizes_read(const struct hf_config *c, const struct hf_llama *f, struct job_model *m,
                        int64_t *ret_positions)
{
    int64_t head_dim = 0;
    err_t err = hf_config_int(c, "hidden_size", -1, &m->dim);
    err = err ? err : hf_config_int(c, "num_hidden_layers", -1, &m->layers);
    err = err ? err : hf_config_int(c, "num_attention_heads", -1, &m->heads);
    const bool missing = !json_object_get(c->root, "num_key_value_heads");
    err = err ? err
              : hf_config_int(c, "num_key_value_heads", missing && f->kv_heads ? f->kv_heads : m->heads, &m->kv_heads);
    err = err ? err : hf_config_int(c, "intermediate_size", -1, &m->ffn);
    err = err ? err : hf_config_int(c, "vocab_size", -1, &m->vocab);
    if (!err && m->layers > 4096)
        err = why_set(c->why, ERR_UNSUPPORTED, "%s: num_hidden_layers is %lld; dtd has at most 4096", HF_CONFIG,
                      (long long)m->layers);
    const int64_t usual = m->heads > 0 ? m->dim / m->heads : 1;
    err = err ? err : hf_config_int(c, "head_dim", f->head_dim ? f->head_dim : usual, &head_dim);
    err = err ? err : hf_config_int(c, "max_position_embeddings", f->positions, ret_positions);
    m->head_dim = head_dim * m->heads == m->dim ? 0 : head_dim; /* 0: dim / heads, as job files without the key */
    return err;
}

/* Sizes that the family has only in one form. */
static err_t forms_check(const struct hf_config *c, const struct hf_llama *f, const struct job_model *m)
{
    if (!(f->any & PART(GROUPED)) && m->kv_heads != m->heads)
        return why_set(c->why, ERR_INVALID, "%s: num_key_value_heads is %lld; %s has as many as heads", HF_CONFIG,
                       (long long)m->kv_heads, f->type);
    if (!(f->any & PART(HEAD_DIM)) && m->head_dim)
        return why_set(c->why, ERR_INVALID, "%s: heads of %s have hidden_size / num_attention_heads columns", HF_CONFIG,
                       f->type);
    return OK;
}

err_t hf_llama_read(const struct hf_config *c, const struct hf_llama *f, struct job_model *m, int64_t *ret_positions)
{
    const char *act = f->act ? f->act : "hidden_act", *eps = f->eps ? f->eps : "rms_norm_eps";
    err_t err = sizes_read(c, f, m, ret_positions);
    err = err ? err : forms_check(c, f, m);
    err = err ? err : hf_config_real(c, eps, f->eps_default > 0 ? f->eps_default : 1e-6, &m->norm_eps);
    if (err)
        return err;
    parts_set(f, m);
    if (f->act_2 && !hf_config_get(c, act))
        act = f->act_2;
    err = hf_activation_read(c, act, f->act_default ? f->act_default : "silu", f->gelu_is_tanh, !m->ffn_plain,
                             &m->activation);
    if (f->act_2)
        (void)hf_config_get(c, f->act_2); /* beside the first it has no effect */
    if (m->activation == ACTIVATION_SILU)
        m->activation = ACTIVATION_AUTO;
    err = err ? err : f->refused ? hf_config_without(c, f->refused) : OK;
    err = err ? err : fields_read(c, f, m);
    err = err ? err : layers_read(c, f, m, *ret_positions);
    err = err ? err : hf_rope_read(c->root, &f->rope, *ret_positions, m, c->why);
    return err ? err : hf_config_bool(c, "tie_word_embeddings", f->tied, &m->tied);
}

/* ---- writing ---- */

static json_t *field_value(const struct hf_field *x, const struct job_model *m)
{
    const double *at = (const double *)(const void *)((const char *)m + x->at);
    switch (x->kind) {
    case HF_FIELD_BIAS:
        return json_boolean(hf_part_of(m, (enum hf_part)__builtin_ctz(x->parts)));
    case HF_FIELD_PARALLEL:
        return json_boolean(m->branches == BRANCHES_PARALLEL);
    case HF_FIELD_CAP:
        return *at > 0 ? json_real(*at) : json_null();
    case HF_FIELD_DIVISOR:
        return json_real(*at != 0 ? 1 / *at : 1);
    case HF_FIELD_ROOT: /* a whole number in transformers */
        return *at > 0 && fabs(1 / (*at * *at) - round(1 / (*at * *at))) < 1e-6
                   ? json_integer((json_int_t)llround(1 / (*at * *at)))
                   : json_real(*at > 0 ? 1 / (*at * *at) : (double)job_head_dim(m));
    default:
        return json_real(*at != 0 ? *at : x->at == OF(score_scale) ? 1 / sqrt((double)job_head_dim(m)) : 1);
    }
}

static json_t *rope_list(const struct job_model *m)
{
    json_t *list = json_array();
    for (int64_t l = 0; list && l < m->layers; l++)
        json_array_append_new(list, json_integer(job_rope_of(m, l) != '0'));
    return list;
}

static const char *activation_name(const struct hf_llama *f, enum activation a)
{
    return a == ACTIVATION_GELU_ERF ? "gelu"
           : a == ACTIVATION_GELU
               ? (f->act_default && strcmp(f->act_default, "gelu_new") == 0 ? "gelu_new" : "gelu_pytorch_tanh")
               : "silu";
}

static bool set(json_t *config, const char *key, json_t *value)
{
    return !json_object_set_new(config, key, value);
}

static bool parts_print(const struct hf_llama *f, const struct job_model *m, int64_t positions, json_t *config)
{
    const char *act = activation_name(f, m->activation);
    bool made = set(config, f->act ? f->act : "hidden_act", json_string(act)) &&
                (!f->act_2 || set(config, f->act_2, json_string(act))) &&
                set(config, f->eps ? f->eps : "rms_norm_eps", json_real(m->norm_eps)) &&
                (!(f->any & PART(HEAD_DIM)) || set(config, "head_dim", json_integer(job_head_dim(m))));
    for (const struct hf_field *x = f->fields; made && x && x->key; x++)
        made = x->kind == HF_FIELD_UNUSED || set(config, x->key, field_value(x, m));
    if (made && f->no_rope_layers)
        made = set(config, "no_rope_layers", rope_list(m));
    return made && hf_window_print(f, m, positions, config);
}

int64_t hf_llama_positions(const struct job_model *m, int64_t positions)
{
    const int64_t least = m->rope_type == ROPE_LONGROPE ? llround(m->rope_factor * (double)m->rope_original) : 0;
    return least > positions ? least : positions;
}

json_t *hf_llama_print(const struct hf_llama *f, const struct job_model *m, int64_t ffn, int64_t positions)
{
    const int64_t kv_heads = m->kv_heads ? m->kv_heads : m->heads;
    json_t *ret = json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b}", "architectures",
                            f->architecture, "model_type", f->type, "vocab_size", (json_int_t)m->vocab, "hidden_size",
                            (json_int_t)m->dim, "intermediate_size", (json_int_t)ffn, "num_hidden_layers",
                            (json_int_t)m->layers, "num_attention_heads", (json_int_t)m->heads, "num_key_value_heads",
                            (json_int_t)kv_heads, "max_position_embeddings", (json_int_t)positions, "attention_dropout",
                            0.0, "tie_word_embeddings", m->tied);
    if (ret && !(f->any & PART(GROUPED)))
        json_object_del(ret, "num_key_value_heads");
    if (ret && !parts_print(f, m, positions, ret)) {
        json_decref(ret);
        return NULL;
    }
    /* Families without a default of their own need no width where it is the usual one. */
    if (ret && f->part[HF_QKV_BIAS] && job_head_dim(m) * m->heads == m->dim)
        json_object_del(ret, "head_dim");
    return ret;
}
