/* Import writes an ordinary dtd checkpoint of step 0: parameters in float32, the job file and the tokenizer's
 * vocabulary. It has no optimizer state; a job that resumes from it starts the optimizer at zero. All checks are made
 * before the first byte is written. */
#include "client/hf_llama.h"
#include "client/hf_source.h"

#include "client/spec.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/conf/job_rules.h"
#include "common/plan/models/build.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CONFIG ((size_t)1 << 20)   /* far above the size of any, so that a damaged file cannot use up the memory */
#define PART_MOST ((int64_t)1 << 30)   /* a larger part saves no time */
#define PART_LEAST ((int64_t)64 << 20) /* few files even of a model whose tensors are small */
#define PAGE ((size_t)4096)            /* direct writes need no copy of memory that begins at a multiple of it */
#define EPOCH 1                        /* the first epoch of a job, although no job has run */

struct importing {
    const struct hf_import *x;
    struct hf_done *done;
    struct why *why;
    struct job_model model; /* read from config.json */
    char type[64];          /* its model_type */
    int64_t positions;
    struct job_spec job;
    struct hf_source source;
    struct hf_tokenizer folder;        /* the folder's own tokenizer */
    struct tokenizer *given;           /* the one that the job file names */
    const struct tokenizer *tokenizer; /* one of the two; NULL: bytes */
    struct graph graph;
    struct hf_map map;
    bool *used; /* by weight of the source: the model has it */
    int64_t part_bytes;
    struct ckpt_part **parts;
    int n_parts;
};

static err_t no_memory(struct importing *m)
{
    return why_set(m->why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
}

/* The coefficient is a setting of the training, and not of the model. */
static void aux_explain(struct importing *m, const struct buf *text)
{
    json_t *config = json_loadb((const char *)text->data, text->len, 0, NULL);
    double about = hf_config_aux(config, &m->model);
    if (about > 0 && !m->x->job)
        hf_source_warn(
            &m->source,
            "%s/%s: router_aux_loss_coef %g is not imported, because transformers computes another loss; "
            "model.aux_loss is 0. A value of about the same strength: dtctl resume --set model.aux_loss=%.3g",
            m->x->dir, HF_CONFIG, json_number_value(json_object_get(config, "router_aux_loss_coef")), about);
    json_decref(config);
}

static void type_set(struct importing *m, const struct buf *text)
{
    json_t *config = json_loadb((const char *)text->data, text->len, 0, NULL);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    snprintf(m->type, sizeof(m->type), "%s", type ? type : "");
    json_decref(config);
}

static err_t config_load(struct importing *m)
{
    struct buf text = {0};
    err_t err = hf_source_load(&m->source, HF_CONFIG, MAX_CONFIG, &text);
    if (!err && (err = hf_config_read((const char *)text.data, text.len, &m->model, &m->positions, m->why)))
        why_prefix(m->why, err, "%s", m->x->dir);
    if (!err)
        type_set(m, &text);
    if (!err && m->model.experts)
        aux_explain(m, &text);
    buf_fini(&text);
    return err;
}

/* ---- with a job file ---- */

static err_t key_differs(struct importing *m, const char *key, int64_t job, int64_t config)
{
    return why_set(m->why, ERR_INVALID,
                   "%s: model.%s is %" PRId64 ", but %s has %" PRId64 ". Set the key to that value", m->x->job, key,
                   job, m->x->dir, config);
}

/* Two ways to write one rule: softmax over all experts divided by the sum of the chosen ones, and softmax over these.
 */
static enum router_kind router_plain(const struct job_model *m)
{
    bool over_chosen = m->router == ROUTER_SOFTMAX && m->router_norm;
    return over_chosen ? ROUTER_SOFTMAX_TOPK : m->router == ROUTER_SWITCH ? ROUTER_SOFTMAX : m->router;
}

static err_t experts_compare(struct importing *m)
{
    struct job_model *a = &m->job.model;
    const struct job_model *b = &m->model;
    if (!a->experts && !b->experts)
        return OK;
    a->expert_ffn = a->expert_ffn ? a->expert_ffn : a->ffn;
    const struct {
        const char *key;
        int64_t job, config;
    } rows[] = {{"experts", a->experts, b->experts},
                {"experts_per_token", a->experts_per_token, b->experts_per_token},
                {"expert_ffn", a->expert_ffn, b->expert_ffn},
                {"shared_experts", a->shared_experts, b->shared_experts},
                {"shared_gate", a->shared_gate, b->shared_gate},
                {"moe_every", a->moe_every, b->moe_every},
                {"dense_layers", a->dense_layers, b->dense_layers},
                {"router_bias", a->router_bias, b->router_bias},
                {"router_groups", a->router_groups, b->router_groups}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].job != rows[i].config)
            return key_differs(m, rows[i].key, rows[i].job, rows[i].config);
    if (router_plain(a) != router_plain(b))
        return why_set(m->why, ERR_INVALID, "%s: model.router and model.router_norm must be %s, as in %s", m->x->job,
                       router_plain(b) == ROUTER_SOFTMAX ? "softmax and false" : "softmax_topk and false", m->x->dir);
    if (a->router_scale != b->router_scale)
        return why_set(m->why, ERR_INVALID, "%s: model.router_scale must be %.17g, as in %s", m->x->job,
                       b->router_scale, m->x->dir);
    return OK;
}

