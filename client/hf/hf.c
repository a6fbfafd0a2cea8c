/* The tables of tensor names, and the fields of config.json. */
#include "client/hf/hf.h"

#include "client/hf/experts.h"
#include "client/hf/llama.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const hf_small_files[] = {
    HF_CONFIG,           "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",    "chat_template.json",    NULL};

/* ---- names ---- */

/* The family of a model; *ret_experts NULL: it has no experts. ERR_UNSUPPORTED: none. */
static err_t family_of(const struct job_model *m, const char *type, const struct hf_llama **ret,
                       const struct hf_family **ret_experts, struct why *why)
{
    *ret_experts = NULL;
    if (!m->experts)
        return hf_llama_choose(m, type, ret, why);
    err_t err = hf_family_choose(m, ret_experts, why);
    *ret = err ? NULL : hf_family_llama(*ret_experts);
    return err;
}

/* `family`: of a model with experts, else NULL. */
static bool llama_name(const struct job_model *m, const struct hf_llama *llama, const struct hf_family *family,
                       struct hf_tensor *ret)
{
    const char *ours = ret->tensor->name;
    char prefix[32];
    int layer = 0, n = 0;
    bool in_layer = sscanf(ours, "layers.%d.%n", &layer, &n) == 1 && n;
    snprintf(prefix, sizeof(prefix), "model.layers.%d.", layer);
    if (in_layer && family && hf_family_name(family, ours + n, ret->expert, prefix, ret))
        return true;
    return hf_llama_name(llama, m, ret);
}

static bool name_of(const struct job_model *m, const struct hf_llama *llama, const struct hf_family *family,
                    struct hf_tensor *ret)
{
    ret->head_dim = 0;
    if (m->arch == ARCH_LLAMA && strcmp(ret->tensor->name, HF_SCORE) != 0)
        return llama_name(m, llama, family, ret);
    snprintf(ret->name, sizeof(ret->name), "%s", ret->tensor->name);
    return m->arch != ARCH_TRANSFORMER;
}

/* Adds the tensor, or each expert's rows of it. */
static err_t map_add(struct hf_map *map, const struct graph_tensor *t, const struct job_model *m,
                     const struct hf_llama *llama, const struct hf_family *family, struct why *why)
{
    const int n = t->experts ? (int)t->experts : 1;
    for (int i = 0; i < n; i++) {
        struct hf_tensor *h = &map->list[map->n++];
        h->tensor = t;
        h->expert = t->experts ? i : -1;
        h->rows = t->dim[0].factor / n;
        h->first = i * h->rows;
        h->cols = t->ndim > 1 ? t->dim[1].factor : 1;
        if (!name_of(m, llama, family, h))
            return why_set(why, ERR_UNSUPPORTED,
                           "%s: this architecture has no Hugging Face model; gpt2 and llama have one", t->name);
    }
    return OK;
}

/* Brings the tensors of one name together, behind the first of them, and gives each its place there. */
static void map_fuse(struct hf_map *map)
{
    for (int i = 0, n; i < map->n; i += n) {
        struct hf_tensor *first = &map->list[i];
        int64_t rows = first->rows, stride = first->unit;
        n = 1;
        for (int k = i + 1; first->unit && k < map->n; k++) {
            const struct hf_tensor other = map->list[k];
            if (!other.unit || strcmp(other.name, first->name) != 0)
                continue;
            memmove(&first[n + 1], &first[n], (size_t)(k - i - n) * sizeof(*first));
            first[n++] = other;
            rows += other.rows;
            stride += other.unit;
        }
        for (int64_t k = 0, at = 0; first->unit && k < n; at += first[k++].unit) {
            first[k].file_rows = rows;
            first[k].place = at;
            first[k].stride = stride;
        }
    }
}

