/* One table describes each family: rows of names, rows of fields, fields that must not be set. Reading, writing and the
 * choice of a family for a model all use it.
 *
 * A file names every field of the experts: a value that config.json leaves out depends on the version of transformers
 * that reads it, so a missing one is refused unless all versions agree on it.
 *
 * Experts are in files in two forms. Most have three matrices per expert, which is what save_pretrained writes.
 * transformers 5 keeps them in memory as two tensors per layer, gate_up_proj [experts, 2 width, hidden] with the rows
 * of the gate first, and down_proj [experts, hidden, width]; a file may have these (hf_tensor.other). */
#include "client/hf/experts.h"

#include "common/conf/job_rules.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

struct expert_row {
    const char *ours, *theirs; /* in a layer; of an expert's tensor the folder of the experts .. */
    const char *leaf;          /* .. and the name of the matrix in an expert; NULL: no expert's tensor */
    const char *other;         /* NULL: no second name */
    int parts, part;
};

enum field_kind { FIELD_INT, FIELD_BOOL };
struct expert_field {
    const char *key, *second; /* second: the name in other versions of transformers; NULL: none */
    enum field_kind kind;
    size_t at;         /* offset in struct job_model */
    int64_t otherwise; /* what all versions assume where it is missing; -1: it must be there */
};

/* A field that changes the model in a way that dtd does not have, unless it is missing, null, false or 0. `written`:
 * its value in an export, as JSON; NULL: none. `remedy` NULL: it is never refused. */
struct refused_field {
    const char *key, *written, *remedy;
};

struct hf_family {
    struct hf_llama llama;
    const struct expert_row *rows;
    const struct expert_field *fields;
    const struct refused_field *refused;
    bool renormalised; /* the weights of a token's experts always have the sum 1 */
    bool uneven;       /* layers without experts are possible: decoder_sparse_step, mlp_only_layers */
    bool shared;       /* shared_expert_intermediate_size, and a gate */
    bool any_bias;     /* qkv_bias is a field */
};

#define OF(member) offsetof(struct job_model, member)

static const struct expert_row mixtral_rows[] = {
    {"moe.router.gate.weight", "block_sparse_moe.gate.weight", NULL, "mlp.gate.weight", 0, 0},
    {"moe.experts.w1", "block_sparse_moe.experts", "w1.weight", "mlp.experts.gate_up_proj", 2, 0},
    {"moe.experts.w2", "block_sparse_moe.experts", "w2.weight", "mlp.experts.down_proj", 1, 0},
    {"moe.experts.w3", "block_sparse_moe.experts", "w3.weight", "mlp.experts.gate_up_proj", 2, 1},
    {0},
};
static const struct expert_field mixtral_fields[] = {
    {"num_local_experts", "num_experts", FIELD_INT, OF(experts), -1},
    {"num_experts_per_tok", NULL, FIELD_INT, OF(experts_per_token), -1},
    {"intermediate_size", NULL, FIELD_INT, OF(expert_ffn), -1},
    {0},
};
static const struct refused_field mixtral_refused[] = {
    {"router_jitter_noise", "0.0", "it only adds noise while training: set it to 0"},
    {"attention_bias", NULL, "transformers has no such bias in this model"},
    {0},
};

static const struct expert_row qwen_rows[] = {
    {"moe.router.gate.weight", "mlp.gate.weight", NULL, NULL, 0, 0},
    {"moe.experts.w1", "mlp.experts", "gate_proj.weight", "mlp.experts.gate_up_proj", 2, 0},
    {"moe.experts.w2", "mlp.experts", "down_proj.weight", "mlp.experts.down_proj", 1, 0},
    {"moe.experts.w3", "mlp.experts", "up_proj.weight", "mlp.experts.gate_up_proj", 2, 1},
    {"moe.shared_experts.w1.weight", "mlp.shared_expert.gate_proj.weight", NULL, NULL, 0, 0},
    {"moe.shared_experts.w2.weight", "mlp.shared_expert.down_proj.weight", NULL, NULL, 0, 0},
    {"moe.shared_experts.w3.weight", "mlp.shared_expert.up_proj.weight", NULL, NULL, 0, 0},
    {"moe.shared_gate.weight", "mlp.shared_expert_gate.weight", NULL, NULL, 0, 0},
    {0},
};
/* Of the routed experts of Qwen; the layers that have them are read by layers_read. */
#define QWEN_FIELDS                                                          \
    {"num_experts", "num_local_experts", FIELD_INT, OF(experts), -1},        \
        {"num_experts_per_tok", NULL, FIELD_INT, OF(experts_per_token), -1}, \
        {"moe_intermediate_size", NULL, FIELD_INT, OF(expert_ffn), -1},      \
        {"norm_topk_prob", NULL, FIELD_BOOL, OF(router_norm), 0},            \
    {                                                                        \
        "decoder_sparse_step", NULL, FIELD_INT, OF(moe_every), 1             \
    }
