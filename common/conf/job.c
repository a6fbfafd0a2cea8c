/* The table of the job file. A row is one key: adding one is adding a line here and a field in job.h of the same path.
 *
 * What a resumed job may change is what leaves the meaning of the checkpoint and of the data's order alone: the recipe
 * and the plan yes, the model's shape, the tokens and the batch that counts them no. */
#include "common/conf/job.h"

#include "common/base/dtype.h"
#include "common/conf/job_rules.h"
#include "common/conf/schema.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct schema_name arch_names[] = {
    {"llama", ARCH_LLAMA}, {"gpt2", ARCH_GPT2}, {"transformer", ARCH_TRANSFORMER}, {0}};
static const struct schema_name tokenizer_names[] = {
    {"bytes", TOKENIZER_BYTES}, {"words", TOKENIZER_WORDS}, {"bpe", TOKENIZER_BPE}, {0}};
static const struct schema_name lr_names[] = {
    {"constant", LR_CONSTANT}, {"cosine", LR_COSINE}, {"linear", LR_LINEAR}, {"wsd", LR_WSD}, {0}};
static const struct schema_name nan_names[] = {{"stop", NAN_STOP}, {"skip", NAN_SKIP}, {0}};
static const struct schema_name dtype_names[] = {{"float32", DT_F32}, {"float64", DT_F64}, {"bfloat16", DT_BF16}, {0}};
static const struct schema_name numerics_names[] = {
    {"fast", NUMERICS_FAST}, {"canonical", NUMERICS_CANONICAL}, {"proof", NUMERICS_PROOF}, {0}};
static const struct schema_name pipe_names[] = {
    {"1f1b", PIPE_1F1B},   {"gpipe", PIPE_GPIPE}, {"interleaved", PIPE_INTERLEAVED},
    {"zb-h1", PIPE_ZB_H1}, {"file", PIPE_FILE},   {0}};
static const struct schema_name recompute_names[] = {{"none", RECOMPUTE_NONE},
                                                     {"full", RECOMPUTE_FULL},
                                                     {"pointwise", RECOMPUTE_POINTWISE},
                                                     {"attention", RECOMPUTE_ATTENTION},
                                                     {0}};
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

/* A name becomes part of file names, log lines and URLs. */
static const char *check_name(const char *text)
{
    size_t len = strlen(text);
    size_t good = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    bool legal = len && len <= 64 && good == len && text[0] != '.' && text[0] != '-';
    return legal ? NULL
                 : "a name of 1 to 64 letters, digits, points, dashes and underscores that begins with a letter or a "
                   "digit";
}

static const char *check_env(const char *text)
{
    size_t good = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    bool legal = text[0] && good == strlen(text) && good <= 256 && !isdigit((unsigned char)text[0]);
    return legal ? NULL
                 : "a name of letters, digits and underscores for each key (the name of an environment variable)";
}

static const char *check_path(const char *text)
{
    return text[0] && strlen(text) < 4096 ? NULL : "a path of 1 to 4095 bytes";
}

static const char *check_path_or_none(const char *text)
{
    return strlen(text) < 4096 ? NULL : "a path of at most 4095 bytes";
}

static const char *check_hash(const char *text)
{
    bool legal = !text[0] || (strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64);
    return legal ? NULL : "a hash of 64 hex digits, or \"\"";
}

/* FIXED: a resumed job keeps the value. FREE: it may change it. */
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

#define MAX_STEPS 1000000000

