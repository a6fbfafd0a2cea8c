/* Hugging Face models: names, row order, config.json, and import and export of models bit for bit. */
#include "client/hf.h"
#include "client/hf_config.h"
#include "client/hf_source.h"

#include "common/base/file.h"
#include "common/ckpt/safetensors.h"
#include "common/conf/schema.h"
#include "common/plan/models/build.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <sys/stat.h>

static char *path_of(const char *name)
{
    static char paths[16][PATH_MAX];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, PATH_MAX, "%s/%s", test_tmpdir(), name);
    return path;
}

/* ---- files ---- */

/* As transformers writes it for a tokenizer without a limit. Digits in a text are no number. */
TEST(integers_beyond_64_bits)
{
    static const char text[] = "{\"model_max_length\": 1000000000000000019884624838656, \"small\": -12, \"real\": "
                               "0.12345678901234567890123, \"text\": \"\\\"1000000000000000000000\"}";
    struct why why = {""};
    const struct hf_source s = {.dir = test_tmpdir(), .why = &why};
    json_t *v = NULL;
    assert_ok(file_replace(path_of("tokenizer_config.json"), text, strlen(text), 0600));
    if (hf_source_json(&s, "tokenizer_config.json", &v))
        fail_msg("%s", why.text);
    assert_true(json_real_value(json_object_get(v, "model_max_length")) == 1e30);
    assert_int_equal(json_integer_value(json_object_get(v, "small")), -12);
    assert_true(json_real_value(json_object_get(v, "real")) == 0.12345678901234567890123);
    assert_string_equal(json_string_value(json_object_get(v, "text")), "\"1000000000000000000000");
    json_decref(v);
}

/* ---- rows ---- */

/* Hugging Face's conversion script: view(heads, half, 2, cols).transpose(1, 2). */
TEST(rows_are_turned_by_pairs)
{
    enum { HEADS = 3, DIM = 8, COLS = 5, ROWS = HEADS * DIM };
    float ours[ROWS][COLS], theirs[ROWS][COLS], back[ROWS][COLS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            ours[r][c] = (float)(r * 100 + c);
    hf_rows(DIM, DIM, ROWS, sizeof(ours[0]), true, ours, theirs);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < DIM / 2; i++)
            for (int p = 0; p < 2; p++)
                assert_memory_equal(theirs[h * DIM + p * DIM / 2 + i], ours[h * DIM + 2 * i + p], sizeof(ours[0]));
    hf_rows(DIM, DIM, ROWS, sizeof(ours[0]), false, theirs, back);
    assert_memory_equal(back, ours, sizeof(ours));
}

/* ---- names ---- */

TEST(names_of_llama)
{
    static const char *const names[][2] = {
        {"tok_embeddings.weight", "model.embed_tokens.weight"},
        {"layers.1.attention.wq.weight", "model.layers.1.self_attn.q_proj.weight"},
        {"layers.0.attention.wk.weight", "model.layers.0.self_attn.k_proj.weight"},
        {"layers.0.attention.wv.weight", "model.layers.0.self_attn.v_proj.weight"},
        {"layers.0.feed_forward.w2.weight", "model.layers.0.mlp.down_proj.weight"},
        {"layers.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight"},
        {"output.weight", "lm_head.weight"}};
    const struct job_model m = {.arch = ARCH_LLAMA,
                                .dim = 32,
                                .layers = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .ffn = 48,
                                .vocab = 256,
                                .norm_eps = 1e-5,
                                .rope_theta = 10000};
    struct graph g;
    struct hf_map map;
    struct why why = {0};
    assert_ok(graph_build(&m, 16, &g, &why));
    assert_ok(hf_map(&g, &m, NULL, &map, &why));
    assert_int_equal(map.n, 3 + 2 * 9);
    size_t found = 0;
    for (int i = 0; i < map.n; i++) {
        bool turned = strstr(map.list[i].name, "q_proj") || strstr(map.list[i].name, "k_proj");
        assert_int_equal(map.list[i].head_dim, turned ? 8 : 0);
        for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
            if (strcmp(map.list[i].tensor->name, names[k][0]) == 0) {
                assert_string_equal(map.list[i].name, names[k][1]);
                found++;
            }
    }
    assert_int_equal(found, sizeof(names) / sizeof(names[0]));
    hf_map_fini(&map);
    graph_fini(&g);
}

/* ---- config.json ---- */

#define LLAMA                                                                                                \
    "\"model_type\": \"llama\", \"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, " \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 256, \"rms_norm_eps\": 1e-5"
#define GPT2                                                                                                         \
    "\"model_type\": \"gpt2\", \"n_embd\": 16, \"n_layer\": 2, \"n_head\": 2, \"n_positions\": 12, \"vocab_size\": " \
    "256"

#define MIXTRAL                                                                                                \
    "\"model_type\": \"mixtral\", \"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, " \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 24, \"vocab_size\": 256, \"rms_norm_eps\": 1e-5, "     \
    "\"rope_theta\": 1e6, \"num_experts_per_tok\": 2"
#define MIXTRAL_OF_3 MIXTRAL ", \"num_local_experts\": 3"
#define QWEN(n)                                                                                                  \
    "\"model_type\": \"qwen" n "\", \"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, " \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 256, \"rms_norm_eps\": 1e-5, "       \
    "\"max_position_embeddings\": 32"

#define MISTRAL                                                                                                \
    "\"model_type\": \"mistral\", \"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, " \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 256, \"rms_norm_eps\": 1e-5"

#define FULL "\"full_attention\""
#define SLIDING "\"sliding_attention\""
#define OF_LAYERS(type, n, rest)                                                                                   \
    "{\"model_type\": \"" type "\", \"hidden_size\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
    "\"intermediate_size\": 48, \"vocab_size\": 256, \"rope_theta\": 1e4, "                                        \
    "\"num_hidden_layers\": " #n rest "}"
#define QWEN_WINDOW(n, rest) OF_LAYERS("qwen2", n, ", \"use_sliding_window\": true" rest)
#define GEMMA2_OF(n, rest) OF_LAYERS("gemma2", n, rest)
#define GEMMA3_OF(n, rest) OF_LAYERS("gemma3_text", n, rest)