static const struct expert_field qwen2_fields[] = {QWEN_FIELDS, {"qkv_bias", NULL, FIELD_BOOL, OF(qkv_bias), 1}, {0}};
static const struct expert_field qwen3_fields[] = {QWEN_FIELDS, {0}};
static const struct expert_field olmoe_fields[] = {
    {"num_experts", "num_local_experts", FIELD_INT, OF(experts), -1},
    {"num_experts_per_tok", NULL, FIELD_INT, OF(experts_per_token), -1},
    {"intermediate_size", NULL, FIELD_INT, OF(expert_ffn), -1},
    {"norm_topk_prob", NULL, FIELD_BOOL, OF(router_norm), 0},
    {0},
};
/* sliding_window counts only with use_sliding_window. */
static const struct refused_field qwen_refused[] = {
    {"use_sliding_window", "false", "windows are those of mixtral only"},
    {"sliding_window", "null", NULL},
    {"dual_chunk_attention_config", NULL,
     "attention in dtd reads all earlier tokens. Remove it to train on sequences "
     "within the original length"},
    {0},
};
static const struct refused_field qwen3_refused[] = {
    {"use_sliding_window", "false", "windows are those of mixtral only"},
    {"sliding_window", "null", NULL},
    {"attention_bias", "false", "attention has no biases beside its norms"},
    {0},
};
static const struct refused_field olmoe_refused[] = {
    {"clip_qkv", "null", "dtd does not clip queries, keys and values, so it would be another model"},
    {"attention_bias", "false", "attention has no biases beside its norms"},
    {0},
};

/* config.json has sizes of heads. */
#define ANY .any = 1u << HF_HEAD_DIM | 1u << HF_GROUPED | 1u << HF_ROPE_PART

static const struct hf_family families[] = {
    {{.type = "mixtral", .architecture = "MixtralForCausalLM", ANY, .positions = 131072, .window = HF_WINDOW_ALL},
     mixtral_rows,
     mixtral_fields,
     mixtral_refused,
     .renormalised = true},
    {{.type = "qwen2_moe",
      .architecture = "Qwen2MoeForCausalLM",
      .part = {[HF_QKV_BIAS] = 1},
      ANY,
      .positions = 32768,
      .window = HF_WINDOW_OFF},
     qwen_rows,
     qwen2_fields,
     qwen_refused,
     .uneven = true,
     .shared = true,
     .any_bias = true},
    {{.type = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .part = {[HF_QK_NORM] = QK_NORM_HEAD},
      ANY,
      .positions = 32768,
      .window = HF_WINDOW_OFF},
     qwen_rows,
     qwen3_fields,
     qwen3_refused,
     .uneven = true},
    {{.type = "olmoe",
      .architecture = "OlmoeForCausalLM",
      .part = {[HF_QK_NORM] = QK_NORM_WHOLE},
      ANY,
      .positions = 4096,
      .window = HF_WINDOW_OFF},
     qwen_rows,
     olmoe_fields,
     olmoe_refused,
     .uneven = false},
};
#define N_FAMILIES (sizeof(families) / sizeof(families[0]))

const struct hf_family *hf_family_find(const char *model_type)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].llama.type, model_type) == 0)
            return &families[i];
    return NULL;
}

const struct hf_llama *hf_family_llama(const struct hf_family *f)
{
    return &f->llama;
}

void hf_family_list(char *ret, size_t size)
{
    size_t n = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < N_FAMILIES && n < size; i++)
        n += (size_t)snprintf(ret + n, size - n, "%s%s", i ? ", " : "", families[i].llama.type);
}

int64_t hf_sparse_layers(const struct job_model *m)
{
    int64_t n = 0;
    for (int64_t l = m->dense_layers; l < m->layers; l++)
        n += (l + 1) % m->moe_every == 0;
    return m->experts ? n : 0;
}

/* ---- choosing a family ---- */

/* Whether the weights of a token's experts have the sum 1. Softmax over all experts divided by the sum of the chosen
 * is the softmax over the chosen. */