static err_t numbers_compare(struct importing *m)
{
    const struct job_model *a = &m->job.model, *b = &m->model;
    const struct {
        const char *key;
        double job, config;
    } rows[] = {{"norm_eps", a->norm_eps, b->norm_eps},
                {"rope_theta", a->rope_theta, b->rope_theta},
                {"rope_part", a->rope_part, b->rope_part},
                {"rope_factor", a->rope_factor, b->rope_factor},
                {"rope_original", (double)a->rope_original, (double)b->rope_original},
                {"rope_low", a->rope_low, b->rope_low},
                {"rope_high", a->rope_high, b->rope_high},
                {"rope_fast", a->rope_fast, b->rope_fast},
                {"rope_slow", a->rope_slow, b->rope_slow},
                {"rope_exact", a->rope_exact, b->rope_exact},
                {"rope_attention", a->rope_attention, b->rope_attention},
                {"rope_local_theta", a->rope_local_theta, b->rope_local_theta},
                {"embed_scale", a->embed_scale, b->embed_scale},
                {"residual_scale", a->residual_scale, b->residual_scale},
                {"score_scale", a->score_scale, b->score_scale},
                {"logit_scale", a->logit_scale, b->logit_scale},
                {"logit_cap", a->logit_cap, b->logit_cap},
                {"rope_mscale", a->rope_mscale, b->rope_mscale},
                {"rope_mscale_all", a->rope_mscale_all, b->rope_mscale_all},
                {"window", (double)a->window, (double)b->window},
                {"window_from", (double)a->window_from, (double)b->window_from},
                {"window_period", (double)a->window_period, (double)b->window_period},
                {"score_softcap", a->score_softcap, b->score_softcap}};
    const size_t n = job_arch_rules(a->arch)->rotary ? sizeof(rows) / sizeof(rows[0]) : 1;
    for (size_t i = 0; i < n; i++)
        if (rows[i].job != rows[i].config)
            return why_set(m->why, ERR_INVALID, "%s: model.%s must be %.17g, as in %s", m->x->job, rows[i].key,
                           rows[i].config, m->x->dir);
    return OK;
}

/* Keys whose values are words: compared as a job file prints them. */
static err_t words_compare(struct importing *m)
{
    static const char *const keys[] = {"model.qk_norm",     "model.activation", "model.norm",
                                       "model.norm_place",  "model.branches",   "model.rope_type",
                                       "model.rope_layers", "model.rope_short", "model.rope_long"};
    struct job_spec config = m->job;
    err_t err = OK;
    config.model = m->model;
    for (int i = 0; i < job_schema.n_rows && !err; i++)
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]) && !err; k++) {
            struct buf a = {0}, b = {0};
            if (strcmp(job_schema.rows[i].key, keys[k]) != 0)
                continue;
            err = schema_value_print(&job_schema.rows[i], &m->job, &a);
            err = err ? err : schema_value_print(&job_schema.rows[i], &config, &b);
            if (err)
                err = no_memory(m);
            else if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
                err = why_set(m->why, ERR_INVALID, "%s: %s must be %.*s, as in %s", m->x->job, keys[k],
                              b.len < 200 ? (int)b.len : 200, (const char *)b.data, m->x->dir);
            buf_fini(&a);
            buf_fini(&b);
        }
    return err;
}

static err_t model_compare(struct importing *m)
{
    struct job_model *a = &m->job.model;
    const struct job_model *b = &m->model;
    if (a->arch != b->arch)
        return why_set(m->why, ERR_INVALID, "%s: model.arch: %s is a %s", m->x->job, m->x->dir,
                       b->arch == ARCH_GPT2 ? "gpt2" : "llama");
    a->vocab = a->vocab ? a->vocab : b->vocab;
    a->kv_heads = a->kv_heads ? a->kv_heads : a->heads;
    a->ffn = a->ffn ? a->ffn : b->ffn;
    const enum activation usual = a->arch == ARCH_GPT2 ? ACTIVATION_GELU : ACTIVATION_SILU;
    a->activation = a->activation == usual ? ACTIVATION_AUTO : a->activation; /* as the model read from config.json */
    const struct {
        const char *key;
        int64_t job, config;
    } rows[] = {{"dim", a->dim, b->dim},
                {"layers", a->layers, b->layers},
                {"heads", a->heads, b->heads},
                {"kv_heads", a->kv_heads, b->kv_heads},
                {"ffn", a->ffn, b->ffn},
                {"vocab", a->vocab, b->vocab},
                {"tied", a->tied, b->tied},
                {"labels", a->labels, b->labels ? b->labels : a->labels}, /* a model of language may get a new head */
                {"head_dim", job_head_dim(a), job_head_dim(b)},
                {"qkv_bias", a->qkv_bias, b->qkv_bias},
                {"out_bias", a->out_bias, b->out_bias},
                {"ffn_bias", a->ffn_bias, b->ffn_bias},
                {"head_bias", a->head_bias, b->head_bias},
                {"ffn_plain", a->ffn_plain, b->ffn_plain}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].job != rows[i].config)
            return key_differs(m, rows[i].key, rows[i].job, rows[i].config);
    err_t err = numbers_compare(m);
    err = err ? err : words_compare(m);
    return err ? err : experts_compare(m);
}

