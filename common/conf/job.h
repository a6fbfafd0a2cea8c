/* The job file as a plain struct. Every key is a row of the schema table in job.c (type, range, default, help,
 * changeable on resume); --set, --help-keys and the manual docs/use/job-file.md are derived from that table. */
#ifndef DTD_COMMON_CONF_JOB_H
#define DTD_COMMON_CONF_JOB_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct schema;

#define RUN_LIMITS_SINCE 2 /* the cluster version that has run.limits, which dtctl sets by itself */

#define JOB_MAX_WORKERS 1048576
#define JOB_MAX_GRACE_SECONDS 86400 /* a day: longer than any save; a wait beyond it is a forgotten job */
#define JOB_STOP_SIGNALS "TERM, INT, HUP, QUIT, USR1, USR2 or ALRM" /* run.stop_signal, for messages */
#define JOB_NO_ALGORITHMS "none"
#define JOB_MAX_EXPERTS 1024 /* KERN_MAX_EXPERTS, KERN_MAX_CHOICES */
#define JOB_MAX_CHOICES 64

/* ARCH_LLAMA, ... of models.inc. */
#define X(id, name, builder, rotary, grouped, head, ffn) ARCH_##id,
enum model_arch {
#include "common/conf/models.inc"
};
#undef X
enum tokenizer_kind { TOKENIZER_BYTES, TOKENIZER_WORDS, TOKENIZER_BPE, TOKENIZER_SPLIT };
/* Whether the vocabulary is made of the words of the training files. */
static inline bool tokenizer_counts_words(enum tokenizer_kind kind)
{
    return kind == TOKENIZER_WORDS || kind == TOKENIZER_SPLIT;
}

/* How a router turns its logits into the choice and the weights of experts (kernels/kernels.h, struct kern_router).
 * switch: softmax with one expert per token, whose weight is its probability. */
enum router_kind { ROUTER_SOFTMAX, ROUTER_SOFTMAX_TOPK, ROUTER_SIGMOID, ROUTER_SWITCH };
/* The tokens over which the auxiliary loss balances experts. */
enum aux_scope { AUX_SAMPLE, AUX_MICRO_BATCH, AUX_BATCH };
/* The choices that an expert with a capacity keeps: those of the first tokens of a sample, or those with the largest
 * weights. */
enum drop_rule { DROP_POSITION, DROP_PROBABILITY };
/* wsd: warm-up, stable, decay: constant until the last train.decay steps, then linear decay. */
enum lr_schedule { LR_CONSTANT, LR_COSINE, LR_LINEAR, LR_WSD };
/* When the loss or gradient norm of a step is not finite: the job stops, or the step counts but updates nothing. */
enum nan_policy { NAN_STOP, NAN_SKIP };
/* What a job does with the optimizer state of the checkpoint that it resumes from. The client decides `auto` at submit,
 * so that all workers do the same. */
enum optimizer_policy { OPTIMIZER_AUTO, OPTIMIZER_REQUIRE, OPTIMIZER_FRESH };
enum numerics { NUMERICS_FAST, NUMERICS_CANONICAL, NUMERICS_PROOF };
/* PIPE_1F1B, ... of schedules.inc, then PIPE_FILE. */
#define X(id, name, fewest, most, placement, row) PIPE_##id,
enum pipe_schedule {
#include "common/conf/schedules.inc"
    PIPE_FILE
};
#undef X
/* RMSNorm of queries and keys before their rotation: none; of each head's columns; of all columns of a token. */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WHOLE };
/* The rows of experts that a rank of an ep group computes: those that the router sends to its experts; equally many on
 * all ranks. */
enum expert_load { EXPERT_LOAD_ROUTED, EXPERT_LOAD_BALANCED };
/* Activation checkpointing: the backward pass recomputes nothing; everything in a layer except its input;
 * normalization layers and activation functions; attention. */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_FULL, RECOMPUTE_POINTWISE, RECOMPUTE_ATTENTION, RECOMPUTE_EXPERTS };
/* How the rows of tokens get to the ranks of their experts. */
enum dispatch { DISPATCH_ALL_TO_ALL, DISPATCH_ALL_GATHER };
enum device { DEVICE_CPU, DEVICE_CUDA };
/* Backends of worker/comm. auto: stream on a CPU (which uses shm alone on one node); on GPUs, nccl if every worker has
 * its own GPU, else staged. */
enum comm_kind { COMM_AUTO, COMM_SHM, COMM_NCCL, COMM_STAGED, COMM_STREAM, COMM_UCX };
/* Whether a worker on a CPU communicates on a separate thread; auto: if it has a core for the thread. */
enum comm_thread_kind { COMM_THREAD_AUTO, COMM_THREAD_ON, COMM_THREAD_OFF };