static bool is_renormalised(const struct job_model *m)
{
    return m->router == ROUTER_SOFTMAX_TOPK || (m->router == ROUTER_SOFTMAX && m->router_norm);
}

/* The key that this family does not have; NULL: the model fits. */
static const char *misfit(const struct hf_family *f, const struct job_model *m)
{
    struct hf_llama like = f->llama;
    like.any |= 1u << HF_QK_NORM | 1u << HF_QKV_BIAS; /* rows of their own */
    const enum hf_part part = hf_llama_misfit(&like, m);
    const struct {
        bool fits;
        const char *key;
    } rows[] = {
        {(int)m->qk_norm == f->llama.part[HF_QK_NORM], f->llama.part[HF_QK_NORM] == QK_NORM_NONE ? "model.qk_norm"
                                                       : f->llama.part[HF_QK_NORM] == QK_NORM_HEAD
                                                           ? "model.qk_norm other than head"
                                                           : "model.qk_norm other than whole"},
        {f->any_bias || m->qkv_bias == (f->llama.part[HF_QKV_BIAS] != 0), "model.qkv_bias"},
        {part == HF_PARTS, hf_part_key(part)},
        {m->router != ROUTER_SIGMOID, "model.router sigmoid"},
        {!f->renormalised || is_renormalised(m), "model.router softmax without model.router_norm"},
        {!m->router_bias, "model.router_bias"},
        {m->expert_bias == 0, "model.expert_bias"},
        {m->expert_capacity == 0, "model.expert_capacity"},
        {m->router_scale == 1, "model.router_scale"},
        {m->router_groups == 1, "model.router_groups"},
        {f->uneven || hf_sparse_layers(m) == m->layers, "model.moe_every or model.dense_layers"},
        {f->shared || !m->shared_experts, "model.shared_experts"},
        {!f->shared || m->shared_experts, "a model without shared experts"},
        {f->shared == m->shared_gate, f->shared ? "shared experts without model.shared_gate" : "model.shared_gate"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (!rows[i].fits)
            return rows[i].key;
    return NULL;
}

err_t hf_family_choose(const struct job_model *m, const struct hf_family **ret, struct why *why)
{
    char text[512] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const char *key = misfit(&families[i], m);
        if (!key) {
            *ret = &families[i];
            return OK;
        }
        if (n < sizeof(text))
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s has no %s", i ? "; " : "", families[i].llama.type,
                                  strncmp(key, "a model", 7) == 0 ? key + 2 : key);
    }
    return why_set(why, ERR_UNSUPPORTED,
                   "Hugging Face has no model of these experts: %s. dtd and PyTorch read the checkpoint itself", text);
}

/* ---- names ---- */

bool hf_family_name(const struct hf_family *f, const char *ours, int expert, const char *prefix, struct hf_tensor *ret)
{
    const struct expert_row *r = f->rows;
    while (r->ours && strcmp(r->ours, ours) != 0)
        r++;
    if (!r->ours || (expert >= 0) != (r->leaf != NULL))
        return false;
    if (r->leaf)
        snprintf(ret->name, sizeof(ret->name), "%s%s.%d.%s", prefix, r->theirs, expert, r->leaf);
    else
        snprintf(ret->name, sizeof(ret->name), "%s%s", prefix, r->theirs);
    if (r->other)
        snprintf(ret->other, sizeof(ret->other), "%s%s", prefix, r->other);
    ret->fused_parts = r->parts;
    ret->fused_part = r->part;
    return true;
}

/* ---- reading ---- */

static err_t refused_check(const struct hf_family *f, const json_t *config, struct why *why)
{
    for (const struct refused_field *r = f->refused; r->key; r++) {
        const json_t *v = json_object_get(config, r->key);
        if (r->remedy && v && !json_is_null(v) && !json_is_false(v) &&
            !(json_is_number(v) && json_number_value(v) == 0))
            return why_set(why, ERR_UNSUPPORTED, "%s: %s is set, which dtd does not support in %s: %s", HF_CONFIG,
                           r->key, f->llama.type, r->remedy);
    }
    return OK;
}

/* Fields of the attention whose defaults differ between families. */
static err_t present_check(const struct hf_family *f, const json_t *config, struct why *why)
{
    static const char *const keys[] = {"num_key_value_heads", "rms_norm_eps", "rope_theta"};
    const json_t *rope = json_object_get(config, "rope_parameters");
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (!json_object_get(config, keys[i]) && !(i == 2 && json_object_get(rope, keys[i])))
            return why_set(why, ERR_INVALID,
                           "%s: %s is missing, and what %s has without it is not what others have. Add it", HF_CONFIG,
                           keys[i], f->llama.type);
    return OK;
}

