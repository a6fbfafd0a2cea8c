/* The order of the rules matters in one way: rules that hold in every version come before the limits of this version,
 * so that a plan which is always wrong is reported as wrong and not as unsupported. A rule writes the sentence that
 * follows "job.yaml:7: parallel.tp: ". */
#include "common/conf/job_rules.h"

#include "common/base/dtype.h"
#include "common/mesh/mesh.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#define SENTENCE 400

struct rule {
    const char *key; /* the key that the message names */
    /* True when the rule is broken; then `ret` holds the sentence. */
    bool (*broken)(const struct job_spec *job, char ret[SENTENCE]);
    /* If there is no function: the only value of an int64_t that this version accepts, and the reason. */
    size_t offset;
    int64_t only;
    const char *because;
};

#define X(id, name, builder, rotary, grouped, head, ffn) [ARCH_##id] = {name, rotary, grouped, HEAD_##head},
static const struct arch_rules arch_rules[] = {
#include "common/conf/models.inc"
};
#undef X

const struct arch_rules *job_arch_rules(enum model_arch arch)
{
    return &arch_rules[arch];
}

#define BROKEN(...) (snprintf(ret, SENTENCE, __VA_ARGS__), true)

static int64_t divisor_below(int64_t n, int64_t d)
{
    while (d > 1 && n % d)
        d--;
    return d;
}

static bool heads_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    int64_t below = divisor_below(m->dim, m->heads < m->dim ? m->heads : m->dim);
    return !m->head_dim && m->dim % m->heads &&
           BROKEN("model.dim %" PRId64 " is not divisible by %" PRId64 " heads: write %" PRId64
                  " heads, or model.dim %" PRId64,
                  m->dim, m->heads, below, (m->dim + m->heads - 1) / m->heads * m->heads);
}

static bool kv_heads_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    return m->kv_heads && m->heads % m->kv_heads &&
           BROKEN("%" PRId64 " heads are not divisible by %" PRId64 " key-value heads: write %" PRId64, m->heads,
                  m->kv_heads, divisor_below(m->heads, m->kv_heads < m->heads ? m->kv_heads : m->heads));
}

static bool rotary_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    const struct arch_rules *arch = job_arch_rules(m->arch);
    return arch->rotary && !m->head_dim && m->dim / m->heads % 2 &&
           BROKEN("dim / heads is %" PRId64 "; %s's rotary position embedding works on pairs and needs an even number",
                  m->dim / m->heads, arch->name);
}

/* A divisor for each pair that rotates. */
static bool longrope_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    const int64_t pairs = (int64_t)((double)job_head_dim(m) * m->rope_part) / 2;
    const struct {
        const char *key;
        int n;
    } lists[] = {{"model.rope_short", m->n_rope_short}, {"model.rope_long", m->n_rope_long}};
    for (int i = 0; i < 2; i++)
        if (lists[i].n != pairs)
            return BROKEN("%s has %d numbers, but %" PRId64 " pairs of a head rotate: write one for each", lists[i].key,
                          lists[i].n, pairs);
    return m->rope_attention == 0 && m->rope_factor < 1 &&
           BROKEN("it needs model.rope_factor, at least 1, or model.rope_attention: set one of them");
}

static bool rope_type_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    const bool original = m->rope_type != ROPE_DEFAULT && m->rope_type != ROPE_LINEAR;
    if (m->rope_type == ROPE_DEFAULT)
        return false;
    if (!job_arch_rules(m->arch)->rotary)
        return BROKEN("%s has no rotary positions: write default", job_arch_rules(m->arch)->name);
    if (m->rope_factor < 1 && m->rope_type != ROPE_LONGROPE)
        return BROKEN("it needs model.rope_factor, at least 1: set it, or write default");
    if (original && !m->rope_original)
        return BROKEN(
            "it needs model.rope_original, original_max_position_embeddings of transformers: set it, or write "
            "default");
    if (m->rope_type == ROPE_LLAMA3 && m->rope_low >= m->rope_high)
        return BROKEN("model.rope_low must be below model.rope_high: write 1 and 4, as in Llama 3");
    if (m->rope_type == ROPE_LONGROPE)
        return longrope_broken(j, ret);
    if (m->rope_type == ROPE_YARN && m->rope_slow >= m->rope_fast)
        return BROKEN("model.rope_slow must be below model.rope_fast: write 1 and 32, as in most models");
    return m->rope_type == ROPE_DYNAMIC && j->train.seq > m->rope_original &&
           BROKEN("positions of sequences longer than model.rope_original would depend on the length of each: write a "
                  "train.seq of at most %" PRId64,
                  m->rope_original);
}

static bool rope_part_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    if (m->rope_part == 1)
        return false;
    if (!job_arch_rules(m->arch)->rotary)
        return BROKEN("%s has no rotary positions: write 1", job_arch_rules(m->arch)->name);
    const int64_t columns = (int64_t)((double)job_head_dim(m) * m->rope_part);
    return columns < 2 && BROKEN("%" PRId64 " of %" PRId64 " columns of a head turn; positions turn pairs: write at "
                                 "least %.6g",
                                 columns, job_head_dim(m), 2 / (double)job_head_dim(m));
}

static bool rope_layers_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    if (!m->rope_layers || !m->rope_layers[0])
        return false;
    if (m->arch != ARCH_LLAMA)
        return BROKEN("this key is for llama, not for %s: leave it out", job_arch_rules(m->arch)->name);
    return strchr(m->rope_layers, 'l') && !(m->rope_local_theta > 1) &&
           BROKEN("layers with l need model.rope_local_theta, above 1: set it, or write 1 for l");
}

