/* A wrong job file: each mistake, and the whole sentence it gets. Rows with `set` override JOB_TEXT; rows with `text`
 * are files of their own. */
#include "tests/common/conf/job_text.h"

#define HEAD "name: x\nmodel: {dim: 8, layers: 1, heads: 2}\ndata: {train: [a]}\n"
#define TRAIN_KEYS                                                                                                  \
    "steps, seq, global_batch, micro_batch, lr, min_lr_ratio, schedule, warmup, decay, weight_decay, clip, beta1, " \
    "beta2, "                                                                                                       \
    "eps, "                                                                                                         \
    "dtype, numerics, eval_every, eval_batches, dropout, nan, nan_limit, verify_every, seed"

struct mistake {
    const char *given, *message;
};

static void check_files(const struct mistake *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct job_spec j;
        struct why why = {0};
        err_t err = job_parse("job.yaml", m[i].given, strlen(m[i].given), NULL, 0, &j, &why);
        if (err != ERR_INVALID || strcmp(why.text, m[i].message) != 0)
            fail_msg("%s\ngives  %s %s\nwanted %s", m[i].given, err_name(err), why.text, m[i].message);
    }
}

/* The message is "--set GIVEN: MESSAGE", or MESSAGE alone where it points at a line of the file. */
static void check_sets(const struct mistake *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct job_spec j;
        struct why why = {0};
        char wanted[1024];
        bool line = strncmp(m[i].message, "job.yaml", 8) == 0;
        snprintf(wanted, sizeof(wanted), "%s%s%s%s", line ? "" : "--set ", line ? "" : m[i].given, line ? "" : ": ",
                 m[i].message);
        err_t err = job_parse("job.yaml", JOB_TEXT, strlen(JOB_TEXT), &m[i].given, 1, &j, &why);
        if (err != ERR_INVALID || strcmp(why.text, wanted) != 0)
            fail_msg("--set %s\ngives  %s %s\nwanted %s", m[i].given, err_name(err), why.text, wanted);
    }
}
#define FILES(list) check_files(list, sizeof(list) / sizeof((list)[0]))
#define SETS(list) check_sets(list, sizeof(list) / sizeof((list)[0]))

TEST(files)
{
    static const struct mistake list[] = {
        {"", "job.yaml: the file is empty"},
        {"name: [", "job.yaml:2: not YAML: while parsing a flow node, did not find expected node content"},
        {"- a",
         "job.yaml:1: found a list, a map with some of the keys name, model, data, train, parallel, checkpoint, run "
         "is needed"},
        {"model: {dim: 8}\n",
         "job.yaml: name: the key is missing; it has no default (What the job is called; part of file "
         "names.)"},
        {"name: x\nmodel: {layers: 1, heads: 2}\n",
         "job.yaml: model.dim: the key is missing; it has no default (Width of the residual stream.)"},
        {HEAD, "job.yaml: train.steps: the key is missing; it has no default (Updates in all, those before a resume "
               "included.)"},
        {HEAD "train:\n  steps: many\n",
         "job.yaml:5: train.steps: found \"many\", an integer from 1 to 1000000000 is needed"},
        {HEAD "train:\n  stps: 1\n",
         "job.yaml:5: train.stps: unknown key; did you mean train.steps? (keys of train: " TRAIN_KEYS ")"},
        {HEAD "train: {steps: 1}\nlr: 3\n", "job.yaml:5: lr: unknown key; did you mean train.lr? (top level: name, "
                                            "model, data, train, parallel, checkpoint, "
                                            "run)"},
        {HEAD "trian: {steps: 1}\n",
         "job.yaml:4: trian: unknown key; did you mean train? (top level: name, model, data, train, "
         "parallel, checkpoint, run)"},
        {HEAD "zebra: 1\n",
         "job.yaml:4: zebra: unknown key (top level: name, model, data, train, parallel, checkpoint, run)"},
        {HEAD "train: {steps: 1}\nrun: {env: {9A: x}}\n",
         "job.yaml:5: run.env: found the text \"9A\", a name of letters, digits and underscores for each key (the name "
         "of an "
         "environment variable) is needed"},
        {HEAD "train: {steps: 1}\nrun:\n  env:\n    A: x\n    B: [1]\n",
         "job.yaml:8: run.env: found a list, a text for each key is needed"},
        {"name: x\ndata:\n  train:\n    - a\n    - {b: c}\n",
         "job.yaml:5: data.train: found a map, a text in each place is needed"},
        {HEAD "train: {steps: 1}\nname: y\n", "job.yaml:5: name: the key is there twice, first in line 1"},
        {HEAD "train: {steps: 1}\nparallel:\n  workers: 2\n  tp: 3\n",
         "job.yaml:6: parallel.workers: 2 workers; fsdp x tp x pp x cp alone is 3: write 3"},
        {"name: x\nmodel: {arch: gpt2, dim: 8, layers: 1, heads: 2, tied: false}\ndata: {train: [a]}\ntrain: {steps: "
         "1}\n",
         "job.yaml:2: model.tied: gpt2's head always shares the embedding's table: write true, or leave it out"},
    };
    FILES(list);
}