/* Refuses a tokenizer that is not the model's own: its ids would mean other words. */
static err_t tokenizer_compare(struct importing *m)
{
    const struct hf_tokenizer *t = &m->folder;
    m->tokenizer = m->given ? m->given : NULL;
    if (!t->tokenizer || (m->given && tokenizer_same(m->given, t->tokenizer)))
        return OK;
    if (t->made)
        return why_set(
            m->why, ERR_INVALID,
            "%s: %s lacks tokens that added_tokens.json or tokenizer_config.json adds. Import into a folder "
            "instead of a job file: that writes a tokenizer.json with all tokens, which the job file can name",
            m->x->job, t->paths[0]);
    if (m->given)
        return why_set(m->why, ERR_INVALID,
                       "%s: data.tokenizer_files: %s is another tokenizer than %s, with which the model was trained. "
                       "Set the key to [%s%s%s]",
                       m->x->job, m->job.data.tokenizer_files[0], t->paths[0], t->paths[0], t->n_paths == 2 ? ", " : "",
                       t->n_paths == 2 ? t->paths[1] : "");
    return why_set(m->why, ERR_INVALID,
                   "%s: data.tokenizer is bytes, but the model was trained with %s. Set data.tokenizer to bpe and "
                   "data.tokenizer_files to [%s%s%s]",
                   m->x->job, t->paths[0], t->paths[0], t->n_paths == 2 ? ", " : "",
                   t->n_paths == 2 ? t->paths[1] : "");
}

static err_t job_given(struct importing *m)
{
    struct job_data *d;
    err_t err = spec_read(m->x->job, NULL, 0, &m->job, m->why);
    if (err)
        return err;
    err = model_compare(m);
    d = &m->job.data;
    if (!err && tokenizer_counts_words(d->tokenizer))
        err = why_set(m->why, ERR_INVALID,
                      "%s: data.tokenizer: this vocabulary is made from the training files and does not match a "
                      "Hugging Face model. Set it to bpe or bytes",
                      m->x->job);
    if (!err && m->job.model.arch == ARCH_GPT2 && m->job.train.seq > m->positions)
        err = why_set(m->why, ERR_INVALID,
                      "%s: train.seq: %s has %" PRId64 " positions. Set the key to that value or less", m->x->job,
                      m->x->dir, m->positions);
    if (!err && d->tokenizer == TOKENIZER_BPE)
        err = tokenizer_bpe_files(d->tokenizer_files, d->n_tokenizer_files, &m->given, m->why);
    return err ? err : tokenizer_compare(m);
}

/* ---- without a job file ---- */