err_t hf_map(const struct graph *g, const struct job_model *m, const char *type, struct hf_map *ret, struct why *why)
{
    const struct hf_family *family = NULL;
    const struct hf_llama *llama = NULL;
    struct hf_map map = {0};
    size_t n = 1;
    err_t err = m->arch == ARCH_LLAMA ? family_of(m, type, &llama, &family, why) : OK;
    for (int i = 0; i < g->n_tensors; i++)
        n += g->tensors[i].experts ? (size_t)g->tensors[i].experts : 1;
    if (!err && !(map.list = calloc(n, sizeof(*map.list))))
        err = why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (int i = 0; map.list && !err && i < g->n_tensors; i++)
        if (g->tensors[i].kind == GT_PARAM)
            err = map_add(&map, &g->tensors[i], m, llama, family, why);
    if (!err)
        map_fuse(&map);
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
    const char *act = m->activation == ACTIVATION_GELU_ERF ? "gelu" : "gelu_new";
    return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:b}", "architectures",
                     "GPT2LMHeadModel", "model_type", "gpt2", "activation_function", act, "vocab_size",
                     (json_int_t)m->vocab, "n_positions", (json_int_t)positions, "n_ctx", (json_int_t)positions,
                     "n_embd", (json_int_t)m->dim, "n_layer", (json_int_t)m->layers, "n_head", (json_int_t)m->heads,
                     "n_inner", (json_int_t)ffn, "layer_norm_epsilon", m->norm_eps, "attn_pdrop", 0.0, "embd_pdrop",
                     0.0, "resid_pdrop", 0.0, "tie_word_embeddings", 1);
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

/* ---- models with labels: GPT2ForSequenceClassification and its relatives ---- */

#define FOR_TEXT "ForCausalLM"
#define FOR_GPT2 "LMHeadModel"
#define FOR_LABELS "ForSequenceClassification"

/* "LlamaForCausalLM" -> "LlamaForSequenceClassification" */
static json_t *architecture_with_labels(const char *name)
{
    char text[128];
    const size_t len = strlen(name);
    const char *end = strstr(name, FOR_TEXT) ? strstr(name, FOR_TEXT) : strstr(name, FOR_GPT2);
    snprintf(text, sizeof(text), "%.*s%s", (int)(end ? (size_t)(end - name) : len), name, FOR_LABELS);
    return json_pack("[s]", text);
}

/* The names of the classes, of which transformers takes the number; those of the imported model are kept. */
static bool label_names(json_t *config, int64_t labels)
{
    json_t *names = json_object(), *numbers = json_object();
    bool made = names && numbers;
    if (json_object_size(json_object_get(config, "id2label")) == (size_t)labels) {
        json_decref(names);
        json_decref(numbers);
        return true;
    }
    for (int64_t i = 0; made && i < labels; i++) {
        char number[24], name[32];
        snprintf(number, sizeof(number), "%" PRId64, i);
        snprintf(name, sizeof(name), "LABEL_%" PRId64, i);
        made = !json_object_set_new(names, number, json_string(name)) &&
               !json_object_set_new(numbers, name, json_integer(i));
    }
    made = !json_object_set_new(config, "id2label", names) && made;
    return !json_object_set_new(config, "label2id", numbers) && made;
}

/* transformers reads the class at the last token that is not pad_token_id; a model of language has none, and its users
 * set eos_token_id. */