TEST(values)
{
    static const struct mistake list[] = {
        {"train.steps=1_000",
         "train.steps: found \"1_000\", an integer from 1 to 1000000000 is needed; write the digits without _"},
        {"train.steps=1e3",
         "train.steps: found \"1e3\", an integer from 1 to 1000000000 is needed; write an integer with all "
         "its digits, without a point or an exponent"},
        {"train.steps='3'",
         "train.steps: found the text \"3\", an integer from 1 to 1000000000 is needed; write it without quotes"},
        {"train.steps=0", "train.steps: found \"0\", an integer from 1 to 1000000000 is needed"},
        {"train.steps=", "train.steps: found nothing, an integer from 1 to 1000000000 is needed"},
        {"train.steps=[1]", "train.steps: found a list, an integer from 1 to 1000000000 is needed"},
        {"train.seed=-1",
         "train.seed: found \"-1\", an integer from 0 to 18446744073709551615 is needed; it is negative"},
        {"train.lr=abc", "train.lr: found \"abc\", a number from 0 to 1000 is needed"},
        {"train.lr=-1", "train.lr: found \"-1\", a number from 0 to 1000 is needed"},
        {"train.lr=.nan", "train.lr: found \".nan\", a number from 0 to 1000 is needed; it is not a finite number"},
        {"parallel.sp=yes", "parallel.sp: found \"yes\", true or false is needed"},
        {"model.arch=bert", "model.arch: found \"bert\", one of llama, gpt2, transformer is needed"},
        {"name=../x",
         "name: found \"../x\", a name of 1 to 64 letters, digits, points, dashes and underscores that begins "
         "with a letter or a digit is needed"},
        {"name=.hidden",
         "name: found \".hidden\", a name of 1 to 64 letters, digits, points, dashes and underscores that "
         "begins with a letter or a digit is needed"},
        {"data.cache=", "data.cache: found nothing, a text is needed; write \"\" for an empty one"},
        {"data.train=a.txt", "data.train: found \"a.txt\", a list of texts is needed; such as [a, b]"},
        {"data.train=['']", "data.train: found the text \"\", a path of 1 to 4095 bytes is needed"},
        {"data.train_hash=abc", "data.train_hash: found \"abc\", a hash of 64 hex digits, or \"\" is needed"},
        {"run.env=[A]", "run.env: found a list, a map of texts is needed; such as {KEY: value}"},
        {"run.env.9=1",
         "run.env: found the text \"9\", a name of letters, digits and underscores for each key (the name of an "
         "environment variable) is needed"},
        {"run.env.A=[1]", "run.env: found a list, a text for each key is needed"},
        {"model=3",
         "model: found \"3\", a map with some of the keys arch, dim, layers, heads, kv_heads, ffn, vocab, norm_eps, "
         "rope_theta, tied, causal is needed"},
        {"train.stps=3", "train.stps: unknown key; did you mean train.steps? (keys of train: " TRAIN_KEYS ")"},
        {"train.lr.x=3", "train.lr.x: unknown key (keys of train: " TRAIN_KEYS ")"},
        {"data.train=*.txt",
         "data.train: not YAML: while scanning an alias, did not find expected alphabetic or numeric "
         "character; put a text that begins with * or & in quotes"},
        {"steps", "KEY=VALUE is needed, such as train.lr=1e-4"},
        {"=3", "KEY=VALUE is needed, such as train.lr=1e-4"},
    };
    SETS(list);
}