/* Makes a name that check_name of the job schema accepts from the last part of a path. */
static void name_make(const char *path, char *ret, size_t size)
{
    const char *slash = strrchr(path, '/');
    size_t n = 0;
    for (const char *p = slash ? slash + 1 : path; *p && n + 1 < size; p++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", *p) || (n && strchr(".-", *p)))
            ret[n++] = *p;
    ret[n] = '\0';
    if (!n)
        snprintf(ret, size, "imported");
}

/* The job reads the folder's tokenizer from its own files or, if it exists in no file, from one that the import writes
 * beside the checkpoint. */
static err_t tokenizer_name(struct importing *m)
{
    const struct hf_tokenizer *t = &m->folder;
    struct job_data *d = &m->job.data;
    char full[PATH_MAX];
    int n = t->made ? 1 : t->n_paths;
    d->tokenizer = TOKENIZER_BPE;
    free(d->tokenizer_files); /* an empty list by default */
    d->tokenizer_files = calloc(2, sizeof(*d->tokenizer_files));
    for (int i = 0; d->tokenizer_files && i < n; i++) {
        if (t->made && (size_t)snprintf(full, PATH_MAX, "%s/tokenizer.json", m->job.checkpoint.dir) >= PATH_MAX)
            return why_set(m->why, ERR_LIMIT, "%s: the path is too long", m->job.checkpoint.dir);
        if ((t->made || realpath(t->paths[i], full)) && (d->tokenizer_files[i] = strdup(full)))
            d->n_tokenizer_files++;
    }
    return d->n_tokenizer_files == n ? OK : no_memory(m);
}

/* Uses the folder's tokenizer; without one, bytes if the model has 256 tokens. */
static err_t tokenizer_choose(struct importing *m)
{
    m->tokenizer = m->folder.tokenizer;
    if (m->tokenizer)
        return tokenizer_name(m);
    m->job.data.tokenizer = TOKENIZER_BYTES;
    if (m->model.vocab == 256)
        return OK;
    return why_set(m->why, ERR_INVALID,
                   "%s has no tokenizer (tokenizer.json, or vocab.json and merges.txt) for its %" PRId64
                   " tokens. Add one, or pass a job file that names one instead of a folder",
                   m->x->dir, m->model.vocab);
}

/* Makes the path absolute. The folder may not exist, and is not created before all checks have passed. */
static err_t out_resolve(struct importing *m, char ret[PATH_MAX])
{
    char cwd[PATH_MAX] = "";
    const char *out = m->x->out;
    if (out[0] != '/' && !getcwd(cwd, sizeof(cwd)))
        return why_set(m->why, err_from_errno(errno), "the current folder: %s", strerror(errno));
    size_t n = (size_t)snprintf(ret, PATH_MAX, "%s%s%s", cwd, cwd[0] ? "/" : "", out);
    if (n >= PATH_MAX)
        return why_set(m->why, ERR_LIMIT, "%s: the path is too long", out);
    while (n > 1 && ret[n - 1] == '/')
        ret[--n] = '\0';
    return OK;
}

/* Checks the ranges and rules of a job file, which config.json may break. */
static err_t job_check(struct importing *m)
{
    struct buf yaml = {0};
    struct job_spec job;
    err_t err = spec_print(&m->job, &yaml) ? no_memory(m) : OK;
    if (!err &&
        (err = job_parse(HF_CONFIG, (const char *)yaml.data, strlen((const char *)yaml.data), NULL, 0, &job, m->why)))
        why_prefix(m->why, err, "%s", m->x->dir);
    else if (!err)
        job_fini(&job);
    buf_fini(&yaml);
    return err;
}

static err_t job_make(struct importing *m)
{
    static const char text[] =
        "name: imported\nmodel: {dim: 2, layers: 1, heads: 1}\ndata: {train: [nothing-yet.txt]}\n"
        "train: {steps: 1}\n";
    char name[60], full[PATH_MAX] = "";
    err_t err = job_parse("job", text, strlen(text), NULL, 0, &m->job, m->why);
    if (err)
        return err;
    err = out_resolve(m, full);
    if (err)
        return err;
    name_make(full, name, sizeof(name));
    job_model_fini(&m->job.model);
    if (job_model_copy(&m->model, &m->job.model))
        return no_memory(m);
    m->job.train.seq = m->model.arch == ARCH_GPT2 || m->positions < 4096 ? m->positions : 4096;
    if (spec_text_set(&m->job.name, name) || spec_text_set(&m->job.checkpoint.dir, full))
        return no_memory(m);
    err = tokenizer_choose(m);
    return err ? err : job_check(m);
}

/* Which of two tables of positions the job computes with. transformers chooses anew for each sequence. */
static void longrope_explain(struct importing *m)
{
    const struct job_spec *j = &m->job;
    const bool is_long = j->train.seq > j->model.rope_original;
    if (j->model.rope_type == ROPE_LONGROPE)
        hf_source_warn(&m->source,
                       "%s: positions are %s, of model.rope_%s, because train.seq %" PRId64
                       " is %s model.rope_original %" PRId64 "; transformers chooses by the length of each sequence",
                       m->x->dir, is_long ? "the long ones" : "the short ones", is_long ? "long" : "short",
                       j->train.seq, is_long ? "above" : "at most", j->model.rope_original);
}

static err_t tokenizer_check(struct importing *m)
{
    int64_t n = m->tokenizer ? tokenizer_vocab(m->tokenizer) : 256;
    if (n > m->model.vocab)
        return why_set(m->why, ERR_INVALID,
                       "the tokenizer has %" PRId64 " tokens, but the model in %s has only %" PRId64, n, m->x->dir,
                       m->model.vocab);
    return OK;
}

/* ---- the head ---- */

#define COMPARED ((int64_t)1 << 20) /* elements at a time; 8 MiB of memory */

/* The family whose names the tensors outside the layers have; NULL: gpt2. */
static const struct hf_llama *family_of(const struct importing *m)
{
    const struct hf_llama *f = hf_llama_find(m->type);
    return m->model.arch == ARCH_GPT2 ? NULL : f ? f : &hf_llamas[0];
}

static const char *embedding_name(const struct importing *m)
{
    const struct hf_llama *f = family_of(m);
    return f ? hf_llama_rest(f, "tok_embeddings.weight") : "transformer.wte.weight";
}

static const char *head_name(const struct importing *m)
{
    const struct hf_llama *f = family_of(m);
    return f ? hf_llama_rest(f, "output.weight") : "lm_head.weight";
}

static const char *names_prefix(const struct importing *m)
{
    const struct hf_llama *f = family_of(m);
    return !f ? "transformer." : f->model ? f->model : "model.";
}

static err_t weights_equal(struct importing *m, const struct hf_weight *a, const struct hf_weight *b, bool *ret)
{
    int64_t n = safetensor_elements(a->tensor);
    float *x = malloc((size_t)COMPARED * 2 * sizeof(*x)), *y = x ? x + COMPARED : NULL;
    err_t err = x ? OK : no_memory(m);
    *ret = n == safetensor_elements(b->tensor);
    for (int64_t at = 0; x && !err && *ret && at < n; at += COMPARED) {
        int64_t k = n - at < COMPARED ? n - at : COMPARED;
        err = safetensors_read(&a->file->file, a->tensor, at, k, DT_F32, x, m->why);
        err = err ? err : safetensors_read(&b->file->file, b->tensor, at, k, DT_F32, y, m->why);
        *ret = !err && memcmp(x, y, (size_t)k * sizeof(*x)) == 0;
    }
    free(x);
    return err;
}

/* transformers does not tie a head that differs from the embedding, although it is tied in config.json. */
static err_t head_decide(struct importing *m)
{
    const struct hf_weight *head = hf_source_find(&m->source, head_name(m));
    const struct hf_weight *embedding = hf_source_find(&m->source, embedding_name(m));
    bool equal;
    if (!m->model.tied || !head || !embedding || m->job.model.labels)
        return OK;
    err_t err = weights_equal(m, head, embedding, &equal);
    if (err || equal)
        return err;
    if (m->model.arch == ARCH_GPT2)
        return why_set(m->why, ERR_UNSUPPORTED,
                       "%s: %s differs from %s, so this gpt2 has a head of its own; in dtd the head of gpt2 is the "
                       "embedding",
                       m->x->dir, head->tensor->name, embedding->tensor->name);
    hf_source_warn(&m->source,
                   "%s: %s ties the head to the embedding, but %s differs from %s; the head is imported as a tensor of "
                   "its own (model.tied: false), as transformers does",
                   m->x->dir, HF_CONFIG, head->tensor->name, embedding->tensor->name);
    m->model.tied = false;
    return OK;
}

/* ---- matching tensors ---- */

/* A file may hold a tied tensor under either name. */
static const struct hf_weight *weight_named(const struct importing *m, const char *name)
{
    const struct hf_weight *w = hf_source_find(&m->source, name);
    return !w && m->model.tied && strcmp(name, embedding_name(m)) == 0 ? hf_source_find(&m->source, head_name(m)) : w;
}

/* *ret_parts: 0: the weight has the tensor's own shape; else it holds all experts' (hf_tensor.fused_parts). */
static const struct hf_weight *weight_find(const struct importing *m, const struct hf_tensor *h, int *ret_parts)
{
    const struct hf_weight *w = weight_named(m, h->name);
    *ret_parts = 0;
    if (w || !h->other[0])
        return w;
    *ret_parts = h->fused_parts;
    return weight_named(m, h->other);
}

/* A job with a shorter sequence uses the first rows of the position table. */
static bool shape_fits(const struct safetensor *have, const struct hf_tensor *want)
{
    bool positions = strcmp(want->name, "transformer.wpe.weight") == 0;
    return have->ndim == want->tensor->ndim &&
           (have->shape[0] == (want->unit ? want->file_rows : want->rows) ||
            (positions && have->shape[0] > want->rows)) &&
           (have->ndim < 2 || have->shape[1] == want->cols);
}

/* A tensor of all experts. Some programs write it transposed; only the shape distinguishes the forms. */
static err_t fused_check(struct importing *m, const struct safetensor *have, const struct hf_tensor *want, int parts)
{
    const int64_t rows = parts * want->rows, cols = want->cols;
    const bool stacked = have->ndim == 3 && have->shape[0] == want->tensor->experts;
    const bool fits = stacked && have->shape[1] == rows && have->shape[2] == cols;
    if (stacked && have->shape[1] == cols && have->shape[2] == rows)
        return why_set(m->why, ERR_UNSUPPORTED,
                       "%s: %s is [experts, %" PRId64 ", %" PRId64 "]%s. Open the model with transformers and save it "
                       "with save_pretrained, which writes a tensor for each expert",
                       m->x->dir, have->name, have->shape[1], have->shape[2],
                       fits ? ", from which dtd cannot decide whether the experts' matrices are transposed"
                            : ": the experts' matrices are transposed, a form that dtd does not read");
    return fits ? OK
                : why_set(m->why, ERR_INVALID, "%s: the shape of %s does not match its %s", m->x->dir, have->name,
                          HF_CONFIG);
}

/* A model of language has no head for labels: the training begins with a new one. */
static bool is_new(const struct importing *m, const struct hf_tensor *h)
{
    return !m->model.labels && strcmp(h->name, HF_SCORE) == 0 && !hf_source_find(&m->source, h->name);
}

static err_t tensor_check(struct importing *m, const struct hf_tensor *want)
{
    int parts;
    const struct hf_weight *w = weight_find(m, want, &parts);
    if (is_new(m, want)) {
        hf_source_warn(&m->source,
                       "%s is a model of language: %s of %" PRId64
                       " labels is new, with random numbers of the standard "
                       "deviation %g from train.seed, and the head of the vocabulary is left out",
                       m->x->dir, want->name, want->rows, want->tensor->init_std);
        return OK;
    }
    if (!w)
        return why_set(m->why, ERR_INVALID, "%s has no tensor %s, which its %s requires", m->x->dir, want->name,
                       HF_CONFIG);
    const struct safetensor *have = w->tensor;
    m->used[w - m->source.weights] = true;
    err_t err = parts ? fused_check(m, have, want, parts) : OK;
    if (err)
        return err;
    if (!parts && !shape_fits(have, want))
        return why_set(m->why, ERR_INVALID, "%s: the shape of %s does not match its %s", m->x->dir, have->name,
                       HF_CONFIG);
    if (have->dtype != DT_F32 && have->dtype != DT_F16 && have->dtype != DT_BF16 && have->dtype != DT_F64)
        return why_set(m->why, ERR_UNSUPPORTED, "%s: %s is %s; dtd reads F32, F16, BF16 and F64", m->x->dir, have->name,
                       have->type);
    return OK;
}

static err_t wanted_check(struct importing *m)
{
    err_t err = OK;
    m->used = calloc((size_t)m->source.n_weights + 1, sizeof(*m->used));
    if (!m->used)
        return no_memory(m);
    for (int i = 0; !err && i < m->map.n; i++)
        err = tensor_check(m, &m->map.list[i]);
    return err;
}

/* Tensors without information: constants that older versions saved, and a head that equals the embedding. */
static bool is_ignored(const struct importing *m, const char *name)
{
    static const char *const ends[] = {".attn.bias",           ".attn.masked_bias",
                                       ".attention.bias",      ".attention.masked_bias",
                                       ".rotary_emb.inv_freq", ".position_ids"};
    size_t n = strlen(name);
    const struct hf_llama *f = family_of(m);
    if (m->job.model.labels &&
        (strcmp(name, head_name(m)) == 0 || (f && strcmp(name, hf_llama_rest(f, "output.bias")) == 0)))
        return true;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return m->model.tied && strcmp(name, head_name(m)) == 0;
}

static err_t extra_check(struct importing *m)
{
    for (int i = 0; i < m->source.n_weights; i++) {
        const struct hf_weight *w = &m->source.weights[i];
        if (!m->used[i] && !is_ignored(m, w->name))
            return why_set(m->why, ERR_INVALID,
                           "%s/%s has a tensor %.100s, which does not belong to the model in its %s", m->x->dir,
                           w->file->name, w->tensor->name, HF_CONFIG);
    }
    return OK;
}

/* ---- the checkpoint ---- */

/* Reads rows into `data`, in their own order. */
static err_t rows_read(struct importing *m, const struct hf_tensor *h, float *data)
{
    int parts;
    const struct hf_weight *w = weight_find(m, h, &parts);
    const int64_t n = h->rows * h->cols, at = parts ? ((int64_t)h->expert * parts + h->fused_part) * n : 0;
    err_t err = OK;
    if (is_new(m, h)) { /* as training would start it (engine_fill_state) */
        for (int64_t i = 0; i < n; i++)
            data[i] =
                (float)(h->tensor->init_std * rng_normal(m->job.train.seed, rng_stream(h->tensor->name), (uint64_t)i));
        return OK;
    }
    if (!h->unit)
        return safetensors_read(&w->file->file, w->tensor, at, n, DT_F32, data, m->why);
    for (int64_t r = 0; !err && r < h->rows; r += h->unit)
        err = safetensors_read(&w->file->file, w->tensor, (r / h->unit * h->stride + h->place) * h->cols,
                               h->unit * h->cols, DT_F32, data + r * h->cols, m->why);
    return err;
}

/* Reads rows into `data`, in dtd's order. */
static err_t tensor_read(struct importing *m, const struct hf_tensor *h, float *data)
{
    const int64_t n = h->rows * h->cols;
    if (!h->head_dim)
        return rows_read(m, h, data);
    float *theirs = malloc((size_t)n * sizeof(*theirs));
    err_t err = theirs ? rows_read(m, h, theirs) : no_memory(m);
    if (!err)
        hf_rows(h->head_dim, h->turned, h->rows, (size_t)h->cols * sizeof(*data), false, theirs, data);
    free(theirs);
    return err;
}

static int64_t tensor_bytes(const struct hf_tensor *h)
{
    return h->rows * h->cols * (int64_t)sizeof(float);
}

/* Two parts are in memory: the one that is written, and the next one. */
static int64_t part_bytes_choose(const struct importing *m)
{
    int64_t bytes = PART_LEAST;
    for (int i = 0; i < m->map.n; i++)
        bytes = tensor_bytes(&m->map.list[i]) > bytes ? tensor_bytes(&m->map.list[i]) : bytes;
    return m->x->part_bytes ? m->x->part_bytes : bytes < PART_MOST ? bytes : PART_MOST;
}

/* The end of a piece that begins with this tensor: as many experts of one tensor as fit, or one whole tensor. */
static int piece_end(const struct importing *m, int first)
{
    const struct hf_tensor *h = &m->map.list[first];
    int n = 1;
    while (first + n < m->map.n && h[n].tensor == h->tensor && (n + 1) * tensor_bytes(h) <= m->part_bytes)
        n++;
    return first + n;
}

/* ---- parts: a thread reads one while the one before is written ---- */

struct part_load {
    struct importing m; /* with `why` of its own: the thread only reads the others' fields */
    struct why why;
    int first, end; /* the tensors of the part, in the map */
    struct ckpt_piece *pieces;
    int n;
    int64_t bytes;
    uint8_t *data; /* of all pieces, each aligned for direct writes; used again, since new memory must be zeroed */
    size_t room;
    pthread_t thread;
    bool running;
    err_t err;
};

static size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + PAGE - 1) & ~(PAGE - 1);
}