/* The layers of transformers: configuration_mistral.py, configuration_qwen2.py, configuration_gemma2.py and so on. */
TEST(windows_of_llama)
{
    static const struct {
        const char *text;
        int64_t window, from, period;
        double cap;
    } cases[] = {
        {"{" MISTRAL "}", 4096, 0, 0, 0},
        {"{" MISTRAL ", \"sliding_window\": null}", 0, 0, 0, 0},
        {"{" MISTRAL ", \"sliding_window\": 9}", 9, 0, 0, 0},
        {"{" MISTRAL ", \"sliding_window\": 9, \"layer_types\": [" SLIDING ", " SLIDING "]}", 9, 0, 0, 0},
        {"{" MISTRAL ", \"sliding_window\": 32, \"max_position_embeddings\": 32}", 32, 0, 0, 0},
        {OF_LAYERS("phi3", 2, ""), 0, 0, 0, 0},
        {OF_LAYERS("phi3", 2, ", \"sliding_window\": 31"), 31, 0, 0, 0},
        {OF_LAYERS("starcoder2", 2, ""), 0, 0, 0, 0},
        {OF_LAYERS("starcoder2", 2, ", \"sliding_window\": 31"), 31, 0, 0, 0},
        {"{" MIXTRAL_OF_3 "}", 0, 0, 0, 0},
        {"{" MIXTRAL_OF_3 ", \"sliding_window\": 9}", 9, 0, 0, 0},
        {OF_LAYERS("qwen2", 40, ", \"sliding_window\": 9"), 0, 0, 0, 0},
        {QWEN_WINDOW(40, ""), 4096, 28, 0, 0},
        {QWEN_WINDOW(28, ""), 0, 0, 0, 0},
        {QWEN_WINDOW(4, ", \"sliding_window\": null"), 0, 0, 0, 0},
        {QWEN_WINDOW(4, ", \"sliding_window\": 7, \"max_window_layers\": 0"), 7, 0, 0, 0},
        {QWEN_WINDOW(3, ", \"layer_types\": [" FULL ", " SLIDING ", " SLIDING "]"), 4096, 1, 0, 0},
        {QWEN_WINDOW(3, ", \"layer_types\": [" SLIDING ", " SLIDING ", " FULL "]"), 4096, 0, 3, 0},
        {QWEN_WINDOW(4, ", \"layer_types\": [" SLIDING ", " FULL ", " SLIDING ", " FULL "]"), 4096, 0, 2, 0},
        {QWEN_WINDOW(4, ", \"layer_types\": [" FULL ", " FULL ", " SLIDING ", " FULL "]"), 4096, 1, 2, 0},
        {QWEN_WINDOW(4, ", \"layer_types\": [" FULL ", " SLIDING ", " SLIDING ", " FULL "]"), 4096, 1, 4, 0},
        {QWEN_WINDOW(3, ", \"layer_types\": [" FULL ", " FULL ", " FULL "]"), 0, 0, 0, 0},
        {OF_LAYERS("qwen2", 2, ", \"sliding_window\": 9, \"layer_types\": [" FULL ", " FULL "]"), 0, 0, 0, 0},
        {GEMMA2_OF(4, ""), 4096, 0, 2, 50},
        {GEMMA2_OF(4, ", \"attn_logit_softcapping\": null, \"sliding_window\": 31"), 31, 0, 2, 0},
        {GEMMA2_OF(4, ", \"attn_logit_softcapping\": 7.5"), 4096, 0, 2, 7.5},
        {GEMMA2_OF(2, ", \"layer_types\": [" FULL ", " FULL "]"), 0, 0, 0, 50},
        {GEMMA3_OF(13, ", \"sliding_window\": 31"), 31, 0, 6, 0},
        {GEMMA3_OF(13, ", \"sliding_window_pattern\": 4"), 4096, 0, 4, 0},
        {GEMMA3_OF(5, ", \"attn_logit_softcapping\": 50.0"), 4096, 0, 0, 0}, /* it does not compute with the field */
        /* no keys name these layers, but no sequence is longer than the window */
        {GEMMA2_OF(3, ", \"max_position_embeddings\": 9, \"sliding_window\": 9, \"layer_types\": [" SLIDING ", " FULL
                      ", " FULL "]"),
         0, 0, 0, 50},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_model m;
        int64_t positions;
        struct why why = {0};
        if (hf_config_read(cases[i].text, strlen(cases[i].text), &m, &positions, &why))
            fail_msg("%s: %s", cases[i].text, why.text);
        if (m.window != cases[i].window || m.window_from != cases[i].from || m.window_period != cases[i].period ||
            m.score_softcap != cases[i].cap)
            fail_msg("%s: window %lld, from %lld, period %lld, cap %g", cases[i].text, (long long)m.window,
                     (long long)m.window_from, (long long)m.window_period, m.score_softcap);
        job_model_fini(&m);
    }
}

/* Width of heads, biases and norms; a field that is missing has transformers' default. */
TEST(families_of_llama)
{
    static const struct {
        const char *text;
        int64_t head_dim;
        bool bias;
        enum qk_norm norm;
    } cases[] = {
        {"{" LLAMA ", \"head_dim\": 8}", 0, false, QK_NORM_NONE},
        {"{" LLAMA ", \"head_dim\": 16}", 16, false, QK_NORM_NONE},
        {"{" QWEN("2") ", \"sliding_window\": 9, \"use_sliding_window\": false}", 0, true, QK_NORM_NONE},
        {"{" QWEN("3") "}", 128, false, QK_NORM_HEAD},
        {"{" MISTRAL ", \"sliding_window\": null}", 0, false, QK_NORM_NONE},
        {"{" MISTRAL ", \"sliding_window\": 32, \"max_position_embeddings\": 32, \"head_dim\": 16}", 16, false,
         QK_NORM_NONE},
        {"{" QWEN("3") ", \"head_dim\": 8, \"layer_types\": [\"full_attention\", \"full_attention\"]}", 0, false,
         QK_NORM_HEAD},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_model m;
        int64_t positions;
        struct why why = {0};
        if (hf_config_read(cases[i].text, strlen(cases[i].text), &m, &positions, &why))
            fail_msg("%s: %s", cases[i].text, why.text);
        assert_int_equal(m.arch, ARCH_LLAMA);
        assert_int_equal(m.head_dim, cases[i].head_dim);
        assert_int_equal(m.qkv_bias, cases[i].bias);
        assert_int_equal(m.qk_norm, cases[i].norm);
    }
}

/* No family has both, or a norm over all heads and no other. */
TEST(attention_that_no_family_has)
{
    for (int norm = QK_NORM_HEAD; norm <= QK_NORM_WHOLE; norm++) {
        struct job_model m = {.arch = ARCH_LLAMA,
                              .dim = 32,
                              .layers = 1,
                              .heads = 4,
                              .ffn = 48,
                              .vocab = 256,
                              .norm_eps = 1e-5,
                              .rope_theta = 10000,
                              .qkv_bias = norm == QK_NORM_HEAD,
                              .qk_norm = (enum qk_norm)norm};
        struct graph g;
        struct hf_map map;
        struct why why = {0};
        assert_ok(graph_build(&m, 16, &g, &why));
        assert_err(ERR_UNSUPPORTED, hf_map(&g, &m, NULL, &map, &why));
        assert_non_null(strstr(why.text, "has another model.qk_norm"));
        graph_fini(&g);
    }
}

/* The family of a model that was not imported; NULL: none. */
static void family_is(const struct job_model *m, const char *family, const char *part)
{
    struct graph g;
    struct hf_map map;
    struct buf text = {0};
    struct why why = {0};
    char name[64];
    assert_ok(graph_build(m, 16, &g, &why));
    err_t err = hf_map(&g, m, NULL, &map, &why);
    if (family) {
        if (err)
            fail_msg("%s: %s", family, why.text);
        assert_ok(hf_config_print(m, &g, 16, DT_F32, NULL, &text));
        snprintf(name, sizeof(name), "\"model_type\": \"%s\"", family);
        assert_non_null(strstr((const char *)text.data, name));
        hf_map_fini(&map);
    } else if (err != ERR_UNSUPPORTED || !strstr(why.text, part)) {
        fail_msg("\"%s\", not \"%s\"", why.text, part);
    }
    buf_fini(&text);
    graph_fini(&g);
}

/* An export without an imported config.json finds a family for the windows. */
TEST(families_of_windows)
{
    struct job_model m = {JOB_MODEL_DENSE, .arch = ARCH_LLAMA, .dim = 32,    .layers = 4,      .heads = 4,
                          .kv_heads = 2,   .ffn = 48,          .vocab = 256, .norm_eps = 1e-5, .rope_theta = 1e4};
    family_is(&m, "llama", NULL);
    m.window = 9;
    family_is(&m, "mistral", NULL);
    m.window_from = 4; /* no layer has it */
    family_is(&m, "llama", NULL);
    m.window_from = 1;
    family_is(&m, NULL, "model.window"); /* qwen2 has biases, qwen3 norms */
    m.qkv_bias = true;
    family_is(&m, "qwen2", NULL);
    m.qkv_bias = false;
    m.qk_norm = QK_NORM_HEAD;
    family_is(&m, "qwen3", NULL);
    m.qk_norm = QK_NORM_NONE;
    m.window_from = 0;
    m.score_softcap = 50;
    family_is(&m, NULL, "model.score_softcap");
    static const char gemma3[] = GEMMA3_OF(7, ", \"sliding_window\": 9");
    int64_t positions;
    struct why why = {0};
    assert_ok(hf_config_read(gemma3, strlen(gemma3), &m, &positions, &why));
    family_is(&m, "gemma3_text", NULL);
    m.window_period = 3; /* its windows are in the layers that rotate by the local base */
    family_is(&m, NULL, "model.window");
    job_model_fini(&m);
}

/* ---- no field is ignored ---- */