/* Ways to stretch rotary positions beyond the sequences that a model was first trained on (plan/models/rope.c). */
enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_DYNAMIC, ROPE_YARN, ROPE_LONGROPE };
/* rms1: an RMSNorm whose factors are 1 + weight (Gemma). */
enum norm_kind { NORM_RMS, NORM_RMS1, NORM_LAYER };
/* Where a branch is normalized: its input; its output, before the residual sum (OLMo 2); both (Gemma 2). */
enum norm_place { NORM_BEFORE, NORM_AFTER, NORM_BOTH };
/* The feed-forward reads the residual stream behind the attention; the one before it (GPT-NeoX); with the norm of the
 * attention (Phi-2). */
enum branches { BRANCHES_SERIAL, BRANCHES_PARALLEL, BRANCHES_ONE_NORM };
/* auto: that of the architecture. gelu is the tanh form. */
enum activation { ACTIVATION_AUTO, ACTIVATION_SILU, ACTIVATION_GELU, ACTIVATION_GELU_ERF };

struct job_model {
    enum model_arch arch;
    int64_t dim, layers, heads, kv_heads, ffn; /* kv_heads 0: heads; ffn 0: the width of the row in models.inc */
    int64_t vocab;                             /* 0: the tokenizer's vocabulary size */
    double norm_eps, rope_theta;
    enum rope_type rope_type;
    double rope_part; /* of a head's columns, those that rotate; 0: all, as 1 */
    /* The other fields of rope_type are those of the config.json of transformers. 0: not set. */
    double rope_factor;
    int64_t rope_original;                               /* original_max_position_embeddings */
    double rope_low, rope_high;                          /* llama3: low_freq_factor, high_freq_factor */
    double rope_fast, rope_slow;                         /* yarn: beta_fast, beta_slow */
    bool rope_exact;                                     /* yarn: the opposite of `truncate` */
    double rope_attention, rope_mscale, rope_mscale_all; /* yarn: attention_factor, mscale, mscale_all_dim */
    char **rope_short, **rope_long;                      /* longrope: short_factor, long_factor; numbers */
    int n_rope_short, n_rope_long;
    /* One character per layer, from the first on, repeated as often as there are layers (job_rope_of); NULL or "": all
     * are '1'. */
    char *rope_layers;
    double rope_local_theta; /* of layers with 'l'; 0: there are none */
    bool tied;               /* head shares the embedding table */
    int64_t labels;          /* classes of a text, which the head gives in place of tokens; 0: a language model */
    bool causal;             /* transformer: mask later tokens; the other architectures always do */
    /* A mixture of experts in place of the feed-forward (llama); experts 0: none, and the other fields are not used. */
    int64_t experts, experts_per_token;
    int64_t expert_ffn;              /* width of one expert; 0: ffn */
    int64_t shared_experts;          /* experts that every token uses; together one feed-forward of their width */
    bool shared_gate;                /* their output is multiplied by sigmoid of a learned product with the input */
    int64_t moe_every, dense_layers; /* layer i has experts if i >= dense_layers and (i + 1) % moe_every is 0 */
    enum router_kind router;
    bool router_norm, router_bias; /* weights are divided by their sum; the logits have a bias */
    double router_scale;           /* of all weights */
    int64_t router_groups, router_groups_kept, router_group_best;
    double aux_loss, z_loss; /* coefficients, 0: no such loss */
    enum aux_scope aux_scope;
    double expert_bias;     /* step of the biases that balance experts, 0: no biases */
    double expert_capacity; /* most tokens of a sample that an expert computes, over their mean; 0: all of them */
    enum drop_rule expert_drop;
    /* llama only; the other architectures have their own attention. */
    int64_t head_dim; /* columns of a head; 0: dim / heads */
    bool qkv_bias;    /* the products that make queries, keys and values have biases */
    enum qk_norm qk_norm;
    int64_t window;        /* keys that a query sees with its own (kernels/kernels.h); 0: all before it */
    int64_t window_from;   /* layers before this one have no window */
    int64_t window_period; /* nor has layer i with (i + 1) % window_period == 0; 0: there are no such layers */
    double score_softcap, score_scale; /* 0: none; head_dim^-0.5 */
    bool documents; /* any architecture: attention does not read across documents. The key is one of `data` */
    bool out_bias, ffn_bias, head_bias; /* biases of the attention's output, the feed-forward, the output head */
    bool ffn_plain;                     /* two matrices instead of three: no gate */
    enum norm_kind norm;
    enum norm_place norm_place;
    enum branches branches;
    enum activation activation; /* gpt2 too */
    /* Factors of the embedding, of each branch, of the logits; 0: 1. */
    double embed_scale, residual_scale, logit_scale;
    double logit_cap; /* c tanh(logits / c); 0: none */
};