/* Of both kinds of jobs. */
#define RUN_ROWS                                                                                                       \
    {ENUM(run.device, device_names, "cpu", FREE, "What workers compute on. cuda: NVIDIA GPUs.")},                      \
        {ENUM(run.comm, comm_names, "auto", FREE,                                                                      \
              "How workers exchange tensors. shm: shared memory, on one node (cpu). stream, ucx: shared memory in "    \
              "each node, "                                                                                            \
              "between nodes TCP under TLS 1.3, or UCX, which encrypts nothing: for networks that are trusted (cpu). " \
              "nccl: "                                                                                                 \
              "NCCL; staged: through the host's memory (cuda). auto: stream on cpu, nccl where every worker has a "    \
              "GPU of its "                                                                                            \
              "own, else staged.")},                                                                                   \
        {INT(run.workers_per_gpu, 1, 64, "1", FREE, "Workers that share a GPU (cuda).")},                              \
        {INT(run.nodes, 0, JOB_MAX_WORKERS, "0", FREE,                                                                 \
             "Nodes that the workers are spread over, as many on each. 0: as few as have room.")},                     \
        {INT(run.threads, 0, 4096, "0", FREE, "Threads of a worker. 0: its share of the node's cores.")},              \
        {ENUM(run.comm_thread, comm_thread_names, "auto", FREE,                                                        \
              "Whether a worker exchanges tensors on a thread of its own, beside those that compute (cpu). No number " \
              "depends on it. "                                                                                        \
              "auto: where its share of the node's cores is larger than its threads.")},                               \
        {INT(run.restarts, 0, 1000000, "3", FREE, "Failures that the job survives.")},                                 \
        {INT(run.orphan_seconds, 1, 86400, "60", FREE, "How long workers go on without the daemon.")},                 \
        {INT(run.hang_seconds, 0, 86400, "30", FREE,                                                                   \
             "Silence of the steps that counts as a hang; ten times the usual step, if that is longer. 0: never.")},   \
        {INT(run.max_seconds, 0, MAX_STEPS, "0", FREE, "Stop after so long, with a checkpoint. 0: no limit.")},        \
        {INT(run.timeline_step, 0, MAX_STEPS, "0", FREE,                                                               \
             "The step whose actions every worker times, for dtctl plan --measured. 0: none.")},                       \
        {INT(run.priority, -1000, 1000, "0", FREE, "Jobs with a higher one start first.")},                            \
        {ITEMS(run.env, run.n_env, SCHEMA_MAP, check_env, "{}", FREE, "Environment variables of the workers.")},       \
    {                                                                                                                  \
        TEXT(run.workdir, check_path, "\".\"", FREE,                                                                   \
             "Working folder of the workers; relative to the job file's folder.")                                      \
    }