TEST(rules)
{
    static const struct mistake list[] = {
        {"data.train=[]", "data.train: found an empty list; at least one file or pattern is needed"},
        {"model.heads=7", "model.heads: model.dim 256 does not divide by 7 heads; 4 heads would do, or a dim of 259"},
        {"model.kv_heads=3", "model.kv_heads: 8 heads do not divide by 3 key-value heads; 2 would do"},
        {"model.kv_heads=16", "model.kv_heads: 8 heads do not divide by 16 key-value heads; 8 would do"},
        {"model={dim: 24, heads: 8, kv_heads: 0}",
         "model.heads: dim / heads is 3; rotary positions turn pairs, so llama needs an even number"},
        {"model={arch: gpt2, tied: true}",
         "job.yaml:2: model.kv_heads: gpt2 has as many key-value heads as heads: write 0 or 8"},
        {"model.vocab=100",
         "model.vocab: the tokenizer bytes has 256 tokens: write 0 (take the tokenizer's), or 256 and more"},
        {"data.lowercase=true", "data.lowercase: only the tokenizer words has it: write false"},
        {"data.tokenizer_files=[a]", "data.tokenizer_files: only the tokenizer bpe has files: leave it out"},
        {"data.tokenizer=bpe",
         "job.yaml: data.tokenizer_files: the tokenizer bpe needs them: write [vocab.json, merges.txt], or "
         "[tokenizer.json]"},
        {"train.micro_batch=17", "train.micro_batch: 17 samples, more than train.global_batch: at most 16"},
        {"train.global_batch=3", "job.yaml:4: train.micro_batch: 4 samples, more than train.global_batch: at most 3"},
        {"train.warmup=301", "train.warmup: 301 updates, more than train.steps: at most 300"},
        {"train.decay=1", "train.decay: only train.schedule wsd has it: write 0, or train.schedule wsd"},
        {"train={numerics: proof, dtype: float32}",
         "train.dtype: train.numerics proof computes in float64: write float64, or leave it out"},
        {"train={numerics: canonical, dtype: float64}",
         "train.dtype: train.numerics canonical computes in float32: write float32, or leave it out"},
        {"train.dtype=bfloat16",
         "train.dtype: this version has no bfloat16 on a CPU: write float32, or run.device cuda"},
        {"parallel={workers: 7, tp: 3}",
         "parallel.workers: 7 workers are not a multiple of fsdp x tp x pp x cp, which is 3: write 6 or 9"},
        {"parallel={fsdp: 1000000, tp: 1000000, cp: 1000000, pp: 2}",
         "job.yaml:6: parallel.workers: fsdp x tp x pp x cp is more than 1048576 workers"},
        {"parallel.pp=5", "parallel.pp: 5 stages, but model.layers is 4: at most as many stages as layers"},
        {"parallel.ep=2", "parallel.ep: it is folded over fsdp x cp x tp, which is 1: write 1"},
        {"parallel.zero=1",
         "parallel.zero: ZeRO 1 shards over parallel.fsdp, which is 1: write 0, or fsdp of 2 and more"},
        {"parallel={tp: 9, workers: 9}", "parallel.tp: 9 ranks share 8 heads: at most as many ranks as heads"},
        {"parallel={cp: 129, workers: 129}",
         "parallel.cp: each rank has two pieces of the sequence, of 256 tokens: at most 128"},
        {"parallel.async_tp=true",
         "parallel.async_tp: products overlap collectives of tensor parallelism, but parallel.tp is 1: write false, or "
         "tp of 2 and more"},
        {"parallel={async_tp: true, tp: 2, workers: 2, sp: false}",
         "parallel.async_tp: products overlap collectives of own tokens, but parallel.sp is false: write false, or sp "
         "true"},
        {"parallel.chunks=2",
         "parallel.chunks: 2 stages per rank of a pipeline, but parallel.pp is 1: write 1, or pp of 2 and more"},
        {"parallel={chunks: 2, pp: 2}",
         "parallel.chunks: only the schedules interleaved and file have several stages per rank: write 1, or "
         "parallel.schedule interleaved"},
        {"parallel={chunks: 3, pp: 2, schedule: interleaved}",
         "parallel.chunks: 3 stages on each of 2 ranks, but model.layers is 4: write 2"},
        {"parallel={pp: 2, schedule: file}", "job.yaml: parallel.schedule_csv: schedule file takes the schedule from "
                                             "here, and nothing is here: write it, or another "
                                             "schedule"},
        {"parallel.schedule_csv=F0.0", "parallel.schedule_csv: only schedule file reads it: leave it out"},
        {"parallel={workers: 6, min_workers: 8}",
         "parallel.min_workers: 8 is more than parallel.workers: write 6 or 0"},
        {"parallel={workers: 6, min_workers: 3, pp: 2}",
         "parallel.min_workers: 3 workers are no whole replicas of 2: write 4"},
        {"run.nodes=4", "run.nodes: 2 workers are not the same on each of 4 nodes: write 2 or 0"},
        {"checkpoint.memory_every=5",
         "checkpoint.memory_every: found 5; this version has no memory tier of checkpoints: write 0"},
        {"run.comm=nccl",
         "run.comm: nccl moves a GPU's memory, but run.device is cpu: write shm or auto, or run.device cuda"},
        {"run.comm=staged",
         "run.comm: staged moves a GPU's memory, but run.device is cpu: write shm or auto, or run.device cuda"},
        {"run={device: cuda, comm: shm}", "run.comm: shm needs run.device cpu: write nccl, staged or auto"},
        {"run={device: cuda, comm: ucx}", "run.comm: ucx needs run.device cpu: write nccl, staged or auto"},
        {"run={device: cuda, comm_thread: on}",
         "run.comm_thread: a GPU exchanges tensors beside its computation without "
         "a thread: write auto, or run.device cpu"},
        {"run.comm_thread=yes", "run.comm_thread: found \"yes\", one of auto, on, off is needed"},
        {"run.comm=gloo", "run.comm: found \"gloo\", one of auto, shm, stream, ucx, nccl, staged is needed"},
        {"run.workers_per_gpu=0", "run.workers_per_gpu: found \"0\", an integer from 1 to 64 is needed"},
        {"run.workers_per_gpu=65", "run.workers_per_gpu: found \"65\", an integer from 1 to 64 is needed"},
    };
    SETS(list);
}