/* Whether attention in the layer has the window of the model. */
static inline bool job_layer_has_window(const struct job_model *m, int64_t layer)
{
    bool whole = m->window_period && (layer + 1) % m->window_period == 0;
    return m->window && layer >= m->window_from && !whole;
}

/* The values of a model without experts that are not 0 in a job file that does not name them. */
#define JOB_MODEL_DENSE                                                                                     \
    .experts_per_token = 2, .moe_every = 1, .router_scale = 1, .router_groups = 1, .router_groups_kept = 1, \
    .router_group_best = 1, .rope_part = 1, .rope_low = 1, .rope_high = 4, .rope_fast = 32, .rope_slow = 1, \
    .embed_scale = 1, .residual_scale = 1, .logit_scale = 1

/* joined: attention reads across documents, and their first tokens are predicted. separate: neither. */
enum data_documents { DOCUMENTS_JOINED, DOCUMENTS_SEPARATE };
/* wrapped: documents follow each other and are cut every train.seq tokens. best_fit: whole ones fill samples. */
enum data_packing { PACKING_WRAPPED, PACKING_BEST_FIT };
/* How conversations become tokens (common/data/chat.h). */
enum chat_template { CHAT_NONE, CHAT_LLAMA3, CHAT_CHATML, CHAT_MISTRAL, CHAT_GEMMA, CHAT_PHI };

/* Whether all samples of a source are shuffled, or blocks of them and then the samples of windows of blocks. */
enum data_shuffle { SHUFFLE_SAMPLES, SHUFFLE_BLOCKS };
/* keep: a resumed job must have the checkpoint's order of the data. new: it may have another one. */
enum data_change { CHANGE_KEEP, CHANGE_NEW };

struct job_data {
    char **train, **valid, **test; /* absolute paths, resolved by the client; the file may have patterns */
    int n_train, n_valid, n_test;
    enum tokenizer_kind tokenizer;
    char **tokenizer_files; /* bpe: vocab.json and merges.txt, or tokenizer.json; resolved like train */
    int n_tokenizer_files;
    bool lowercase;
    char *format, *field, *bos, *eos; /* as in struct data_prepare */
    char *label;                      /* the same, if the model has labels */
    bool raw;                         /* take files as they are, as text */
    /* A mixture: for each item of `train`, which then keeps its pattern, its weight and the most passes over it. Both
     * are decimal numbers; n_weights 0: all files of `train` are joined into one source. */
    char **weights, **passes;
    int n_weights, n_passes;
    enum data_documents documents;
    enum data_packing packing;
    int64_t stride; /* tokens from the begin of a sample to that of the next; 0: train.seq */
    enum chat_template template;
    enum data_shuffle shuffle;
    enum data_change order;
    char *cache; /* folder for prepared data sets; "": in the user's cache */
    char *stage; /* where they are copied before training: common/data/stage_choose.h */
    /* Names of the prepared data sets, set by the client at submit; "": none yet. */
    char *train_hash, *valid_hash, *test_hash;
    char **more_hashes; /* of a mixture: the sets of its second source, its third, .. */
    int n_more_hashes;
};

struct job_train {
    int64_t steps, seq, global_batch, micro_batch, warmup, decay, eval_every, eval_batches;
    int64_t nan_limit;    /* consecutive skipped steps after which the job stops */
    int64_t verify_every; /* steps between comparisons of replicas; 0: never */
    double lr, min_lr_ratio, weight_decay, clip, beta1, beta2, eps, dropout;
    enum lr_schedule schedule;
    enum nan_policy nan;
    int dtype; /* enum dtype; DT_F32, DT_BF16 or DT_F64 */
    enum numerics numerics;
    uint64_t seed;
    char *save_routing, *replay_routing; /* folders of routing (worker/step/routing_file.h); "": none */
};