/* Files as transformers writes them, of each family; an object with "rope_parameters" in the form of version 5. */
#define SIZES(type)                                                                                                  \
    "\"model_type\": \"" type "\", \"hidden_size\": 64, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "      \
    "\"intermediate_size\": 96, \"vocab_size\": 256, \"max_position_embeddings\": 64, \"initializer_range\": 0.02, " \
    "\"use_cache\": true, \"bos_token_id\": 1, \"attention_dropout\": 0.1, \"tie_word_embeddings\": true"
#define RMS ", \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\""
#define ROPE ", \"rope_theta\": 1e4"
#define LAYER_NORM ", \"layer_norm_eps\": 1e-5, \"hidden_act\": \"gelu_new\""
#define GEMMA                                                                                             \
    ", \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-6, \"head_dim\": 32, \"attention_bias\": false, " \
    "\"hidden_activation\": \"gelu_pytorch_tanh\""
#define GEMMA_LAYERS                                                                               \
    ", \"query_pre_attn_scalar\": 24, \"final_logit_softcapping\": 20.0, \"sliding_window\": 32, " \
    "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\"]"

static const char *const whole_configs[] = {
    "{" SIZES("llama") RMS ROPE
    ", \"attention_bias\": false, \"mlp_bias\": false, \"head_dim\": 16, \"pretraining_tp\": 1}",
    "{" SIZES("llama") RMS ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 1e4, \"factor\": 4.0, "
                           "\"original_max_position_embeddings\": 16, \"beta_fast\": 16.0, \"beta_slow\": 2.0, "
                           "\"attention_factor\": 1.5}}",
    "{" SIZES("mistral") RMS ROPE ", \"sliding_window\": null, \"head_dim\": 32}",
    "{" SIZES("mistral") RMS ROPE ", \"sliding_window\": 31}",
    "{" SIZES("qwen2") RMS ROPE ", \"use_sliding_window\": true, \"sliding_window\": 31, \"max_window_layers\": 2}",
    "{" SIZES("qwen3") RMS ROPE ", \"use_sliding_window\": true, \"sliding_window\": 31, \"head_dim\": 32, "
                                "\"layer_types\": [" SLIDING ", " SLIDING ", " FULL ", " SLIDING "]}",
    "{" SIZES("qwen3") RMS ROPE ", \"attention_bias\": false, \"head_dim\": 32}",
    "{" SIZES("granite") RMS ROPE ", \"embedding_multiplier\": 12.0, \"residual_multiplier\": 0.2, "
                                  "\"attention_multiplier\": 0.1, \"logits_scaling\": 8.0, \"mlp_bias\": false}",
    "{" SIZES("smollm3") RMS ROPE ", \"no_rope_layers\": [1, 1, 1, 0], \"use_sliding_window\": false}",
    "{" SIZES("smollm3") RMS ROPE ", \"no_rope_layer_interval\": 2}",
    "{" SIZES("phi3") RMS ROPE ", \"partial_rotary_factor\": 0.75, \"sliding_window\": 31, \"embd_pdrop\": 0.1}",
    "{" SIZES("phi3") RMS ROPE
    ", \"original_max_position_embeddings\": 16, \"rope_scaling\": {\"type\": \"su\", "
    "\"short_factor\": [1, 1, 1, 1, 1, 1, 1, 1], \"long_factor\": [2, 2, 2, 2, 2, 2, 2, 2]}}",
    "{" SIZES("olmo2") RMS ROPE ", \"attention_bias\": false}",
    "{" SIZES("gpt_neox") LAYER_NORM ", \"rotary_pct\": 0.25, \"rotary_emb_base\": 10000, \"attention_bias\": true, "
                                     "\"use_parallel_residual\": true, \"hidden_dropout\": 0.1}",
    "{" SIZES("phi") LAYER_NORM ROPE ", \"partial_rotary_factor\": 0.5, \"num_key_value_heads\": 2, "
                                     "\"qk_layernorm\": false, \"resid_pdrop\": 0.1}",
    "{" SIZES("starcoder2") ROPE ", \"num_key_value_heads\": 2, \"norm_epsilon\": 1e-5, \"use_bias\": true, "
                                 "\"hidden_act\": \"gelu\", \"sliding_window\": 31}",
    "{" SIZES("gemma") GEMMA ROPE "}",
    "{" SIZES("gemma2") GEMMA ROPE GEMMA_LAYERS ", \"attn_logit_softcapping\": null}",
    "{" SIZES("gemma2") GEMMA ROPE GEMMA_LAYERS ", \"attn_logit_softcapping\": 5.0}",
    "{" SIZES("gemma3_text") GEMMA GEMMA_LAYERS ", \"rope_theta\": 1e6, \"rope_local_base_freq\": 1e4, "
                                                "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}}",
    "{" SIZES("gemma3_text") GEMMA GEMMA_LAYERS
    ", \"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}, "
    "\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e6}}}",
};

/* The model section as a job file prints it, and the positions. */
static bool config_text(const json_t *config, struct buf *ret)
{
    char *text = json_dumps(config, JSON_COMPACT);
    struct job_spec job = {0};
    int64_t positions;
    struct why why = {0};
    err_t err = hf_config_read(text, strlen(text), &job.model, &positions, &why);
    free(text);
    if (err) {
        assert_true(why.text[0]);
        return false;
    }
    for (int i = 0; i < job_schema.n_rows; i++)
        if (strncmp(job_schema.rows[i].key, "model.", 6) == 0) {
            assert_ok(schema_value_print(&job_schema.rows[i], &job, ret));
            assert_ok(buf_printf(ret, " "));
        }
    assert_ok(buf_printf(ret, "%lld", (long long)positions));
    job_model_fini(&job.model);
    return true;
}

/* Another value of the same kind; NULL: there are no more. */
static json_t *other_value(const json_t *v, int turn)
{
    if (json_is_integer(v))
        return turn < 3 ? json_integer(turn == 0   ? json_integer_value(v) + 1
                                       : turn == 1 ? 2 * json_integer_value(v)
                                                   : 1)
                        : NULL;
    if (json_is_real(v))
        return turn < 3 ? json_real(json_real_value(v) * (turn == 0 ? 1.25 : turn == 1 ? 0.5 : 3)) : NULL;
    if (json_is_boolean(v))
        return turn < 1 ? json_boolean(json_is_false(v)) : NULL;
    if (json_is_null(v))
        return turn < 2 ? (turn ? json_real(7.5) : json_integer(3)) : NULL;
    if (json_is_string(v))
        return turn < 3 ? json_string(turn == 0 ? "gelu" : turn == 1 ? "silu" : "another") : NULL;
    return turn < 1 ? json_array() : NULL;
}

/* Fields that have no effect beside others in the files above. */
static bool is_void(const json_t *root, const char *key)
{
    static const struct {
        const char *type, *key; /* why */
    } rows[] = {
        {"gemma", "hidden_activation"},       /* "gelu" is another name of the tanh form */
        {"gemma2", "hidden_activation"},      /* the same */
        {"gemma3_text", "hidden_activation"}, /* the same */
    };
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (size_t i = 0; type && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(type, rows[i].type) == 0 && strcmp(key, rows[i].key) == 0)
            return true;
    return false;
}

/* Changes one value in an object, and in objects within; returns the number of changes. */
static int mutate_all(json_t *root, json_t *object, const char *before)
{
    const char *key;
    json_t *value, *copy = json_copy(object);
    int n = 0;
    json_object_foreach(copy, key, value)
    {
        if (json_is_object(value)) {
            n += mutate_all(root, json_object_get(object, key), before);
            continue;
        }
        for (int turn = 0;; turn++) {
            struct buf after = {0};
            json_t *other = other_value(value, turn);
            if (!other)
                break;
            const bool same = json_equal(other, value);
            assert_int_equal(json_object_set_new(object, key, other), 0);
            if (!same && config_text(root, &after) && strcmp((const char *)after.data, before) == 0 &&
                !hf_config_idle(key) && !is_void(root, key)) {
                char *text = json_dumps(root, JSON_COMPACT);
                fail_msg("%s changes nothing: %s", key, text);
            }
            buf_fini(&after);
            n++;
        }
        assert_int_equal(json_object_set(object, key, value), 0);
    }
    json_decref(copy);
    return n;
}