/* Keys of the parts of which llama's relatives are made. */
#define LLAMA_ONLY(key, is_set)                                                                          \
    static bool key##_broken(const struct job_spec *j, char ret[SENTENCE])                               \
    {                                                                                                    \
        const struct job_model *m = &j->model;                                                           \
        return m->arch != ARCH_LLAMA && (is_set) &&                                                      \
               BROKEN("this key is for llama, not for %s: leave it out", job_arch_rules(m->arch)->name); \
    }
LLAMA_ONLY(rope_local_theta, m->rope_local_theta > 0)
LLAMA_ONLY(out_bias, m->out_bias)
LLAMA_ONLY(head_bias, m->head_bias)
LLAMA_ONLY(norm, m->norm != NORM_RMS)
LLAMA_ONLY(norm_place, m->norm_place != NORM_BEFORE)
LLAMA_ONLY(branches, m->branches != BRANCHES_SERIAL)
LLAMA_ONLY(embed_scale, m->embed_scale != 1)
LLAMA_ONLY(residual_scale, m->residual_scale != 1)
LLAMA_ONLY(window, m->window > 0)
LLAMA_ONLY(score_softcap, m->score_softcap > 0)
LLAMA_ONLY(score_scale, m->score_scale > 0)
LLAMA_ONLY(logit_scale, m->logit_scale != 1)
LLAMA_ONLY(logit_cap, m->logit_cap > 0)

/* Experts are gated feed-forwards without biases. */
static bool ffn_key_broken(const struct job_spec *j, bool is_set, char ret[SENTENCE])
{
    if (!is_set)
        return false;
    if (j->model.arch != ARCH_LLAMA)
        return BROKEN("this key is for llama, not for %s: leave it out", job_arch_rules(j->model.arch)->name);
    return j->model.experts && BROKEN("experts are gated and have no biases: leave the key out, or model.experts 0");
}

static bool ffn_bias_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return ffn_key_broken(j, j->model.ffn_bias, ret);
}

static bool ffn_plain_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return ffn_key_broken(j, j->model.ffn_plain, ret);
}

static bool activation_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    const enum activation a = m->activation;
    if (m->arch == ARCH_TRANSFORMER)
        return a != ACTIVATION_AUTO && BROKEN("transformer has ReLU: write auto");
    if (m->arch == ARCH_GPT2)
        return a == ACTIVATION_SILU && BROKEN("gpt2 has gelu or gelu_erf: write one of them, or auto");
    if (m->ffn_plain)
        return a != ACTIVATION_GELU && a != ACTIVATION_GELU_ERF &&
               BROKEN("a feed-forward with model.ffn_plain has gelu or gelu_erf: write one of them");
    if (a == ACTIVATION_GELU_ERF)
        return BROKEN("a gate has silu or gelu: write one of them, or model.ffn_plain true");
    return m->experts && a == ACTIVATION_GELU && BROKEN("the gate of experts has silu: write auto");
}

static bool norm_place_after_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->model.branches != BRANCHES_SERIAL && j->model.norm_place == NORM_AFTER &&
           BROKEN("branches that are parallel read a normalized input: write before, or model.branches serial");
}

#define MAX_WIDTH (1 << 20) /* columns of all heads; model.dim has the same bound */

static bool head_dim_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    if (!m->head_dim)
        return false;
    if (m->arch != ARCH_LLAMA)
        return m->head_dim * m->heads != m->dim &&
               BROKEN("the heads of %s have model.dim / model.heads columns: write 0", job_arch_rules(m->arch)->name);
    if (m->head_dim % 2)
        return BROKEN("%" PRId64 "; llama's rotary position embedding works on pairs and needs an even number: write "
                      "%" PRId64,
                      m->head_dim, m->head_dim + 1);
    return m->head_dim > MAX_WIDTH / m->heads &&
           BROKEN("%" PRId64 " heads of %" PRId64 " columns have more than %d: write at most %" PRId64, m->heads,
                  m->head_dim, MAX_WIDTH, MAX_WIDTH / m->heads / 2 * 2);
}

static bool qkv_bias_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->model.qkv_bias && j->model.arch != ARCH_LLAMA &&
           BROKEN("%s always has biases, and this key is for llama: write false", job_arch_rules(j->model.arch)->name);
}

static bool qk_norm_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->model.qk_norm != QK_NORM_NONE && j->model.arch != ARCH_LLAMA &&
           BROKEN("%s does not normalize queries and keys: write none", job_arch_rules(j->model.arch)->name);
}

static bool without_window_broken(const struct job_spec *j, int64_t value, char ret[SENTENCE])
{
    return value && !j->model.window && BROKEN("no layer has a window: set model.window, or write 0");
}

static bool window_from_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return without_window_broken(j, j->model.window_from, ret) ||
           (j->model.window && j->model.window_from >= j->model.layers &&
            BROKEN("the model has %" PRId64 " layers, so none has the window: write at most %" PRId64
                   ", or model.window 0",
                   j->model.layers, j->model.layers - 1));
}

static bool window_period_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return without_window_broken(j, j->model.window_period, ret) ||
           (j->model.window_period == 1 && BROKEN("no layer would have the window: write 0, or model.window 0"));
}

static bool grouped_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    const struct arch_rules *arch = job_arch_rules(m->arch);
    return !arch->grouped && m->kv_heads && m->kv_heads != m->heads &&
           BROKEN("%s has no grouped-query attention: write 0 or %" PRId64, arch->name, m->heads);
}