struct job_parallel {
    int64_t workers, zero, fsdp, tp, pp, cp, ep;
    int64_t min_workers; /* 0: workers */
    bool automatic;      /* the planner chooses the layout for the workers that there are (common/plan/choose) */
    bool all_workers;    /* ... and for as many as the nodes have: the file leaves workers out. No key of the file */
    char **fixed;        /* with automatic: names of keys that keep their values ("tp", "micro_batch") */
    int n_fixed;
    int64_t node_slots; /* with automatic: slots of the largest node, for dtctl submit; 0: unknown. No key either */
    char *machine;      /* with automatic: the text of a machine file; in a job file a name or a path; "": this node */
    int64_t chunks;     /* stages per pipeline rank; above 1 with `interleaved` and `file` only */
    int64_t prefetch;   /* zero 3: number of units whose parameters are gathered ahead of their use */
    bool sp, async_tp;  /* async_tp (needs tp > 1 and sp): matmuls overlap the collectives before and after them */
    bool reshard;       /* zero 3: free gathered parameters between forward and backward */
    enum pipe_schedule schedule;
    bool post_validation; /* zb-h2, zb-v: ranks update before the norm is complete */
    char *schedule_csv;   /* for PIPE_FILE: the text of the schedule (docs/internals/schedules.md); "": none */
    enum recompute recompute;
    enum expert_load expert_load;
    double expert_rows; /* rows of experts for which a rank has room at once, over their mean; 0: all that may come */
    enum dispatch dispatch;
};

/* What a job does if the checkpoint that it loads cannot be read. */
enum damage_policy { DAMAGE_OLDER, DAMAGE_FAIL };

struct job_checkpoint {
    char *dir; /* default: checkpoints/NAME */
    int64_t every, memory_every, keep_last, keep_best;
    char *resume_from;               /* set by `dtctl resume`: a step folder; "": none */
    enum optimizer_policy optimizer; /* for resume_from */
    enum damage_policy on_damage;
    char **map; /* "FROM=TO": prefixes of names in resume_from, and what they are here */
    int n_map;
    char *take_over; /* set by --take-over: 16 hex digits, the ckpt_incarnation of the job that is replaced; "": none */
};

#define JOB_MASTER_AUTO "auto"

struct job_run {
    enum device device;
    enum comm_kind comm;
    enum comm_thread_kind comm_thread;
    int64_t workers_per_gpu; /* above 1: so many workers share one GPU */
    int64_t nodes, threads, restarts, orphan_seconds, hang_seconds, max_seconds, log_bytes, timeline_step, priority;
    int64_t memory, cores; /* limits for each worker: bytes, and seconds of computing per second; 0: none */
    bool grow;             /* more workers, up to parallel.workers, as soon as there is room */
    int64_t grace_seconds; /* from the request to stop to SIGKILL */
    int stop_signal;       /* of a command: a number of <signal.h>; 0 in a training job */
    char **env;            /* "KEY=VALUE" */
    int n_env;
    char *caller; /* of a command: settings of the caller of dtctl run, as common/base/caller.h; "": none; NULL in a
                     training job */
    char **caller_env; /* of a command: the caller's variables, in their order */
    int n_caller_env;
    char *
        master_addr; /* of a command: MASTER_ADDR of its workers, or JOB_MASTER_AUTO: the address of rank 0's node; rank
                        0 then opens the rendezvous itself. "": 127.0.0.1 and dtd's store. NULL in a training job */
    int64_t master_port; /* with master_addr: MASTER_PORT; 0: dtd chooses one for each attempt */
    char *workdir;
    char *algorithms; /* algorithm file of products, or a folder of them; "" : in data.cache; JOB_NO_ALGORITHMS: none;
                         NULL in a job with a command */
    char *tensorboard, *wandb; /* folders for curves (docs/use/watch.md); "": none; NULL in a job with a command */
    char *report;              /* file, or a folder, for the report at the end of the job; as tensorboard */
    char *umask;               /* octal; "": 0022 */
    char *limits; /* words of common/base/caller.h; "": those of the daemon; NULL in a job with a command */
    char *ports;  /* that its workers listen on; "": those of the node */
};

/* What `dtctl submit` expects of a step, with the rates of a machine, so that every later reader compares the job with
 * the same numbers. Seconds of the slowest stage (struct plan_time, common/plan/search/step_time.h). */
struct job_forecast {
    char *machine;   /* a name or a path, as --machine of dtctl plan; "": this node. NULL in a job with a command */
    char *source;    /* name and source of the machine; "": there is no forecast */
    int64_t workers; /* of the layout; 0: there is no forecast */
    bool assumed;    /* rates are neither measured nor from a machine file */
    double compute_s, recompute_s, tp_s, cp_s, ep_s, pp_s, bubble_s, wait_s, params_s, grads_s, update_s;
};

/* Either a training job (model to checkpoint) or a command job, whose command every worker runs. A command job uses
 * only name, command, parallel.workers, parallel.min_workers and run. */
