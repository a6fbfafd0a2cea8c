/* The tables of tensor names, and the fields of config.json. */
#include "client/hf.h"

#include "client/hf_experts.h"
#include "client/hf_rope.h"
#include "client/hf_window.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const hf_small_files[] = {
    HF_CONFIG,           "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",    "chat_template.json",    NULL};

/* ---- names ---- */

enum turn { AS_IS, HEADS };
struct name_row {
    const char *ours, *theirs; /* in a layer, without the prefixes "layers.N." and "model.layers.N." */
    enum turn turn;
};

static const struct name_row llama_layer[] = {
    {"attention.wq.weight", "self_attn.q_proj.weight", HEADS},
    {"attention.wk.weight", "self_attn.k_proj.weight", HEADS},
    {"attention.wv.weight", "self_attn.v_proj.weight", AS_IS},
    {"attention.wo.weight", "self_attn.o_proj.weight", AS_IS},
    {"attention.wq.bias", "self_attn.q_proj.bias", HEADS},
    {"attention.wk.bias", "self_attn.k_proj.bias", HEADS},
    {"attention.wv.bias", "self_attn.v_proj.bias", AS_IS},
    {"attention.q_norm.weight", "self_attn.q_norm.weight", HEADS},
    {"attention.k_norm.weight", "self_attn.k_norm.weight", HEADS},
    {"feed_forward.w1.weight", "mlp.gate_proj.weight", AS_IS},
    {"feed_forward.w2.weight", "mlp.down_proj.weight", AS_IS},
    {"feed_forward.w3.weight", "mlp.up_proj.weight", AS_IS},
    {"attention_norm.weight", "input_layernorm.weight", AS_IS},
    {"ffn_norm.weight", "post_attention_layernorm.weight", AS_IS},
    {0},
};
static const struct name_row llama_rest[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight", AS_IS},
    {"norm.weight", "model.norm.weight", AS_IS},
    {"output.weight", "lm_head.weight", AS_IS},
    {0},
};

static const struct hf_llama families[] = {
    {"llama", "LlamaForCausalLM", false, QK_NORM_NONE, 0, 2048, 0, HF_WINDOWS_UNKNOWN},
    {"qwen2", "Qwen2ForCausalLM", true, QK_NORM_NONE, 0, 32768, 0, HF_WINDOWS_QWEN},
    {"qwen3", "Qwen3ForCausalLM", false, QK_NORM_HEAD, 128, 32768, 0, HF_WINDOWS_QWEN},
    {"mistral", "MistralForCausalLM", false, QK_NORM_NONE, 0, 131072, 4096, HF_WINDOWS_ALL},
};
#define N_FAMILIES (sizeof(families) / sizeof(families[0]))

/* The family of a model; *ret_experts NULL: it has no experts. ERR_UNSUPPORTED: none. */
static err_t family_of(const struct job_model *m, const struct hf_llama **ret, const struct hf_family **ret_experts,
                       struct why *why)
{
    *ret_experts = NULL;
    if (m->score_softcap > 0 || m->score_scale > 0)
        return why_set(why, ERR_UNSUPPORTED, "dtd exports no Hugging Face model with %s",
                       m->score_softcap > 0 ? "model.score_softcap" : "model.score_scale");
    if (m->experts) {
        err_t err = hf_family_choose(m, ret_experts, why);
        *ret = err ? NULL : hf_family_llama(*ret_experts);
        return err;
    }
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (families[i].qkv_bias == m->qkv_bias && families[i].qk_norm == m->qk_norm &&
            hf_window_fits(&families[i], m)) {
            *ret = &families[i];
            return OK;
        }
    return why_set(why, ERR_UNSUPPORTED,
                   "dtd knows no Hugging Face model with this attention; model.qkv_bias and model.qk_norm are false "
                   "and none in llama, true and none in qwen2, false and head in qwen3. Windows are those of mistral, "
                   "in all layers, or of the two qwens");
}