static bool tied_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct arch_rules *arch = job_arch_rules(j->model.arch);
    if (arch->head == HEAD_NEVER && j->model.tied)
        return BROKEN("the head of %s has its own table: write false, or leave the key out", arch->name);
    return arch->head == HEAD_ALWAYS && !j->model.tied &&
           BROKEN("the head of %s always shares the embedding table: write true, or leave the key out", arch->name);
}

static bool experts_arch_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->model.experts && j->model.arch != ARCH_LLAMA &&
           BROKEN("only llama has experts: write 0, or model.arch llama");
}

static bool choices_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    if (!m->experts)
        return false;
    if (m->router == ROUTER_SWITCH && m->experts_per_token != 1)
        return BROKEN("the router switch uses one expert per token: write 1, or model.router softmax");
    return m->experts_per_token > m->experts &&
           BROKEN("%" PRId64 " experts per token of %" PRId64 ": write at most %" PRId64, m->experts_per_token,
                  m->experts, m->experts);
}

static bool router_norm_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    bool one = m->router == ROUTER_SWITCH || (m->router == ROUTER_SOFTMAX && m->experts_per_token == 1);
    return m->experts && m->router_norm && one &&
           BROKEN(
               "with one expert per token the weight would always be 1, and the router would not learn: write false");
}

static bool groups_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    return m->experts && m->experts % m->router_groups &&
           BROKEN("%" PRId64 " experts are not divisible by %" PRId64 " groups: write %" PRId64, m->experts,
                  m->router_groups,
                  divisor_below(m->experts, m->router_groups < m->experts ? m->router_groups : m->experts));
}

/* Runs after choices_broken and groups_broken. */
static bool groups_kept_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    if (!m->experts)
        return false;
    int64_t each = m->experts / m->router_groups, least = (m->experts_per_token + each - 1) / each;
    if (m->router_groups_kept > m->router_groups)
        return BROKEN("%" PRId64 " of %" PRId64 " groups: write at most %" PRId64, m->router_groups_kept,
                      m->router_groups, m->router_groups);
    return m->router_groups_kept < least &&
           BROKEN("%" PRId64 " groups of %" PRId64 " experts have fewer than the %" PRId64
                  " experts that each token uses: write at least %" PRId64,
                  m->router_groups_kept, each, m->experts_per_token, least);
}

static bool group_best_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    int64_t each = m->experts / m->router_groups;
    return m->experts && m->router_group_best > each &&
           BROKEN("a group has %" PRId64 " experts: write at most %" PRId64, each, each);
}

static bool capacity_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->model.expert_capacity > 0 && !j->model.experts &&
           BROKEN("there are no experts: write 0, or set model.experts");
}

static bool drop_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->model.expert_drop != DROP_POSITION && !(j->model.expert_capacity > 0) &&
           BROKEN(
               "no token is dropped, since model.expert_capacity is 0: write position, or set model.expert_capacity");
}

static bool moe_every_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    return m->experts && m->moe_every > m->layers &&
           BROKEN("no layer would have experts, since model.layers is %" PRId64 ": write at most %" PRId64, m->layers,
                  m->layers);
}

/* Runs after moe_every_broken. */
static bool dense_layers_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    int64_t last = m->layers / m->moe_every * m->moe_every - 1; /* the last layer that may have experts */
    return m->experts && m->dense_layers > last && BROKEN("no layer would have experts: write at most %" PRId64, last);
}

static bool shared_gate_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->model.experts && j->model.shared_gate && !j->model.shared_experts &&
           BROKEN("there are no shared experts: write false, or set model.shared_experts");
}

static bool vocab_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->data.tokenizer == TOKENIZER_BYTES && j->model.vocab && j->model.vocab < 256 &&
           BROKEN("the tokenizer bytes has 256 tokens: write 0 (the tokenizer's size), or at least 256");
}

static bool lowercase_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->data.lowercase && !tokenizer_counts_words(j->data.tokenizer) &&
           BROKEN("only the tokenizers words and split support this: write false");
}

static bool tokenizer_files_broken(const struct job_spec *j, char ret[SENTENCE])
{
    if (j->data.tokenizer != TOKENIZER_BPE)
        return j->data.n_tokenizer_files && BROKEN("only the tokenizer bpe reads files: leave the key out");
    return !j->data.n_tokenizer_files &&
           BROKEN("the tokenizer bpe needs its files: write [vocab.json, merges.txt], or [tokenizer.json]");
}

static bool train_empty(const struct job_spec *j, char ret[SENTENCE])
{
    return !j->data.n_train && BROKEN("the list is empty: write at least one file or pattern");
}

static bool weights_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_data *d = &j->data;
    return d->n_weights && d->n_weights != d->n_train &&
           BROKEN("%d weights for %d items of data.train: write one for each; an item may be a pattern", d->n_weights,
                  d->n_train);
}

static bool passes_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_data *d = &j->data;
    return d->n_passes && d->n_passes != d->n_weights &&
           BROKEN("%d numbers for %d sources: write one for each item of data.train, and data.weights too, or []",
                  d->n_passes, d->n_weights);
}

static bool documents_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct arch_rules *arch = job_arch_rules(j->model.arch);
    return j->data.documents == DOCUMENTS_SEPARATE && !arch->rotary &&
           BROKEN("%s has a table of positions, which this version cannot begin again in each document: write joined, "
                  "or model.arch llama",
                  arch->name);
}

static bool packing_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->data.packing == PACKING_BEST_FIT && j->data.documents != DOCUMENTS_SEPARATE &&
           BROKEN("a sample of whole documents needs boundaries between them: set data.documents to separate, or write "
                  "wrapped");
}