/* The value under either name. */
static err_t field_find(const struct expert_field *x, const json_t *config, const json_t **ret, struct why *why)
{
    const json_t *a = json_object_get(config, x->key), *b = x->second ? json_object_get(config, x->second) : NULL;
    if (a && b && !json_equal(a, b))
        return why_set(why, ERR_INVALID,
                       "%s: %s and %s are two names of one number and have different values. Remove "
                       "one",
                       HF_CONFIG, x->key, x->second);
    *ret = a && !json_is_null(a) ? a : b;
    return OK;
}

static err_t field_read(const struct expert_field *x, const json_t *config, struct job_model *m, struct why *why)
{
    const json_t *v = NULL;
    void *at = (char *)m + x->at;
    err_t err = field_find(x, config, &v, why);
    if (err)
        return err;
    bool missing = !v || json_is_null(v), is_int = x->kind == FIELD_INT;
    if (missing && x->otherwise < 0)
        return why_set(why, ERR_INVALID,
                       "%s: %s is missing, and versions of transformers differ in what they assume. "
                       "Add it",
                       HF_CONFIG, x->key);
    if (!missing && is_int && (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1 << 24))
        return why_set(why, ERR_INVALID, "%s: %s is not a number from 1 to 16777216", HF_CONFIG, x->key);
    if (!missing && !is_int && !json_is_boolean(v))
        return why_set(why, ERR_INVALID, "%s: %s is not true or false", HF_CONFIG, x->key);
    if (is_int)
        *(int64_t *)at = missing ? x->otherwise : json_integer_value(v);
    else
        *(bool *)at = missing ? x->otherwise != 0 : json_is_true(v);
    return OK;
}

/* Numbers that dtd limits; the job's rules check the rest. */
static err_t limits_check(const struct job_model *m, struct why *why)
{
    if (m->experts > JOB_MAX_EXPERTS || m->experts_per_token > JOB_MAX_CHOICES)
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: %" PRId64 " experts and %" PRId64 " of them per token; dtd has at most %d and %d",
                       HF_CONFIG, m->experts, m->experts_per_token, JOB_MAX_EXPERTS, JOB_MAX_CHOICES);
    if (m->experts_per_token > m->experts)
        return why_set(why, ERR_INVALID, "%s: num_experts_per_tok is %" PRId64 ", but there are %" PRId64 " experts",
                       HF_CONFIG, m->experts_per_token, m->experts);
    return OK;
}

static bool in_list(const json_t *list, int64_t l)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_integer(json_array_get(list, i)) && json_integer_value(json_array_get(list, i)) == l)
            return true;
    return false;
}

/* Layer i has experts if i + 1 is divisible by decoder_sparse_step (read already) and i is not in mlp_only_layers. dtd
 * has this rule with a number of first layers in place of the list. */
static err_t layers_read(const json_t *config, struct job_model *m, struct why *why)
{
    const json_t *list = json_object_get(config, "mlp_only_layers");
    if (list && !json_is_null(list) && !json_is_array(list))
        return why_set(why, ERR_INVALID, "%s: mlp_only_layers is not a list of layers", HF_CONFIG);
    int64_t first = m->moe_every - 1;
    while (first < m->layers && in_list(list, first))
        first += m->moe_every;
    if (first >= m->layers)
        return why_set(why, ERR_INVALID, "%s: decoder_sparse_step and mlp_only_layers leave no layer that has experts",
                       HF_CONFIG);
    m->dense_layers = first >= m->moe_every ? first : 0;
    for (int64_t l = first; l < m->layers; l += m->moe_every)
        if (in_list(list, l))
            return why_set(why, ERR_UNSUPPORTED,
                           "%s: mlp_only_layers has %" PRId64 ", but layer %" PRId64
                           " has experts: in dtd only the first layers can be without (model.dense_layers)",
                           HF_CONFIG, l, first);
    return OK;
}