static const struct name_row *row_find(const struct name_row *rows, const char *ours)
{
    for (; rows->ours; rows++)
        if (strcmp(rows->ours, ours) == 0)
            return rows;
    return NULL;
}

/* `family`: of a model with experts, else NULL. */
static bool llama_name(const struct job_model *m, const struct hf_family *family, struct hf_tensor *ret)
{
    const char *ours = ret->tensor->name;
    char prefix[32];
    int layer = 0, n = 0;
    bool in_layer = sscanf(ours, "layers.%d.%n", &layer, &n) == 1 && n;
    snprintf(prefix, sizeof(prefix), "model.layers.%d.", layer);
    if (in_layer && family && hf_family_name(family, ours + n, ret->expert, prefix, ret))
        return true;
    const struct name_row *row = in_layer ? row_find(llama_layer, ours + n) : row_find(llama_rest, ours);
    if (!row)
        return false;
    snprintf(ret->name, sizeof(ret->name), "%s%s", in_layer ? prefix : "", row->theirs);
    ret->head_dim = row->turn == HEADS ? job_head_dim(m) : 0;
    ret->turned = (int64_t)((double)ret->head_dim * (m->rope_part > 0 ? m->rope_part : 1)) / 2 * 2;
    return true;
}

static bool name_of(const struct job_model *m, const struct hf_family *family, struct hf_tensor *ret)
{
    ret->head_dim = 0;
    if (m->arch == ARCH_LLAMA)
        return llama_name(m, family, ret);
    snprintf(ret->name, sizeof(ret->name), "%s", ret->tensor->name);
    return m->arch == ARCH_GPT2;
}

/* Adds the tensor, or each expert's rows of it. */
static err_t map_add(struct hf_map *map, const struct graph_tensor *t, const struct job_model *m,
                     const struct hf_family *family, struct why *why)
{
    const int n = t->experts ? (int)t->experts : 1;
    for (int i = 0; i < n; i++) {
        struct hf_tensor *h = &map->list[map->n++];
        h->tensor = t;
        h->expert = t->experts ? i : -1;
        h->rows = t->dim[0].factor / n;
        h->first = i * h->rows;
        h->cols = t->ndim > 1 ? t->dim[1].factor : 1;
        if (!name_of(m, family, h))
            return why_set(why, ERR_UNSUPPORTED,
                           "%s: this architecture has no Hugging Face model; gpt2 and llama have one", t->name);
    }
    return OK;
}

err_t hf_map(const struct graph *g, const struct job_model *m, struct hf_map *ret, struct why *why)
{
    const struct hf_family *family = NULL;
    const struct hf_llama *llama = NULL;
    struct hf_map map = {0};
    size_t n = 1;
    err_t err = m->arch == ARCH_LLAMA ? family_of(m, &llama, &family, why) : OK;
    for (int i = 0; i < g->n_tensors; i++)
        n += g->tensors[i].experts ? (size_t)g->tensors[i].experts : 1;
    if (!err && !(map.list = calloc(n, sizeof(*map.list))))
        err = why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (int i = 0; map.list && !err && i < g->n_tensors; i++)
        if (g->tensors[i].kind == GT_PARAM)
            err = map_add(&map, &g->tensors[i], m, family, why);
    if (err)
        hf_map_fini(&map);
    else
        *ret = map;
    return err;
}

void hf_map_fini(struct hf_map *map)
{
    free(map->list);
    *map = (struct hf_map){0};
}

/* Part p of pair i of a head is row p * half + i in Hugging Face's order, and row 2 i + p in dtd's. */
void hf_rows(int64_t head_dim, int64_t turned, int64_t rows, size_t row_bytes, bool to_hf, const void *src, void *dst)
{
    int64_t half = turned / 2;
    for (int64_t r = 0; r < rows; r++) {
        int64_t base = r / head_dim * head_dim, i = (r - base) / 2, p = (r - base) % 2;
        int64_t theirs = r - base < turned ? base + p * half + i : r;
        memcpy((uint8_t *)dst + (size_t)(to_hf ? theirs : r) * row_bytes,
               (const uint8_t *)src + (size_t)(to_hf ? r : theirs) * row_bytes, row_bytes);
    }
}