static bool labels_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_data *d = &j->data;
    if (!j->model.labels)
        return false;
    if (j->model.labels == 1)
        return BROKEN("one class leaves nothing to learn: write at least 2");
    if (j->model.arch == ARCH_TRANSFORMER)
        return BROKEN("transformer has no head of classes: write 0, or model.arch gpt2 or llama");
    const char *key = d->documents == DOCUMENTS_SEPARATE ? "data.documents: joined"
                      : d->packing == PACKING_BEST_FIT   ? "data.packing: wrapped"
                      : d->stride                        ? "data.stride: 0"
                      : d->template != CHAT_NONE         ? "data.template: none"
                                                         : NULL;
    return key &&
           BROKEN("each sample is one text with its class, so texts neither share samples nor overlap: write %s", key);
}

static bool stride_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const int64_t stride = j->data.stride;
    if (stride && j->data.packing == PACKING_BEST_FIT)
        return BROKEN("samples of whole documents do not overlap: write 0, or set data.packing to wrapped");
    return stride > j->train.seq &&
           BROKEN("%lld is above train.seq %lld, so the tokens between two samples would never be read: write at most "
                  "train.seq",
                  (long long)stride, (long long)j->train.seq);
}

static bool template_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->data.template != CHAT_NONE && j->data.tokenizer != TOKENIZER_BPE &&
           BROKEN("its tokens are in tokenizer files, which only the tokenizer bpe reads: write none, or set "
                  "data.tokenizer to bpe");
}

static bool micro_batch_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->train.micro_batch > j->train.global_batch && job_keeps(j, "micro_batch") &&
           BROKEN("%" PRId64 " is more than train.global_batch: write at most %" PRId64, j->train.micro_batch,
                  j->train.global_batch);
}

static bool warmup_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->train.warmup > j->train.steps &&
           BROKEN("%" PRId64 " steps are more than train.steps: write at most %" PRId64, j->train.warmup,
                  j->train.steps);
}

static bool decay_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_train *t = &j->train;
    int64_t most = t->steps - t->warmup;
    if (t->decay && t->schedule != LR_WSD)
        return BROKEN("only train.schedule wsd has a decay phase: write 0, or train.schedule wsd");
    return t->decay > most && BROKEN("%" PRId64 " steps of decay and %" PRId64
                                     " of warm-up are more than train.steps, %" PRId64 ": write at most %" PRId64,
                                     t->decay, t->warmup, t->steps, most);
}

static bool dtype_broken(const struct job_spec *j, char ret[SENTENCE])
{
    enum dtype dtype = (enum dtype)j->train.dtype;
    if (j->train.numerics == NUMERICS_PROOF && dtype != DT_F64)
        return BROKEN("train.numerics proof computes in float64: write float64, or leave the key out");
    if (j->train.numerics == NUMERICS_CANONICAL && dtype == DT_F64)
        return BROKEN(
            "train.numerics canonical computes in float32 or bfloat16: write one of them, or leave the key out");
    if (dtype == DT_F64 && j->run.device == DEVICE_CUDA)
        return BROKEN("this version does not support float64 on a GPU: write float32 or bfloat16, or run.device cpu");
    return false;
}

static bool machine_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.machine[0] && !j->parallel.automatic &&
           BROKEN("only the planner uses it: leave the key out, or write parallel.auto true");
}

static bool fixed_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.n_fixed && !j->parallel.automatic &&
           BROKEN("without parallel.auto all keys keep their values: leave the key out, or write parallel.auto true");
}

/* The planner compares these schedules only (common/plan/search), and a file's is for one number of ranks. */
static bool auto_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const enum pipe_schedule s = j->parallel.schedule;
    const bool planned = s == PIPE_1F1B || s == PIPE_INTERLEAVED || s == PIPE_ZB_H1 || s == PIPE_ZB_V;
    return j->parallel.automatic && job_keeps(j, "schedule") && !planned &&
           BROKEN("the planner has the schedules 1f1b, interleaved, zb-h1 and zb-v, but parallel.schedule is %s: write "
                  "false, or leave parallel.schedule out",
                  job_schedule_row(s)->name);
}

static bool zero_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.zero && j->parallel.fsdp < 2 && job_keeps(j, "fsdp") &&
           BROKEN("ZeRO %" PRId64 " shards over parallel.fsdp, which is 1: write 0, or parallel.fsdp of at least 2",
                  j->parallel.zero);
}

/* The axes fsdp, tp, pp and cp of the mesh; those that the planner chooses count as 1. */
static void mesh_axes(const struct job_spec *j, int64_t ret[4])
{
    const struct job_parallel *p = &j->parallel;
    const struct {
        const char *name;
        int64_t size;
    } axes[4] = {{"fsdp", p->fsdp}, {"tp", p->tp}, {"pp", p->pp}, {"cp", p->cp}};
    for (int i = 0; i < 4; i++)
        ret[i] = job_keeps(j, axes[i].name) ? axes[i].size : 1;
}

/* The divisor of `n` nearest to `d` on each side, at most `most`; 0: there is none above. */
static void divisors_around(int64_t n, int64_t d, int64_t most, int64_t *ret_below, int64_t *ret_above)
{
    *ret_below = divisor_below(n, d - 1 < most ? d - 1 : most);
    *ret_above = 0;
    for (int64_t v = d + 1; v <= n && v <= most && !*ret_above; v++)
        *ret_above = n % v ? 0 : v;
}

#define MAX_AXIS_TEXT 100

/* ", or parallel.tp 2 or 4": where one axis alone prevents that the mesh divides the workers, its nearest legal sizes.
 */