/* A field either changes the model, or it is known to have no effect, or the file is refused. */
TEST(every_field_counts_or_is_refused)
{
    int n = 0;
    for (size_t i = 0; i < sizeof(whole_configs) / sizeof(whole_configs[0]); i++) {
        json_t *config = json_loads(whole_configs[i], 0, NULL);
        struct buf before = {0}, again = {0};
        assert_non_null(config);
        if (!config_text(config, &before))
            fail_msg("%s", whole_configs[i]);
        n += mutate_all(config, config, (const char *)before.data);
        assert_true(config_text(config, &again));
        assert_string_equal((const char *)again.data, (const char *)before.data);
        for (int k = 0; k < 3; k++) { /* unknown fields */
            static const char *const unknown[] = {"new_factor", "window_of_experts", "alibi"};
            struct buf none = {0};
            json_object_set_new(config, unknown[k], json_real(2));
            assert_false(config_text(config, &none));
            json_object_del(config, unknown[k]);
            n++;
        }
        buf_fini(&before);
        buf_fini(&again);
        json_decref(config);
    }
    assert_true(n >= 300);
}

/* What is written without an imported file is read as the same model. */
TEST(every_family_is_written)
{
    for (size_t i = 0; i < sizeof(whole_configs) / sizeof(whole_configs[0]); i++) {
        struct job_model m;
        struct graph g;
        struct buf text = {0}, before = {0}, after = {0};
        int64_t positions;
        struct why why = {0};
        assert_ok(hf_config_read(whole_configs[i], strlen(whole_configs[i]), &m, &positions, &why));
        json_t *config = json_loads(whole_configs[i], 0, NULL);
        assert_true(config_text(config, &before));
        json_decref(config);
        if (graph_build(&m, 64, &g, &why))
            fail_msg("%s: %s", whole_configs[i], why.text);
        assert_ok(hf_config_print(&m, &g, 64, DT_F32, NULL, &text));
        config = json_loads((const char *)text.data, 0, NULL);
        if (!config_text(config, &after) || strcmp((const char *)before.data, (const char *)after.data) != 0)
            fail_msg("%s\nis written as\n%s", whole_configs[i], (const char *)text.data);
        json_decref(config);
        buf_fini(&text);
        buf_fini(&before);
        buf_fini(&after);
        graph_fini(&g);
        job_model_fini(&m);
    }
}

TEST(configs_that_are_refused)
{
    static const struct {
        const char *text;
        err_t code;
        const char *part;
    } cases[] = {
        {"{", ERR_INVALID, "config.json, line 1"},
        {"{\"model_type\": \"bert\"}", ERR_UNSUPPORTED, "model_type is \"bert\""},
        {"{}", ERR_UNSUPPORTED, "dtd supports gpt2, llama, qwen2, qwen3, mistral, granite"},
        {"{" QWEN("2") ", \"use_sliding_window\": true, \"sliding_window\": -1}", ERR_INVALID,
         "sliding_window is missing or not a number from 1 to 16777216"},
        {"{" QWEN("2") ", \"use_sliding_window\": true, \"max_window_layers\": \"x\"}", ERR_INVALID,
         "max_window_layers is not a number from 0"},
        {"{" QWEN("2") ", \"use_sliding_window\": 1}", ERR_INVALID, "use_sliding_window is neither true nor false"},
        {"{" QWEN("2") ", \"layer_types\": [" FULL "]}", ERR_INVALID, "layer_types is not a list of 2 entries"},
        {"{" QWEN("2") ", \"layer_types\": [" FULL ", \"chunked_attention\"]}", ERR_UNSUPPORTED,
         "layer_types has \"chunked_attention\"; dtd supports \"full_attention\" and \"sliding_attention\""},
        {QWEN_WINDOW(4, ", \"layer_types\": [" FULL ", " SLIDING ", " FULL ", " FULL "]"), ERR_UNSUPPORTED,
         "no windows in the layers that layer_types names"},
        {GEMMA2_OF(3, ", \"max_position_embeddings\": 10, \"sliding_window\": 9, \"layer_types\": [" SLIDING ", " FULL
                      ", " FULL "]"),
         ERR_UNSUPPORTED, "no windows in the layers that layer_types names"},
        {GEMMA2_OF(2, ", \"sliding_window\": null"), ERR_INVALID, "no sliding_window counts: write the number"},
        {"{" MISTRAL ", \"layer_types\": [" FULL ", " SLIDING "]}", ERR_UNSUPPORTED,
         "layer_types has \"full_attention\", which dtd does not support in mistral with a sliding_window"},
        {"{" LLAMA ", \"layer_types\": [" FULL ", " SLIDING "]}", ERR_UNSUPPORTED,
         "layer_types has \"sliding_attention\", which dtd does not support in llama"},
        {OF_LAYERS("smollm3", 2, ", \"use_sliding_window\": true"), ERR_UNSUPPORTED, "use_sliding_window is set"},
        {"{" QWEN("2_moe") ", \"use_sliding_window\": true}", ERR_UNSUPPORTED, "use_sliding_window is set"},
        {"{" QWEN("3") ", \"attention_bias\": 1}", ERR_INVALID, "attention_bias is neither true nor false"},
        {"{" QWEN("3") ", \"layer_types\": [" FULL ", " SLIDING "]}", ERR_INVALID,
         "write the number of tokens there, and set use_sliding_window to true"},
        {"{" LLAMA ", \"sliding_window\": 9}", ERR_UNSUPPORTED, "sliding_window is set"},
        {"{\"model_type\": \"llama\"}", ERR_INVALID, "hidden_size is missing"},
        {"{" LLAMA ", \"quantization_config\": {\"bits\": 4}}", ERR_UNSUPPORTED,
         "does not support the field quantization_config"},
        {"{" LLAMA ", \"residual_multiplier\": 2}", ERR_UNSUPPORTED, "does not support the field residual_multiplier"},
        {"{" LLAMA ", \"hidden_act\": \"quick_gelu\"}", ERR_UNSUPPORTED, "hidden_act is \"quick_gelu\""},
        {"{" LLAMA ", \"hidden_act\": \"gelu\"}", ERR_UNSUPPORTED, "hidden_act is \"gelu\"; dtd supports \"silu\""},
        {"{" LLAMA ", \"head_dim\": -2}", ERR_INVALID, "head_dim is missing or not a number"},
        {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 8.0}}", ERR_INVALID,
         "need the field short_factor, a list of numbers"},
        {"{" LLAMA ", \"rope_parameters\": {\"rope_type\": \"yarn\"}}", ERR_INVALID, "need the field factor"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}}", ERR_INVALID,
         "factor is not a number"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"slope\": 1}}", ERR_UNSUPPORTED,
         "rotary positions of the type linear have the field slope, which dtd does not support"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"beta_fast\": 1}}", ERR_UNSUPPORTED,
         "the type linear have the field beta_fast"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"truncate\": 1}}", ERR_INVALID,
         "truncate is neither true nor false"},
        {"{" LLAMA ", \"partial_rotary_factor\": 1.5}", ERR_INVALID, "partial_rotary_factor is above 1"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2, \"original_max_position_embeddings\": "
         "\"x\"}}",
         ERR_INVALID, "original_max_position_embeddings is not a number from 1"},
        {"{" MISTRAL ", \"sliding_window\": \"x\"}", ERR_INVALID, "sliding_window is missing or not a number"},
        {"{" LLAMA ", \"rope_theta\": -1}", ERR_INVALID, "rope_theta is not a number above 0"},
        {"{" MIXTRAL "}", ERR_INVALID, "num_local_experts is missing, and versions of transformers differ"},
        {"{" MIXTRAL ", \"num_local_experts\": 1}", ERR_INVALID, "num_experts_per_tok is 2, but there are 1"},
        {"{" MIXTRAL ", \"num_local_experts\": 4096}", ERR_UNSUPPORTED, "dtd has at most 1024 and 64"},
        {"{" MIXTRAL_OF_3 ", \"num_experts\": 4}", ERR_INVALID, "are two names of one number"},
        {"{" MIXTRAL_OF_3 ", \"router_jitter_noise\": 0.01}", ERR_UNSUPPORTED, "while training: set it to 0"},
        {"{" MIXTRAL_OF_3 ", \"rope_scaling\": {\"type\": \"yarn\"}}", ERR_INVALID, "need the field factor"},
        {"{" GPT2 ", \"activation_function\": \"relu\"}", ERR_UNSUPPORTED, "activation_function is \"relu\""},
        {"{" GPT2 ", \"scale_attn_weights\": false}", ERR_UNSUPPORTED, "scale_attn_weights is false"},
        {"{" GPT2 ", \"tie_word_embeddings\": false}", ERR_UNSUPPORTED, "tie_word_embeddings is false"},
        {"{" GPT2 ", \"n_inner\": \"x\"}", ERR_INVALID, "n_inner is missing or not a number"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_model m;
        int64_t positions;
        struct why why = {0};
        err_t err = hf_config_read(cases[i].text, strlen(cases[i].text), &m, &positions, &why);
        if (err != cases[i].code || !strstr(why.text, cases[i].part))
            fail_msg("%s: %s: \"%s\", not \"%s\"", cases[i].text, err_name(err), why.text, cases[i].part);
    }
}