static int64_t piece_bytes(const struct importing *m, int first)
{
    return tensor_bytes(&m->map.list[first]) * (piece_end(m, first) - first);
}

/* The part has the tensors from `first` on that fit into it, at least one. */
static err_t part_plan(struct part_load *p, int first)
{
    const struct importing *m = &p->m;
    size_t room = 0;
    p->bytes = 0;
    for (p->first = p->end = first; p->end < m->map.n; p->end = piece_end(m, p->end)) {
        const int64_t bytes = piece_bytes(m, p->end);
        if (p->end > first && p->bytes + bytes > m->part_bytes)
            break;
        p->bytes += bytes;
        room += aligned(bytes);
    }
    if (room <= p->room)
        return OK;
    free(p->data);
    p->data = aligned_alloc(PAGE, room);
    p->room = p->data ? room : 0;
    return p->data ? OK : no_memory(&p->m);
}

static err_t piece_read(struct importing *m, int first, int end, float *data, struct ckpt_piece *ret)
{
    const struct hf_tensor *h = &m->map.list[first];
    *ret = (struct ckpt_piece){.fqn = h->tensor->name, .dtype = DT_F32, .data = data};
    ret->ndim = graph_shape(h->tensor, ret->shape);
    ret->box.ndim = ret->ndim;
    memcpy(ret->box.size, ret->shape, sizeof(ret->shape));
    if (h->expert >= 0) {
        ret->box.offset[0] = h->expert;
        ret->box.size[0] = end - first;
    }
    err_t err = OK;
    for (int i = first; !err && i < end; i++)
        err = tensor_read(m, &m->map.list[i], data + (i - first) * h->rows * h->cols);
    return err;
}