static const char *axis_text(const struct job_spec *j, int64_t unit, char ret[MAX_AXIS_TEXT])
{
    const struct job_parallel *p = &j->parallel;
    int64_t below, above, sizes[4];
    mesh_axes(j, sizes);
    const struct {
        const char *key;
        int64_t size, most;
    } axes[] = {{"parallel.tp", sizes[1], j->model.heads},
                {"parallel.pp", sizes[2], j->model.layers},
                {"parallel.cp", sizes[3], j->train.seq / 2},
                {"parallel.fsdp", sizes[0], JOB_MAX_WORKERS}};
    ret[0] = 0;
    for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]) && !ret[0]; i++) {
        const int64_t others = unit / axes[i].size;
        if (axes[i].size < 2 || p->workers % others)
            continue;
        divisors_around(p->workers / others, axes[i].size, axes[i].most, &below, &above);
        if (above)
            snprintf(ret, MAX_AXIS_TEXT, ", or %s %" PRId64 " or %" PRId64, axes[i].key, below, above);
        else
            snprintf(ret, MAX_AXIS_TEXT, ", or %s %" PRId64, axes[i].key, below);
    }
    return ret;
}

static bool mesh_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    int64_t unit = 1, below, axes[4];
    char axis[MAX_AXIS_TEXT];
    mesh_axes(j, axes);
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(unit, axes[i], &unit) || unit > JOB_MAX_WORKERS)
            return BROKEN("fsdp x tp x pp x cp is more than %d workers", JOB_MAX_WORKERS);
    below = p->workers / unit * unit;
    if (p->workers % unit == 0 || p->all_workers)
        return false;
    if (!below)
        return BROKEN("%" PRId64 " workers are fewer than fsdp x tp x pp x cp, which is %" PRId64 ": write %" PRId64
                      "%s",
                      p->workers, unit, unit, axis_text(j, unit, axis));
    return BROKEN("%" PRId64 " workers are not a multiple of fsdp x tp x pp x cp, which is %" PRId64 ": write %" PRId64
                  " or %" PRId64 "%s",
                  p->workers, unit, below, below + unit, axis_text(j, unit, axis));
}

int64_t job_replica_workers(const struct job_spec *j)
{
    int64_t axes[4];
    mesh_axes(j, axes);
    return axes[0] * axes[1] * axes[2] * axes[3];
}

/* Runs after mesh_broken, so the product fits and divides the number of workers. */
static bool range_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    int64_t unit = job_replica_workers(j), nearest = (p->min_workers + unit - 1) / unit * unit;
    if (p->min_workers == 0 || p->all_workers)
        return false;
    if (p->min_workers > p->workers)
        return BROKEN("%" PRId64 " is more than parallel.workers: write %" PRId64 " or 0", p->min_workers, p->workers);
    return nearest != p->min_workers && !p->automatic && /* numbers without a layout are left out */
           BROKEN("%" PRId64 " workers are not a whole number of replicas of %" PRId64 " workers: write %" PRId64,
                  p->min_workers, unit, nearest);
}

static bool nodes_broken(const struct job_spec *j, char ret[SENTENCE])
{
    int64_t workers = j->parallel.workers, nodes = j->run.nodes;
    if (nodes == 0 || workers % nodes == 0)
        return false;
    return BROKEN("%" PRId64 " workers cannot be spread evenly over %" PRId64 " nodes: write %" PRId64 " or 0", workers,
                  nodes, divisor_below(workers, nodes < workers ? nodes : workers));
}

/* Runs after mesh_broken, so the product fits. */
static bool experts_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    const struct mesh mesh = {.size = {1, 1, (int)p->fsdp, (int)p->cp, (int)p->tp}};
    int64_t near;
    if (p->ep == 1)
        return false;
    if (!j->model.experts)
        return BROKEN("the model has no experts: write 1, or set model.experts");
    if (p->ep > j->model.experts)
        return BROKEN("%" PRId64 " ranks for %" PRId64 " experts: write at most %" PRId64, p->ep, j->model.experts,
                      j->model.experts);
    if (!mesh_fold_init(&mesh, p->ep, NULL, &near))
        return BROKEN("experts are cut over tp, then cp, then fsdp, %" PRId64 " x %" PRId64 " x %" PRId64
                      " ranks: of the last axis over a part that divides it, of the others over all: write %" PRId64,
                      p->tp, p->cp, p->fsdp, near);
    return j->train.numerics == NUMERICS_CANONICAL && p->ep > p->tp * p->cp &&
           BROKEN("ranks with other samples, whose sums train.numerics canonical keeps apart: write at most %" PRId64
                  ", or train.numerics fast",
                  p->tp * p->cp);
}

static bool load_broken(const struct job_spec *j, char ret[SENTENCE])
{
    if (j->parallel.expert_load == EXPERT_LOAD_ROUTED)
        return false;
    if (j->parallel.ep == 1)
        return BROKEN("balances ranks among which experts are divided, but parallel.ep is 1: write routed, or set "
                      "parallel.ep");
    if (j->train.numerics == NUMERICS_CANONICAL)
        return BROKEN("the gradient of an expert is then a sum of parts of several ranks, whose order train.numerics "
                      "canonical does not allow: write routed, or train.numerics fast");
    return j->run.device == DEVICE_CUDA &&
           BROKEN("this version balances experts on CPUs only: write routed, or run.device cpu");
}