/* Each of these means another model where it is missing, depending on the family or the version of transformers. */
TEST(fields_that_must_be_there)
{
    static const char *const keys[] = {"num_key_value_heads", "rms_norm_eps",        "rope_theta",
                                       "num_local_experts",   "num_experts_per_tok", "intermediate_size"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct job_model m;
        int64_t positions;
        struct why why = {0};
        json_t *config = json_loads("{" MIXTRAL_OF_3 "}", 0, NULL);
        assert_int_equal(json_object_del(config, keys[i]), 0);
        char *text = json_dumps(config, 0);
        assert_err(ERR_INVALID, hf_config_read(text, strlen(text), &m, &positions, &why));
        if (!strstr(why.text, keys[i]) || !strstr(why.text, "is missing"))
            fail_msg("%s: \"%s\"", keys[i], why.text);
        free(text);
        json_decref(config);
    }
}

TEST(configs_that_are_read)
{
    static const char llama[] = "{" LLAMA ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}, "
                                "\"max_position_embeddings\": 99, \"tie_word_embeddings\": true}";
    static const char gpt2[] = "{" GPT2 ", \"n_inner\": null}";
    struct job_model m;
    int64_t positions;
    struct why why = {0};
    assert_ok(hf_config_read(llama, strlen(llama), &m, &positions, &why));
    assert_true(m.arch == ARCH_LLAMA && m.dim == 32 && m.layers == 2 && m.heads == 4 && m.kv_heads == 2 && m.ffn == 48);
    assert_true(m.vocab == 256 && m.rope_theta == 5e5 && m.norm_eps == 1e-5 && m.tied && positions == 99);
    assert_ok(hf_config_read(gpt2, strlen(gpt2), &m, &positions, &why));
    assert_true(m.arch == ARCH_GPT2 && m.ffn == 64 && m.kv_heads == 2 && m.tied && positions == 12);
}

/* Both spellings; the dictionary counts before the field beside it, and rope_scaling before rope_parameters. */
TEST(rotary_positions_that_are_read)
{
    static const struct {
        const char *text;
        struct job_model m;
    } cases[] = {
        {"{" LLAMA "}", {.rope_theta = 1e4, .rope_part = 1}},
        {"{" LLAMA ", \"rope_theta\": 5e5, \"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0, "
         "\"low_freq_factor\": 1.0, \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}}",
         {.rope_theta = 5e5, .rope_part = 1, .rope_type = ROPE_LLAMA3, .rope_factor = 32, .rope_original = 8192}},
        {"{" LLAMA ", \"max_position_embeddings\": 77, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, "
         "\"rope_theta\": 1e6, \"partial_rotary_factor\": 0.5}, \"rope_theta\": 3}",
         {.rope_theta = 1e6, .rope_part = 0.5, .rope_type = ROPE_YARN, .rope_factor = 4, .rope_original = 77}},
        {"{" LLAMA
         ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7e5}, \"rope_scaling\": {\"type\": "
         "\"linear\", \"factor\": 2}}",
         {.rope_theta = 7e5, .rope_part = 1, .rope_type = ROPE_LINEAR, .rope_factor = 2}},
        {"{" LLAMA ", \"max_position_embeddings\": 99, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
         {.rope_theta = 1e4, .rope_part = 1, .rope_type = ROPE_DYNAMIC, .rope_factor = 2, .rope_original = 99}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct job_model *want = &cases[i].m;
        struct job_model m;
        int64_t positions;
        struct why why = {0};
        if (hf_config_read(cases[i].text, strlen(cases[i].text), &m, &positions, &why))
            fail_msg("%s: %s", cases[i].text, why.text);
        if (m.rope_theta != want->rope_theta || m.rope_part != want->rope_part || m.rope_type != want->rope_type ||
            m.rope_factor != want->rope_factor || m.rope_original != want->rope_original)
            fail_msg("%s: read as theta %g, part %g, type %d, factor %g, original %lld", cases[i].text, m.rope_theta,
                     m.rope_part, (int)m.rope_type, m.rope_factor, (long long)m.rope_original);
        assert_true(m.rope_low == 1 && m.rope_high == 4 && m.rope_fast == 32 && m.rope_slow == 1 && !m.rope_exact);
    }
}

/* A config.json that an export writes, without one of an import, describes the same model. */
static void config_round_trip(const struct job_model *m, const char *type)
{
    struct graph g;
    struct buf text = {0};
    struct job_model back;
    int64_t positions;
    struct why why = {0};
    assert_ok(graph_build(m, 16, &g, &why));
    assert_ok(hf_config_print(m, &g, 16, DT_F32, NULL, &text));
    assert_non_null(strstr((const char *)text.data, type));
    if (hf_config_read((const char *)text.data, text.len, &back, &positions, &why))
        fail_msg("%s", why.text);
    assert_true(back.experts == m->experts && back.experts_per_token == m->experts_per_token);
    assert_true(back.expert_ffn == (m->expert_ffn ? m->expert_ffn : m->ffn) && back.router == m->router);
    assert_true(back.shared_experts == m->shared_experts && back.shared_gate == m->shared_gate);
    assert_true(back.router_norm == m->router_norm && back.moe_every == m->moe_every);
    assert_true(back.head_dim == m->head_dim && back.qkv_bias == m->qkv_bias && back.qk_norm == m->qk_norm);
    assert_true(back.window == m->window && back.window_from == m->window_from);
    assert_true(back.window_period == m->window_period);
    assert_true(back.dense_layers == m->dense_layers && back.dim == m->dim && back.layers == m->layers);
    assert_true(back.rope_type == m->rope_type && back.rope_factor == m->rope_factor && back.rope_fast == m->rope_fast);
    assert_true(back.rope_part == m->rope_part && back.rope_original == m->rope_original);
    assert_true(back.rope_exact == m->rope_exact && back.rope_attention == m->rope_attention);
    assert_true(back.rope_theta == m->rope_theta && back.norm_eps == m->norm_eps && positions == 16);
    buf_fini(&text);
    graph_fini(&g);
}

static const struct job_model mixtral = {JOB_MODEL_DENSE,   .arch = ARCH_LLAMA, .dim = 32,
                                         .layers = 2,       .heads = 4,         .kv_heads = 2,
                                         .ffn = 24,         .vocab = 256,       .norm_eps = 1e-5,
                                         .rope_theta = 1e6, .experts = 3,       .router = ROUTER_SOFTMAX_TOPK};