/* Rules over two keys of a job for GPUs. */
TEST(devices)
{
    static const struct {
        const char *sets[2], *says;
    } rows[] = {
        {{"run.device=cuda", "train.numerics=canonical"},
         "run.device: train.numerics canonical needs a CPU: write cpu, or train.numerics fast"},
        {{"run.device=cuda", "train={numerics: proof, dtype: float64}"},
         "run.device: train.numerics proof needs a CPU: write cpu, or train.numerics fast"},
        {{"run.device=cuda", "train.dtype=float64"},
         "train.dtype: this version has no float64 on a GPU: write float32 or bfloat16, or run.device cpu"},
        {{"run.device=cuda", "train.dtype=bfloat16"}, NULL},
        {{"run.device=cuda", "train.dtype=float32"}, NULL},
        {{"run.device=cuda", "run.comm=auto"}, NULL},
        {{"run.device=cuda", "run.comm=nccl"}, NULL},
        {{"run.device=cuda", "run.comm=staged"}, NULL},
        {{"run.device=cuda", "run.workers_per_gpu=64"}, NULL},
        {{"run.device=cuda", "run.comm_thread=off"}, NULL},
        {{"run.device=cpu", "run.comm_thread=on"}, NULL},
        {{"run.device=cpu", "run.comm=shm"}, NULL},
        {{"run.device=cpu", "run.comm=stream"}, NULL},
        {{"run.device=cpu", "run.comm=ucx"}, NULL},
        {{"run.device=cpu", "run.workers_per_gpu=2"}, NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job_spec j;
        struct why why = {0};
        err_t err = job_parse("job.yaml", JOB_TEXT, strlen(JOB_TEXT), rows[i].sets, 2, &j, &why);
        if (err != (rows[i].says ? ERR_INVALID : OK) || (err && !strstr(why.text, rows[i].says)))
            fail_msg("%s %s gives %s %s", rows[i].sets[0], rows[i].sets[1], err_name(err), why.text);
        if (!err)
            job_fini(&j);
    }
}

/* A terminal is not to act on what stands in a file. */
TEST(shown_values_are_short_and_harmless)
{
    struct job_spec j;
    struct why why = {0};
    char text[4096] = HEAD "train:\n  steps: \"\\x1B[2J";
    size_t len = strlen(text);
    memset(text + len, 'a', 1000);
    strcpy(text + len + 1000, "\"\n");
    assert_err(ERR_INVALID, job_parse("job.yaml", text, strlen(text), NULL, 0, &j, &why));
    assert_null(strchr(why.text, 0x1b));
    assert_true(strlen(why.text) < 300);
    assert_non_null(strstr(why.text, "cut short"));
}
