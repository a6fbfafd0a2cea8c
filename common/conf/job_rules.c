/* Order matters in one way only: arithmetic comes before what this version cannot do yet, so that a plan that is wrong
 * in every version is called wrong, not early. A rule writes the sentence that follows "job.yaml:7: parallel.tp: ". */
#include "common/conf/job_rules.h"

#include "common/base/dtype.h"

#include <inttypes.h>
#include <stddef.h>

#define SENTENCE 400

struct rule {
    const char *key; /* where the message points */
    /* True when the rule is broken; then `ret` holds the sentence. */
    bool (*broken)(const struct job_spec *job, char ret[SENTENCE]);
    /* Without a function: the one value of an int64_t that this version takes, and why. */
    size_t offset;
    int64_t only;
    const char *because;
};

#define SAY(...) (snprintf(ret, SENTENCE, __VA_ARGS__), true)

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
    return m->dim % m->heads && SAY("model.dim %" PRId64 " does not divide by %" PRId64 " heads; %" PRId64
                                    " heads would do, or a dim of %" PRId64,
                                    m->dim, m->heads, below, (m->dim + m->heads - 1) / m->heads * m->heads);
}

static bool kv_heads_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    return m->kv_heads && m->heads % m->kv_heads &&
           SAY("%" PRId64 " heads do not divide by %" PRId64 " key-value heads; %" PRId64 " would do", m->heads,
               m->kv_heads, divisor_below(m->heads, m->kv_heads < m->heads ? m->kv_heads : m->heads));
}

static bool rotary_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    return m->arch == ARCH_LLAMA && m->dim / m->heads % 2 &&
           SAY("dim / heads is %" PRId64 "; rotary positions turn pairs, so llama needs an even number",
               m->dim / m->heads);
}

static bool gpt2_kv_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_model *m = &j->model;
    return m->arch != ARCH_LLAMA && m->kv_heads && m->kv_heads != m->heads &&
           SAY("%s has as many key-value heads as heads: write 0 or %" PRId64,
               m->arch == ARCH_GPT2 ? "gpt2" : "transformer", m->heads);
}

static bool gpt2_tied_broken(const struct job_spec *j, char ret[SENTENCE])
{
    if (j->model.arch == ARCH_TRANSFORMER && j->model.tied)
        return SAY("transformer's head has a table of its own: write false, or leave it out");
    return j->model.arch == ARCH_GPT2 && !j->model.tied &&
           SAY("gpt2's head always shares the embedding's table: write true, or leave it out");
}

static bool vocab_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->data.tokenizer == TOKENIZER_BYTES && j->model.vocab && j->model.vocab < 256 &&
           SAY("the tokenizer bytes has 256 tokens: write 0 (take the tokenizer's), or 256 and more");
}

static bool lowercase_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->data.lowercase && j->data.tokenizer != TOKENIZER_WORDS &&
           SAY("only the tokenizer words has it: write false");
}

static bool tokenizer_files_broken(const struct job_spec *j, char ret[SENTENCE])
{
    if (j->data.tokenizer != TOKENIZER_BPE)
        return j->data.n_tokenizer_files && SAY("only the tokenizer bpe has files: leave it out");
    return !j->data.n_tokenizer_files &&
           SAY("the tokenizer bpe needs them: write [vocab.json, merges.txt], or [tokenizer.json]");
}

static bool train_empty(const struct job_spec *j, char ret[SENTENCE])
{
    return !j->data.n_train && SAY("found an empty list; at least one file or pattern is needed");
}

static bool micro_batch_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->train.micro_batch > j->train.global_batch &&
           SAY("%" PRId64 " samples, more than train.global_batch: at most %" PRId64, j->train.micro_batch,
               j->train.global_batch);
}

static bool warmup_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->train.warmup > j->train.steps &&
           SAY("%" PRId64 " updates, more than train.steps: at most %" PRId64, j->train.warmup, j->train.steps);
}

static bool decay_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_train *t = &j->train;
    int64_t most = t->steps - t->warmup;
    if (t->decay && t->schedule != LR_WSD)
        return SAY("only train.schedule wsd has it: write 0, or train.schedule wsd");
    return t->decay > most &&
           SAY("%" PRId64 " updates beside a warm-up of %" PRId64 ", of %" PRId64 " in all: at most %" PRId64, t->decay,
               t->warmup, t->steps, most);
}

static bool dtype_broken(const struct job_spec *j, char ret[SENTENCE])
{
    enum dtype dtype = (enum dtype)j->train.dtype;
    if (j->train.numerics == NUMERICS_PROOF && dtype != DT_F64)
        return SAY("train.numerics proof computes in float64: write float64, or leave it out");
    if (j->train.numerics == NUMERICS_CANONICAL && dtype != DT_F32)
        return SAY("train.numerics canonical computes in float32: write float32, or leave it out");
    if (dtype == DT_BF16 && j->run.device == DEVICE_CPU)
        return SAY("this version has no bfloat16 on a CPU: write float32, or run.device cuda");
    if (dtype == DT_F64 && j->run.device == DEVICE_CUDA)
        return SAY("this version has no float64 on a GPU: write float32 or bfloat16, or run.device cpu");
    return false;
}