TEST(configs_of_experts)
{
    config_round_trip(&mixtral, "MixtralForCausalLM");
    struct job_model m = mixtral;
    m.window = 9;
    config_round_trip(&m, "MixtralForCausalLM");
    m.window = 0;
    m.router = ROUTER_SOFTMAX;
    m.qk_norm = QK_NORM_WHOLE;
    config_round_trip(&m, "OlmoeForCausalLM");
    m.layers = 7;
    m.qk_norm = QK_NORM_HEAD;
    m.router_norm = true;
    m.moe_every = 2;
    m.dense_layers = 3;
    m.expert_ffn = 12;
    m.head_dim = 6;
    config_round_trip(&m, "Qwen3MoeForCausalLM");
    m.qk_norm = QK_NORM_NONE;
    m.qkv_bias = true;
    m.shared_experts = 3;
    m.shared_gate = true;
    config_round_trip(&m, "Qwen2MoeForCausalLM");
}

/* Widths that the job file leaves open are those of the graph. */
TEST(configs_of_default_widths)
{
    for (int family = 0; family < 2; family++) {
        struct job_model m = mixtral, back;
        struct graph g;
        struct buf text = {0};
        int64_t positions;
        struct why why = {0};
        m.ffn = m.expert_ffn = 0;
        m.qk_norm = family ? QK_NORM_HEAD : QK_NORM_NONE;
        assert_ok(graph_build(&m, 16, &g, &why));
        assert_ok(hf_config_print(&m, &g, 16, DT_F32, NULL, &text));
        if (hf_config_read((const char *)text.data, text.len, &back, &positions, &why))
            fail_msg("%s", why.text);
        bool seen = false;
        for (int i = 0; i < g.n_tensors; i++)
            if (strcmp(g.tensors[i].name, "layers.1.moe.experts.w3") == 0) {
                assert_int_equal(g.tensors[i].dim[0].factor, back.experts * back.expert_ffn);
                seen = true;
            }
        assert_true(seen);
        buf_fini(&text);
        graph_fini(&g);
    }
}