/* Shared experts of dtd have the width of the others. */
static err_t shared_read(const json_t *config, struct job_model *m, struct why *why)
{
    const json_t *v = json_object_get(config, "shared_expert_intermediate_size");
    int64_t width = json_is_integer(v) ? json_integer_value(v) : 0;
    if (width < 1 || width > 1 << 24)
        return why_set(why, ERR_INVALID,
                       "%s: shared_expert_intermediate_size is missing or not a number from 1 to "
                       "16777216",
                       HF_CONFIG);
    if (width % m->expert_ffn || width / m->expert_ffn > JOB_MAX_EXPERTS - 1)
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: shared_expert_intermediate_size %" PRId64 " is not a multiple of moe_intermediate_size "
                       "%" PRId64 "; in dtd shared experts have the width of the others",
                       HF_CONFIG, width, m->expert_ffn);
    m->shared_experts = width / m->expert_ffn;
    m->shared_gate = true;
    return OK;
}

err_t hf_family_read(const struct hf_family *f, const json_t *config, struct job_model *m, struct why *why)
{
    err_t err = refused_check(f, config, why);
    err = err ? err : present_check(f, config, why);
    for (const struct expert_field *x = f->fields; !err && x->key; x++)
        err = field_read(x, config, m, why);
    if (err)
        return err;
    m->router = f->renormalised ? ROUTER_SOFTMAX_TOPK : ROUTER_SOFTMAX;
    err = limits_check(m, why);
    if (!err && f->uneven)
        err = layers_read(config, m, why);
    if (!err && f->shared)
        err = shared_read(config, m, why);
    return err;
}

/* ---- the auxiliary loss ----
 *
 * With balanced experts the loss of transformers is its coefficient times the experts per token, once for the whole
 * model: it averages the layers' numbers before it multiplies them. That of dtd is model.aux_loss, once per layer. */

double hf_config_aux(const json_t *config, const struct job_model *m)
{
    double theirs = json_number_value(json_object_get(config, "router_aux_loss_coef"));
    int64_t layers = hf_sparse_layers(m);
    return layers && theirs > 0 ? theirs * (double)m->experts_per_token / (double)layers : 0;
}

static double aux_theirs(const struct job_model *m)
{
    return m->aux_loss * (double)hf_sparse_layers(m) / (double)m->experts_per_token;
}

/* ---- writing ---- */

bool hf_family_decides(const char *key)
{
    if (strcmp(key, "mlp_only_layers") == 0 || strcmp(key, "shared_expert_intermediate_size") == 0)
        return true;
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (const struct expert_field *x = families[i].fields; x->key; x++)
            if (strcmp(x->key, key) == 0 || (x->second && strcmp(x->second, key) == 0))
                return true;
    return false;
}

/* Layers that decoder_sparse_step alone would give experts. */
static json_t *dense_list(const struct job_model *m)
{
    json_t *list = json_array();
    for (int64_t l = m->moe_every - 1; list && l < m->dense_layers; l += m->moe_every)
        json_array_append_new(list, json_integer(l));
    return list;
}

static json_t *field_value(const struct expert_field *x, const struct job_model *m)
{
    const void *at = (const char *)m + x->at;
    return x->kind == FIELD_INT ? json_integer((json_int_t) * (const int64_t *)at) : json_boolean(*(const bool *)at);
}

bool hf_family_print(const struct hf_family *f, const struct job_model *m, int64_t width, json_t *config)
{
    struct job_model full = *m;
    full.expert_ffn = width;
    full.router_norm = is_renormalised(m);
    json_object_del(config, "mlp_bias"); /* of llama; a family that has attention_bias gets it back below */
    json_object_del(config, "attention_bias");
    json_t *names = json_pack("[s]", f->llama.architecture);
    bool made = !json_object_set_new(config, "architectures", names) &&
                !json_object_set_new(config, "model_type", json_string(f->llama.type)) &&
                !json_object_set_new(config, "router_aux_loss_coef", json_real(aux_theirs(m))) &&
                !json_object_set_new(config, "output_router_logits", json_boolean(m->aux_loss > 0));
    for (const struct refused_field *r = f->refused; made && r->key; r++)
        made = !r->written || !json_object_set_new(config, r->key, json_loads(r->written, JSON_DECODE_ANY, NULL));
    for (const struct expert_field *x = f->fields; made && x->key; x++)
        made = !json_object_set_new(config, x->key, field_value(x, &full));
    if (made && f->uneven)
        made = !json_object_set_new(config, "mlp_only_layers", dense_list(m));
    if (made && f->shared)
        made = !json_object_set_new(config, "shared_expert_intermediate_size",
                                    json_integer(m->shared_experts * full.expert_ffn));
    return made;
}