static const struct schema_row rows[] = {
    {TEXT(name, check_name, NULL, FREE, "What the job is called; part of file names.")},

    {ENUM(model.arch, arch_names, "llama", FIXED, "The architecture.")},
    {INT(model.dim, 1, 1 << 20, NULL, FIXED, "Width of the residual stream.")},
    {INT(model.layers, 1, 4096, NULL, FIXED, "Number of layers.")},
    {INT(model.heads, 1, 4096, NULL, FIXED, "Attention heads; must divide dim.")},
    {INT(model.kv_heads, 0, 4096, "0", FIXED, "Key-value heads; must divide heads. 0: as many as heads.")},
    {INT(model.ffn, 0, 1 << 22, "0", FIXED,
         "Width of the feed-forward layer. 0: 4 dim (gpt2); 16 dim (transformer); 8/3 dim, rounded up to a multiple of "
         "32 "
         "(llama).")},
    {INT(model.vocab, 0, 1 << 24, "0", FIXED, "Rows of the embedding. 0: as many as the tokenizer has.")},
    {FLOAT(model.norm_eps, 1e-12, 1e-1, "1e-5", FIXED, "Added to the variance in normalisations.")},
    {FLOAT(model.rope_theta, 1, 1e12, "10000", FIXED, "Base of the rotary positions (llama).")},
    {BOOL(model.tied, "false", FIXED, "The head shares the embedding's table (gpt2: always; transformer: never).")},
    {BOOL(model.causal, "false", FIXED,
          "transformer: mask later tokens. As taught it has no mask, sees what it is to say, and learns that; gpt2 and "
          "llama always mask.")},

    {ITEMS(data.train, data.n_train, SCHEMA_LIST, check_path, NULL, FREE,
           "Files to train on; patterns with *, ? and [] are taken, relative ones from the job file's folder. After a "
           "move they may stand elsewhere, with the same content.")},
    {ITEMS(data.valid, data.n_valid, SCHEMA_LIST, check_path, "[]", FREE, "Files to evaluate on; as data.train.")},
    {ITEMS(data.test, data.n_test, SCHEMA_LIST, check_path, "[]", FREE,
           "Files to evaluate on once, all of them, when training is over; as data.train.")},
    {ENUM(data.tokenizer, tokenizer_names, "bytes", FIXED,
          "bytes: 256 tokens. words: split at white space, one end-of-line token a line, vocabulary of the training "
          "files. bpe: byte-pair encoding as GPT-2 has it, from data.tokenizer_files.")},
    {ITEMS(
        data.tokenizer_files, data.n_tokenizer_files, SCHEMA_LIST, check_path, "[]", FREE,
        "Files of the tokenizer bpe: vocab.json and merges.txt, or tokenizer.json, as Hugging Face writes them; paths "
        "as data.train. After a move they may stand elsewhere, with the same content.")},
    {BOOL(data.lowercase, "false", FIXED, "Fold A-Z to a-z first (words).")},
    {TEXT(data.cache, check_path_or_none, "\"\"", FREE,
          "Folder for prepared shards. Empty: dtd's folder in the user's cache.")},
    {TEXT(data.train_hash, check_hash, "\"\"", FIXED, "Name of the prepared training shards; written by the client.")},
    {TEXT(data.valid_hash, check_hash, "\"\"", FREE, "Name of the prepared validation shards; written by the client.")},
    {TEXT(data.test_hash, check_hash, "\"\"", FREE, "Name of the prepared test shards; written by the client.")},

    {INT(train.steps, 1, MAX_STEPS, NULL, FREE, "Updates in all, those before a resume included.")},
    {INT(train.seq, 1, 1 << 22, "256", FIXED, "Tokens of a sample.")},
    {INT(train.global_batch, 1, 1 << 24, "16", FIXED, "Samples of an update, over all workers.")},
    {INT(train.micro_batch, 1, 1 << 20, "4", FREE, "Samples that a worker computes at once.")},
    {FLOAT(train.lr, 0, 1000, "3e-4", FREE, "Peak learning rate.")},
    {FLOAT(train.min_lr_ratio, 0, 1, "0.1", FREE, "What a schedule ends at, as a part of lr.")},
    {ENUM(train.schedule, lr_names, "cosine", FREE,
          "How the rate falls after the warm-up. wsd: not before the last train.decay updates, then in a straight "
          "line.")},
    {INT(train.warmup, 0, MAX_STEPS, "0", FREE, "Updates over which the rate rises from 0 in a straight line.")},
    {INT(train.decay, 0, MAX_STEPS, "0", FREE, "Updates at the end over which the rate falls (wsd).")},
    {FLOAT(train.weight_decay, 0, 100, "0.1", FREE, "AdamW's decay of matrices.")},
    {FLOAT(train.clip, 0, 1e9, "1", FREE, "Largest norm of the gradient. 0: no clipping.")},
    {FLOAT(train.beta1, 0, 0.999999, "0.9", FREE, "AdamW's first moment.")},
    {FLOAT(train.beta2, 0, 0.99999999, "0.95", FREE, "AdamW's second moment.")},
    {FLOAT(train.eps, 1e-30, 1, "1e-8", FREE, "AdamW's denominator.")},
    {ENUM(train.dtype, dtype_names, "float32", FREE,
          "Type that is computed in. Left out with numerics proof: float64. Parameters and optimizer are float32 with "
          "bfloat16 too, so a resumed job may go from one to the other, but not to float64 or from it.")},
    {ENUM(train.numerics, numerics_names, "fast", FREE,
          "fast; canonical: bit-identical on any number of workers; proof: float64 on the reference kernels.")},
    {INT(train.eval_every, 0, MAX_STEPS, "0", FREE, "Evaluate after every so many updates. 0: never.")},
    {INT(train.eval_batches, 0, MAX_STEPS, "0", FREE,
         "Global batches of one evaluation. 0: all validation samples once.")},
    {FLOAT(train.dropout, 0, 0.999, "0", FREE, "Part of the activations that is left out, where the model has it.")},
    {ENUM(train.nan, nan_names, "stop", FREE,
          "When a loss or the gradient's norm is not a number: stop the job, or skip the update and go on.")},
    {INT(train.nan_limit, 1, MAX_STEPS, "10", FREE, "Skipped updates in a row after which the job stops (nan skip).")},
    {INT(train.verify_every, 0, MAX_STEPS, "100", FREE,
         "Compare what several workers hold alike after every so many updates. 0: never.")},
    {UINT(train.seed, "1", FIXED, "Of initial values and of the order of the samples.")},

    {INT(parallel.workers, 1, JOB_MAX_WORKERS, "1", FREE,
         "Workers; a multiple of fsdp x tp x pp x cp, the rest are replicas.")},
    {INT(parallel.min_workers, 0, JOB_MAX_WORKERS, "0", FREE,
         "The fewest workers that the job begins or goes on with, by whole replicas. 0: parallel.workers.")},
    {INT(parallel.zero, 0, 3, "0", FREE, "What fsdp shards: 1 the optimizer, 2 gradients too, 3 parameters too.")},
    {INT(parallel.fsdp, 1, JOB_MAX_WORKERS, "1", FREE, "Ways to shard over (ZeRO).")},
    {INT(parallel.tp, 1, JOB_MAX_WORKERS, "1", FREE, "Ways of tensor parallelism.")},
    {BOOL(parallel.sp, "true", FREE, "Sequence parallelism beside tensor parallelism.")},
    {BOOL(parallel.async_tp, "false", FREE,
          "With sequence parallelism the forward's products begin with the tokens that are there, and columns of a sum "
          "travel while the next are computed.")},
    {INT(parallel.pp, 1, JOB_MAX_WORKERS, "1", FREE, "Stages of the pipeline.")},
    {ENUM(parallel.schedule, pipe_names, "1f1b", FREE, "Order of the pipeline's actions.")},
    {TEXT(parallel.schedule_csv, NULL, "\"\"", FREE, "The schedule itself, a line per rank, with schedule file.")},
    {INT(parallel.chunks, 1, 64, "1", FREE, "Stages of the model that each pipeline rank holds (interleaved, file).")},
    {INT(parallel.prefetch, 0, 64, "1", FREE, "Units that ZeRO 3 gathers ahead of their use.")},
    {BOOL(parallel.reshard, "true", FREE, "ZeRO 3 gives gathered parameters up between forward and backward.")},
    {INT(parallel.cp, 1, JOB_MAX_WORKERS, "1", FREE, "Ways to cut the sequence (ring attention).")},
    {INT(parallel.ep, 1, JOB_MAX_WORKERS, "1", FREE, "Ways to spread experts, folded over fsdp x cp x tp.")},
    {ENUM(parallel.recompute, recompute_names, "none", FREE,
          "What the backward computes again instead of keeping it: full (all of a layer but its input), pointwise "
          "(norms and "
          "activation functions), attention.")},

    {TEXT(checkpoint.dir, check_path_or_none, "\"\"", FREE, "Folder of the checkpoints. Empty: checkpoints/NAME.")},
    {INT(checkpoint.every, 0, MAX_STEPS, "100", FREE,
         "Save after every so many updates, and at the end. 0: only at the end.")},
    {INT(checkpoint.memory_every, 0, MAX_STEPS, "0", FREE, "Save into other nodes' memory. 0: never.")},
    {INT(checkpoint.keep_last, 1, 1000000, "3", FREE, "Newest checkpoints that are kept.")},
    {INT(checkpoint.keep_best, 0, 1000000, "1", FREE,
         "Checkpoints with the lowest validation loss (of a job that does not evaluate: training loss) that are kept "
         "besides.")},
    {TEXT(checkpoint.resume_from, check_path_or_none, "\"\"", FREE,
          "A step's folder to start from; written by dtctl resume. Empty: start anew.")},

    RUN_ROWS,
};