/* A model that no family has is refused with the key of each. */
TEST(experts_without_a_family)
{
    static const struct {
        struct job_model change;
        const char *part;
    } cases[] = {
        {{.router = ROUTER_SIGMOID, .router_scale = 1}, "mixtral has no model.router sigmoid"},
        {{.router = ROUTER_SOFTMAX, .router_scale = 1}, "mixtral has no model.router softmax without"},
        {{.router = ROUTER_SOFTMAX_TOPK, .router_scale = 2}, "mixtral has no model.router_scale"},
        {{.router = ROUTER_SOFTMAX_TOPK, .router_scale = 1, .router_bias = true}, "mixtral has no model.router_bias"},
        {{.router = ROUTER_SOFTMAX_TOPK, .router_scale = 1, .expert_bias = 1e-3}, "mixtral has no model.expert_bias"},
        {{.router = ROUTER_SOFTMAX_TOPK, .router_scale = 1, .dense_layers = 1}, "mixtral has no model.moe_every or"},
        {{.router = ROUTER_SOFTMAX_TOPK, .router_scale = 1, .shared_experts = 1}, "no model.shared_experts"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_model m = mixtral;
        struct graph g;
        struct hf_map map;
        struct why why = {0};
        m.router = cases[i].change.router;
        m.router_scale = cases[i].change.router_scale;
        m.router_bias = cases[i].change.router_bias;
        m.expert_bias = cases[i].change.expert_bias;
        m.dense_layers = cases[i].change.dense_layers;
        m.shared_experts = cases[i].change.shared_experts;
        assert_ok(graph_build(&m, 16, &g, &why));
        assert_err(ERR_UNSUPPORTED, hf_map(&g, &m, NULL, &map, &why));
        if (!strstr(why.text, cases[i].part))
            fail_msg("\"%s\", not \"%s\"", why.text, cases[i].part);
        graph_fini(&g);
    }
}

/* ---- complete models ---- */

/* A folder with config.json and random tensors of the model, as Hugging Face would write it. `change` may alter the
 * list before it is written; its names are freed. */
struct hf_folder {
    struct safetensor list[128];
    int n;
};

static void folder_list(const struct job_model *m, int64_t seq, struct hf_folder *f)
{
    struct graph g;
    struct hf_map map;
    struct why why = {0};
    assert_ok(graph_build(m, seq, &g, &why));
    assert_ok(hf_map(&g, m, NULL, &map, &why));
    for (f->n = 0; f->n < map.n; f->n++) {
        struct safetensor *t = &f->list[f->n];
        *t = (struct safetensor){.name = strdup(map.list[f->n].name), .dtype = DT_F32};
        t->ndim = map.list[f->n].tensor->ndim;
        t->shape[0] = map.list[f->n].rows;
        t->shape[1] = map.list[f->n].cols;
    }
    hf_map_fini(&map);
    graph_fini(&g);
}

static char *folder_write(const char *name, const char *config, struct hf_folder *f)
{
    struct buf out = {0};
    uint64_t data;
    char file[PATH_MAX], *dir = path_of(name);
    assert_int_equal(mkdir(dir, 0755), 0);
    assert_ok(safetensors_header(f->list, f->n, &out, &data));
    for (uint64_t i = 0; i < data / sizeof(float); i++) {
        float x = (float)(i % 8191) * 0.25F - 1000;
        assert_ok(buf_append(&out, &x, sizeof(x)));
    }
    snprintf(file, sizeof(file), "%s/model.safetensors", dir);
    assert_ok(file_replace(file, out.data, out.len, 0644));
    snprintf(file, sizeof(file), "%s/config.json", dir);
    assert_ok(file_replace(file, config, strlen(config), 0644));
    for (int i = 0; i < f->n; i++)
        free(f->list[i].name);
    buf_fini(&out);
    return dir;
}

static void check_same_tensors(const char *a, const char *b)
{
    char file[PATH_MAX];
    struct safetensors x, y;
    struct why why = {0};
    snprintf(file, sizeof(file), "%s/model.safetensors", a);
    assert_ok(safetensors_open(file, &x, &why));
    snprintf(file, sizeof(file), "%s/model.safetensors", b);
    assert_ok(safetensors_open(file, &y, &why));
    assert_int_equal(x.n, y.n);
    for (int i = 0; i < x.n; i++) {
        static float u[1 << 16], v[1 << 16];
        int64_t n = safetensor_elements(&x.list[i]);
        assert_string_equal(x.list[i].name, y.list[i].name);
        assert_int_equal(n, safetensor_elements(&y.list[i]));
        assert_true(n <= 1 << 16);
        assert_ok(safetensors_read(&x, &x.list[i], 0, n, DT_F32, u, &why));
        assert_ok(safetensors_read(&y, &y.list[i], 0, n, DT_F32, v, &why));
        assert_memory_equal(u, v, (size_t)n * sizeof(float));
    }
    safetensors_close(&x);
    safetensors_close(&y);
}

static const struct job_model llama = {.arch = ARCH_LLAMA,
                                       .dim = 32,
                                       .layers = 2,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .ffn = 48,
                                       .vocab = 256,
                                       .norm_eps = 1e-5,
                                       .rope_theta = 10000};
static const struct job_model gpt2 = {.arch = ARCH_GPT2,
                                      .dim = 16,
                                      .layers = 2,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .ffn = 64,
                                      .vocab = 256,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 10000,
                                      .tied = true};

static void round_trip(const struct job_model *m, int64_t seq, const char *config)
{
    struct hf_folder f;
    struct hf_done done;
    struct why why = {0};
    folder_list(m, seq, &f);
    int n = f.n;
    char *theirs = folder_write("theirs", config, &f), *out = path_of("out"), *back = path_of("back");
    const struct hf_import in = {.dir = theirs, .out = out};
    if (hf_import(&in, &done, &why))
        fail_msg("%s", why.text);
    assert_int_equal(done.tensors, n);
    assert_non_null(strstr(done.path, "/out/step-0"));
    const struct hf_export ex = {.step_dir = done.path, .dir = back, .dtype = DT_F32, .shard_bytes = HF_SHARD_BYTES};
    struct hf_done again;
    if (hf_export(&ex, &again, &why))
        fail_msg("%s", why.text);
    assert_int_equal(again.tensors, n);
    assert_int_equal(again.params, done.params);
    check_same_tensors(theirs, back);
    /* Neither export nor import overwrites an existing folder. */
    assert_err(ERR_EXISTS, hf_export(&ex, &again, &why));
    assert_non_null(strstr(why.text, "is not empty"));
    assert_err(ERR_EXISTS, hf_import(&in, &again, &why));
    /* Export in several files, and import of these. */
    char *shards = path_of("shards"), *once = path_of("once"), *last = path_of("last");
    const struct hf_export cut = {.step_dir = done.path, .dir = shards, .dtype = DT_F32, .shard_bytes = 5000};
    assert_ok(hf_export(&cut, &again, &why));
    assert_true(again.files > 4);
    const struct hf_import from = {.dir = shards, .out = once, .part_bytes = 7000};
    if (hf_import(&from, &done, &why))
        fail_msg("%s", why.text);
    assert_true(done.files > 4);
    const struct hf_export ex2 = {.step_dir = done.path, .dir = last, .dtype = DT_F32, .shard_bytes = HF_SHARD_BYTES};
    assert_ok(hf_export(&ex2, &again, &why));
    check_same_tensors(theirs, last);
}

TEST(llama_in_and_out)
{
    round_trip(&llama, 32, "{" LLAMA ", \"max_position_embeddings\": 32}");
}

TEST(qwen2_in_and_out)
{
    struct job_model m = llama;
    m.qkv_bias = true;
    round_trip(&m, 32, "{" QWEN("2") "}");
}

TEST(qwen3_in_and_out)
{
    struct job_model m = llama;
    m.head_dim = 10;
    m.qk_norm = QK_NORM_HEAD;
    round_trip(&m, 32, "{" QWEN("3") ", \"head_dim\": 10}");
}

TEST(gpt2_in_and_out)
{
    round_trip(&gpt2, 12, "{" GPT2 "}");
}

TEST(mixtral_in_and_out)
{
    round_trip(&mixtral, 32, "{" MIXTRAL_OF_3 ", \"max_position_embeddings\": 32}");
}

static char *job_write(const char *name, const char *model, const char *rest)
{
    char text[1000], *path = path_of(name);
    int n = snprintf(text, sizeof(text),
                     "name: tuned\nmodel: {%s}\ndata: {train: [text.txt]%s}\ntrain: {steps: 5, seq: 8}\n"
                     "checkpoint: {dir: tuned}\n",
                     model, rest);
    assert_ok(file_replace(path, text, (size_t)n, 0644));
    assert_ok(file_replace(path_of("text.txt"), "some text\n", 10, 0644));
    return path;
}

/* A job with shorter samples uses the first rows of gpt2's position table. Older files have other names and constants.
 */
TEST(a_job_of_shorter_samples)
{
    struct hf_folder f;
    struct hf_done done;
    struct why why = {0};
    struct ckpt *c;
    folder_list(&gpt2, 12, &f);
    for (int i = 0; i < f.n; i++)
        memmove(f.list[i].name, f.list[i].name + strlen("transformer."),
                strlen(f.list[i].name + strlen("transformer.")) + 1);
    f.list[f.n++] =
        (struct safetensor){.name = strdup("h.0.attn.bias"), .dtype = DT_U8, .ndim = 4, .shape = {1, 1, 12, 12}};
    const struct hf_import in = {.dir = folder_write("theirs", "{" GPT2 "}", &f),
                                 .job = job_write("job.yaml", "arch: gpt2, dim: 16, layers: 2, heads: 2", "")};
    if (hf_import(&in, &done, &why))
        fail_msg("%s", why.text);
    assert_non_null(strstr(done.path, "/tuned/step-0"));
    assert_ok(ckpt_open(done.path, &c, &why));
    const struct ckpt_tensor *t = ckpt_find(c, "transformer.wpe.weight");
    assert_true(t && t->shape[0] == 8 && t->shape[1] == 16);
    assert_int_equal(ckpt_step(c), 0);
    ckpt_close(c);
}

static void refuse(const struct hf_import *in, const char *part)
{
    struct hf_done done;
    struct why why = {0};
    err_t err = hf_import(in, &done, &why);
    if (!err || !strstr(why.text, part))
        fail_msg("%s: \"%s\", not \"%s\"", err_name(err), why.text, part);
}

TEST(jobs_that_do_not_fit)
{
    struct hf_folder f;
    folder_list(&llama, 32, &f);
    struct hf_import in = {.dir = folder_write("theirs", "{" LLAMA "}", &f)};
    in.job = job_write("a.yaml", "dim: 32, layers: 3, heads: 4, kv_heads: 2, ffn: 48", "");
    refuse(&in, "model.layers is 3, but ");
    in.job = job_write("b.yaml", "arch: gpt2, dim: 32, layers: 2, heads: 4", "");
    refuse(&in, "is a llama");
    in.job = job_write("c.yaml", "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, rope_theta: 5", "");
    refuse(&in, "model.rope_theta must be");
    in.job = job_write("d.yaml", "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48", ", tokenizer: words");
    refuse(&in, "data.tokenizer: this vocabulary is made from the training files");
    in.job = job_write("e.yaml", "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, head_dim: 16", "");
    refuse(&in, "model.head_dim is 16, but ");
    in.job = job_write("f.yaml", "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, qkv_bias: true", "");
    refuse(&in, "model.qkv_bias is 1, but ");
    in.job = job_write("g.yaml", "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, qk_norm: head", "");
    refuse(&in, "model.qk_norm must be none, as in ");
    folder_list(&mixtral, 32, &f);
    in.dir = folder_write("experts", "{" MIXTRAL_OF_3 "}", &f);
    in.job =
        job_write("h.yaml", "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 24, norm_eps: 1e-5, rope_theta: 1e6", "");
    refuse(&in, "model.experts is 0, but ");
#define EXPERTS "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 24, norm_eps: 1e-5, rope_theta: 1e6, experts: 3"
    in.job = job_write("i.yaml", EXPERTS, "");
    refuse(&in, "model.router and model.router_norm must be softmax_topk and false");
    in.job = job_write("j.yaml", EXPERTS ", router: softmax, router_norm: true, router_scale: 2", "");
    refuse(&in, "model.router_scale must be 1");
    in.job = path_of("none.yaml");
    refuse(&in, "none.yaml");
}

/* A job file may write the router in the other way, and decides about the auxiliary loss. */
TEST(a_job_of_experts)
{
    struct hf_folder f;
    struct hf_done done;
    struct why why = {0};
    struct ckpt *c;
    folder_list(&mixtral, 32, &f);
    const struct hf_import in = {
        .dir = folder_write("theirs", "{" MIXTRAL_OF_3 ", \"router_aux_loss_coef\": 0.5}", &f),
        .job = job_write("job.yaml", EXPERTS ", router: softmax, router_norm: true, aux_loss: 0.01", "")};
    if (hf_import(&in, &done, &why))
        fail_msg("%s", why.text);
    assert_int_equal(done.n_warnings, 0);
    assert_ok(ckpt_open(done.path, &c, &why));
    const struct ckpt_tensor *t = ckpt_find(c, "layers.1.moe.experts.w2");
    assert_true(t && t->ndim == 3 && t->shape[0] == 3 && t->shape[1] == 32 && t->shape[2] == 24);
    ckpt_close(c);
}

TEST(folders_that_do_not_fit)
{
    struct hf_folder f;
    struct hf_import in = {.out = path_of("out")};
    in.dir = path_of("nowhere");
    refuse(&in, "nowhere/config.json: not found");
    folder_list(&llama, 32, &f);
    free(f.list[--f.n].name);
    in.dir = folder_write("missing", "{" LLAMA "}", &f);
    refuse(&in, "has no tensor ");
    folder_list(&llama, 32, &f);
    f.list[f.n++] = (struct safetensor){.name = strdup("model.layers.2.x"), .dtype = DT_F32, .ndim = 1, .shape = {1}};
    in.dir = folder_write("extra", "{" LLAMA "}", &f);
    refuse(&in, "has a tensor model.layers.2.x, which does not belong to the model in its config.json");
    folder_list(&llama, 32, &f);
    f.list[3].shape[0] += 8;
    in.dir = folder_write("shape", "{" LLAMA "}", &f);
    refuse(&in, "does not match its config.json");
    folder_list(&llama, 32, &f);
    f.list[3].dtype = DT_I32;
    in.dir = folder_write("type", "{" LLAMA "}", &f);
    refuse(&in, "is I32; dtd reads F32, F16, BF16 and F64");
    struct stat st;
    assert_int_not_equal(stat(in.out, &st), 0); /* a refused import leaves no files */
}

/* ---- contradictions in a folder ---- */

static void file_write(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_ok(file_replace(path, text, strlen(text), 0644));
}

static void import_warns(const struct hf_import *in, const char *part)
{
    struct hf_done done;
    struct why why = {0};
    if (hf_import(in, &done, &why))
        fail_msg("%s", why.text);
    if (!part)
        assert_int_equal(done.n_warnings, 0);
    else if (done.n_warnings != 1 || !strstr(done.warnings[0], part))
        fail_msg("%d warnings, \"%s\", not \"%s\"", done.n_warnings, done.warnings[0], part);
}

/* Two files hold a tensor: the index decides which copy counts. */
TEST(a_stale_copy_is_ignored)
{
    static const char *const names[] = {"model.norm.weight", "model.embed_tokens.weight"};
    struct hf_folder f, copy = {.n = 0};
    struct buf index = {0};
    char path[PATH_MAX], moved[PATH_MAX];
    folder_list(&llama, 32, &f);
    assert_ok(buf_printf(&index, "{\"weight_map\": {"));
    for (int i = 0; i < f.n; i++)
        assert_ok(buf_printf(&index, "\"%s\": \"a.safetensors\", ", f.list[i].name));
    assert_ok(buf_printf(&index, "\"model.rotary_emb.inv_freq\": \"b.safetensors\"}}"));
    char *dir = folder_write("theirs", "{" LLAMA "}", &f), *other;
    for (size_t i = 0; i < 2; i++) {
        int64_t rows = i ? 256 : 32, columns = i ? 32 : 1;
        copy.list[copy.n++] = (struct safetensor){
            .name = strdup(names[i]), .dtype = DT_F32, .ndim = (int)i + 1, .shape = {rows, columns}};
    }
    copy.list[copy.n++] =
        (struct safetensor){.name = strdup("model.rotary_emb.inv_freq"), .dtype = DT_F32, .ndim = 1, .shape = {4}};
    other = folder_write("other", "{}", &copy);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    snprintf(moved, sizeof(moved), "%s/a.safetensors", dir);
    assert_int_equal(rename(path, moved), 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", other);
    snprintf(moved, sizeof(moved), "%s/b.safetensors", dir);
    assert_int_equal(rename(path, moved), 0);
    file_write(dir, "model.safetensors.index.json", (const char *)index.data);
    struct hf_done done;
    struct why why = {0};
    const struct hf_import in = {.dir = dir, .out = path_of("out")};
    if (hf_import(&in, &done, &why))
        fail_msg("%s", why.text);
    assert_int_equal(done.n_warnings, 2);
    assert_non_null(
        strstr(done.warnings[0], "b.safetensors has a copy of model.embed_tokens.weight, which is ignored"));
    /* the values are those of a.safetensors */
    struct hf_done back;
    const struct hf_export ex = {.step_dir = done.path, .dir = path_of("back"), .shard_bytes = HF_SHARD_BYTES};
    assert_ok(hf_export(&ex, &back, &why));
    snprintf(path, sizeof(path), "%s/a.safetensors", dir);
    snprintf(moved, sizeof(moved), "%s/model.safetensors", dir);
    assert_int_equal(rename(path, moved), 0);
    check_same_tensors(dir, ex.dir);
    buf_fini(&index);
}

#define FOUR_BYTES 256 + 4

/* A tokenizer.json of the 256 bytes, one merge and an added token. The merge joins two letters. */
static void tokenizer_write(const char *dir, const char *name, const char *left, const char *right)
{
    static const char *const own =
        "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~";
    json_t *vocab = json_object();
    int n = 0;
    for (const char *p = own; *p; p++)
        json_object_set_new(vocab, (char[]){*p, '\0'}, json_integer(n++));
    for (int c = 161; c < 256 + 68; c++) { /* the other bytes, as characters of two bytes in UTF-8 */
        char text[] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 63)), '\0'};
        if (c != 173)
            json_object_set_new(vocab, text, json_integer(n++));
    }
    assert_int_equal(n, 256);
    char joined[8], merge[8];
    snprintf(joined, sizeof(joined), "%s%s", left, right);
    snprintf(merge, sizeof(merge), "%s %s", left, right);
    json_object_set_new(vocab, joined, json_integer(256));
    json_t *root =
        json_pack("{s:{s:s, s:o, s:[s]}, s:{s:s}, s:[{s:i, s:s}]}", "model", "type", "BPE", "vocab", vocab, "merges",
                  merge, "pre_tokenizer", "type", "ByteLevel", "added_tokens", "id", 257, "content", "<|end|>");
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    file_write(dir, name, text);
    free(text);
    json_decref(root);
}

