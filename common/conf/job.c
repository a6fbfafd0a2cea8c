/* The table of the job file. Each row is one key; a new key needs a row here and a field of the same path in job.h.
 *
 * A resumed job may change a key if the checkpoint and the order of the data keep their meaning. It may therefore
 * change training settings and the parallel layout, but not the model's shape, the tokenizer, or the sequence length
 * and global batch that determine which samples a step takes. */
#include "common/conf/job.h"

#include "common/base/caller.h"
#include "common/base/dtype.h"
#include "common/base/ports.h"
#include "common/conf/job_rules.h"
#include "common/conf/number.h"
#include "common/conf/schema.h"

#include <ctype.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define X(id, name, builder, rotary, grouped, head, ffn) {name, ARCH_##id},
static const struct schema_name arch_names[] = {
#include "common/conf/models.inc"
    {0}};
#undef X
static const struct schema_name tokenizer_names[] = {
    {"bytes", TOKENIZER_BYTES}, {"words", TOKENIZER_WORDS}, {"bpe", TOKENIZER_BPE}, {"split", TOKENIZER_SPLIT}, {0}};
static const struct schema_name documents_names[] = {
    {"joined", DOCUMENTS_JOINED}, {"separate", DOCUMENTS_SEPARATE}, {0}};
static const struct schema_name packing_names[] = {{"wrapped", PACKING_WRAPPED}, {"best_fit", PACKING_BEST_FIT}, {0}};
static const struct schema_name template_names[] = {{"none", CHAT_NONE},
                                                    {"llama3", CHAT_LLAMA3},
                                                    {"chatml", CHAT_CHATML},
                                                    {"mistral", CHAT_MISTRAL},
                                                    {"gemma", CHAT_GEMMA},
                                                    {"phi", CHAT_PHI},
                                                    {0}};
static const struct schema_name shuffle_names[] = {{"samples", SHUFFLE_SAMPLES}, {"blocks", SHUFFLE_BLOCKS}, {0}};
static const struct schema_name order_names[] = {{"keep", CHANGE_KEEP}, {"new", CHANGE_NEW}, {0}};
static const struct schema_name router_names[] = {{"softmax", ROUTER_SOFTMAX},
                                                  {"softmax_topk", ROUTER_SOFTMAX_TOPK},
                                                  {"sigmoid", ROUTER_SIGMOID},
                                                  {"switch", ROUTER_SWITCH},
                                                  {0}};
static const struct schema_name aux_scope_names[] = {
    {"sample", AUX_SAMPLE}, {"micro_batch", AUX_MICRO_BATCH}, {"batch", AUX_BATCH}, {0}};
static const struct schema_name drop_names[] = {{"position", DROP_POSITION}, {"probability", DROP_PROBABILITY}, {0}};
static const struct schema_name lr_names[] = {
    {"constant", LR_CONSTANT}, {"cosine", LR_COSINE}, {"linear", LR_LINEAR}, {"wsd", LR_WSD}, {0}};
static const struct schema_name nan_names[] = {{"stop", NAN_STOP}, {"skip", NAN_SKIP}, {0}};
static const struct schema_name damage_names[] = {{"older", DAMAGE_OLDER}, {"fail", DAMAGE_FAIL}, {0}};
static const struct schema_name optimizer_names[] = {
    {"auto", OPTIMIZER_AUTO}, {"require", OPTIMIZER_REQUIRE}, {"fresh", OPTIMIZER_FRESH}, {0}};
static const struct schema_name dtype_names[] = {{"float32", DT_F32}, {"float64", DT_F64}, {"bfloat16", DT_BF16}, {0}};
static const struct schema_name dtype_also[] = {
    {"bf16", DT_BF16}, {"fp32", DT_F32}, {"f32", DT_F32},    {"float", DT_F32},
    {"fp64", DT_F64},  {"f64", DT_F64},  {"double", DT_F64}, {0}};
static const struct schema_name numerics_names[] = {
    {"fast", NUMERICS_FAST}, {"canonical", NUMERICS_CANONICAL}, {"proof", NUMERICS_PROOF}, {0}};
#define X(id, name, fewest, most, placement, row) {name, PIPE_##id},
static const struct schema_name pipe_names[] = {
#include "common/conf/schedules.inc"
    {"file", PIPE_FILE}, {0}};
#undef X
static const struct schema_name qk_norm_names[] = {
    {"none", QK_NORM_NONE}, {"head", QK_NORM_HEAD}, {"whole", QK_NORM_WHOLE}, {0}};
static const struct schema_name rope_names[] = {{"default", ROPE_DEFAULT},
                                                {"linear", ROPE_LINEAR},
                                                {"llama3", ROPE_LLAMA3},
                                                {"dynamic", ROPE_DYNAMIC},
                                                {"yarn", ROPE_YARN},
                                                {"longrope", ROPE_LONGROPE},
                                                {NULL, 0}};
static const struct schema_name norm_names[] = {{"rms", NORM_RMS}, {"rms1", NORM_RMS1}, {"layer", NORM_LAYER}, {0}};
static const struct schema_name norm_place_names[] = {
    {"before", NORM_BEFORE}, {"after", NORM_AFTER}, {"both", NORM_BOTH}, {0}};
static const struct schema_name branches_names[] = {
    {"serial", BRANCHES_SERIAL}, {"parallel", BRANCHES_PARALLEL}, {"one_norm", BRANCHES_ONE_NORM}, {0}};
static const struct schema_name activation_names[] = {{"auto", ACTIVATION_AUTO},
                                                      {"silu", ACTIVATION_SILU},
                                                      {"gelu", ACTIVATION_GELU},
                                                      {"gelu_erf", ACTIVATION_GELU_ERF},
                                                      {0}};
static const struct schema_name expert_load_names[] = {
    {"routed", EXPERT_LOAD_ROUTED}, {"balanced", EXPERT_LOAD_BALANCED}, {0}};
static const struct schema_name dispatch_names[] = {
    {"all_to_all", DISPATCH_ALL_TO_ALL}, {"all_gather", DISPATCH_ALL_GATHER}, {0}};
static const struct schema_name recompute_names[] = {
    {"none", RECOMPUTE_NONE},           {"full", RECOMPUTE_FULL},       {"pointwise", RECOMPUTE_POINTWISE},
    {"attention", RECOMPUTE_ATTENTION}, {"experts", RECOMPUTE_EXPERTS}, {0}};
static const struct schema_name device_names[] = {{"cpu", DEVICE_CPU}, {"cuda", DEVICE_CUDA}, {0}};
static const struct schema_name comm_names[] = {{"auto", COMM_AUTO},
                                                {"shm", COMM_SHM},
                                                {"stream", COMM_STREAM},
                                                {"ucx", COMM_UCX},
                                                {"nccl", COMM_NCCL},
                                                {"staged", COMM_STAGED},
                                                {0}};
static const struct schema_name comm_thread_names[] = {
    {"auto", COMM_THREAD_AUTO}, {"on", COMM_THREAD_ON}, {"off", COMM_THREAD_OFF}, {0}};