static bool zero_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.zero && j->parallel.fsdp < 2 &&
           SAY("ZeRO %" PRId64 " shards over parallel.fsdp, which is 1: write 0, or fsdp of 2 and more",
               j->parallel.zero);
}

static bool mesh_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    int64_t unit = 1, below;
    const int64_t axes[] = {p->fsdp, p->tp, p->pp, p->cp};
    for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]); i++)
        if (__builtin_mul_overflow(unit, axes[i], &unit) || unit > JOB_MAX_WORKERS)
            return SAY("fsdp x tp x pp x cp is more than %d workers", JOB_MAX_WORKERS);
    below = p->workers / unit * unit;
    if (p->workers % unit == 0)
        return false;
    if (!below)
        return SAY("%" PRId64 " workers; fsdp x tp x pp x cp alone is %" PRId64 ": write %" PRId64, p->workers, unit,
                   unit);
    return SAY("%" PRId64 " workers are not a multiple of fsdp x tp x pp x cp, which is %" PRId64 ": write %" PRId64
               " or %" PRId64,
               p->workers, unit, below, below + unit);
}

int64_t job_replica_workers(const struct job_spec *j)
{
    const struct job_parallel *p = &j->parallel;
    return p->fsdp * p->tp * p->pp * p->cp;
}

/* After mesh_broken: the product fits, and divides the workers. */
static bool range_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    int64_t unit = job_replica_workers(j), nearest = (p->min_workers + unit - 1) / unit * unit;
    if (p->min_workers == 0)
        return false;
    if (p->min_workers > p->workers)
        return SAY("%" PRId64 " is more than parallel.workers: write %" PRId64 " or 0", p->min_workers, p->workers);
    return nearest != p->min_workers && SAY("%" PRId64 " workers are no whole replicas of %" PRId64 ": write %" PRId64,
                                            p->min_workers, unit, nearest);
}

static bool nodes_broken(const struct job_spec *j, char ret[SENTENCE])
{
    int64_t workers = j->parallel.workers, nodes = j->run.nodes;
    if (nodes == 0 || workers % nodes == 0)
        return false;
    return SAY("%" PRId64 " workers are not the same on each of %" PRId64 " nodes: write %" PRId64 " or 0", workers,
               nodes, divisor_below(workers, nodes < workers ? nodes : workers));
}

/* After mesh_broken: the product fits. */
static bool experts_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    int64_t folded = p->fsdp * p->cp * p->tp;
    return folded % p->ep && SAY("it is folded over fsdp x cp x tp, which is %" PRId64 ": write %" PRId64, folded,
                                 divisor_below(folded, p->ep < folded ? p->ep : folded));
}

static bool stages_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.pp > j->model.layers &&
           SAY("%" PRId64 " stages, but model.layers is %" PRId64 ": at most as many stages as layers", j->parallel.pp,
               j->model.layers);
}

static bool chunks_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const struct job_parallel *p = &j->parallel;
    if (p->chunks < 2)
        return false;
    if (p->pp < 2)
        return SAY("%" PRId64 " stages per rank of a pipeline, but parallel.pp is 1: write 1, or pp of 2 and more",
                   p->chunks);
    if (p->schedule != PIPE_INTERLEAVED && p->schedule != PIPE_FILE)
        return SAY("only the schedules interleaved and file have several stages per rank: write 1, or "
                   "parallel.schedule interleaved");
    return p->chunks > j->model.layers / p->pp &&
           SAY("%" PRId64 " stages on each of %" PRId64 " ranks, but model.layers is %" PRId64 ": write %" PRId64,
               p->chunks, p->pp, j->model.layers, j->model.layers / p->pp);
}

static bool schedule_file_broken(const struct job_spec *j, char ret[SENTENCE])
{
    const char *text = j->parallel.schedule_csv;
    bool some = text && text[0];
    if (j->parallel.schedule == PIPE_FILE && !some)
        return SAY("schedule file takes the schedule from here, and nothing is here: write it, or another schedule");
    return some && j->parallel.schedule != PIPE_FILE && SAY("only schedule file reads it: leave it out");
}

static bool tensor_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.tp > j->model.heads &&
           SAY("%" PRId64 " ranks share %" PRId64 " heads: at most as many ranks as heads", j->parallel.tp,
               j->model.heads);
}

static bool async_broken(const struct job_spec *j, char ret[SENTENCE])
{
    if (!j->parallel.async_tp)
        return false;
    if (j->parallel.tp < 2)
        return SAY("products overlap collectives of tensor parallelism, but parallel.tp is 1: write false, or tp of 2 "
                   "and more");
    return !j->parallel.sp && SAY("products overlap collectives of own tokens, but parallel.sp is false: write false, "
                                  "or sp true");
}