static void *part_read(void *arg)
{
    struct part_load *p = arg;
    size_t place = 0;
    p->n = 0;
    p->err = OK;
    for (int at = p->first, end; !p->err && at < p->end; at = end) {
        end = piece_end(&p->m, at);
        p->err = piece_read(&p->m, at, end, (float *)(void *)(p->data + place), &p->pieces[p->n++]);
        place += aligned(piece_bytes(&p->m, at));
    }
    return NULL;
}

/* part_load_end waits for it, and returns its error. */
static void part_load_start(struct part_load *p, int first)
{
    p->err = part_plan(p, first);
    if (p->err)
        return;
    int code = pthread_create(&p->thread, NULL, part_read, p);
    p->running = !code;
    if (code)
        p->err = why_set(&p->why, err_from_errno(code), "a thread cannot be started: %s", strerror(code));
}

static err_t part_load_end(struct part_load *p, struct why *why)
{
    if (p->running)
        pthread_join(p->thread, NULL);
    p->running = false;
    return p->err ? why_set(why, p->err, "%s", p->why.text) : OK;
}

static err_t part_write(struct importing *m, const char *dir, const struct part_load *p)
{
    err_t err = ckpt_part_write(dir, m->n_parts, p->pieces, p->n, NULL, 0, &m->parts[m->n_parts], m->why);
    if (err)
        return err;
    m->n_parts++;
    m->done->tensors += p->end - p->first;
    m->done->params += p->bytes / (int64_t)sizeof(float);
    return OK;
}