struct job_spec {
    char *name;
    char **command; /* program and arguments; n_command 0: a training job */
    int n_command;
    struct job_model model;
    struct job_data data;
    struct job_train train;
    struct job_parallel parallel;
    struct job_checkpoint checkpoint;
    struct job_run run;
    struct job_forecast forecast;
};

/* Parses text (YAML). `file` is the name for messages. `sets` are overrides such as "train.lr=1e-4", applied after the
 * text. Every error names file and line, the key, what was found and what is accepted; for an unknown key, the most
 * similar known key. Rules over several keys are checked here too (heads % kv_heads, micro_batch <= global_batch,
 * combinations that this version does not support). */
NODISCARD err_t job_parse(const char *file, const char *text, size_t len, const char *const *sets, int n_sets,
                          struct job_spec *ret, struct why *why);
/* May be called on a zeroed struct, and after job_parse has failed. */
void job_fini(struct job_spec *job);
/* run.umask as a number. */
int job_umask(const struct job_spec *job);
/* Writes the keys as YAML (all but newer ones at their defaults: schema_row.since) that job_parse reads back to an
 * equal spec. The log and the wire use this form. */
NODISCARD err_t job_print(const struct job_spec *job, struct buf *ret);
/* The cluster version whose dtds can read the printed spec; *ret_key: the key that needs it. As schema_since. */
NODISCARD err_t job_since(const struct job_spec *job, uint32_t *ret, const char **ret_key);
/* ERR_INVALID if a resume would change a key that the schema does not mark as changeable, or the type in which
 * parameters are saved. The sentence names the key and both values. */
NODISCARD err_t job_resume_check(const struct job_spec *before, const struct job_spec *after, struct why *why);
/* Makes workdir, algorithms, tensorboard, wandb, report, checkpoint.dir, checkpoint.resume_from and data.cache
 * absolute, relative to `folder`, the job file's. Absolute paths and "" stay as they are. No file is opened.
 * data_resolve resolves the patterns in the data section. */
NODISCARD err_t job_paths_resolve(struct job_spec *job, const char *folder, struct why *why);
/* The signal of a name that run.stop_signal accepts: "TERM", "SIGUSR1". False: there is none. */
bool job_stop_signal(const char *name, int *ret);
bool job_is_command(const struct job_spec *job);
/* The schema of a training job. schema_help(&job_schema, stdout) prints `dtctl submit --help-keys`. */
extern const struct schema job_schema;
/* The schema of a command job, as the log stores it. */
extern const struct schema command_schema;
/* Whether a key of the layout keeps its value ("tp", "micro_batch"): the job's layout is not chosen by the planner, or
 * the key is in parallel.fixed. */
bool job_keeps(const struct job_spec *job, const char *name);
/* Workers per replica: fsdp x tp x pp x cp; 1 for a command job. With parallel.auto only the axes that keep their
 * values count. A job shrinks by multiples of it. */
int64_t job_replica_workers(const struct job_spec *job);
/* The name of a schedule, and how many stages a rank of a pipeline may hold under it (parallel.chunks). `schedule` is
 * legal. Inline, because common/plan needs it and is linked without common/conf. */
struct job_schedule_row {
    const char *name;
    int fewest, most;
};
static inline const struct job_schedule_row *job_schedule_row(enum pipe_schedule schedule)
{
#define X(id, name, fewest, most, placement, row) [PIPE_##id] = {name, fewest, most},
    static const struct job_schedule_row rows[] = {
#include "common/conf/schedules.inc"
        [PIPE_FILE] = {"file", 1, 64}};
#undef X
    return &rows[schedule];
}
/* Columns of a head. Inline for the same reason. `m` has heads. */
static inline int64_t job_head_dim(const struct job_model *m)
{
    return m->head_dim ? m->head_dim : m->dim / m->heads;
}
/* How queries and keys of a layer rotate: '1' by model.rope_theta and rope_type, 'l' by model.rope_local_theta, '0' not
 * at all. */
static inline char job_rope_of(const struct job_model *m, int64_t layer)
{
    int64_t n = 0;
    while (m->rope_layers && m->rope_layers[n])
        n++;
    return n ? m->rope_layers[layer % n] : '1';
}
/* Frees the lists and texts of a model section that belongs to no job, and zeroes it. */
void job_model_fini(struct job_model *m);
/* Copies a model section with its lists and texts. *ret is written on success only. */
NODISCARD err_t job_model_copy(const struct job_model *m, struct job_model *ret);
/* The learning rate of step `step` (1-based). It rises linearly to lr at step `warmup`, then follows the schedule,
 * which reaches lr x min_lr_ratio at step `steps` and stays there (constant: stays at lr). */
double job_lr(const struct job_train *t, int64_t step);

#endif