/* ---- writing config.json ---- */

#define GPT2_END 50256 /* <|endoftext|> */

/* The width of a layer's feed-forward, and that of an expert; 0: the graph has none. model.ffn and model.expert_ffn may
 * be 0 in a job file, for the default. */
static void widths_of(const struct graph *g, int64_t *ret_ffn, int64_t *ret_expert)
{
    *ret_ffn = *ret_expert = 0;
    for (int i = 0; i < g->n_tensors; i++) {
        const struct graph_tensor *t = &g->tensors[i];
        if (t->kind != GT_PARAM)
            continue;
        if (strstr(t->name, ".mlp.c_fc.weight"))
            *ret_ffn = t->dim[1].factor;
        if (strstr(t->name, ".feed_forward.w1.weight"))
            *ret_ffn = t->dim[0].factor;
        if (strstr(t->name, ".moe.experts.w1"))
            *ret_expert = t->dim[0].factor / t->experts;
    }
}

static json_t *gpt2_config(const struct job_model *m, int64_t ffn, int64_t positions)
{
    return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:b}", "architectures",
                     "GPT2LMHeadModel", "model_type", "gpt2", "activation_function", "gelu_new", "vocab_size",
                     (json_int_t)m->vocab, "n_positions", (json_int_t)positions, "n_ctx", (json_int_t)positions,
                     "n_embd", (json_int_t)m->dim, "n_layer", (json_int_t)m->layers, "n_head", (json_int_t)m->heads,
                     "n_inner", (json_int_t)ffn, "layer_norm_epsilon", m->norm_eps, "attn_pdrop", 0.0, "embd_pdrop",
                     0.0, "resid_pdrop", 0.0, "tie_word_embeddings", 1);
}

/* config.json of qwen2 has no attention_bias, because its biases are fixed, and no head_dim where that is usual. */
static json_t *llama_config(const struct job_model *m, const struct hf_llama *f, int64_t ffn, int64_t positions)
{
    int64_t kv_heads = m->kv_heads ? m->kv_heads : m->heads;
    json_t *ret = json_pack(
        "{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:b, s:f, s:b}", "architectures",
        f->architecture, "model_type", f->type, "hidden_act", "silu", "vocab_size", (json_int_t)m->vocab, "hidden_size",
        (json_int_t)m->dim, "intermediate_size", (json_int_t)ffn, "num_hidden_layers", (json_int_t)m->layers,
        "num_attention_heads", (json_int_t)m->heads, "num_key_value_heads", (json_int_t)kv_heads, "head_dim",
        (json_int_t)job_head_dim(m), "max_position_embeddings", (json_int_t)positions, "rms_norm_eps", m->norm_eps,
        "attention_bias", 0, "mlp_bias", 0, "attention_dropout", 0.0, "tie_word_embeddings", m->tied);
    if (ret && f != families)
        json_object_del(ret, "mlp_bias");
    if (ret && !hf_window_print(f, m, ret)) {
        json_decref(ret);
        return NULL;
    }
    if (ret && f->qkv_bias)
        json_object_del(ret, "attention_bias");
    if (ret && f->qkv_bias && job_head_dim(m) * m->heads == m->dim)
        json_object_del(ret, "head_dim");
    return ret;
}

static const char *const dtype_keys[] = {"dtype", "torch_dtype"}; /* transformers 5, and before */