static bool dispatch_broken(const struct job_spec *j, char ret[SENTENCE])
{
    if (j->parallel.dispatch == DISPATCH_ALL_TO_ALL)
        return false;
    if (j->parallel.ep == 1)
        return BROKEN("parallel.ep is 1, so tokens stay with their ranks: leave the key out, or set parallel.ep");
    if (j->parallel.expert_load == EXPERT_LOAD_BALANCED)
        return BROKEN("a rank takes the rows of its own experts only, not those that parallel.expert_load balanced "
                      "lends it: write all_to_all, or parallel.expert_load routed");
    return j->model.expert_capacity > 0 &&
           BROKEN("every token needs a row for each of its choices, but model.expert_capacity drops some: write "
                  "all_to_all, or model.expert_capacity 0");
}

static bool rows_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    if (p->expert_rows == 0)
        return false;
    if (p->expert_rows < 1)
        return BROKEN("a rank needs room for the mean at least: write 1 or more, or 0 for all rows that may come");
    if (p->ep == 1)
        return BROKEN("parallel.ep is 1, so a rank always has the mean: write 0, or set parallel.ep");
    if (p->expert_load == EXPERT_LOAD_BALANCED)
        return BROKEN("with parallel.expert_load balanced a rank never has more rows than the mean: write 0, or "
                      "parallel.expert_load routed");
    if (p->dispatch == DISPATCH_ALL_GATHER)
        return BROKEN(
            "a rank takes all its rows at once from the tokens that parallel.dispatch all_gather sends: write "
            "0, or parallel.dispatch all_to_all");
    if (p->recompute != RECOMPUTE_EXPERTS && p->recompute != RECOMPUTE_FULL)
        return BROKEN("a round overwrites the rows of the round before it, so the backward computes them again: write "
                      "0, or parallel.recompute experts");
    if (j->train.numerics == NUMERICS_CANONICAL)
        return BROKEN("the gradient of an expert is then a sum over rounds, whose order train.numerics canonical does "
                      "not allow: write 0, or train.numerics fast");
    return j->run.device == DEVICE_CUDA &&
           BROKEN("this version computes rounds on CPUs only: write 0, or run.device cpu");
}

bool job_may_balance(const struct job_spec *job)
{
    struct job_spec j = *job;
    char sentence[SENTENCE];
    j.parallel.expert_load = EXPERT_LOAD_BALANCED;
    return !load_broken(&j, sentence) && !dispatch_broken(&j, sentence);
}

bool job_may_round(const struct job_spec *job)
{
    char sentence[SENTENCE];
    return !rows_broken(job, sentence);
}

static bool recompute_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.recompute == RECOMPUTE_EXPERTS && !j->model.experts &&
           BROKEN("the model has no experts: write none, full, pointwise or attention, or set model.experts");
}

static bool stages_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.pp > j->model.layers &&
           BROKEN("%" PRId64 " stages need as many layers, but model.layers is %" PRId64 ": write at most %" PRId64,
                  j->parallel.pp, j->model.layers, j->model.layers);
}

static bool chunks_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    const struct job_schedule_row *row = job_schedule_row(p->schedule);
    if (p->pp < 2 && p->chunks < 2)
        return false;
    if (p->pp < 2)
        return BROKEN("%" PRId64
                      " stages per pipeline rank, but parallel.pp is 1: write 1, or parallel.pp of at least 2",
                      p->chunks);
    if (p->chunks < row->fewest || p->chunks > row->most)
        return BROKEN("%" PRId64
                      " stages per pipeline rank, but the schedule %s has %d: write %d, or parallel.schedule %s",
                      p->chunks, row->name, row->most, row->most, p->chunks > 1 ? "interleaved" : "1f1b");
    if (p->chunks > 1 && row->fewest > j->model.layers / p->pp)
        return BROKEN("the schedule %s has %d stages on each of %" PRId64 " ranks, but model.layers is %" PRId64
                      ": write parallel.pp of at most %" PRId64,
                      row->name, row->fewest, p->pp, j->model.layers, j->model.layers / row->fewest);
    return p->chunks > 1 && p->chunks > j->model.layers / p->pp &&
           BROKEN("%" PRId64 " stages on each of %" PRId64 " ranks, but model.layers is %" PRId64 ": write %" PRId64,
                  p->chunks, p->pp, j->model.layers, j->model.layers / p->pp);
}

static bool schedule_file_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const char *text = j->parallel.schedule_csv;
    bool some = text && text[0];
    if (j->parallel.schedule == PIPE_FILE && !some)
        return BROKEN("it is empty, but parallel.schedule file needs it: write the schedule, or choose another "
                      "parallel.schedule");
    return some && j->parallel.schedule != PIPE_FILE &&
           BROKEN("only parallel.schedule file uses it: leave the key out");
}

/* Other schedules have no rank that finishes a step before the others and is the first in the next one. The routers'
 * numbers change their states in the update, so the next forward needs the sums of all ranks; a tied table on two ranks
 * needs the gradient of the last one. */
static bool post_validation_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    if (!p->post_validation)
        return false;
    if (p->pp < 2 || (p->schedule != PIPE_ZB_H2 && p->schedule != PIPE_ZB_V))
        return BROKEN("it needs a pipeline of at least 2 ranks with the schedule zb-h2 or zb-v: write false, or "
                      "parallel.schedule zb-h2");
    if (j->model.experts)
        return BROKEN("the update of a model with experts needs the numbers of all ranks' routers: write false");
    return p->schedule == PIPE_ZB_H2 && j->model.tied && !j->model.labels &&
           BROKEN("the tied table is on the first and on the last rank, and its update needs the gradient of both: "
                  "write false, or parallel.schedule zb-v with parallel.chunks 2");
}

/* Runs after mesh_broken, so the other axes divide the workers. */
static bool tensor_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    return p->tp > j->model.heads &&
           BROKEN("%" PRId64 " ranks cannot share %" PRId64 " heads: write %" PRId64, p->tp, j->model.heads,
                  divisor_below(p->workers / (job_replica_workers(j) / p->tp), j->model.heads));
}