static err_t parts_write(struct importing *m, const char *dir)
{
    struct part_load loads[2] = {{.m = *m}, {.m = *m}};
    err_t err = OK;
    for (int i = 0; i < 2; i++) {
        loads[i].m.why = &loads[i].why;
        loads[i].pieces = calloc((size_t)m->map.n + 1, sizeof(struct ckpt_piece));
        err = loads[i].pieces ? err : no_memory(m);
    }
    if (!err)
        part_load_start(&loads[0], 0);
    for (int turn = 0, end = 0; !err && end < m->map.n; turn = !turn) {
        struct part_load *now = &loads[turn];
        err = part_load_end(now, m->why);
        end = now->end;
        if (!err && end < m->map.n)
            part_load_start(&loads[!turn], end);
        err = err ? err : part_write(m, dir, now);
    }
    for (int i = 0; i < 2; i++) {
        if (loads[i].running)
            pthread_join(loads[i].thread, NULL);
        free(loads[i].pieces);
        free(loads[i].data);
    }
    return err;
}

static err_t checkpoint_commit(struct importing *m, const char *root)
{
    struct buf yaml = {0}, kept = {0};
    struct ckpt_commit c = {.root = root, .step = 0, .epoch = EPOCH, .loss = (double)NAN};
    if (m->tokenizer)
        c.vocab = tokenizer_vocab_file(m->tokenizer, &c.vocab_bytes);
    err_t err = spec_print(&m->job, &yaml) ? no_memory(m) : hf_source_keep(&m->source, &kept);
    c.job_yaml = (const char *)yaml.data;
    c.hf = kept.data;
    c.hf_bytes = kept.len;
    err = err ? err : ckpt_commit(&c, m->parts, m->n_parts, m->why);
    buf_fini(&yaml);
    buf_fini(&kept);
    return err;
}