/* Signals that a program can catch, whose meaning is a request, and whose default action ends a program. */
static const struct schema_name signal_names[] = {
    {"TERM", SIGTERM}, {"INT", SIGINT},   {"HUP", SIGHUP},   {"QUIT", SIGQUIT},
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"ALRM", SIGALRM}, {0}};
static const struct schema_name signal_also[] = {
    {"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},   {"SIGQUIT", SIGQUIT},
    {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}, {"SIGALRM", SIGALRM}, {0}};

/* A name becomes part of file names, log lines and URLs. */
static const char *check_name(const char *text)
{
    size_t len = strlen(text);
    size_t good = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    bool legal = len && len <= 64 && good == len && text[0] != '.' && text[0] != '-';
    return legal ? NULL
                 : "a name of 1 to 64 letters, digits, dots, dashes and underscores that begins with a letter or a "
                   "digit";
}

static const char *check_env(const char *text)
{
    size_t good = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    bool legal = text[0] && good == strlen(text) && good <= 256 && !isdigit((unsigned char)text[0]);
    return legal ? NULL
                 : "a name of letters, digits and underscores for each key (the name of an environment variable)";
}

static const char *check_map(const char *text)
{
    const char *to = strchr(text, '='), *star = strchr(text, '*');
    if (!text[0] || !to || to == text || strlen(text) >= 512)
        return "FROM=TO: the beginning of a name in the checkpoint, and what it is here (TO may be empty)";
    const char *in_from = star && star < to ? star : NULL, *in_to = strchr(to, '*');
    if ((in_to && (!in_from || strchr(in_to + 1, '*'))) ||
        (in_from && memchr(in_from + 1, '*', (size_t)(to - in_from - 1))))
        return "FROM=TO with at most one * in FROM and, if FROM has one, at most one in TO";
    return NULL;
}

static const char *check_path(const char *text)
{
    return text[0] && strlen(text) < 4096 ? NULL : "a path of 1 to 4095 bytes";
}

static const char *check_umask(const char *text)
{
    size_t n = strlen(text);
    const bool is_octal = n <= 4 && strspn(text, "01234567") == n;
    return is_octal && strtol(text, NULL, 8) <= 077 ? NULL : "an octal number from 0 to 0077";
}

static const char *check_limits(const char *text)
{
    struct caller c;
    bool legal = caller_parse(text, &c) == OK && !c.env && !c.percent && c.umask < 0 && !c.ignored && !c.blocked;
    return legal ? NULL : "resource limits and niceness such as \"nproc=500:500 niceness=5\"";
}

static const char *check_ports(const char *text)
{
    struct ports p;
    return ports_parse(text, &p) ? NULL : PORTS_NEED;
}

static const char *check_path_or_none(const char *text)
{
    return strlen(text) < 4096 ? NULL : "a path of at most 4095 bytes";
}

static const char *check_short(const char *text)
{
    return strlen(text) < 256 ? NULL : "a text of at most 255 bytes";
}

/* daemon/io/stage.c takes the words; a relative folder would be another one for each dtd. */
static const char *check_stage(const char *text)
{
    static const char *const words[] = {"none", "shm", "auto"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(text, words[i]) == 0)
            return NULL;
    return text[0] == '/' && strlen(text) < 4096 ? NULL : "none, shm, auto, or the absolute path of a folder";
}

static const char *check_incarnation(const char *text)
{
    return !*text || (strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16) ? NULL : "16 hex digits";
}

/* The keys of a layout that the planner chooses (common/plan/choose). */
static const char *const layout_keys[] = {
    "parallel.tp",   "parallel.cp",       "parallel.pp",     "parallel.ep",        "parallel.fsdp",
    "parallel.zero", "parallel.schedule", "parallel.chunks", "parallel.recompute", "train.micro_batch"};
#define N_LAYOUT_KEYS (int)(sizeof(layout_keys) / sizeof(layout_keys[0]))

static const char *key_name(const char *key)
{
    return strchr(key, '.') + 1;
}

static const char *check_fixed(const char *text)
{
    for (int i = 0; i < N_LAYOUT_KEYS; i++)
        if (strcmp(text, key_name(layout_keys[i])) == 0)
            return NULL;
    return "some of tp, cp, pp, ep, fsdp, zero, schedule, chunks, recompute, micro_batch";
}

/* common/data/order.c reads the digits. */
static const char *check_weight(const char *text)
{
    double value;
    return !number_double_parse(text, &value) && value > 0 ? NULL : "a number above 0";
}

static const char *check_passes(const char *text)
{
    int64_t value;
    return !number_int_parse(text, &value) && value >= 0 ? NULL : "a whole number, at least 0";
}

static const char *check_hash(const char *text)
{
    bool legal = !text[0] || (strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64);
    return legal ? NULL : "a hash of 64 hex digits, or \"\"";
}

static const char *check_factor(const char *text)
{
    char *end;
    const double x = strtod(text, &end);
    return *text && !*end && isfinite(x) && x > 0 ? NULL : "numbers above 0";
}

static const char *check_rope_layers(const char *text)
{
    return strspn(text, "01l") == strlen(text) && strlen(text) <= 4096
               ? NULL
               : "at most 4096 characters 1 (rotates), 0 (does not) and l (rotates by model.rope_local_theta), one for "
                 "each layer";
}

static const char *check_machine(const char *text)
{
    return strlen(text) <= 4096 ? NULL : "at most 4096 bytes";
}

/* FIXED: a resumed job must keep the value. FREE: it may change the value. */
enum { FIXED, FREE };
#define ROW(field, kind, change, default_, help_)                                                                     \
    .key = #field, .type = (kind), .resume = (change), .offset = offsetof(struct job_spec, field), .def = (default_), \
    .help = (help_)
#define INT(field, lo, hi, def, change, help) ROW(field, SCHEMA_INT, change, def, help), .min = (lo), .max = (hi)
#define UINT(field, def, change, help) ROW(field, SCHEMA_UINT, change, def, help)
#define FLOAT(field, lo, hi, def, change, help) ROW(field, SCHEMA_FLOAT, change, def, help), .low = (lo), .high = (hi)
#define BOOL(field, def, change, help) ROW(field, SCHEMA_BOOL, change, def, help)
#define ENUM(field, list, def, change, help) ROW(field, SCHEMA_ENUM, change, def, help), .names = (list)
#define TEXT(field, legal, def, change, help) ROW(field, SCHEMA_TEXT, change, def, help), .check = (legal)
#define ITEMS(field, count, kind, legal, def, change, help) \
    ROW(field, kind, change, def, help), .count_offset = offsetof(struct job_spec, count), .check = (legal)

#define BY_SUBMIT "`dtctl submit` and `dtctl resume` set this key."
/* A week: no step of any job takes longer. */
#define SECONDS(field, help) FLOAT(forecast.field, 0, 604800, "0", FREE, "Seconds of a step. " help " " BY_SUBMIT)
#define MAX_STEPS 1000000000
#define MAX_MEMORY_BYTES (1ll << 48) /* 256 TiB; the product with the workers of a node stays far below 2^63 */
#define MAX_LOG_BYTES (1ll << 40)    /* 1 TiB, as disk.log_mib */

/* What torchtitan, Hugging Face's Trainer, nanoGPT, Megatron, PyTorch Lightning and DeepSpeed call these keys. */
static const struct schema_alias job_aliases[] = {
    {"dp", "parallel.workers (dp is workers / (fsdp tp pp cp))"},
    {"data_parallel", "parallel.workers (dp is workers / (fsdp tp pp cp))"},
    {"data_parallel_degree", "parallel.workers (dp is workers / (fsdp tp pp cp))"},
    {"data_parallel_replicate_degree", "parallel.workers (dp is workers / (fsdp tp pp cp))"},
    {"data_parallel_shard_degree", "parallel.fsdp"},
    {"world_size", "parallel.workers"},
    {"nproc_per_node", "parallel.workers"},
    {"tensor_parallel_degree", "parallel.tp"},
    {"tensor_model_parallel_size", "parallel.tp"},
    {"tp_size", "parallel.tp"},
    {"sequence_parallel", "parallel.sp"},
    {"pipeline_parallel_degree", "parallel.pp"},
    {"pipeline_model_parallel_size", "parallel.pp"},
    {"pp_size", "parallel.pp"},
    {"context_parallel_degree", "parallel.cp"},
    {"context_parallel_size", "parallel.cp"},
    {"cp_size", "parallel.cp"},
    {"expert_parallel_degree", "parallel.ep"},
    {"expert_model_parallel_size", "parallel.ep"},
    {"zero_stage", "parallel.zero"},
    {"pipeline_parallel_schedule", "parallel.schedule"},
    {"activation_checkpointing", "parallel.recompute"},
    {"gradient_checkpointing", "parallel.recompute"},
    {"activation_checkpoint", "parallel.recompute"},
    {"seq_len", "train.seq"},
    {"seq_length", "train.seq"},
    {"sequence_length", "train.seq"},
    {"block_size", "train.seq"},
    {"context_length", "train.seq"},
    {"max_seq_len", "train.seq"},
    {"max_seq_length", "train.seq"},
    {"batch_size", "train.global_batch"},
    {"global_batch_size", "train.global_batch"},
    {"train_batch_size", "train.global_batch"},
    {"local_batch_size", "train.micro_batch"},
    {"micro_batch_size", "train.micro_batch"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"gradient_accumulation_steps", "train.global_batch (it divides into microbatches by itself)"},
    {"learning_rate", "train.lr"},
    {"max_lr", "train.lr"},
    {"min_lr", "train.min_lr_ratio (a fraction of train.lr)"},
    {"lr_scheduler", "train.schedule"},
    {"lr_scheduler_type", "train.schedule"},
    {"lr_decay_style", "train.schedule"},
    {"warmup_steps", "train.warmup"},
    {"warmup_iters", "train.warmup"},
    {"max_steps", "train.steps"},
    {"num_steps", "train.steps"},
    {"max_iters", "train.steps"},
    {"train_iters", "train.steps"},
    {"training_steps", "train.steps"},
    {"num_train_epochs", "train.steps (in optimizer updates)"},
    {"epochs", "train.steps (in optimizer updates)"},
    {"max_norm", "train.clip"},
    {"max_grad_norm", "train.clip"},
    {"grad_clip", "train.clip"},
    {"clip_grad", "train.clip"},
    {"gradient_clip_val", "train.clip"},
    {"adam_beta1", "train.beta1"},
    {"adam_beta2", "train.beta2"},
    {"precision", "train.dtype"},
    {"mixed_precision", "train.dtype"},
    {"bf16", "train.dtype (bfloat16)"},
    {"eval_interval", "train.eval_every"},
    {"eval_steps", "train.eval_every"},
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"num_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"kv_channels", "model.head_dim"},
    {"add_qkv_bias", "model.qkv_bias"},
    {"sliding_window", "model.window"},
    {"max_window_layers", "model.window_from"},
    {"attn_logit_softcapping", "model.score_softcap"},
    {"query_pre_attn_scalar", "model.score_scale (one over its root)"},
    {"qk_layernorm", "model.qk_norm (an RMSNorm)"},
    {"n_embd", "model.dim"},
    {"d_model", "model.dim"},
    {"hidden_size", "model.dim"},
    {"embed_dim", "model.dim"},
    {"d_ff", "model.ffn"},
    {"ffn_dim", "model.ffn"},
    {"intermediate_size", "model.ffn"},
    {"vocab_size", "model.vocab"},
    {"num_experts", "model.experts"},
    {"num_local_experts", "model.experts"},
    {"n_routed_experts", "model.experts"},
    {"num_experts_per_tok", "model.experts_per_token"},
    {"moe_router_topk", "model.experts_per_token"},
    {"moe_intermediate_size", "model.expert_ffn"},
    {"moe_ffn_hidden_size", "model.expert_ffn"},
    {"n_shared_experts", "model.shared_experts"},
    {"norm_topk_prob", "model.router_norm"},
    {"routed_scaling_factor", "model.router_scale"},
    {"n_group", "model.router_groups"},
    {"topk_group", "model.router_groups_kept"},
    {"first_k_dense_replace", "model.dense_layers"},
    {"decoder_sparse_step", "model.moe_every"},
    {"router_aux_loss_coef", "model.aux_loss"},
    {"moe_aux_loss_coeff", "model.aux_loss"},
    {"moe_z_loss_coeff", "model.z_loss"},
    {"tie_word_embeddings", "model.tied"},
    {"model_type", "model.arch"},
    {"architecture", "model.arch"},
    {"dataset", "data.train"},
    {"dataset_path", "data.train"},
    {"train_file", "data.train"},
    {"validation_file", "data.valid"},
    {"output_dir", "checkpoint.dir"},
    {"save_dir", "checkpoint.dir"},
    {"out_dir", "checkpoint.dir"},
    {"save_every", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"save_interval", "checkpoint.every"},
    {"interval", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"keep_latest_k", "checkpoint.keep_last"},
    {"resume_from_checkpoint", "checkpoint.resume_from"},
    {"init_from", "checkpoint.resume_from"},
    {"max_restarts", "run.restarts"},
    {"nnodes", "run.nodes"},
    {0}};

/* Keys that training jobs and command jobs share. */
#define RUN_ROWS                                                                                                       \
    {ENUM(run.device, device_names, "cpu", FREE, "Device that the workers compute on. cuda: NVIDIA GPUs.")},           \
        {ENUM(                                                                                                         \
            run.comm, comm_names, "auto", FREE,                                                                        \
            "Transport for collectives and pipeline transfers. cpu: shm (shared memory, one node only), stream "       \
            "(shared memory within a node, TCP with TLS 1.3 between nodes) or ucx (shared memory within a node, UCX "  \
            "between nodes; not encrypted, for trusted networks only). cuda: nccl, or staged (copies through host "    \
            "memory). auto: stream on cpu; on cuda, nccl if each worker has its own GPU, else staged.")},              \
        {INT(run.workers_per_gpu, 1, 64, "1", FREE, "Number of workers that share one GPU (cuda).")},                  \
        {INT(run.nodes, 0, JOB_MAX_WORKERS, "0", FREE,                                                                 \
             "Number of nodes; each runs the same number of workers. 0: as few nodes as have enough free slots.")},    \
        {INT(run.threads, 0, 4096, "0", FREE,                                                                          \
             "Compute threads per worker. 0: its share of the node's CPU cores, less while other jobs compute "        \
             "there.")},                                                                                               \
        {INT(run.cores, 0, 4096, "0", FREE,                                                                            \
             "Maximum number of CPU cores that each worker uses on average, with all that it starts; the limit of a "  \
             "node is for all workers there together. Each is bound to so many cores, near its GPU, if the node has "  \
             "them for all. 0: as many as are free; other jobs get their share."),                                     \
         .since = 2},                                                                                                  \
        {INT(run.memory, 0, MAX_MEMORY_BYTES, "0", FREE,                                                               \
             "Maximum memory of each worker, in bytes, with all that it starts and files in /dev/shm. The limit of a " \
             "node is for all workers there together, with their dtd-io; when it is reached, the kernel ends one of "  \
             "the job's processes, and the job's reason names the limit. 0: no limit, but the job's share of the "     \
             "node in a system-wide dtd (jobs.memory_percent of dtd.yaml)."),                                          \
         .unit = UNIT_COUNT, .since = 2},                                                                              \
        {ENUM(run.comm_thread, comm_thread_names, "auto", FREE,                                                        \
              "Whether each worker runs its communication on a separate thread, in parallel with computation (cpu). "  \
              "Results do not depend on it. auto: on if the worker's share of the node's cores exceeds its compute "   \
              "threads.")},                                                                                            \
        {INT(run.restarts, 0, 1000000, "3", FREE, "Maximum number of restarts after failures.")},                      \
        {INT(run.orphan_seconds, 1, 86400, "60", FREE,                                                                 \
             "Seconds that workers keep running after they have lost the connection to dtd-control; then they exit."), \
         .unit = UNIT_SECONDS},                                                                                        \
        {INT(run.hang_seconds, 0, 86400, "30", FREE,                                                                   \
             "Seconds without a completed step after which the job counts as hung and the worker that blocks it is "   \
             "killed. The limit is longer for slow jobs: at least ten times the usual step time. 0: no hang "          \
             "detection."),                                                                                            \
         .unit = UNIT_SECONDS},                                                                                        \
        {INT(run.max_seconds, 0, MAX_STEPS, "0", FREE,                                                                 \
             "Time limit in seconds since the job started. When it is reached, the job stops; a training job saves a " \
             "checkpoint first. A job with a limit can start before larger ones that wait, if it ends before they "    \
             "could "                                                                                                  \
             "start. 0: no limit."),                                                                                   \
         .unit = UNIT_SECONDS},                                                                                        \
        {INT(run.log_bytes, 0, MAX_LOG_BYTES, "0", FREE,                                                               \
             "Maximum size of the log of each worker, in bytes. The middle of a longer log is left out, and a line "   \
             "in "                                                                                                     \
             "it names the number of bytes. Less than 4 MiB count as 4 MiB. 0, or more than the node's disk.log_mib: " \
             "that of the node, 1 GiB if not "                                                                         \
             "configured."),                                                                                           \
         .unit = UNIT_COUNT},                                                                                          \
        {INT(run.timeline_step, 0, MAX_STEPS, "0", FREE,                                                               \
             "Step at which each worker records the time of every operation, for dtctl plan --measured. 0: none.")},   \
        {INT(run.priority, -1000, 1000, "0", FREE,                                                                     \
             "Scheduling priority. Of the waiting jobs of a user, those with a higher value start first.")},           \
        {TEXT(run.ports, check_ports, "\"\"", FREE,                                                                    \
              "Ports on which the workers listen for those of other nodes, such as 7900-7999, and from which "         \
              "MASTER_PORT is taken (with run.master_addr). \"\": cluster.ports of the node's configuration."),        \
         .since = 2},                                                                                                  \
        {BOOL(run.grow, "true", FREE,                                                                                  \
              "Whether a job that runs with fewer than parallel.workers takes more as soon as there is room: a "       \
              "training job after its next checkpoint, a command by a restart that counts as no failure.")},           \
        {ITEMS(run.env, run.n_env, SCHEMA_MAP, check_env, "{}", FREE,                                                  \
               "Environment variables of the workers, in addition to those of the dtd that starts them.")},            \
    {                                                                                                                  \
        TEXT(run.workdir, check_path, "\".\"", FREE,                                                                   \
             "Working directory of the workers. A relative path starts at the job file's folder.")                     \
    }

/* Sentences of the manual that the rows of models.inc complete. */
#define TIMES(m) #m " dim"
#define RATIO(m, n, step) #m "/" #n " dim, rounded up to a multiple of " #step
#define X(id, name, builder, rotary, grouped, head, ffn) "; " name ": " ffn
static const char ffn_help[] = "Width of the feed-forward layer. 0: the default of the architecture"
#include "common/conf/models.inc"
                               ".";
#undef X
#undef TIMES
#undef RATIO
#define HEAD_FREE_WORDS(name) ""
#define HEAD_ALWAYS_WORDS(name) "; " name ": always"
#define HEAD_NEVER_WORDS(name) "; " name ": never"
#define X(id, name, builder, rotary, grouped, head, ffn) HEAD_##head##_WORDS(name)
static const char tied_help[] = "Whether the output head shares the embedding table"
#include "common/conf/models.inc"
                                ".";
#undef X

static const struct schema_row rows[] = {
    {TEXT(name, check_name, NULL, FREE, "Name of the job; used in file names.")},

    {ENUM(model.arch, arch_names, "llama", FIXED,
          "Architecture. transformer is the post-norm encoder of \"Attention Is All You Need\", trained to predict the "
          "next token.")},
    {INT(model.dim, 1, 1 << 20, NULL, FIXED, "Hidden size: width of the residual stream.")},
    {INT(model.layers, 1, 4096, NULL, FIXED, "Number of transformer layers.")},
    {INT(model.heads, 1, 4096, NULL, FIXED,
         "Number of attention heads; must divide model.dim, unless model.head_dim is set.")},
    {INT(model.kv_heads, 0, 4096, "0", FIXED,
         "Number of key-value heads; must divide model.heads. 0: model.heads. Fewer than model.heads (grouped-query "
         "attention) are legal where the architecture has them, as llama does.")},
    {INT(model.head_dim, 0, 1 << 14, "0", FIXED,
         "Width of an attention head (llama), an even number. 0: model.dim / model.heads. Heads of another width are "
         "those of Qwen3.")},
    {BOOL(model.qkv_bias, "false", FIXED,
          "Biases in the products that make queries, keys and values (llama), as Qwen2 has them. gpt2 and transformer "
          "always have biases.")},
    {ENUM(model.qk_norm, qk_norm_names, "none", FIXED,
          "RMSNorm of queries and keys before their rotation (llama). head: over each head's columns, with one weight "
          "for all heads, as in Qwen3; whole: over all columns of a token, as in OLMo 2.")},
    {INT(model.window, 0, 1 << 24, "0", FIXED,
         "Tokens that a token attends to, with itself (llama): a sliding window, as in Mistral 7B v0.1. 0: all "
         "tokens before it.")},
    {INT(model.window_from, 0, 4096, "0", FIXED,
         "First layer with the window, counted from 0; the layers before it attend to all tokens, as in Qwen2.")},
    {INT(model.window_period, 0, 4096, "0", FIXED,
         "The last of so many layers has no window: 2 as in Gemma 2, 4 as in OLMo 3, 6 as in Gemma 3. 0: all have "
         "it, from model.window_from on.")},
    {FLOAT(model.score_softcap, 0, 1e6, "0", FIXED,
           "Attention scores are capped smoothly, c tanh(score / c), before the mask (llama), as in Gemma 2. 0: not.")},
    {FLOAT(model.score_scale, 0, 1e6, "0", FIXED,
           "Factor of attention scores (llama; Granite, Gemma 2). 0: one over the root of model.head_dim.")},
    {INT(model.ffn, 0, 1 << 22, "0", FIXED, ffn_help)},
    {INT(model.vocab, 0, 1 << 24, "0", FIXED,
         "Vocabulary size: number of rows of the embedding table. 0: the tokenizer's vocabulary size.")},
    {FLOAT(model.norm_eps, 1e-12, 1e-1, "1e-5", FIXED,
           "Epsilon of the normalization layers, added to the variance (LayerNorm) or mean square (RMSNorm).")},
    {FLOAT(model.rope_theta, 1, 1e12, "10000", FIXED,
           "Base of the rotary position embeddings, where the architecture has them.")},
    {FLOAT(model.rope_part, 0, 1, "1", FIXED,
           "The part of a head's columns that rotary positions turn, from the first on (partial_rotary_factor of "
           "transformers); the columns are those of an even number, rounded down.")},
    {ENUM(model.rope_type, rope_names, "default", FIXED,
          "How rotary positions are stretched to sequences longer than those that a model was first trained on, as "
          "rope_type of transformers. linear: all by model.rope_factor; llama3 (Llama 3.1 to 3.3): slow ones; yarn: a "
          "mixture, also of the scores; dynamic: only sequences longer than model.rope_original; longrope (Phi-3): "
          "each pair by its factor in model.rope_short, or in model.rope_long if train.seq is above "
          "model.rope_original.")},
    {FLOAT(model.rope_factor, 0, 1e6, "0", FIXED,
           "By how much linear, llama3, dynamic and yarn stretch positions. longrope: the factor from which that of "
           "rotated queries and keys is computed. 0: not set.")},
    {INT(model.rope_original, 0, 1 << 30, "0", FIXED,
         "llama3, yarn, dynamic, longrope: the length of the sequences that the model was first trained on "
         "(original_max_position_embeddings of transformers). 0: not set.")},
    {FLOAT(model.rope_low, 0, 1e6, "1", FIXED,
           "llama3: rope_original over the wavelength from which on positions are stretched (low_freq_factor).")},
    {FLOAT(model.rope_high, 0, 1e6, "4", FIXED,
           "llama3: rope_original over the wavelength up to which positions are not stretched (high_freq_factor).")},
    {FLOAT(model.rope_fast, 0, 1e6, "32", FIXED,
           "yarn: turns within rope_original from which on a pair is not stretched (beta_fast).")},
    {FLOAT(model.rope_slow, 0, 1e6, "1", FIXED,
           "yarn: turns within rope_original up to which a pair is stretched whole (beta_slow).")},
    {BOOL(model.rope_exact, "false", FIXED,
          "yarn: the mixture does not begin and end at whole pairs (truncate: false in transformers).")},
    {FLOAT(model.rope_attention, 0, 1e6, "0", FIXED,
           "yarn, longrope: factor of rotated queries and keys (attention_factor). 0: from model.rope_factor.")},
    {FLOAT(model.rope_mscale, 0, 1e6, "0", FIXED, "yarn: mscale of DeepSeek's models. 0: not set.")},
    {FLOAT(model.rope_mscale_all, 0, 1e6, "0", FIXED, "yarn: mscale_all_dim of DeepSeek's models. 0: not set.")},
    {ITEMS(model.rope_short, model.n_rope_short, SCHEMA_LIST, check_factor, "[]", FIXED,
           "longrope: a divisor of the frequency of each pair of a head's rotated columns (short_factor), for a "
           "train.seq of at most model.rope_original.")},
    {ITEMS(model.rope_long, model.n_rope_long, SCHEMA_LIST, check_factor, "[]", FIXED,
           "longrope: the same for a longer train.seq (long_factor).")},
    {TEXT(model.rope_layers, check_rope_layers, "\"\"", FIXED,
          "How each layer rotates queries and keys (llama): a character per layer, repeated if there are more layers. "
          "1: by model.rope_theta and model.rope_type; 0: not at all; l: by model.rope_local_theta, unstretched. "
          "1110 is SmolLM3, lllll1 is Gemma 3. \"\": all layers as 1.")},
    {FLOAT(model.rope_local_theta, 0, 1e12, "0", FIXED,
           "Base of the rotary positions of layers that have l in model.rope_layers. 0: there are none.")},
    {BOOL(model.out_bias, "false", FIXED, "A bias in the product behind attention (llama).")},
    {BOOL(model.ffn_bias, "false", FIXED, "Biases in the products of the feed-forward (llama).")},
    {BOOL(model.head_bias, "false", FIXED, "A bias of the logits (llama), as Phi-2 has it.")},
    {BOOL(model.ffn_plain, "false", FIXED,
          "A feed-forward of two matrices around the activation (llama), as in GPT-NeoX, instead of three of which one "
          "is a gate.")},
    {ENUM(model.activation, activation_names, "auto", FIXED,
          "Activation of the feed-forward (llama, gpt2). gelu is its tanh form (gelu_new, gelu_pytorch_tanh), gelu_erf "
          "the exact one (gelu of transformers). auto: silu in llama, gelu in gpt2. A gate has silu or gelu.")},
    {ENUM(model.norm, norm_names, "rms", FIXED,
          "Normalization layers of llama. rms: RMSNorm; rms1: RMSNorm with 1 + weight as factors (Gemma); layer: "
          "LayerNorm with biases (GPT-NeoX, StarCoder2, Phi-2).")},
    {ENUM(model.norm_place, norm_place_names, "before", FIXED,
          "What is normalized (llama). before: the input of attention and feed-forward; after: their output, before "
          "the residual sum (OLMo 2); both (Gemma 2).")},
    {ENUM(model.branches, branches_names, "serial", FIXED,
          "serial: the feed-forward reads the sum behind attention. parallel: both read the same sum (GPT-NeoX); "
          "one_norm: with one norm for both (Phi-2). llama only.")},
    {FLOAT(model.embed_scale, 1e-6, 1e6, "1", FIXED, "Factor of the embedding (llama); sqrt(dim) in Gemma.")},
    {FLOAT(model.residual_scale, 1e-6, 1e6, "1", FIXED,
           "Factor of the output of attention and of the feed-forward in the residual sums (llama; Granite).")},
    {FLOAT(model.logit_scale, 1e-6, 1e6, "1", FIXED, "Factor of the logits (llama): 1 / logits_scaling of Granite.")},
    {FLOAT(model.logit_cap, 0, 1e6, "0", FIXED,
           "Logits x become c tanh(x / c) with this c (llama; final_logit_softcapping of Gemma 2). 0: they do not.")},
    {BOOL(model.tied, "false", FIXED, tied_help)},
    {INT(model.labels, 0, 65536, "0", FIXED,
         "Classes of a text: the head has a row for each in place of the vocabulary, and the loss is the cross entropy "
         "of "
         "the text's class at its last token (gpt2, llama). Each row of data.train has a text and its class, an "
         "integer from 0 on in data.label. 0: a language model.")},
    {BOOL(model.causal, "false", FIXED,
          "Causal attention mask (transformer; the other architectures always have one). Without it every token "
          "attends to later tokens too, including the one that it should predict.")},
    {INT(model.experts, 0, JOB_MAX_EXPERTS, "0", FIXED,
         "Number of experts of a layer: feed-forwards of which each token uses model.experts_per_token (mixture of "
         "experts, llama only). 0: one feed-forward for all tokens.")},
    {INT(model.experts_per_token, 1, JOB_MAX_CHOICES, "2", FIXED, "Number of experts that each token uses.")},
    {INT(model.expert_ffn, 0, 1 << 22, "0", FIXED, "Width of an expert. 0: model.ffn.")},
    {INT(model.shared_experts, 0, JOB_MAX_EXPERTS, "0", FIXED,
         "Number of further experts, each of width model.expert_ffn, that every token uses.")},
    {BOOL(
        model.shared_gate, "false", FIXED,
        "Multiply the output of the shared experts by the sigmoid of a learned product with their input (Qwen2-MoE).")},
    {INT(model.moe_every, 1, 4096, "1", FIXED,
         "Distance between layers that have experts; the others have one feed-forward. 1: every layer. 2: the second "
         "layer, the fourth, and so on.")},
    {INT(model.dense_layers, 0, 4096, "0", FIXED, "Number of first layers that have no experts (DeepSeek).")},
    {ENUM(model.router, router_names, "softmax", FIXED,
          "How the scores of the router become the choice and the weights of experts. softmax: the largest "
          "probabilities, which are the weights (Qwen, OLMoE, DeepSeek-V2). softmax_topk: the largest scores, with "
          "the softmax over these as weights (Mixtral, GPT-OSS). sigmoid: the largest sigmoids, which are the weights "
          "(DeepSeek-V3). switch: softmax with one expert per token (Switch Transformer).")},
    {BOOL(model.router_norm, "false", FIXED,
          "Divide the weights of a token's experts by their sum (Qwen3, DeepSeek-V3).")},
    {BOOL(model.router_bias, "false", FIXED, "Add a learned bias to the router's scores (GPT-OSS).")},
    {FLOAT(model.router_scale, 1e-6, 1e6, "1", FIXED, "Factor of all weights (routed_scaling_factor of DeepSeek).")},
    {INT(model.router_groups, 1, JOB_MAX_EXPERTS, "1", FIXED,
         "Number of groups of consecutive experts. A token uses only experts of its model.router_groups_kept best "
         "groups (DeepSeek).")},
    {INT(model.router_groups_kept, 1, JOB_MAX_EXPERTS, "1", FIXED, "Number of groups from which a token may choose.")},
    {INT(model.router_group_best, 1, JOB_MAX_EXPERTS, "1", FIXED,
         "Number of a group's largest scores whose sum is the score of the group: 1 in DeepSeek-V2, 2 in V3.")},
    {FLOAT(model.aux_loss, 0, 1e6, "0", FREE,
           "Coefficient of the auxiliary loss that keeps experts equally busy. 0: none; 0.01 and 0.001 are usual.")},
    {ENUM(model.aux_scope, aux_scope_names, "sample", FREE,
          "Tokens among which the auxiliary loss balances experts: each sample, each microbatch "
          "(train.micro_batch samples), or the whole batch, with the numbers of tokens of the step before.")},
    {FLOAT(model.expert_bias, 0, 1, "0", FREE,
           "Step of the biases that balance experts without a loss (DeepSeek-V3): after each update the bias of an "
           "expert rises by about this much if it had fewer tokens than the mean, and falls if it had more. 0: no "
           "biases; 0.001 is usual.")},
    {FLOAT(
        model.expert_capacity, 0, 1e6, "0", FREE,
        "Capacity factor (Switch Transformer): among the train.seq tokens of a sample an expert computes at most this "
        "factor times the mean, train.seq x model.experts_per_token / model.experts, rounded up; the other choices "
        "are dropped. 0: no token is dropped; 1.25 is usual.")},
    {ENUM(
        model.expert_drop, drop_names, "position", FREE,
        "Which choices an expert keeps if a sample has more than model.expert_capacity allows. position: those of the "
        "first tokens (Switch Transformer). probability: those with the largest weights, of equal ones those of the "
        "first tokens; a token's result then depends on later tokens.")},
    {FLOAT(model.z_loss, 0, 1e6, "0", FREE,
           "Coefficient of the router's z-loss, which keeps its scores small. 0: none; 0.001 is usual.")},

    {ITEMS(data.train, data.n_train, SCHEMA_LIST, check_path, NULL, FREE,
           "Training files. Patterns with *, ? and [] are expanded; relative paths start at the job file's folder. A "
           "resumed job may name other paths if the content is the same.")},
    {ITEMS(data.valid, data.n_valid, SCHEMA_LIST, check_path, "[]", FREE,
           "Validation files, evaluated every train.eval_every steps. Paths as in data.train.")},
    {ITEMS(data.test, data.n_test, SCHEMA_LIST, check_path, "[]", FREE,
           "Test files, evaluated once, in full, after the last step. Paths as in data.train.")},
    {ENUM(data.tokenizer, tokenizer_names, "bytes", FIXED,
          "bytes: one token per byte, 256 in all. words: split at white space, with an end-of-line token after each "
          "line and a vocabulary built from the training files. split: Python's text.split(), with the sorted words of "
          "the "
          "training files as vocabulary; words of other files that are not in it are dropped. bpe: read from "
          "data.tokenizer_files.")},
    {ITEMS(data.tokenizer_files, data.n_tokenizer_files, SCHEMA_LIST, check_path, "[]", FREE,
           "Tokenizer files in Hugging Face format (bpe): vocab.json and merges.txt, or tokenizer.json. Paths as in "
           "data.train. A resumed job may name other paths if the content is the same.")},
    {BOOL(data.lowercase, "false", FIXED,
          "Convert to lower case before tokenization: words A-Z only, split as Python's str.lower().")},
    {TEXT(data.format, check_short, "auto", FREE,
          "Format of the data files. auto: by their content (docs/use/data-formats.md lists the formats). text: files "
          "are joined. jsonl: one document per line. parquet, arrow, hdf5: one document per row. megatron, llmc, "
          "datatrove, npy: token ids. uint16, uint32, int32 or int64: token ids and nothing else.")},
    {TEXT(
        data.field, check_short, "\"\"", FREE,
        "Key or column of the text in files of documents. \"\": text, input_ids, messages, or prompt and completion.")},
    {TEXT(data.label, check_short, "label", FREE, "Key or column of the class of a row's text, with model.labels.")},
    {TEXT(data.bos, check_short, "\"\"", FREE,
          "Token before each document. \"\" or file: what the tokenizer file's post-processor puts there. none. "
          "always: the "
          "token with a usual name. Else the text of a token, such as <s>. For token ids: where documents begin.")},
    {TEXT(data.eos, check_short, "\"\"", FREE,
          "Token behind each document. \"\" or auto: always, if the tokenizer has a token with a usual name. none. "
          "always. file: what the tokenizer's file puts behind a text; with model.labels auto is this. "
          "Else the text of a token, such as </s>. For token ids: where documents end.")},
    {BOOL(data.raw, "false", FREE,
          "Train on the bytes of files as they are, whatever they contain. Without it, formats are recognised, and "
          "what is "
          "none of them and no text (UTF-16, pictures, programs) is refused.")},
    {ENUM(data.template, template_names, "none", FREE,
          "How conversations (messages, prompt and completion) become tokens: as the chat template of Llama 3, ChatML "
          "(Qwen, SmolLM), Mistral 7B v0.1, Gemma or Phi-3. Only the assistant's turns count in the loss, with the "
          "token that ends them. Needs the tokenizer bpe.")},
    {ENUM(data.documents, documents_names, "joined", FIXED,
          "separate: attention does not read across documents that share a sample, and the first token of a document "
          "is not predicted. joined: a sample is one text, whatever it contains.")},
    {ENUM(data.packing, packing_names, "wrapped", FIXED,
          "wrapped: documents follow each other and are cut every train.seq tokens. best_fit: samples are filled with "
          "whole documents, as tightly as they fit, and only longer ones are cut; needs data.documents: separate.")},
    {INT(data.stride, 0, 1 << 22, "0", FIXED,
         "Tokens from the begin of a sample to the begin of the next, in all splits; 1 to train.seq. 0: train.seq, so "
         "that samples do not overlap. 1: every window of train.seq tokens is a sample.")},
    {ITEMS(data.weights, data.n_weights, SCHEMA_LIST, check_weight, "[]", FIXED,
           "Makes a mixture of the items of data.train: one number above 0 for each item, which is a source. Samples "
           "come from the sources in these proportions, exact to one sample after any number of steps. []: all files "
           "are one source, without proportions.")},
    {ITEMS(data.passes, data.n_passes, SCHEMA_LIST, check_passes, "[]", FIXED,
           "The most passes over each source of a mixture, 0: no limit. A source leaves the mixture after its last "
           "pass, and the others keep their proportions. []: no limits.")},
    {ENUM(data.shuffle, shuffle_names, "samples", FIXED,
          "samples: the samples of a source are shuffled. blocks: blocks of 4 Mi tokens are, and samples within "
          "windows of 16 blocks, so that large files are read nearly in order: for data on Lustre or GPFS that does "
          "not fit into memory.")},
    {ENUM(data.order, order_names, "keep", FREE,
          "keep: a resumed job has the data and the order of its checkpoint. new: it may have other files, weights, "
          "passes, and another shuffle; it goes on at the same position of the new order, so samples may come again or "
          "be left out.")},
    {TEXT(data.cache, check_path_or_none, "\"\"", FREE,
          "Folder for tokenized data. \"\": dtd/data in the user's cache folder (XDG_CACHE_HOME, or ~/.cache).")},
    {TEXT(data.stage, check_stage, "none", FREE,
          "Copies the tokenized data once per node before training, to a place that is nearer than data.cache; the "
          "copy ends with the job. none. shm: to /dev/shm. A folder of each node. auto: to $SLURM_TMPDIR, or to "
          "/dev/shm if the data is at most a fifth of free memory. Without room there, the data is read in place, and "
          "the log of a worker gives the reason (docs/use/data.md).")},
    {TEXT(data.train_hash, check_hash, "\"\"", FIXED,
          "Hash that names the tokenized training data. dtctl sets it; do not set it yourself.")},
    {ITEMS(data.more_hashes, data.n_more_hashes, SCHEMA_LIST, check_hash, "[]", FIXED,
           "Hashes of the other sources of a mixture, in order. dtctl sets them; do not set them yourself.")},
    {TEXT(data.valid_hash, check_hash, "\"\"", FREE,
          "Hash that names the tokenized validation data. dtctl sets it; do not set it yourself.")},
    {TEXT(data.test_hash, check_hash, "\"\"", FREE,
          "Hash that names the tokenized test data. dtctl sets it; do not set it yourself.")},

    {INT(train.steps, 1, MAX_STEPS, NULL, FREE,
         "Total number of training steps (optimizer updates), including those before a resume."),
     .unit = UNIT_COUNT},
    {INT(train.seq, 1, 1 << 22, "256", FIXED, "Sequence length in tokens.")},
    {INT(train.global_batch, 1, 1 << 24, "16", FIXED, "Global batch: sequences per step, over all workers.")},
    {INT(train.micro_batch, 1, 1 << 20, "4", FREE,
         "Microbatch: sequences that a worker processes in one forward and backward pass.")},
    {FLOAT(train.lr, 0, 1000, "3e-4", FREE, "Peak learning rate.")},
    {FLOAT(train.min_lr_ratio, 0, 1, "0.1", FREE, "Final learning rate, as a fraction of train.lr.")},
    {ENUM(train.schedule, lr_names, "cosine", FREE,
          "Learning-rate schedule after the warm-up. wsd (warm-up, stable, decay): constant, then linear decay over "
          "the last train.decay steps.")},
    {INT(train.warmup, 0, MAX_STEPS, "0", FREE,
         "Number of warm-up steps, in which the learning rate rises linearly from 0."),
     .unit = UNIT_COUNT},
    {INT(train.decay, 0, MAX_STEPS, "0", FREE, "Number of decay steps at the end (wsd)."), .unit = UNIT_COUNT},
    {FLOAT(
        train.weight_decay, 0, 100, "0.1", FREE,
        "AdamW weight decay. It applies to weight matrices and embeddings, not to biases and normalization layers.")},
    {FLOAT(train.clip, 0, 1e9, "1", FREE,
           "Maximum norm of the gradient over all parameters; larger gradients are scaled down. 0: no clipping.")},
    {FLOAT(train.beta1, 0, 0.999999, "0.9", FREE, "AdamW beta1: decay rate of the first moment.")},
    {FLOAT(train.beta2, 0, 0.99999999, "0.95", FREE, "AdamW beta2: decay rate of the second moment.")},
    {FLOAT(train.eps, 1e-30, 1, "1e-8", FREE, "AdamW epsilon, added to the denominator.")},
    {ENUM(train.dtype, dtype_names, "float32", FREE,
          "Type of activations and matrix products. If the key is left out and train.numerics is proof: float64. With "
          "bfloat16, parameters and optimizer state are stored in float32, so a resumed job may change between "
          "float32 and bfloat16, but not to or from float64. On a CPU, bfloat16 needs AVX512_BF16 or AMX to save time; "
          "on other processors it saves memory only."),
     .also = dtype_also},
    {ENUM(train.numerics, numerics_names, "fast", FREE,
          "fast: the fastest kernels. canonical: results are bit-identical on any number of workers. proof: float64 "
          "on the reference kernels.")},
    {INT(train.eval_every, 0, MAX_STEPS, "0", FREE,
         "Evaluate data.valid every so many steps, and after the last step. 0: never."),
     .unit = UNIT_COUNT},
    {INT(train.eval_batches, 0, MAX_STEPS, "0", FREE,
         "Number of global batches per evaluation. 0: the whole of data.valid.")},
    {FLOAT(train.dropout, 0, 0.999, "0", FREE, "Dropout probability, where the model has dropout (transformer).")},
    {ENUM(train.nan, nan_names, "stop", FREE,
          "Action when the loss or the gradient norm is not finite. stop: stop the job. skip: skip the update and "
          "continue.")},
    {INT(train.nan_limit, 1, MAX_STEPS, "10", FREE,
         "Number of consecutive skipped updates after which the job stops (train.nan: skip).")},
    {INT(train.verify_every, 0, MAX_STEPS, "100", FREE,
         "Every so many steps, check that the copies of each parameter on different workers are identical; a "
         "difference is an error. 0: never."),
     .unit = UNIT_COUNT},
    {UINT(train.seed, "1", FIXED, "Random seed for parameter initialization, sample order and dropout.")},
    {TEXT(train.save_routing, check_path_or_none, "\"\"", FREE,
          "Folder in which every worker saves the experts that routers choose, by step, sample and token. A relative "
          "path "
          "starts at the job file's folder. \"\": they are not saved.")},
    {TEXT(train.replay_routing, check_path_or_none, "\"\"", FREE,
          "Folder of another job's train.save_routing: routers use the experts of that job, with weights of their own "
          "scores. The job may have any other layout and type. \"\": routers choose.")},

    {INT(parallel.workers, 1, JOB_MAX_WORKERS, "1", FREE,
         "Number of workers; a multiple of fsdp x tp x pp x cp. The quotient is the data-parallel degree.")},
    {INT(parallel.min_workers, 0, JOB_MAX_WORKERS, "0", FREE,
         "Minimum number of workers with which the job starts or continues, in whole replicas (fsdp x tp x pp x cp). "
         "0: parallel.workers.")},
    {.key = "parallel.auto", /* no field of C can have this name */
     .type = SCHEMA_BOOL,
     .whole = true,
     .resume = FREE,
     .offset = offsetof(struct job_spec, parallel.automatic),
     .def = "false",
     .help =
         "Whether dtd chooses the layout: tp, cp, pp, ep, fsdp, zero, schedule, chunks, recompute and "
         "train.micro_batch, for the workers that there are, and again when their number changes. `parallel: auto` is "
         "short for {auto: true}. Keys that the file sets keep their values. Without parallel.workers the job takes "
         "all slots of the nodes, and continues on as few as its model fits on (docs/use/choose-a-layout.md)."},
    {ITEMS(parallel.fixed, parallel.n_fixed, SCHEMA_LIST, check_fixed, "[]", FREE,
           "The keys that keep their values with parallel.auto. Left out: those that the file sets.")},
    {TEXT(
        parallel.machine, NULL, "\"\"", FREE,
        "The machine for which parallel.auto plans: a name or a file as in `dtctl plan --machine`. dtctl submit "
        "replaces it by the text of the file. \"\": the node of dtctl submit, as `dtctl plan --calibrate` has measured "
        "it, else with assumed rates.")},
    {INT(parallel.zero, 0, 3, "0", FREE,
         "ZeRO stage: what is sharded over parallel.fsdp. 1: optimizer state. 2: also gradients. 3: also parameters. A "
         "file that sets parallel.fsdp above 1 and leaves this out gets 3, which is PyTorch's FSDP.")},
    {INT(parallel.fsdp, 1, JOB_MAX_WORKERS, "1", FREE, "Sharding degree (ZeRO).")},
    {INT(parallel.tp, 1, JOB_MAX_WORKERS, "1", FREE, "Tensor-parallel degree.")},
    {BOOL(parallel.sp, "true", FREE, "Sequence parallelism, in combination with tensor parallelism.")},
    {BOOL(parallel.async_tp, "false", FREE,
          "Asynchronous tensor parallelism: the forward pass overlaps matrix products with the collectives before and "
          "after them. Needs parallel.sp, and GPUs or run.comm_thread on.")},
    {INT(parallel.pp, 1, JOB_MAX_WORKERS, "1", FREE, "Pipeline-parallel degree.")},
    {ENUM(parallel.schedule, pipe_names, "1f1b", FREE,
          "Pipeline schedule. file: take the schedule from parallel.schedule_csv.")},
    {TEXT(parallel.schedule_csv, NULL, "\"\"", FREE,
          "Pipeline schedule as CSV text, one line per pipeline rank, in dtd's form or PyTorch's (schedule file; "
          "formats: "
          "docs/internals/schedules.md).")},
    {BOOL(parallel.post_validation, "false", FREE,
          "Ranks of a pipeline that finish a step early (zb-h2, zb-v) update at once, as if the norm of the gradients "
          "required no clipping, and begin the next step. If the norm then clips or is not a number, they go back and "
          "repeat the update. Results do not change by a bit. A copy of parameters and moments costs 12 bytes per "
          "parameter (float64: 24).")},
    {INT(parallel.chunks, 1, 64, "1", FREE,
         "Model stages per pipeline rank (interleaved, file; zb-v and dualpipe-v have 2).")},
    {INT(parallel.prefetch, 0, 64, "1", FREE,
         "Number of layers whose parameters are all-gathered ahead of their use (ZeRO 3).")},
    {BOOL(parallel.reshard, "true", FREE,
          "Free gathered parameters after the forward pass and gather them again for the backward pass (ZeRO 3).")},
    {INT(parallel.cp, 1, JOB_MAX_WORKERS, "1", FREE,
         "Context-parallel degree: the sequence is split over so many workers (ring attention).")},
    {INT(parallel.ep, 1, JOB_MAX_WORKERS, "1", FREE,
         "Expert-parallel degree: over how many ranks the experts of a layer are cut. tp, then cp, then fsdp are "
         "filled, of the last one also a part that divides it.")},
    {ENUM(parallel.expert_load, expert_load_names, "routed", FREE,
          "Which rows of experts a rank computes (parallel.ep). routed: those that the router sends to its experts. "
          "balanced: equally many on every rank, whatever the router chooses: a rank with few rows borrows experts of "
          "another rank for one layer and microbatch. Memory then does not depend on the routing.")},
    {FLOAT(parallel.expert_rows, 0, 1e6, "0", FREE,
           "For how many rows of experts a rank has room at once (parallel.ep), as a multiple of their mean. Where the "
           "router sends more, a layer computes them in rounds, one after another; a round without rows costs next to "
           "nothing. 0: room for all rows that any routing sends; 1.25 is usual. Needs parallel.recompute experts or "
           "full.")},
    {ENUM(
        parallel.dispatch, dispatch_names, "all_to_all", FREE,
        "How tokens get to the ranks of their experts (ep). all_to_all: a row for each choice of an expert of another "
        "rank. all_gather: every token to every rank of the group, and each takes the rows of its experts; fewer "
        "bytes if ep is below model.experts_per_token. Results return by all_to_all with both.")},
    {ENUM(parallel.recompute, recompute_names, "none", FREE,
          "Activation checkpointing: what the backward pass recomputes instead of keeping it. full: everything in a "
          "layer except its input. pointwise: normalization layers and activation functions. attention: the "
          "attention. experts: the rows of experts, which are sent to them again, so that their room for any routing "
          "exists once and not for each microbatch in flight.")},

    {TEXT(checkpoint.dir, check_path_or_none, "\"\"", FREE,
          "Checkpoint folder. A relative path starts at the job file's folder. \"\": checkpoints/NAME.")},
    {INT(checkpoint.every, 0, MAX_STEPS, "100", FREE,
         "Save a checkpoint every so many steps, and after the last step. 0: only after the last step."),
     .unit = UNIT_COUNT},
    {INT(checkpoint.memory_every, 0, MAX_STEPS, "0", FREE,
         "Save to the memory of other nodes every so many steps. This version cannot: only 0 (never) is accepted."),
     .hidden = true},
    {INT(checkpoint.keep_last, 1, 1000000, "3", FREE, "Number of newest checkpoints to keep.")},
    {INT(checkpoint.keep_best, 0, 1000000, "1", FREE,
         "Number of checkpoints to keep in addition because they have the lowest validation loss (or training loss, if "
         "the job does not evaluate).")},
    {TEXT(checkpoint.resume_from, check_path_or_none, "\"\"", FREE,
          "Checkpoint step folder to resume from. dtctl resume sets it. \"\": start from the beginning.")},
    {ENUM(
        checkpoint.optimizer, optimizer_names, "auto", FREE,
        "Optimizer state of checkpoint.resume_from. require: it must be complete. fresh: it is not loaded, the moments "
        "start at zero. auto: require if the checkpoint has any, else fresh; dtctl submit decides and reports it.")},
    {ENUM(
        checkpoint.on_damage, damage_names, "older", FREE,
        "What happens if the checkpoint to load is damaged or cannot be read. older: the job continues from the next "
        "older one in checkpoint.dir, reports it, and the damaged one is put aside. fail: the job fails. dtctl resume "
        "of one step folder sets fail.")},
    {ITEMS(
        checkpoint.map, checkpoint.n_map, SCHEMA_LIST, check_map, "[]", FREE,
        "Rules FROM=TO for a checkpoint.resume_from with other names: a tensor whose name begins with FROM is read "
        "under the name that begins with TO instead. A * in FROM stands for one component of the name, and a * in TO "
        "for the same. The first rule that fits counts. dtctl adds rules for names of newer versions of torchtitan if "
        "there are none. Example: [\"model.=\"].")},

    {TEXT(
        checkpoint.take_over, check_incarnation, "\"\"", FREE,
        "Identity of the job from which this one takes checkpoint.dir over although that job still runs. dtctl submit "
        "and dtctl resume set it with --take-over. \"\": none.")},

    RUN_ROWS,
    {INT(run.grace_seconds, 0, JOB_MAX_GRACE_SECONDS, "120", FREE,
         "Seconds that the workers have when the job is stopped: to finish their step and, with a save, to write the "
         "checkpoint. Those that still run then are killed. Without a save their step has at most 10. `dtctl cancel "
         "--grace` overrides it. 0: they are killed at once. For a command, where it is 30 if not set, and for "
         "run.stop_signal: docs/use/pytorch.md."),
     .unit = UNIT_SECONDS},
    {TEXT(run.algorithms, check_path_or_none, "\"\"", FREE,
          "The file that keeps which algorithm each product uses, or a folder of such files (cuda; "
          "docs/internals/kernels.md). A "
          "product that is not in it is timed once and added, so that every job with the file computes the same bits. "
          "Empty: the folder algorithms in data.cache. none: nothing is timed.")},
    {TEXT(run.tensorboard, check_path_or_none, "\"\"", FREE,
          "Folder in which the job writes its metrics for TensorBoard while it runs, as the run jobID. A relative path "
          "starts at the job file's folder. \"\": none (docs/use/watch.md).")},
    {TEXT(run.wandb, check_path_or_none, "\"\"", FREE,
          "Folder in which the job writes its metrics as an offline run of Weights & Biases while it runs, for wandb "
          "sync. A relative path starts at the job file's folder. \"\": none (docs/use/watch.md).")},
    {TEXT(
        run.report, check_path_or_none, "\"\"", FREE,
        "File (.html or .pdf), or folder, for a report of the job when it has ended, also after a failure. In a folder "
        "it is job-ID.html. A relative path starts at the job file's folder. \"\": none (docs/use/watch.md).")},
    {TEXT(run.umask, check_umask, "\"\"", FREE,
          "Rights that the job's files and folders do not get, as umask(1) has them: 0077 keeps checkpoints, with the "
          "weights and the job file, from all other users. `dtctl submit` sets it to the umask of its caller. \"\": "
          "0022.")},
    {TEXT(run.limits, check_limits, "\"\"", FREE,
          "Resource limits and niceness of the workers, such as \"nproc=500:500 niceness=5\", with the names of "
          "prlimit(1). `dtctl submit` sets it to the limits of its caller that are lower than those of process 1, and "
          "to its niceness. A limit that is left out, or higher than dtd's, is dtd's."),
     .since = RUN_LIMITS_SINCE},

    {TEXT(forecast.machine, check_machine, "\"\"", FREE,
          "Machine for the forecast of a step, as --machine of `dtctl plan`: a machine file or its name. \"\": this "
          "node as `dtctl plan --calibrate` measured it, else assumed rates. A relative path starts at the job file's "
          "folder.")},
    {TEXT(forecast.source, check_machine, "\"\"", FREE, "Name and source of the machine. " BY_SUBMIT)},
    {INT(forecast.workers, 0, JOB_MAX_WORKERS, "0", FREE,
         "Number of workers of the forecast. 0: there is none. " BY_SUBMIT)},
    {BOOL(forecast.assumed, "false", FREE, "Whether its rates are assumed. " BY_SUBMIT)},
    {SECONDS(compute_s, "All operations of all microbatches, without the optimizer.")},
    {SECONDS(recompute_s, "Of them, those that are computed again.")},
    {SECONDS(tp_s, "Collectives of tensor parallelism that computation does not hide.")},
    {SECONDS(cp_s, "The same of context parallelism.")},
    {SECONDS(ep_s, "The same of expert parallelism.")},
    {SECONDS(pp_s, "Messages between the stages of a pipeline.")},
    {SECONDS(bubble_s, "Idle time of the pipeline.")},
    {SECONDS(wait_s, "Waiting for the slowest device.")},
    {SECONDS(params_s, "Gathers of parameters.")},
    {SECONDS(grads_s, "Reduction of gradients.")},
    {SECONDS(update_s, "The optimizer.")},
};

static const char *check_argument(const char *text)
{
    return strlen(text) < 16384 ? NULL : "an argument of at most 16383 bytes";
}

static const char *check_caller(const char *text)
{
    struct caller c;
    return caller_parse(text, &c) ? "settings such as \"env umask=0022 ignored=1,2 nofile=1024:4096\"" : NULL;
}

static const char *check_master(const char *text)
{
    return strlen(text) < 256 && !strpbrk(text, " \t\n=") ? NULL : "a host name, an IP address, or auto";
}

static const struct schema_row command_rows[] = {
    {TEXT(name, check_name, NULL, FREE, "Name of the job; used in file names.")},
    {ITEMS(command, n_command, SCHEMA_LIST, check_argument, NULL, FREE,
           "Program that every worker runs, and its arguments. A job with a command has no model, data or train "
           "section.")},
    {INT(parallel.workers, 1, JOB_MAX_WORKERS, "1", FREE,
         "Number of workers. With run.nodes, each node runs the same number.")},
    {INT(parallel.min_workers, 0, JOB_MAX_WORKERS, "0", FREE,
         "Minimum number of workers with which the job starts or continues, in whole nodes. 0: parallel.workers.")},
    RUN_ROWS,
    {TEXT(run.master_addr, check_master, "\"\"", FREE,
          "MASTER_ADDR of the workers: a host name or an IP address of the node of rank 0, or auto: the address at "
          "which other nodes reach that node. Rank 0 then opens the rendezvous itself, at run.master_port. \"\": "
          "127.0.0.1 on every node, where dtd serves the rendezvous.")},
    {INT(run.master_port, 0, 65535, "0", FREE,
         "MASTER_PORT of the workers, with run.master_addr only. 0: a port from 20000 to 29999, another one for each "
         "attempt.")},
    {INT(run.grace_seconds, 0, JOB_MAX_GRACE_SECONDS, "30", FREE,
         "Seconds between run.stop_signal and SIGKILL when the workers are stopped: the job is canceled, has reached "
         "run.max_seconds, or another worker has failed. `dtctl cancel --grace` overrides it. 0: they are killed at "
         "once, without run.stop_signal."),
     .unit = UNIT_SECONDS},
    {ENUM(run.stop_signal, signal_names, "TERM", FREE,
          "Signal that asks the workers to stop, also with SIG before its name. It is sent to the process group of "
          "each worker."),
     .also = signal_also},
    {TEXT(run.caller, check_caller, "\"\"", FREE,
          "Settings of the process that called dtctl run, which sets this key: umask, resource limits, niceness, "
          "ignored and blocked signals. \"\": those of the daemon, with no signal ignored.")},
    {ITEMS(run.caller_env, run.n_caller_env, SCHEMA_LIST, NULL, "[]", FREE,
           "Environment of the process that called dtctl run, which sets this key: KEY=VALUE for each variable.")},
};

static const struct schema_section command_sections[] = {
    {"parallel", "Number of workers."},
    {"run", "Where and how the workers run. comm, orphan_seconds, hang_seconds and timeline_step apply to training "
            "jobs only."},
};

const struct schema command_schema = {
    .title = "A job with a command",
    .intro = "The job file that `dtctl run` creates from its arguments.",
    .sections = command_sections,
    .n_sections = sizeof(command_sections) / sizeof(command_sections[0]),
    .rows = command_rows,
    .n_rows = sizeof(command_rows) / sizeof(command_rows[0]),
    .size = sizeof(struct job_spec),
};

static const struct schema_section sections[] = {
    {"model", "The model to train."},
    {"data", "Training text and its tokenization."},
    {"train", "Training hyperparameters: batch, learning rate, optimizer, evaluation."},
    {"parallel", "Number of workers and parallel layout. `parallel: auto` lets dtd choose it."},
    {"checkpoint", "When and where checkpoints are saved, and how many are kept."},
    {"run", "Where and how the workers run."},
    {"forecast", "What a step should take, for comparison with what it takes (docs/use/watch.md)."},
};

const struct schema job_schema = {
    .title = "The job file",
    .intro =
        "One YAML file describes a job. `dtctl submit FILE --set KEY=VALUE` overrides a key. VALUE is parsed as YAML, "
        "so\n"
        "`--set 'data.train=[a.txt, b.txt]'` sets a list. Unknown keys, duplicate keys, numbers with an\n"
        "underscore, and YAML anchors, aliases and tags are errors. Steps may be written as 2k or 1.5M, and\n"
        "times as 90s, 30m or 1h. The column \"on resume\" shows which keys a resumed job may change. This page is "
        "generated from the table in `common/conf/job.c` by `ninja manuals`.",
    .sections = sections,
    .n_sections = sizeof(sections) / sizeof(sections[0]),
    .aliases = job_aliases,
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .size = sizeof(struct job_spec),
};

static err_t replace_text(char **text, const char *folder, const char *name)
{
    char *joined;
    if (asprintf(&joined, "%s/%s", folder, name) < 0)
        return ERR_NOMEM;
    free(*text);
    *text = joined;
    return OK;
}

bool job_stop_signal(const char *name, int *ret)
{
    const struct schema_name *const lists[] = {signal_names, signal_also};
    for (int i = 0; i < 2; i++)
        for (const struct schema_name *n = lists[i]; n->name; n++)
            if (strcmp(n->name, name) == 0) {
                *ret = n->value;
                return true;
            }
    return false;
}

bool job_is_command(const struct job_spec *job)
{
    return job->n_command > 0;
}

static const struct schema *schema_of(const struct job_spec *job)
{
    return job_is_command(job) ? &command_schema : &job_schema;
}

/* Whether the text describes a command job: it has the key `command`. The caller reports text that is not YAML. */
static bool names_command(const char *text, size_t len)
{
    struct tree_node *tree;
    struct tree_error error;
    bool found = false;
    if (tree_parse(text, len, &tree, &error))
        return false;
    for (const struct tree_node *c = tree->kind == TREE_MAP ? tree->first : NULL; c && !found; c = c->next)
        found = strcmp(c->key, "command") == 0;
    tree_free(tree);
    return found;
}

static err_t list_append(char ***list, int *n, const char *text)
{
    char **grown = realloc(*list, ((size_t)*n + 1) * sizeof(*grown)), *copy = strdup(text);
    if (grown)
        *list = grown;
    if (!grown || !copy) {
        free(copy);
        return ERR_NOMEM;
    }
    grown[(*n)++] = copy;
    return OK;
}

static bool is_fixed(const struct job_parallel *p, const char *name)
{
    for (int i = 0; i < p->n_fixed; i++)
        if (strcmp(p->fixed[i], name) == 0)
            return true;
    return false;
}

bool job_keeps(const struct job_spec *job, const char *name)
{
    return !job->parallel.automatic || is_fixed(&job->parallel, name);
}

/* A spec that dtd has printed has all keys, and `fixed` among them; there only a --set fixes another key. */
static err_t fixed_complete(const struct schema_reader *r, struct job_spec *job)
{
    struct job_parallel *p = &job->parallel;
    const bool listed = schema_given(r, "parallel.fixed");
    err_t err = OK;
    p->all_workers = p->automatic && !schema_given(r, "parallel.workers");
    for (int i = 0; p->automatic && !err && i < N_LAYOUT_KEYS; i++) {
        const char *key = layout_keys[i], *name = key_name(key);
        if ((listed ? schema_overridden(r, key) : schema_given(r, key)) && !is_fixed(p, name))
            err = list_append(&p->fixed, &p->n_fixed, name);
    }
    return err;
}

/* The other keys of a spec that dtd has printed have the values of a layout. They go if a --set changes a key, because
 * the rules would compare it with the rest of that layout. The microbatch stays: canonical sums depend on it. */
static void layout_forget(const struct schema_reader *r, struct job_spec *job)
{
    const struct {
        const char *name;
        int64_t *value, usual;
    } keys[] = {{"tp", &job->parallel.tp, 1},        {"cp", &job->parallel.cp, 1},     {"pp", &job->parallel.pp, 1},
                {"ep", &job->parallel.ep, 1},        {"fsdp", &job->parallel.fsdp, 1}, {"zero", &job->parallel.zero, 0},
                {"chunks", &job->parallel.chunks, 1}};
    bool changed = false;
    for (int i = 0; i < N_LAYOUT_KEYS; i++)
        changed |= schema_overridden(r, layout_keys[i]);
    for (size_t i = 0; job->parallel.automatic && changed && i < sizeof(keys) / sizeof(keys[0]); i++)
        if (!is_fixed(&job->parallel, keys[i].name))
            *keys[i].value = keys[i].usual;
}

/* Defaults that depend on other keys. */
static err_t complete(const struct schema_reader *r, struct job_spec *job)
{
    if (r->schema == &command_schema) {
        struct job_parallel *p = &job->parallel;
        p->fsdp = p->tp = p->pp = p->cp = p->ep = 1;
        return OK;
    }
    if (job->train.numerics == NUMERICS_PROOF && !schema_given(r, "train.dtype"))
        job->train.dtype = DT_F64;
    job->model.documents = job->data.documents == DOCUMENTS_SEPARATE;
    if (job_arch_rules(job->model.arch)->head == HEAD_ALWAYS && !schema_given(r, "model.tied"))
        job->model.tied = true;
    err_t err = fixed_complete(r, job);
    layout_forget(r, job);
    return err || job->checkpoint.dir[0] ? err : replace_text(&job->checkpoint.dir, "checkpoints", job->name);
}

err_t job_parse(const char *file, const char *text, size_t len, const char *const *sets, int n_sets,
                struct job_spec *ret, struct why *why)
{
    struct job_spec job;
    struct schema_reader r;
    why_set(why, OK, "%s", err_text(ERR_NOMEM)); /* the only failure below that sets no sentence */
    const struct schema *schema = names_command(text, len) ? &command_schema : &job_schema;
    err_t err = schema_start(&r, schema, file, &job, why);
    if (!err)
        err = schema_read(&r, text, len, why);
    for (int i = 0; !err && i < n_sets; i++)
        err = schema_set(&r, sets[i], why);
    if (!err)
        err = schema_finish(&r, why);
    if (!err && job.parallel.fsdp > 1 && !job.parallel.automatic && !schema_given(&r, "parallel.zero"))
        job.parallel.zero = 3; /* as fully sharded data parallelism is understood elsewhere */
    if (!err)
        err = complete(&r, &job);
    if (!err)
        err = job_rules_check(&r, &job, why);
    if (err) {
        schema_fini(schema, &job);
        return err;
    }
    *ret = job;
    return OK;
}

void job_fini(struct job_spec *job)
{
    schema_fini(schema_of(job), job);
}

static void list_free(char **list, int n)
{
    for (int i = 0; i < n && list; i++)
        free(list[i]);
    free(list);
}

static err_t list_copy(char *const *list, int n, char ***ret)
{
    *ret = n ? calloc((size_t)n, sizeof(**ret)) : NULL;
    if (n && !*ret)
        return ERR_NOMEM;
    for (int i = 0; i < n; i++)
        if (!((*ret)[i] = strdup(list[i])))
            return ERR_NOMEM;
    return OK;
}

void job_model_fini(struct job_model *m)
{
    list_free(m->rope_short, m->n_rope_short);
    list_free(m->rope_long, m->n_rope_long);
    free(m->rope_layers);
    memset(m, 0, sizeof(*m));
}

err_t job_model_copy(const struct job_model *m, struct job_model *ret)
{
    struct job_model copy = *m;
    copy.rope_short = copy.rope_long = NULL;
    copy.rope_layers = m->rope_layers ? strdup(m->rope_layers) : NULL;
    err_t err = m->rope_layers && !copy.rope_layers ? ERR_NOMEM : OK;
    err = err ? err : list_copy(m->rope_short, m->n_rope_short, &copy.rope_short);
    err = err ? err : list_copy(m->rope_long, m->n_rope_long, &copy.rope_long);
    if (err)
        job_model_fini(&copy);
    else
        *ret = copy;
    return err;
}

err_t job_print(const struct job_spec *job, struct buf *ret)
{
    return schema_print(schema_of(job), job, ret);
}

err_t job_since(const struct job_spec *job, uint32_t *ret, const char **ret_key)
{
    return schema_since(schema_of(job), job, ret, ret_key);
}

/* The type in which the job's checkpoints store parameters. */
static enum dtype saved_dtype(const struct job_spec *job)
{
    return job->train.dtype == DT_BF16 ? DT_F32 : (enum dtype)job->train.dtype;
}

static bool same_texts(char *const *a, int n_a, char *const *b, int n_b)
{
    bool same = n_a == n_b;
    for (int i = 0; same && i < n_a; i++)
        same = strcmp(a[i], b[i]) == 0;
    return same;
}

#define KEEP_ORDER                                                                                       \
    "To go on with it from the same position of the new order, where samples may come again or be left " \
    "out: --set data.order=new"

/* The keys that make the order of the data. */
static err_t order_check(const struct job_spec *before, const struct job_spec *after, struct why *why)
{
    const struct job_data *a = &before->data, *b = &after->data;
    if (!a->train_hash[0] || !b->train_hash[0] || b->order == CHANGE_NEW)
        return OK;
    if (strcmp(a->train_hash, b->train_hash) != 0 ||
        !same_texts(a->more_hashes, a->n_more_hashes, b->more_hashes, b->n_more_hashes))
        return why_set(why, ERR_INVALID,
                       "data.train: the checkpoint was trained on other files, and its place in them means nothing in "
                       "these. To train its weights on other data, begin anew with them: dtctl ckpt export CHECKPOINT "
                       "MODEL, then dtctl ckpt import MODEL JOB.yaml. " KEEP_ORDER);
    const char *key = !same_texts(a->weights, a->n_weights, b->weights, b->n_weights) ? "data.weights"
                      : !same_texts(a->passes, a->n_passes, b->passes, b->n_passes)   ? "data.passes"
                      : a->documents != b->documents                                  ? "data.documents"
                      : a->packing != b->packing                                      ? "data.packing"
                      : a->stride != b->stride                                        ? "data.stride"
                      : a->shuffle != b->shuffle                                      ? "data.shuffle"
                                                                                      : NULL;
    return key ? why_set(why, ERR_INVALID,
                         "%s: the checkpoint has another, and so another order of the data. " KEEP_ORDER, key)
               : OK;
}

/* Takes these keys from another job, without ownership. */
static void order_take(struct job_data *to, const struct job_data *from)
{
    to->train_hash = from->train_hash;
    to->more_hashes = from->more_hashes;
    to->n_more_hashes = from->n_more_hashes;
    to->weights = from->weights;
    to->n_weights = from->n_weights;
    to->passes = from->passes;
    to->n_passes = from->n_passes;
    to->shuffle = from->shuffle;
    to->documents = from->documents;
    to->packing = from->packing;
    to->stride = from->stride;
}

err_t job_resume_check(const struct job_spec *before, const struct job_spec *after, struct why *why)
{
    if (job_is_command(before) || job_is_command(after))
        return why_set(why, ERR_INVALID,
                       "a job with a command manages its own checkpoints; start it again with `dtctl run`");
    if (saved_dtype(before) != saved_dtype(after))
        return why_set(
            why, ERR_INVALID,
            "train.dtype: the checkpoint's job has %s, this one %s; a job cannot resume from %s parameters in the "
            "other type: leave the key out, or start a new job",
            dtype_name((enum dtype)before->train.dtype), dtype_name((enum dtype)after->train.dtype),
            dtype_name(saved_dtype(before)));
    err_t err = order_check(before, after, why);
    if (err)
        return err;
    /* A model that was imported and not trained yet has placeholders for what only training fixes. */
    struct job_spec compared = *before;
    if (!before->data.train_hash[0] || after->data.order == CHANGE_NEW)
        order_take(&compared.data, &after->data);
    if (!before->data.train_hash[0]) {
        compared.train.seq = after->train.seq;
        compared.train.global_batch = after->train.global_batch;
        compared.train.seed = after->train.seed;
    }
    return schema_resume_check(&job_schema, &compared, after, why);
}

int job_umask(const struct job_spec *job)
{
    const char *text = job->run.umask;
    return text && text[0] ? (int)strtol(text, NULL, 8) : 022;
}

err_t job_paths_resolve(struct job_spec *job, const char *folder, struct why *why)
{
    char *machine = job->parallel.machine; /* a name has neither a slash nor a point; the text of a file has lines */
    const bool is_file = machine && strpbrk(machine, "/.") && !strchr(machine, '\n');
    char *none = NULL, **const paths[] = {is_file ? &job->parallel.machine : &none,
                                          &job->run.workdir,
                                          &job->run.algorithms,
                                          &job->checkpoint.dir,
                                          &job->checkpoint.resume_from,
                                          &job->data.cache,
                                          &job->train.save_routing,
                                          &job->train.replay_routing,
                                          &job->run.tensorboard,
                                          &job->run.wandb,
                                          &job->run.report,
                                          &job->forecast.machine};
    if (folder[0] != '/')
        return why_set(why, ERR_INVALID, "%s: the folder must be an absolute path", folder);
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        char *path = *paths[i];
        if (!path || !path[0] || path[0] == '/') /* NULL: command jobs have no such key */
            continue;
        if (paths[i] == &job->run.algorithms && strcmp(path, JOB_NO_ALGORITHMS) == 0)
            continue;
        if (paths[i] == &job->forecast.machine && !strpbrk(path, "/.")) /* the name of a file that dtd brings along */
            continue;
        if (strcmp(path, ".") == 0)
            path[0] = '\0'; /* leaves the folder and a slash, which is removed below */
        err_t err = replace_text(paths[i], folder, path);
        if (err)
            return why_set(why, err, "%s", err_text(err));
        size_t len = strlen(*paths[i]);
        if (len > 1 && (*paths[i])[len - 1] == '/')
            (*paths[i])[len - 1] = '\0';
    }
    return OK;
}

/* Fraction of the decay phase that is over, 0 to 1. */
static double decayed(const struct job_train *t, int64_t step)
{
    int64_t left = t->steps - step;
    if (left >= t->decay || t->decay == 0)
        return 0;
    return left <= 0 ? 1 : 1 - (double)left / (double)t->decay;
}

double job_lr(const struct job_train *t, int64_t step)
{
    if (step < t->warmup)
        return t->lr * (double)step / (double)t->warmup;
    double done = t->steps > t->warmup ? (double)(step - t->warmup) / (double)(t->steps - t->warmup) : 1;
    if (t->steps == t->warmup && step == t->warmup)
        done = 0;
    if (done > 1)
        done = 1;
    switch (t->schedule) {
    case LR_CONSTANT:
        return t->lr;
    case LR_COSINE:
        return t->lr * (t->min_lr_ratio + (1 - t->min_lr_ratio) * 0.5 * (1 + cos(M_PI * done)));
    case LR_LINEAR:
        return t->lr * (1 - (1 - t->min_lr_ratio) * done);
    case LR_WSD:
        return t->lr * (1 - (1 - t->min_lr_ratio) * decayed(t, step));
    }
    return t->lr;
}