static bool async_broken(const struct job_spec *j, char ret[SENTENCE])
{
    if (!j->parallel.async_tp)
        return false;
    if (j->parallel.tp < 2)
        return BROKEN(
            "it overlaps the collectives of tensor parallelism, but parallel.tp is 1: write false, or parallel.tp of "
            "at least 2");
    if (!j->parallel.sp)
        return BROKEN("it overlaps the collectives of sequence parallelism, but parallel.sp is false: write "
                      "false, or parallel.sp true");
    return j->run.device == DEVICE_CPU && j->run.comm_thread != COMM_THREAD_ON &&
           BROKEN("a worker on a CPU computes nothing while it communicates, unless it has a thread for that: write "
                  "false, or run.comm_thread on where every worker has a core to spare");
}

static bool context_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.cp > 1 && j->train.seq / 2 < j->parallel.cp &&
           BROKEN("each rank takes two pieces of the sequence, which has %" PRId64 " tokens: write at most %" PRId64,
                  j->train.seq, j->train.seq < 2 ? 1 : j->train.seq / 2);
}

/* Both modes need sums in a fixed order, which only the CPU kernels and backends guarantee. */
static bool device_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->run.device != DEVICE_CPU && j->train.numerics != NUMERICS_FAST &&
           BROKEN("train.numerics %s needs a CPU: write cpu, or train.numerics fast",
                  j->train.numerics == NUMERICS_PROOF ? "proof" : "canonical");
}

static bool routing_broken(const struct job_spec *j, const char *dir, char ret[SENTENCE])
{
    if (!dir || !dir[0])
        return false;
    if (!j->model.experts)
        return BROKEN("there are no routers: write \"\", or set model.experts");
    return j->run.device != DEVICE_CPU &&
           BROKEN("this needs workers on CPUs in this version: write \"\", or run.device cpu");
}

static bool save_routing_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return routing_broken(j, j->train.save_routing, ret);
}

static bool replay_routing_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const char *save = j->train.save_routing, *replay = j->train.replay_routing;
    if (routing_broken(j, replay, ret))
        return true;
    return replay && save && replay[0] && strcmp(save, replay) == 0 &&
           BROKEN("train.save_routing would overwrite it: write another folder there");
}

#define GPU_HEAD 256 /* columns; kernels/cuda/attention.h */

/* Runs after heads_broken, so the heads divide the columns. */
static bool wide_heads_broken(const struct job_spec *j, char ret[SENTENCE])
{
    int64_t cols = job_head_dim(&j->model);
    return j->run.device == DEVICE_CUDA && cols > GPU_HEAD &&
           BROKEN("heads of %" PRId64 " columns are wider than the %d of attention on GPUs: write cpu, or more "
                  "model.heads",
                  cols, GPU_HEAD);
}

static bool comm_broken(const struct job_spec *j, char ret[SENTENCE])
{
    bool cpu = j->run.device == DEVICE_CPU;
    if (cpu && (j->run.comm == COMM_NCCL || j->run.comm == COMM_STAGED))
        return BROKEN("%s transfers GPU memory, but run.device is cpu: write shm or auto, or run.device cuda",
                      j->run.comm == COMM_NCCL ? "nccl" : "staged");
    const char *name = j->run.comm == COMM_SHM      ? "shm"
                       : j->run.comm == COMM_STREAM ? "stream"
                       : j->run.comm == COMM_UCX    ? "ucx"
                                                    : NULL;
    return !cpu && name && BROKEN("%s needs run.device cpu: write nccl, staged or auto", name);
}

static bool comm_thread_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->run.device != DEVICE_CPU && j->run.comm_thread == COMM_THREAD_ON &&
           BROKEN(
               "workers on GPUs overlap communication and computation without a thread: write auto, or run.device cpu");
}

#define OVER(field, fn) .key = #field, .broken = (fn)
#define ONLY(field, value, why) \
    .key = #field, .offset = offsetof(struct job_spec, field), .only = (value), .because = (why)