static bool context_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->parallel.cp > 1 && j->train.seq / 2 < j->parallel.cp &&
           SAY("each rank has two pieces of the sequence, of %" PRId64 " tokens: at most %" PRId64, j->train.seq,
               j->train.seq < 2 ? 1 : j->train.seq / 2);
}

/* The sums of both modes have a fixed order, which only the processor's kernels and backend keep. */
static bool device_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->run.device != DEVICE_CPU && j->train.numerics != NUMERICS_FAST &&
           SAY("train.numerics %s needs a CPU: write cpu, or train.numerics fast",
               j->train.numerics == NUMERICS_PROOF ? "proof" : "canonical");
}

static bool comm_broken(const struct job_spec *j, char ret[SENTENCE])
{
    bool cpu = j->run.device == DEVICE_CPU;
    if (cpu && (j->run.comm == COMM_NCCL || j->run.comm == COMM_STAGED))
        return SAY("%s moves a GPU's memory, but run.device is cpu: write shm or auto, or run.device cuda",
                   j->run.comm == COMM_NCCL ? "nccl" : "staged");
    const char *name = j->run.comm == COMM_SHM      ? "shm"
                       : j->run.comm == COMM_STREAM ? "stream"
                       : j->run.comm == COMM_UCX    ? "ucx"
                                                    : NULL;
    return !cpu && name && SAY("%s needs run.device cpu: write nccl, staged or auto", name);
}

static bool comm_thread_broken(const struct job_spec *j, char ret[SENTENCE])
{
    return j->run.device != DEVICE_CPU && j->run.comm_thread == COMM_THREAD_ON &&
           SAY("a GPU exchanges tensors beside its computation without a thread: write auto, or run.device cpu");
}

#define OVER(field, fn) .key = #field, .broken = (fn)
#define ONLY(field, value, why) \
    .key = #field, .offset = offsetof(struct job_spec, field), .only = (value), .because = (why)

static const struct rule rules[] = {
    {OVER(data.train, train_empty)},
    {OVER(model.heads, heads_broken)},
    {OVER(model.kv_heads, kv_heads_broken)},
    {OVER(model.heads, rotary_broken)},
    {OVER(model.kv_heads, gpt2_kv_broken)},
    {OVER(model.tied, gpt2_tied_broken)},
    {OVER(model.vocab, vocab_broken)},
    {OVER(data.lowercase, lowercase_broken)},
    {OVER(data.tokenizer_files, tokenizer_files_broken)},
    {OVER(train.micro_batch, micro_batch_broken)},
    {OVER(train.warmup, warmup_broken)},
    {OVER(train.decay, decay_broken)},
    {OVER(parallel.pp, stages_broken)},
    {OVER(parallel.chunks, chunks_broken)},
    {OVER(parallel.schedule_csv, schedule_file_broken)},
    {OVER(parallel.workers, mesh_broken)},
    {OVER(parallel.min_workers, range_broken)},
    {OVER(parallel.ep, experts_broken)},
    {OVER(parallel.tp, tensor_broken)},
    {OVER(parallel.async_tp, async_broken)},
    {OVER(parallel.cp, context_broken)},
    {OVER(parallel.zero, zero_broken)},
    /* What this version cannot do yet. */
    {ONLY(parallel.ep, 1, "this version has no expert parallelism")},
    {ONLY(checkpoint.memory_every, 0, "this version has no memory tier of checkpoints")},
    {OVER(run.nodes, nodes_broken)},
    {OVER(run.device, device_broken)},
    {OVER(run.comm, comm_broken)},
    {OVER(run.comm_thread, comm_thread_broken)},
    {OVER(train.dtype, dtype_broken)},
};

/* After nodes_broken: workers are the same on every node. */
static bool whole_nodes_broken(const struct job_spec *j, char ret[SENTENCE])
{
    int64_t workers = j->parallel.workers, least = j->parallel.min_workers;
    int64_t unit = j->run.nodes ? workers / j->run.nodes : 1;
    if (least > workers)
        return SAY("%" PRId64 " is more than parallel.workers: write %" PRId64 " or 0", least, workers);
    return least % unit && SAY("%" PRId64 " workers are no whole nodes of %" PRId64 ": write %" PRId64, least, unit,
                               (least + unit - 1) / unit * unit);
}

static bool command_empty(const struct job_spec *j, char ret[SENTENCE])
{
    return (j->n_command == 0 || !j->command[0][0]) && SAY("names no program: write [python, train.py]");
}

static const struct rule command_rules[] = {
    {OVER(command, command_empty)},
    {OVER(run.nodes, nodes_broken)},
    {OVER(parallel.min_workers, whole_nodes_broken)},
};

static bool rule_broken(const struct rule *rule, const struct job_spec *job, char ret[SENTENCE])
{
    if (rule->broken)
        return rule->broken(job, ret);
    int64_t value = *(const int64_t *)((const char *)job + rule->offset);
    return value != rule->only && SAY("found %" PRId64 "; %s: write %" PRId64, value, rule->because, rule->only);
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