TEST(the_tokenizer_of_the_folder)
{
    static const char llama_job[] = "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, norm_eps: 1e-5";
    struct job_model m = llama;
    struct hf_folder f;
    struct hf_import in = {.dir = NULL};
    char rest[PATH_MAX + 100];
    m.vocab = FOUR_BYTES;
    folder_list(&m, 32, &f);
    char *dir = folder_write("theirs",
                             "{\"model_type\": \"llama\", \"hidden_size\": 32, \"num_hidden_layers\": 2, "
                             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                             "\"intermediate_size\": 48, \"vocab_size\": 260, \"rms_norm_eps\": 1e-5}",
                             &f);
    tokenizer_write(dir, "tokenizer.json", "a", "b");
    in.dir = dir;
    in.out = path_of("out");
    import_warns(&in, NULL);
    in.job = job_write("bytes.yaml", llama_job, "");
    refuse(&in, "data.tokenizer is bytes, but the model was trained with ");
    tokenizer_write(test_tmpdir(), "other.json", "a", "c");
    in.job = job_write("other.yaml", llama_job, ", tokenizer: bpe, tokenizer_files: [other.json]");
    refuse(&in, "other.json is another tokenizer than ");
    snprintf(rest, sizeof(rest), ", tokenizer: bpe, tokenizer_files: [%s/tokenizer.json]", dir);
    in.job = job_write("same.yaml", llama_job, rest);
    import_warns(&in, NULL);
    /* Another file of the folder gives a token an id that tokenizer.json does not. */
    in.job = NULL;
    in.out = path_of("out2");
    file_write(dir, "added_tokens.json", "{\"<|end|>\": 257, \"<|pad|>\": 258}");
    refuse(&in, "gives \"<|pad|>\" the id 258, but tokenizer.json does not");
    file_write(dir, "added_tokens.json", "{\"<|end|>\": 258}");
    refuse(&in, "gives \"<|end|>\" the id 258");
    file_write(dir, "added_tokens.json", "{\"<|end|>\": 257}");
    file_write(dir, "tokenizer_config.json", "{\"added_tokens_decoder\": {\"258\": {\"content\": \"<|end|>\"}}}");
    refuse(&in, "\"<|end|>\" has the id 258 in tokenizer_config.json and 257 in added_tokens.json");
    file_write(dir, "tokenizer_config.json", "{}");
    /* vocab.json and merges.txt beside it: the same tokenizer needs no word, another one is mentioned. */
    struct buf json = {0};
    char path[PATH_MAX];
    json_error_t error;
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    assert_ok(file_read(path, 1 << 20, &json));
    json_t *root = json_loadb((const char *)json.data, json.len, 0, &error);
    char *vocab = json_dumps(json_object_get(json_object_get(root, "model"), "vocab"), 0);
    file_write(dir, "vocab.json", vocab);
    file_write(dir, "merges.txt", "#version: 0.2\na b\n");
    import_warns(&in, NULL);
    file_write(dir, "merges.txt", "#version: 0.2\n");
    in.out = path_of("out3");
    import_warns(&in, "tokenizer.json is read, as transformers does; vocab.json and merges.txt describe another");
    free(vocab);
    json_decref(root);
    buf_fini(&json);
}