static const struct rule rules[] = {
    {OVER(data.train, train_empty)},
    {OVER(model.heads, heads_broken)},
    {OVER(model.kv_heads, kv_heads_broken)},
    {OVER(model.heads, rotary_broken)},
    {OVER(model.kv_heads, grouped_broken)},
    {OVER(model.head_dim, head_dim_broken)},
    {OVER(model.rope_type, rope_type_broken)},
    {OVER(model.rope_part, rope_part_broken)},
    {OVER(model.rope_layers, rope_layers_broken)},
    {OVER(model.rope_local_theta, rope_local_theta_broken)},
    {OVER(model.out_bias, out_bias_broken)},
    {OVER(model.ffn_bias, ffn_bias_broken)},
    {OVER(model.head_bias, head_bias_broken)},
    {OVER(model.ffn_plain, ffn_plain_broken)},
    {OVER(model.activation, activation_broken)},
    {OVER(model.norm, norm_broken)},
    {OVER(model.norm_place, norm_place_broken)},
    {OVER(model.norm_place, norm_place_after_broken)},
    {OVER(model.branches, branches_broken)},
    {OVER(model.embed_scale, embed_scale_broken)},
    {OVER(model.residual_scale, residual_scale_broken)},
    {OVER(model.logit_scale, logit_scale_broken)},
    {OVER(model.logit_cap, logit_cap_broken)},
    {OVER(model.qkv_bias, qkv_bias_broken)},
    {OVER(model.qk_norm, qk_norm_broken)},
    {OVER(model.window, window_broken)},
    {OVER(model.window_from, window_from_broken)},
    {OVER(model.window_period, window_period_broken)},
    {OVER(model.score_softcap, score_softcap_broken)},
    {OVER(model.score_scale, score_scale_broken)},
    {OVER(model.tied, tied_broken)},
    {OVER(model.experts, experts_arch_broken)},
    {OVER(model.experts_per_token, choices_broken)},
    {OVER(model.router_norm, router_norm_broken)},
    {OVER(model.router_groups, groups_broken)},
    {OVER(model.router_groups_kept, groups_kept_broken)},
    {OVER(model.router_group_best, group_best_broken)},
    {OVER(model.expert_capacity, capacity_broken)},
    {OVER(model.expert_drop, drop_broken)},
    {OVER(model.moe_every, moe_every_broken)},
    {OVER(model.dense_layers, dense_layers_broken)},
    {OVER(model.shared_gate, shared_gate_broken)},
    {OVER(model.vocab, vocab_broken)},
    {OVER(data.lowercase, lowercase_broken)},
    {OVER(data.template, template_broken)},
    {OVER(data.documents, documents_broken)},
    {OVER(data.packing, packing_broken)},
    {OVER(data.stride, stride_broken)},
    {OVER(model.labels, labels_broken)},
    {OVER(data.weights, weights_broken)},
    {OVER(data.passes, passes_broken)},
    {OVER(data.tokenizer_files, tokenizer_files_broken)},
    {OVER(parallel.machine, machine_broken)},
    {OVER(parallel.fixed, fixed_broken)},
    {.key = "parallel.auto", .broken = auto_broken},
    {OVER(train.micro_batch, micro_batch_broken)},
    {OVER(train.warmup, warmup_broken)},
    {OVER(train.decay, decay_broken)},
    {OVER(parallel.pp, stages_broken)},
    {OVER(parallel.chunks, chunks_broken)},
    {OVER(parallel.schedule_csv, schedule_file_broken)},
    {OVER(parallel.post_validation, post_validation_broken)},
    {OVER(parallel.workers, mesh_broken)},
    {OVER(parallel.min_workers, range_broken)},
    {OVER(parallel.ep, experts_broken)},
    {OVER(parallel.expert_load, load_broken)},
    {OVER(parallel.dispatch, dispatch_broken)},
    {OVER(parallel.expert_rows, rows_broken)},
    {OVER(parallel.recompute, recompute_broken)},
    {OVER(parallel.tp, tensor_broken)},
    {OVER(parallel.async_tp, async_broken)},
    {OVER(parallel.cp, context_broken)},
    {OVER(parallel.zero, zero_broken)},
    /* Limits of this version. */
    {ONLY(checkpoint.memory_every, 0, "this version cannot save checkpoints to memory")},
    {OVER(run.nodes, nodes_broken)},
    {OVER(run.device, device_broken)},
    {OVER(run.device, wide_heads_broken)},
    {OVER(train.save_routing, save_routing_broken)},
    {OVER(train.replay_routing, replay_routing_broken)},
    {OVER(run.comm, comm_broken)},
    {OVER(run.comm_thread, comm_thread_broken)},
    {OVER(train.dtype, dtype_broken)},
};

/* Runs after nodes_broken, so every node has the same number of workers. */
static bool whole_nodes_broken(const struct job_spec *j, char ret[SENTENCE])
{
    int64_t workers = j->parallel.workers, least = j->parallel.min_workers;
    int64_t unit = j->run.nodes ? workers / j->run.nodes : 1;
    if (least > workers)
        return BROKEN("%" PRId64 " is more than parallel.workers: write %" PRId64 " or 0", least, workers);
    return least % unit &&
           BROKEN("%" PRId64 " workers are not a whole number of nodes of %" PRId64 " workers: write %" PRId64, least,
                  unit, (least + unit - 1) / unit * unit);
}

static bool command_empty(const struct job_spec *j, char ret[SENTENCE])
{
    return (j->n_command == 0 || !j->command[0][0]) &&
           BROKEN("no program is given: write, for example, [python, train.py]");
}

static bool port_alone(const struct job_spec *j, char ret[SENTENCE])
{
    return j->run.master_port && !j->run.master_addr[0] &&
           BROKEN("without run.master_addr dtd opens the rendezvous and chooses its port: write 0, or "
                  "run.master_addr: " JOB_MASTER_AUTO);
}

static const struct rule command_rules[] = {
    {OVER(command, command_empty)},
    {OVER(run.nodes, nodes_broken)},
    {OVER(parallel.min_workers, whole_nodes_broken)},
    {OVER(run.master_port, port_alone)},
};

static bool rule_broken(const struct rule *rule, const struct job_spec *job, char ret[SENTENCE])
{
    if (rule->broken)
        return rule->broken(job, ret);
    int64_t value = *(const int64_t *)((const char *)job + rule->offset);
    return value != rule->only && BROKEN("%s: write %" PRId64 " instead of %" PRId64, rule->because, rule->only, value);
}

err_t job_rules_check(const struct schema_reader *r, const struct job_spec *job, struct why *why)
{
    char sentence[SENTENCE];
    bool command = r->schema == &command_schema;
    const struct rule *table = command ? command_rules : rules;
    size_t n = command ? sizeof(command_rules) / sizeof(command_rules[0]) : sizeof(rules) / sizeof(rules[0]);
    for (size_t i = 0; i < n; i++)
        if (rule_broken(&table[i], job, sentence))
            return schema_complain(r, table[i].key, ERR_INVALID, why, "%s", sentence);
    return OK;
}