enum dtype hf_config_dtype(const json_t *config)
{
    for (size_t i = 0; i < 2; i++) {
        const char *name = json_string_value(json_object_get(config, dtype_keys[i]));
        enum dtype t = name ? dtype_parse(name) : DT_NONE;
        if (t == DT_F32 || t == DT_F16 || t == DT_BF16)
            return t;
    }
    return DT_NONE;
}

/* Keys that the checkpoint decides; all others of an imported config.json stay as they were. */
static bool is_decided(const char *key)
{
    if (hf_family_decides(key) || hf_rope_decides(key))
        return true;
    static const char *const keys[] = {"architectures",
                                       "model_type",
                                       "vocab_size",
                                       "n_positions",
                                       "n_ctx",
                                       "n_embd",
                                       "n_layer",
                                       "n_head",
                                       "n_inner",
                                       "layer_norm_epsilon",
                                       "hidden_size",
                                       "intermediate_size",
                                       "num_hidden_layers",
                                       "rms_norm_eps",
                                       "head_dim",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "torch_dtype",
                                       "dtype",
                                       "tie_word_embeddings",
                                       "max_position_embeddings"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* A model reads longer sequences than those it was trained on last. */
static int positions_keep(json_t *config, const json_t *kept)
{
    static const char key[] = "max_position_embeddings";
    json_int_t before = json_integer_value(json_object_get(kept, key));
    return before > json_integer_value(json_object_get(config, key)) && json_object_get(config, key)
               ? json_object_set_new(config, key, json_integer(before))
               : 0;
}

static bool kept_apply(json_t *config, const json_t *kept, const struct job_model *m)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)kept, key, value)
    {
        json_t *copy = is_decided(key) ? NULL : json_deep_copy(value);
        if (!is_decided(key) && json_object_set_new(config, key, copy))
            return false;
    }
    if (json_is_null(json_object_get(kept, "n_inner")) &&
        json_integer_value(json_object_get(config, "n_inner")) == 4 * m->dim)
        json_object_set_new(config, "n_inner", json_null());
    if (json_is_null(json_object_get(kept, "head_dim")) && json_object_get(config, "head_dim"))
        json_object_set_new(config, "head_dim", json_null());
    if (!json_object_get(kept, "head_dim") && m->heads * job_head_dim(m) == m->dim)
        json_object_del(config, "head_dim");
    if (!json_object_get(kept, "n_ctx"))
        json_object_del(config, "n_ctx"); /* older versions of transformers write it beside n_positions */
    return !positions_keep(config, kept);
}