static const char *check_argument(const char *text)
{
    return strlen(text) < 16384 ? NULL : "an argument of at most 16383 bytes";
}

static const struct schema_row command_rows[] = {
    {TEXT(name, check_name, NULL, FREE, "What the job is called; part of file names.")},
    {ITEMS(command, n_command, SCHEMA_LIST, check_argument, NULL, FREE,
           "The program of every worker, and its arguments: a job with a command has no recipe.")},
    {INT(parallel.workers, 1, JOB_MAX_WORKERS, "1", FREE, "Workers; with run.nodes as many on each node.")},
    {INT(parallel.min_workers, 0, JOB_MAX_WORKERS, "0", FREE,
         "The fewest workers that the job begins or goes on with, by whole nodes. 0: parallel.workers.")},
    RUN_ROWS,
};

static const struct schema_section command_sections[] = {
    {"parallel", "How many workers."},
    {"run", "Where and how they run; comm, orphan_seconds, hang_seconds and timeline_step are for training jobs."},
};

const struct schema command_schema = {
    .title = "A job with a command",
    .intro = "What `dtctl run` makes of its arguments.",
    .sections = command_sections,
    .n_sections = sizeof(command_sections) / sizeof(command_sections[0]),
    .rows = command_rows,
    .n_rows = sizeof(command_rows) / sizeof(command_rows[0]),
    .size = sizeof(struct job_spec),
};