static bool labels_print(json_t *config, const struct job_model *m)
{
    const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    json_t *names = architecture_with_labels(name ? name : "");
    const json_t *pad = json_object_get(config, "pad_token_id");
    if (!m->labels) {
        json_decref(names);
        return true;
    }
    if (!json_is_integer(pad))
        pad = json_object_get(config, "eos_token_id");
    return !json_object_set_new(config, "architectures", names) &&
           !json_object_set_new(config, "num_labels", json_integer(m->labels)) && label_names(config, m->labels) &&
           !json_object_set_new(config, "pad_token_id",
                                json_is_integer(pad) ? json_integer(json_integer_value(pad)) : json_null());
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

/* Of two names of the activation, only those that the imported config.json has; and no length of a window beside its
 * own where no layer has one. */
static void names_keep(json_t *config, const json_t *kept, const struct job_model *m)
{
    const bool same = json_equal(json_object_get(config, "model_type"), json_object_get(kept, "model_type"));
    if (same && !m->window && !json_object_get(kept, "sliding_window") &&
        json_is_integer(json_object_get(config, "sliding_window")))
        json_object_del(config, "sliding_window");
    static const char *const names[] = {"hidden_act", "hidden_activation"};
    for (size_t i = 0; i < 2; i++)
        if (!json_object_get(kept, names[i]) && json_object_get(kept, names[1 - i]))
            json_object_del(config, names[i]);
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
    names_keep(config, kept, m);
    return !positions_keep(config, kept);
}

err_t hf_config_print(const struct job_model *m, const struct graph *g, int64_t positions, enum dtype dtype,
                      const json_t *kept, struct buf *ret)
{
    int64_t ffn, expert;
    const struct hf_family *family = NULL;
    const struct hf_llama *llama = NULL;
    const char *type = json_string_value(json_object_get(kept, "model_type"));
    char *text = NULL;
    if (m->arch == ARCH_LLAMA && family_of(m, type, &llama, &family, NULL))
        return ERR_UNSUPPORTED;
    if (!llama && m->arch != ARCH_GPT2)
        return ERR_UNSUPPORTED;
    widths_of(g, &ffn, &expert);
    ffn = ffn ? ffn : m->ffn ? m->ffn : expert; /* a model whose layers all have experts has no use for it */
    json_t *config = m->arch == ARCH_GPT2
                         ? gpt2_config(m, ffn, positions)
                         : hf_llama_print(llama, m, ffn, kept ? positions : hf_llama_positions(m, positions));
    bool gpt2_ids =
        m->arch == ARCH_GPT2 && m->vocab > GPT2_END; /* null otherwise, or transformers would assume these ids */
    const char *dtype_key = dtype_keys[!json_object_get(kept, dtype_keys[0])];
    bool made = config && (!llama || hf_rope_print(m, &llama->rope, kept, config)) &&
                (!family || hf_family_print(family, m, expert, config)) &&
                !json_object_set_new(config, dtype_key, json_string(dtype_name(dtype))) &&
                !json_object_set_new(config, "bos_token_id", gpt2_ids ? json_integer(GPT2_END) : json_null()) &&
                !json_object_set_new(config, "eos_token_id", gpt2_ids ? json_integer(GPT2_END) : json_null()) &&
                (!kept || kept_apply(config, kept, m)) && labels_print(config, m);
    if (made)
        text = json_dumps(config, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    err_t err = text ? buf_printf(ret, "%s\n", text) : ERR_NOMEM;
    free(text);
    json_decref(config);
    return err;
}

/* ---- reading config.json ---- */

static err_t gpt2_read(const struct hf_config *c, struct job_model *m, int64_t *ret_positions)
{
    static const char *const without[] = {"scale_attn_by_inverse_layer_idx", "add_cross_attention", NULL};
    err_t err = hf_config_int(c, "n_embd", -1, &m->dim);
    err = err ? err : hf_config_int(c, "n_layer", -1, &m->layers);
    err = err ? err : hf_config_int(c, "n_head", -1, &m->heads);
    err = err ? err : hf_config_int(c, "vocab_size", -1, &m->vocab);
    err = err ? err : hf_config_int(c, "n_inner", 4 * m->dim, &m->ffn);
    err = err ? err : hf_config_int(c, "n_positions", -1, ret_positions);
    err = err ? err : hf_config_real(c, "layer_norm_epsilon", 1e-5, &m->norm_eps);
    err = err ? err : hf_activation_read(c, "activation_function", "gelu_new", false, false, &m->activation);
    m->activation = m->activation == ACTIVATION_GELU ? ACTIVATION_AUTO : m->activation;
    err = err ? err : hf_config_without(c, without);
    if (!err && json_is_false(hf_config_get(c, "scale_attn_weights")))
        err = why_set(c->why, ERR_UNSUPPORTED, "%s: scale_attn_weights is false; dtd supports only true", HF_CONFIG);
    if (!err && json_is_false(hf_config_get(c, "tie_word_embeddings")))
        err = why_set(c->why, ERR_UNSUPPORTED, "%s: tie_word_embeddings is false; in dtd the head of gpt2 is tied",
                      HF_CONFIG);
    m->kv_heads = m->heads;
    m->tied = true;
    m->rope_theta = 10000;
    return err;
}

static err_t family_read(const struct hf_config *c, const struct hf_family *f, struct job_model *m,
                         int64_t *ret_positions)
{
    m->arch = ARCH_LLAMA;
    err_t err = hf_llama_read(c, hf_family_llama(f), m, ret_positions);
    return err ? err : hf_family_read(f, c->root, m, c->why);
}

static bool llama_knows(const char *key)
{
    return hf_rope_decides(key);
}

static bool experts_know(const char *key)
{
    return hf_rope_decides(key) || hf_family_decides(key);
}

static err_t type_refused(const struct hf_config *c, const char *type)
{
    char list[512] = "", experts[256];
    size_t n = 0;
    for (int i = 0; i < n_hf_llamas && n < sizeof(list); i++)
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s, ", hf_llamas[i].type);
    hf_family_list(experts, sizeof(experts));
    return why_set(c->why, ERR_UNSUPPORTED, "%s: model_type is \"%.60s\"; dtd supports gpt2, %s%s", HF_CONFIG,
                   type ? type : "", list, experts);
}

/* num_labels, or as many as id2label names; transformers assumes 2. */
static err_t labels_read(const struct hf_config *c, struct job_model *m)
{
    const char *name = json_string_value(json_array_get(json_object_get(c->root, "architectures"), 0));
    const json_t *names = hf_config_get(c, "id2label"), *problem = hf_config_get(c, "problem_type");
    const json_int_t otherwise = json_object_size(names) ? (json_int_t)json_object_size(names) : 2;
    if (!name || !strstr(name, FOR_LABELS))
        return OK;
    err_t err = hf_config_int(c, "num_labels", otherwise, &m->labels);
    if (!err && (m->labels < 2 || m->labels > 65536))
        err = why_set(c->why, ERR_UNSUPPORTED, "%s: %" PRId64 " labels; dtd supports 2 to 65536", HF_CONFIG, m->labels);
    if (!err && problem &&
        strcmp(json_string_value(problem) ? json_string_value(problem) : "", "single_label_classification") != 0)
        err = why_set(c->why, ERR_UNSUPPORTED,
                      "%s: problem_type is not single_label_classification; dtd supports one class for each text",
                      HF_CONFIG);
    return err;
}

static err_t model_read(const struct hf_config *c, struct job_model *m, int64_t *ret_positions)
{
    const char *type = json_string_value(json_object_get(c->root, "model_type"));
    const struct hf_llama *llama = hf_llama_find(type);
    const struct hf_family *family = type ? hf_family_find(type) : NULL;
    const bool gpt2 = type && strcmp(type, "gpt2") == 0;
    *m = (struct job_model){JOB_MODEL_DENSE};
    m->arch = gpt2 ? ARCH_GPT2 : ARCH_LLAMA;
    if (!gpt2 && !llama && !family)
        return type_refused(c, type);
    err_t err = gpt2    ? gpt2_read(c, m, ret_positions)
                : llama ? hf_llama_read(c, llama, m, ret_positions)
                        : family_read(c, family, m, ret_positions);
    err = err ? err : labels_read(c, m);
    return err ? err : hf_config_rest(c, gpt2 ? NULL : llama ? llama_knows : experts_know);
}

err_t hf_config_read(const char *text, size_t len, struct job_model *ret, int64_t *ret_positions, struct why *why)
{
    json_error_t error;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    const struct hf_config c = {root, json_object(), why};
    struct job_model m = {0};
    int64_t positions;
    if (!root) {
        json_decref(c.used);
        return why_set(why, ERR_INVALID, "%s, line %d: %s", HF_CONFIG, error.line, error.text);
    }
    err_t err = model_read(&c, &m, &positions);
    json_decref(root);
    json_decref(c.used);
    if (err) {
        job_model_fini(&m);
        return err;
    }
    *ret = m;
    *ret_positions = positions;
    return OK;
}