err_t hf_config_print(const struct job_model *m, const struct graph *g, int64_t positions, enum dtype dtype,
                      const json_t *kept, struct buf *ret)
{
    int64_t ffn, expert;
    const struct hf_family *family = NULL;
    const struct hf_llama *llama = NULL;
    char *text = NULL;
    if (m->arch == ARCH_LLAMA && family_of(m, &llama, &family, NULL))
        return ERR_UNSUPPORTED;
    if (!llama && m->arch != ARCH_GPT2)
        return ERR_UNSUPPORTED;
    widths_of(g, &ffn, &expert);
    ffn = ffn ? ffn : m->ffn ? m->ffn : expert; /* a model whose layers all have experts has no use for it */
    json_t *config = m->arch == ARCH_GPT2 ? gpt2_config(m, ffn, positions) : llama_config(m, llama, ffn, positions);
    bool gpt2_ids =
        m->arch == ARCH_GPT2 && m->vocab > GPT2_END; /* null otherwise, or transformers would assume these ids */
    const char *dtype_key = dtype_keys[!json_object_get(kept, dtype_keys[0])];
    bool made = config && (!llama || hf_rope_print(m, kept, config)) &&
                (!family || hf_family_print(family, m, expert, config)) &&
                !json_object_set_new(config, dtype_key, json_string(dtype_name(dtype))) &&
                !json_object_set_new(config, "bos_token_id", gpt2_ids ? json_integer(GPT2_END) : json_null()) &&
                !json_object_set_new(config, "eos_token_id", gpt2_ids ? json_integer(GPT2_END) : json_null()) &&
                (!kept || kept_apply(config, kept, m));
    if (made)
        text = json_dumps(config, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    err_t err = text ? buf_printf(ret, "%s\n", text) : ERR_NOMEM;
    free(text);
    json_decref(config);
    return err;
}

/* ---- reading config.json ---- */

struct config {
    const json_t *root;
    struct why *why;
};

static err_t config_int(const struct config *c, const char *name, int64_t otherwise, int64_t *ret)
{
    const json_t *value = json_object_get(c->root, name);
    if ((!value || json_is_null(value)) && otherwise >= 0) {
        *ret = otherwise;
        return OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > 1 << 24)
        return why_set(c->why, ERR_INVALID, "%s: %s is missing or not a number from 1 to 16777216", HF_CONFIG, name);
    *ret = json_integer_value(value);
    return OK;
}

static err_t config_real(const struct config *c, const json_t *object, const char *name, double otherwise, double *ret)
{
    const json_t *value = json_object_get(object, name);
    if (value && !json_is_null(value) && (!json_is_number(value) || json_number_value(value) <= 0))
        return why_set(c->why, ERR_INVALID, "%s: %s is not a number above 0", HF_CONFIG, name);
    *ret = json_is_number(value) ? json_number_value(value) : otherwise;
    return OK;
}

/* Fields that must be missing, false, null or 0. */
static err_t config_without(const struct config *c, const char *const *names)
{
    for (; *names; names++) {
        const json_t *value = json_object_get(c->root, *names);
        if (value && !json_is_null(value) && !json_is_false(value) &&
            !(json_is_number(value) && json_number_value(value) == 0))
            return why_set(c->why, ERR_UNSUPPORTED, "%s: %s is set, which dtd does not support", HF_CONFIG, *names);
    }
    return OK;
}

static err_t config_text(const struct config *c, const char *name, const char *otherwise, const char *const *legal)
{
    const json_t *value = json_object_get(c->root, name);
    const char *text = !value || json_is_null(value) ? otherwise : json_string_value(value);
    for (int i = 0; text && legal[i]; i++)
        if (strcmp(text, legal[i]) == 0)
            return OK;
    return why_set(c->why, ERR_UNSUPPORTED, "%s: %s is \"%.60s\"; dtd supports \"%s\"", HF_CONFIG, name,
                   text ? text : "", legal[0]);
}

static err_t gpt2_read(const struct config *c, struct job_model *m, int64_t *ret_positions)
{
    static const char *const without[] = {"scale_attn_by_inverse_layer_idx", "add_cross_attention", NULL};
    static const char *const gelu[] = {"gelu_new", "gelu_pytorch_tanh", NULL};
    err_t err = config_int(c, "n_embd", -1, &m->dim);
    err = err ? err : config_int(c, "n_layer", -1, &m->layers);
    err = err ? err : config_int(c, "n_head", -1, &m->heads);
    err = err ? err : config_int(c, "vocab_size", -1, &m->vocab);
    err = err ? err : config_int(c, "n_inner", 4 * m->dim, &m->ffn);
    err = err ? err : config_int(c, "n_positions", -1, ret_positions);
    err = err ? err : config_real(c, c->root, "layer_norm_epsilon", 1e-5, &m->norm_eps);
    err = err ? err : config_text(c, "activation_function", "gelu_new", gelu);
    err = err ? err : config_without(c, without);
    if (!err && json_is_false(json_object_get(c->root, "scale_attn_weights")))
        err = why_set(c->why, ERR_UNSUPPORTED, "%s: scale_attn_weights is false; dtd supports only true", HF_CONFIG);
    if (!err && json_is_false(json_object_get(c->root, "tie_word_embeddings")))
        err = why_set(c->why, ERR_UNSUPPORTED, "%s: tie_word_embeddings is false; in dtd the head of gpt2 is tied",
                      HF_CONFIG);
    m->kv_heads = m->heads;
    m->tied = true;
    m->rope_theta = 10000;
    return err;
}

static err_t llama_read(const struct config *c, const struct hf_llama *f, struct job_model *m, int64_t *ret_positions)
{
    static const char *const without[] = {"attention_bias", "mlp_bias", NULL};
    static const char *const silu[] = {"silu", NULL};
    int64_t head_dim = 0;
    err_t err = config_int(c, "hidden_size", -1, &m->dim);
    err = err ? err : config_int(c, "num_hidden_layers", -1, &m->layers);
    err = err ? err : config_int(c, "num_attention_heads", -1, &m->heads);
    err = err ? err : config_int(c, "num_key_value_heads", m->heads, &m->kv_heads);
    err = err ? err : config_int(c, "intermediate_size", -1, &m->ffn);
    err = err ? err : config_int(c, "vocab_size", -1, &m->vocab);
    const int64_t usual = m->heads > 0 ? m->dim / m->heads : 1;
    err = err ? err : config_int(c, "head_dim", f->head_dim ? f->head_dim : usual, &head_dim);
    err = err ? err : config_int(c, "max_position_embeddings", f->positions, ret_positions);
    err = err ? err : config_real(c, c->root, "rms_norm_eps", 1e-6, &m->norm_eps);
    err = err ? err : config_text(c, "hidden_act", "silu", silu);
    err = err ? err : config_without(c, without);
    err = err ? err : hf_window_read(f, c->root, m, c->why);
    err = err ? err : hf_rope_read(c->root, *ret_positions, m, c->why);
    m->head_dim = head_dim * m->heads == m->dim ? 0 : head_dim; /* 0: dim / heads, as job files without the key */
    m->qkv_bias = f->qkv_bias;
    m->qk_norm = f->qk_norm;
    m->tied = json_is_true(json_object_get(c->root, "tie_word_embeddings"));
    return err;
}

static err_t family_read(const struct config *c, const struct hf_family *f, struct job_model *m, int64_t *ret_positions)
{
    m->arch = ARCH_LLAMA;
    err_t err = llama_read(c, hf_family_llama(f), m, ret_positions);
    return err ? err : hf_family_read(f, c->root, m, c->why);
}

static err_t model_read(const struct config *c, struct job_model *m, int64_t *ret_positions)
{
    char list[256];
    const char *type = json_string_value(json_object_get(c->root, "model_type"));
    *m = (struct job_model){JOB_MODEL_DENSE};
    if (type && strcmp(type, "gpt2") == 0) {
        m->arch = ARCH_GPT2;
        return gpt2_read(c, m, ret_positions);
    }
    for (size_t i = 0; type && i < N_FAMILIES; i++) {
        if (strcmp(type, families[i].type) != 0)
            continue;
        m->arch = ARCH_LLAMA;
        return llama_read(c, &families[i], m, ret_positions);
    }
    const struct hf_family *family = type ? hf_family_find(type) : NULL;
    if (family)
        return family_read(c, family, m, ret_positions);
    hf_family_list(list, sizeof(list));
    return why_set(c->why, ERR_UNSUPPORTED,
                   "%s: model_type is \"%.60s\"; dtd supports gpt2, llama, mistral, qwen2, qwen3, %s", HF_CONFIG,
                   type ? type : "", list);
}

err_t hf_config_read(const char *text, size_t len, struct job_model *ret, int64_t *ret_positions, struct why *why)
{
    json_error_t error;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    struct config c = {root, why};
    struct job_model m;
    int64_t positions;
    if (!root)
        return why_set(why, ERR_INVALID, "%s, line %d: %s", HF_CONFIG, error.line, error.text);
    err_t err = model_read(&c, &m, &positions);
    json_decref(root);
    if (err)
        return err;
    *ret = m;
    *ret_positions = positions;
    return OK;
}
