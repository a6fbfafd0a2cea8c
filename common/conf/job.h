/* The job file: what a person asks for, as a plain struct. DESIGN 10 of the project; every key is a row of the schema
 * table in job.c (type, range, default, help, changeable on resume), which also makes --set, --help and the manual. */
#ifndef DTD_COMMON_CONF_JOB_H
#define DTD_COMMON_CONF_JOB_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct schema;

#define JOB_MAX_WORKERS 1048576

enum model_arch { ARCH_LLAMA, ARCH_GPT2, ARCH_TRANSFORMER };
enum tokenizer_kind { TOKENIZER_BYTES, TOKENIZER_WORDS, TOKENIZER_BPE };
/* wsd: warm-up, stable, decay: as it is until the last train.decay updates, then down in a straight line. */
enum lr_schedule { LR_CONSTANT, LR_COSINE, LR_LINEAR, LR_WSD };
/* What becomes of a job whose step is not a number: it ends, or the step changes nothing and counts. */
enum nan_policy { NAN_STOP, NAN_SKIP };
enum numerics { NUMERICS_FAST, NUMERICS_CANONICAL, NUMERICS_PROOF };
enum pipe_schedule { PIPE_1F1B, PIPE_GPIPE, PIPE_INTERLEAVED, PIPE_ZB_H1, PIPE_FILE };
/* What the backward computes again instead of keeping: nothing; all of a layer but its input; norms and activation
 * functions; attention. */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_FULL, RECOMPUTE_POINTWISE, RECOMPUTE_ATTENTION };
enum device { DEVICE_CPU, DEVICE_CUDA };
/* worker/comm's backends; auto: stream on a CPU, which is shm on one node; nccl where every worker has a GPU of its
 * own, else staged. */
enum comm_kind { COMM_AUTO, COMM_SHM, COMM_NCCL, COMM_STAGED, COMM_STREAM, COMM_UCX };
/* Whether a worker on a CPU exchanges tensors on a thread of its own; auto: where it has a core for it. */
enum comm_thread_kind { COMM_THREAD_AUTO, COMM_THREAD_ON, COMM_THREAD_OFF };

struct job_model {
    enum model_arch arch;
    int64_t dim, layers, heads, kv_heads, ffn; /* kv_heads 0: heads; ffn 0: 4 dim (gpt2), 16 dim (transformer), 8/3
                                                  dim up to 32 (llama) */
    int64_t vocab;                             /* 0: what the tokenizer has */
    double norm_eps, rope_theta;
    bool tied;   /* head shares the embedding's table (gpt2: always) */
    bool causal; /* transformer: a token sees no later ones; gpt2 and llama always */
};

struct job_data {
    char **train, **valid, **test; /* absolute paths, resolved by the client; in the file also globs */
    int n_train, n_valid, n_test;
    enum tokenizer_kind tokenizer;
    char **tokenizer_files; /* bpe: vocab.json and merges.txt, or a tokenizer.json; resolved like train */
    int n_tokenizer_files;
    bool lowercase;
    char *cache; /* folder for prepared shards; "" : the user's cache */
    /* Recorded by the client at submit: names of the prepared shards; "" : none yet. */
    char *train_hash, *valid_hash, *test_hash;
};

struct job_train {
    int64_t steps, seq, global_batch, micro_batch, warmup, decay, eval_every, eval_batches;
    int64_t nan_limit;    /* skipped steps in a row that are too many */
    int64_t verify_every; /* updates between comparisons of replicas; 0: never */
    double lr, min_lr_ratio, weight_decay, clip, beta1, beta2, eps, dropout;
    enum lr_schedule schedule;
    enum nan_policy nan;
    int dtype; /* enum dtype; DT_F32, DT_BF16 or DT_F64 */
    enum numerics numerics;
    uint64_t seed;
};

struct job_parallel {
    int64_t workers, zero, fsdp, tp, pp, cp, ep;
    int64_t min_workers; /* 0: workers */
    int64_t chunks;      /* stages that a pipeline rank holds; above 1 with `interleaved` and `file` only */
    int64_t prefetch;    /* zero 3: how many units ahead of their use parameters are gathered */
    bool sp, async_tp;   /* async_tp, tp > 1 and sp: products overlap the collectives in front of and behind them */
    bool reshard;        /* zero 3: gathered parameters are given up between forward and backward */
    enum pipe_schedule schedule;
    char *schedule_csv; /* the text of the schedule (docs/schedule.md) for PIPE_FILE; the client reads it from the file
                           that the job names; "" : none */
    enum recompute recompute;
};

struct job_checkpoint {
    char *dir; /* left out in the file: checkpoints/NAME */
    int64_t every, memory_every, keep_last, keep_best;
    char *resume_from; /* set by `dtctl resume`: a step folder; "" : none */
};

struct job_run {
    enum device device;
    enum comm_kind comm;
    enum comm_thread_kind comm_thread;
    int64_t workers_per_gpu; /* 1, or more to share one */
    int64_t nodes, threads, restarts, orphan_seconds, hang_seconds, max_seconds, timeline_step, priority;
    char **env; /* "KEY=VALUE" */
    int n_env;
    char *workdir;
};

/* Either the recipe of a training job (model to checkpoint), or a command that is every worker's program; then of the
 * rest only name, parallel.workers, parallel.min_workers and run mean anything. */
struct job_spec {
    char *name;
    char **command; /* the program and its arguments; none: a training job */
    int n_command;
    struct job_model model;
    struct job_data data;
    struct job_train train;
    struct job_parallel parallel;
    struct job_checkpoint checkpoint;
    struct job_run run;
};

/* Parses text (YAML). `file` is for messages. `sets`: "train.lr=1e-4" overrides, applied after the text. Every error
 * says file:line, key, what was found, what is allowed (for an unknown key the nearest known one). Cross-key rules are
 * checked here too (heads % kv_heads, micro_batch <= global_batch, what this version cannot do yet: tp > 1 ...). */
NODISCARD err_t job_parse(const char *file, const char *text, size_t len, const char *const *sets, int n_sets,
                          struct job_spec *ret, struct why *why);
/* Legal on a zeroed or failed one. */
void job_fini(struct job_spec *job);
/* The whole spec, every key, as YAML that job_parse reads back to an equal spec: the form in the log and on the wire.
 */
NODISCARD err_t job_print(const struct job_spec *job, struct buf *ret);
/* Refuses a resume that changes what the schema does not mark as changeable, or the type that parameters are saved in;
 * names the key and both values. */
NODISCARD err_t job_resume_check(const struct job_spec *before, const struct job_spec *after, struct why *why);
/* Makes workdir, checkpoint.dir, checkpoint.resume_from and data.cache absolute, against the folder of the job file.
 * What is absolute already stays, and so does "". Text only: nothing is opened. data_resolve does it for the globs. */
NODISCARD err_t job_paths_resolve(struct job_spec *job, const char *folder, struct why *why);
bool job_is_command(const struct job_spec *job);
/* The rows behind all this: schema_help(&job_schema, stdout) is `dtctl submit --help-keys`. */
extern const struct schema job_schema;
/* The same for a job with a command: what stands in the log for it. */
extern const struct schema command_schema;
/* Workers of one replica, the step in which a job may be smaller: fsdp x tp x pp x cp; 1 for a command. */
int64_t job_replica_workers(const struct job_spec *job);
/* The learning rate of update `step` (1-based): it rises in a straight line to lr at update `warmup`, then follows the
 * schedule, which arrives at lr x min_lr_ratio with update `steps` and stays there (constant: stays at lr). */
double job_lr(const struct job_train *t, int64_t step);

#endif