static const struct schema_section sections[] = {
    {"model", "The network: what is trained."},
    {"data", "The text, and how it becomes tokens."},
    {"train", "The recipe."},
    {"parallel", "How the work is spread over workers."},
    {"checkpoint", "When to save, where, and what to keep."},
    {"run", "Where and how the workers run."},
};

const struct schema job_schema = {
    .title = "The job file",
    .intro =
        "One YAML file describes a job. `dtctl submit FILE --set KEY=VALUE` overrides a key; the value is read as "
        "YAML,\n"
        "so `--set 'data.train=[a.txt, b.txt]'` is a list. Unknown keys, keys that stand twice, numbers with a unit "
        "or\n"
        "an underscore, anchors, aliases and tags are errors. The last column but one says what a resumed job may\n"
        "change. This page is made from the table in `common/conf/job.c` by `ninja manuals`; a test compares them.",
    .sections = sections,
    .n_sections = sizeof(sections) / sizeof(sections[0]),
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

bool job_is_command(const struct job_spec *job)
{
    return job->n_command > 0;
}

static const struct schema *schema_of(const struct job_spec *job)
{
    return job_is_command(job) ? &command_schema : &job_schema;
}

/* Which of the two the text is: the key `command` says so. What cannot be read is told by whoever reads it. */
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
    if (job->model.arch == ARCH_GPT2 && !schema_given(r, "model.tied"))
        job->model.tied = true;
    return job->checkpoint.dir[0] ? OK : replace_text(&job->checkpoint.dir, "checkpoints", job->name);
}

err_t job_parse(const char *file, const char *text, size_t len, const char *const *sets, int n_sets,
                struct job_spec *ret, struct why *why)
{
    struct job_spec job;
    struct schema_reader r;
    why_set(why, OK, "%s", err_text(ERR_NOMEM)); /* the one failure below that writes no sentence */
    const struct schema *schema = names_command(text, len) ? &command_schema : &job_schema;
    err_t err = schema_start(&r, schema, file, &job, why);
    if (!err)
        err = schema_read(&r, text, len, why);
    for (int i = 0; !err && i < n_sets; i++)
        err = schema_set(&r, sets[i], why);
    if (!err)
        err = schema_finish(&r, why);
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

err_t job_print(const struct job_spec *job, struct buf *ret)
{
    return schema_print(schema_of(job), job, ret);
}

/* What a checkpoint of the job holds: the type of its parameters. */
static enum dtype saved_dtype(const struct job_spec *job)
{
    return job->train.dtype == DT_BF16 ? DT_F32 : (enum dtype)job->train.dtype;
}

err_t job_resume_check(const struct job_spec *before, const struct job_spec *after, struct why *why)
{
    if (job_is_command(before) || job_is_command(after))
        return why_set(why, ERR_INVALID, "a job with a command keeps its own checkpoints: `dtctl run` it again");
    if (saved_dtype(before) != saved_dtype(after))
        return why_set(why, ERR_INVALID,
                       "train.dtype: the checkpoint's job has %s, this one %s; a checkpoint of %s parameters cannot go "
                       "on in the other: leave the key out, or start a new job",
                       dtype_name((enum dtype)before->train.dtype), dtype_name((enum dtype)after->train.dtype),
                       dtype_name(saved_dtype(before)));
    return schema_resume_check(&job_schema, before, after, why);
}

err_t job_paths_resolve(struct job_spec *job, const char *folder, struct why *why)
{
    char **const paths[] = {&job->run.workdir, &job->checkpoint.dir, &job->checkpoint.resume_from, &job->data.cache};
    if (folder[0] != '/')
        return why_set(why, ERR_INVALID, "%s: an absolute folder is needed", folder);
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        char *path = *paths[i];
        if (!path || !path[0] || path[0] == '/') /* NULL: a command has no such key */
            continue;
        if (strcmp(path, ".") == 0)
            path[0] = '\0'; /* the folder itself, with a slash that is cut below */
        err_t err = replace_text(paths[i], folder, path);
        if (err)
            return why_set(why, err, "%s", err_text(err));
        size_t len = strlen(*paths[i]);
        if (len > 1 && (*paths[i])[len - 1] == '/')
            (*paths[i])[len - 1] = '\0';
    }
    return OK;
}

/* How much of the decay is over, 0 to 1. */
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