/* Writes the tokenizer that the job names but no file holds. */
static err_t tokenizer_write(struct importing *m)
{
    size_t len;
    const void *text = m->folder.made && !m->x->job ? tokenizer_vocab_file(m->tokenizer, &len) : NULL;
    err_t err = text ? file_replace(m->job.data.tokenizer_files[0], text, len, 0644) : OK;
    return err ? why_set(m->why, err, "%s: %s", m->job.data.tokenizer_files[0], err_text(err)) : OK;
}

/* Removes the incomplete folder and returns `because`. If that fails, the rest is harmless: no program takes it for a
 * checkpoint, and the next import reuses it. */
static err_t partial_drop(const char *dir, err_t because)
{
    err_t err = ckpt_partial_remove(dir, NULL);
    (void)err;
    return because;
}

static err_t checkpoint_write(struct importing *m)
{
    const char *root = m->job.checkpoint.dir;
    char dir[PATH_MAX];
    struct ckpt_info info;
    m->parts = calloc((size_t)m->map.n + 1, sizeof(struct ckpt_part *));
    if (!m->parts)
        return no_memory(m);
    if (ckpt_partial_dir(root, 0, EPOCH, dir, sizeof(dir)))
        return why_set(m->why, ERR_LIMIT, "%s: the path is too long", root);
    err_t err = OK;
    m->part_bytes = part_bytes_choose(m);
    err = m->map.n ? parts_write(m, dir) : OK;
    if (!err)
        err = tokenizer_write(m);
    if (!err)
        err = checkpoint_commit(m, root);
    if (err)
        return partial_drop(dir, err);
    if (ckpt_step_dir(root, 0, m->done->path, sizeof(m->done->path)))
        return why_set(m->why, ERR_LIMIT, "%s: the path is too long", root);
    err = ckpt_info(m->done->path, &info, m->why);
    m->done->bytes = err ? 0 : info.bytes;
    m->done->files = m->n_parts;
    return err;
}

static void importing_fini(struct importing *m)
{
    for (int i = 0; i < m->n_parts; i++)
        ckpt_part_free(m->parts[i]);
    free(m->parts);
    free(m->used);
    hf_source_close(&m->source);
    hf_tokenizer_fini(&m->folder);
    tokenizer_free(m->given);
    hf_map_fini(&m->map);
    graph_fini(&m->graph);
    job_fini(&m->job);
    job_model_fini(&m->model);
}

err_t hf_import(const struct hf_import *x, struct hf_done *ret, struct why *why)
{
    struct hf_done done = {0};
    struct importing m = {.x = x, .done = &done, .why = why, .source = {.dir = x->dir, .done = &done, .why = why}};
    err_t err = config_load(&m);
    err = err ? err : hf_source_open(&m.source, names_prefix(&m));
    err = err ? err : head_decide(&m);
    err = err ? err : hf_tokenizer_read(&m.source, &m.folder);
    err = err ? err : x->job ? job_given(&m) : job_make(&m);
    if (!err)
        longrope_explain(&m);
    err = err ? err : tokenizer_check(&m);
    err = err ? err : graph_build(&m.job.model, m.job.train.seq, &m.graph, why);
    err = err ? err : hf_map(&m.graph, &m.job.model, m.type, &m.map, why);
    err = err ? err : wanted_check(&m);
    err = err ? err : extra_check(&m);
    err = err ? err : spec_check_dir(&m.job, NULL, why);
    err = err ? err : spec_check_owner(&m.job, OWNER_IMPORT, why);
    err = err ? err : checkpoint_write(&m);
    importing_fini(&m);
    if (!err)
        *ret = done;
    return err;
}
