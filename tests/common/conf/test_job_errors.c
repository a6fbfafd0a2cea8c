/* Wrong job files: each mistake with its complete error message. check_files parses whole files; check_sets applies a
 * --set to JOB_TEXT. */
#include "tests/common/conf/job_text.h"

#define HEAD "name: x\nmodel: {dim: 8, layers: 1, heads: 2}\ndata: {train: [a]}\n"
#define TRAIN_KEYS                                                                                                  \
    "steps, seq, global_batch, micro_batch, lr, min_lr_ratio, schedule, warmup, decay, weight_decay, clip, beta1, " \
    "beta2, "                                                                                                       \
    "eps, "                                                                                                         \
    "dtype, numerics, eval_every, eval_batches, dropout, nan, nan_limit, verify_every, seed, "                      \
    "save_routing, replay_routing"

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

/* The message is "--set GIVEN: MESSAGE", or MESSAGE alone if it names a line of the file. */
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
        {"- a", "job.yaml:1: expected a map with some of the keys name, model, data, train, parallel, checkpoint, run, "
                "forecast, found a list"},
        {"model: {dim: 8}\n", "job.yaml: name: required key is missing (Name of the job; used in file names.)"},
        {"name: x\nmodel: {layers: 1, heads: 2}\n",
         "job.yaml: model.dim: required key is missing (Hidden size: width of the residual stream.)"},
        {HEAD, "job.yaml: train.steps: required key is missing (Total number of training steps (optimizer updates), "
               "including those before a resume.)"},
        {"name: x\nmodel: {dim: 8, layers: 2, heads: 2, tied: true}\ndata: {train: [a]}\ntrain: {steps: 1}\n"
         "parallel: {workers: 2, pp: 2, schedule: zb-h2, post_validation: true}\n",
         "job.yaml:5: parallel.post_validation: the tied table is on the first and on the last rank, and its update "
         "needs the gradient of both: write false, or parallel.schedule zb-v with parallel.chunks 2"},
        {"name: x\nmodel: {dim: 8, layers: 2, heads: 2, experts: 2}\ndata: {train: [a]}\ntrain: {steps: 1}\n"
         "parallel: {workers: 2, pp: 2, schedule: zb-h2, post_validation: true}\n",
         "job.yaml:5: parallel.post_validation: the update of a model with experts needs the numbers of all ranks' "
         "routers: write false"},
        {HEAD "train:\n  steps: many\n",
         "job.yaml:5: train.steps: expected an integer from 1 to 1000000000, found \"many\""},
        {HEAD "train:\n  stps: 1\n",
         "job.yaml:5: train.stps: unknown key; did you mean train.steps? (keys of train: " TRAIN_KEYS ")"},
        {HEAD "train: {steps: 1}\nlr: 3\n", "job.yaml:5: lr: unknown key; did you mean train.lr? (top level: name, "
                                            "model, data, train, parallel, checkpoint, "
                                            "run, forecast)"},
        {HEAD "trian: {steps: 1}\n",
         "job.yaml:4: trian: unknown key; did you mean train? (top level: name, model, data, train, "
         "parallel, checkpoint, run, forecast)"},
        {HEAD "zebra: 1\n",
         "job.yaml:4: zebra: unknown key (top level: name, model, data, train, parallel, checkpoint, run, forecast)"},
        {HEAD "train: {steps: 1}\nrun: {env: {9A: x}}\n",
         "job.yaml:5: run.env: expected a name of letters, digits and underscores for each key (the name of an "
         "environment variable), found the string \"9A\""},
        {HEAD "train: {steps: 1}\nrun:\n  env:\n    A: x\n    B: [1]\n",
         "job.yaml:8: run.env: expected a string for each key, found a list"},
        {"name: x\ndata:\n  train:\n    - a\n    - {b: c}\n",
         "job.yaml:5: data.train: expected a string for each item, found a map"},
        {HEAD "train: {steps: 1}\nname: y\n", "job.yaml:5: name: duplicate key, first given in line 1"},
        {HEAD "train: {steps: 1}\nparallel:\n  workers: 2\n  tp: 3\n",
         "job.yaml:6: parallel.workers: 2 workers are fewer than fsdp x tp x pp x cp, which is 3: write 3, or "
         "parallel.tp 2"},
        {"name: x\nmodel: {arch: gpt2, dim: 8, layers: 1, heads: 2, tied: false}\ndata: {train: [a]}\ntrain: {steps: "
         "1}\n",
         "job.yaml:2: model.tied: the head of gpt2 always shares the embedding table: write true, or leave the key "
         "out"},
    };
    FILES(list);
}

/* Wrong types, spellings and ranges of one value, and unknown keys. */
static const struct mistake wrong_values[] = {
    {"train.seq=2k", "train.seq: expected an integer from 1 to 4194304, found \"2k\"; write all digits: k may mean "
                     "1000 or 1024"},
    {"train.steps=1.0005k", "train.steps: expected an integer from 1 to 1000000000, found \"1.0005k\"; with its letter "
                            "it is no integer, or too large"},
    {"train.steps=2x", "train.steps: expected an integer from 1 to 1000000000, found \"2x\""},
    {"train.steps=1_000",
     "train.steps: expected an integer from 1 to 1000000000, found \"1_000\"; write the digits without _"},
    {"train.steps=1e3", "train.steps: expected an integer from 1 to 1000000000, found \"1e3\"; write an integer "
                        "with all its digits, without a decimal point or an exponent"},
    {"train.steps='3'",
     "train.steps: expected an integer from 1 to 1000000000, found the string \"3\"; write it without quotes"},
    {"train.steps=0", "train.steps: expected an integer from 1 to 1000000000, found \"0\""},
    {"train.steps=", "train.steps: expected an integer from 1 to 1000000000, found nothing"},
    {"train.steps=[1]", "train.steps: expected an integer from 1 to 1000000000, found a list"},
    {"train.seed=-1", "train.seed: expected an integer from 0 to 18446744073709551615, found \"-1\"; it is negative"},
    {"train.lr=abc", "train.lr: expected a number from 0 to 1000, found \"abc\""},
    {"train.lr=-1", "train.lr: expected a number from 0 to 1000, found \"-1\""},
    {"train.lr=.nan", "train.lr: expected a number from 0 to 1000, found \".nan\"; it is not a finite number"},
    {"parallel.sp=yes", "parallel.sp: expected true or false, found \"yes\""},
    {"model.arch=bert", "model.arch: expected one of llama, gpt2, transformer, found \"bert\""},
    {"name=../x", "name: expected a name of 1 to 64 letters, digits, dots, dashes and underscores that begins with "
                  "a letter or a digit, found \"../x\""},
    {"name=.hidden", "name: expected a name of 1 to 64 letters, digits, dots, dashes and underscores that begins "
                     "with a letter or a digit, found \".hidden\""},
    {"data.cache=", "data.cache: expected a string, found nothing; write \"\" for an empty string"},
    {"data.train=a.txt", "data.train: expected a list of strings, found \"a.txt\"; write [a, b]"},
    {"data.train=['']", "data.train: expected a path of 1 to 4095 bytes, found the string \"\""},
    {"data.train_hash=abc", "data.train_hash: expected a hash of 64 hex digits, or \"\", found \"abc\""},
    {"run.env=[A]", "run.env: expected a map of strings, found a list; write {KEY: value}"},
    {"run.env.9=1", "run.env: expected a name of letters, digits and underscores for each key (the name of an "
                    "environment variable), found the string \"9\""},
    {"run.env.A=[1]", "run.env: expected a string for each key, found a list"},
    {"model.expert_capacity=-1", "model.expert_capacity: expected a number from 0 to 1000000, found \"-1\""},
    {"model.expert_capacity=.inf",
     "model.expert_capacity: expected a number from 0 to 1000000, found \".inf\"; it is not a finite number"},
    {"model.expert_drop=random", "model.expert_drop: expected one of position, probability, found \"random\""},
    {"model=3",
     "model: expected a map with some of the keys arch, dim, layers, heads, kv_heads, head_dim, "
     "qkv_bias, qk_norm, window, window_from, window_period, score_softcap, score_scale, ffn, vocab, "
     "norm_eps, rope_theta, rope_part, rope_type, rope_factor, rope_original, rope_low, rope_high, "
     "rope_fast, rope_slow, rope_exact, rope_attention, rope_mscale, rope_mscale_all, rope_short, rope_long, "
     "rope_layers, rope_local_theta, out_bias, ffn_bias, head_bias, ffn_plain, activation, norm, "
     "norm_place, branches, embed_scale, residual_scale, logit_scale, logit_cap, tied, "
     "labels, causal, experts, experts_per_token, expert_ffn, shared_experts, "
     "shared_gate, moe_every, dense_layers, router, router_norm, router_bias, router_scale, "
     "router_groups, router_groups_kept, router_group_best, aux_loss, aux_scope, expert_bias, "
     "expert_capacity, expert_drop, z_loss, found \"3\""},
    {"parallel.dp=2",
     "parallel.dp: unknown key; did you mean parallel.workers (dp is workers / (fsdp tp pp cp))? "
     "(keys of parallel: workers, min_workers, auto, fixed, machine, zero, fsdp, tp, sp, async_tp, pp, schedule, "
     "schedule_csv, post_validation, chunks, prefetch, reshard, cp, ep, expert_load, expert_rows, dispatch, "
     "recompute)"},
    {"seq_len=2", "seq_len: unknown key; did you mean train.seq? (top level: name, model, data, train, parallel, "
                  "checkpoint, run, forecast)"},
    {"train.stps=3", "train.stps: unknown key; did you mean train.steps? (keys of train: " TRAIN_KEYS ")"},
    {"train.lr.x=3", "train.lr.x: unknown key (keys of train: " TRAIN_KEYS ")"},
    {"data.stage=ram", "data.stage: expected none, shm, auto, or the absolute path of a folder, found \"ram\""},
    {"data.stage=scratch", "data.stage: expected none, shm, auto, or the absolute path of a folder, found \"scratch\""},
    {"data.train=*.txt", "data.train: not YAML: while scanning an alias, did not find expected alphabetic or "
                         "numeric character; put a string that begins with * or & in quotes"},
    {"steps", "KEY=VALUE is needed, such as train.lr=1e-4"},
    {"=3", "KEY=VALUE is needed, such as train.lr=1e-4"},
};

TEST(values)
{
    SETS(wrong_values);
}

TEST(samples_and_labels)
{
    static const struct mistake list[] = {
        {"data.stride=257", "data.stride: 257 is above train.seq 256, so the tokens between two samples would never be "
                            "read: write at most train.seq"},
        {"model.labels=1", "model.labels: one class leaves nothing to learn: write at least 2"},
        {"model={labels: 2, arch: transformer, kv_heads: 0}",
         "model.labels: transformer has no head of classes: write 0, or model.arch gpt2 or llama"},
        {"data={stride: 2, packing: best_fit, documents: separate}",
         "data.stride: samples of whole documents do not overlap: write 0, or set data.packing to wrapped"},
    };
    SETS(list);
}

#define LABELLED(data)                                                                                            \
    "name: x\nmodel: {dim: 8, layers: 1, heads: 2, labels: 2}\ndata: {train: [a], " data "}\ntrain: {steps: 1}\n" \
    "checkpoint: {dir: /x}\n"
#define ONE_TEXT                                                                                                     \
    "job.yaml:2: model.labels: each sample is one text with its class, so texts neither share samples nor overlap: " \
    "write "

TEST(labels_want_one_text_a_sample)
{
    static const struct mistake list[] = {{LABELLED("documents: separate"), ONE_TEXT "data.documents: joined"},
                                          {LABELLED("stride: 1"), ONE_TEXT "data.stride: 0"}};
    FILES(list);
}

static const struct mistake data_rules[] = {
    {"data.packing=best_fit", "data.packing: a sample of whole documents needs boundaries between them: set "
                              "data.documents to separate, or write wrapped"},
    {"data.template=chatml", "data.template: its tokens are in tokenizer files, which only the tokenizer bpe reads: "
                             "write none, or set data.tokenizer to bpe"},
    {"data.weights=[0.5, 0.5]", "data.weights: 2 weights for 1 items of data.train: write one for each; an item may "
                                "be a pattern"},
    {"data.passes=[1]", "data.passes: 1 numbers for 0 sources: write one for each item of data.train, and "
                        "data.weights too, or []"},
    {"data={train: [a, b], weights: [1]}", "data.weights: 1 weights for 2 items of data.train: write one for each; an "
                                           "item may be a pattern"},
    {"data={train: [a, b], weights: [1, 2], passes: [1]}", "data.passes: 1 numbers for 2 sources: write one for each "
                                                           "item of data.train, and data.weights too, or []"},
    {"data={train: [a], weights: [0]}", "data.weights: expected a number above 0, found \"0\""},
    {"data={train: [a], weights: [1], passes: [-1]}", "data.passes: expected a whole number, at least 0, found "
                                                      "\"-1\""},
    {"data.train=[]", "data.train: the list is empty: write at least one file or pattern"},
    {"data.lowercase=true", "data.lowercase: only the tokenizers words and split support this: write false"},
    {"data.tokenizer_files=[a]", "data.tokenizer_files: only the tokenizer bpe reads files: leave the key out"},
    {"data.tokenizer=bpe", "job.yaml: data.tokenizer_files: the tokenizer bpe needs its files: write [vocab.json, "
                           "merges.txt], or [tokenizer.json]"},
};

TEST(rules_of_data)
{
    SETS(data_rules);
}

static const struct mistake model_rules[] = {
    {"model.heads=7", "model.heads: model.dim 256 is not divisible by 7 heads: write 4 heads, or model.dim 259"},
    {"model.kv_heads=3", "model.kv_heads: 8 heads are not divisible by 3 key-value heads: write 2"},
    {"model.kv_heads=16", "model.kv_heads: 8 heads are not divisible by 16 key-value heads: write 8"},
    {"model={dim: 24, heads: 8, kv_heads: 0}",
     "model.heads: dim / heads is 3; llama's rotary position embedding works on pairs and needs an even number"},
    {"model={dim: 24, heads: 8, kv_heads: 0, head_dim: 5}",
     "model.head_dim: 5; llama's rotary position embedding works on pairs and needs an even number: write 6"},
    {"model={heads: 4096, dim: 8192, head_dim: 1000}",
     "model.head_dim: 4096 heads of 1000 columns have more than 1048576: write at most 256"},
    {"model={arch: gpt2, tied: true, kv_heads: 0, head_dim: 16}",
     "model.head_dim: the heads of gpt2 have model.dim / model.heads columns: write 0"},
    {"model={arch: gpt2, tied: true, kv_heads: 0, qkv_bias: true}",
     "model.qkv_bias: gpt2 always has biases, and this key is for llama: write false"},
    {"model={arch: transformer, kv_heads: 0, qk_norm: head}",
     "model.qk_norm: transformer does not normalize queries and keys: write none"},
    {"model={arch: gpt2, tied: true, kv_heads: 0, window: 16}",
     "model.window: this key is for llama, not for gpt2: leave it out"},
    {"model={arch: transformer, kv_heads: 0, score_softcap: 50}",
     "model.score_softcap: this key is for llama, not for transformer: leave it out"},
    {"model={arch: gpt2, tied: true, kv_heads: 0, score_scale: 0.1}",
     "model.score_scale: this key is for llama, not for gpt2: leave it out"},
    {"model.window_from=1", "model.window_from: no layer has a window: set model.window, or write 0"},
    {"model.window_period=2", "model.window_period: no layer has a window: set model.window, or write 0"},
    {"model={window: 8, window_period: 1}",
     "model.window_period: no layer would have the window: write 0, or model.window 0"},
    {"model={layers: 4, window: 8, window_from: 4}",
     "model.window_from: the model has 4 layers, so none has the window: write at most 3, or model.window 0"},
    {"model.qk_norm=heads", "model.qk_norm: expected one of none, head, whole, found \"heads\""},
    {"model={arch: gpt2, tied: true}", "job.yaml:2: model.kv_heads: gpt2 has no grouped-query attention: write 0 or 8"},
    {"model.vocab=100",
     "model.vocab: the tokenizer bytes has 256 tokens: write 0 (the tokenizer's size), or at least 256"},
};

TEST(rules_of_models)
{
    SETS(model_rules);
}

static const struct mistake experts_rules[] = {
    {"model={arch: gpt2, kv_heads: 0, tied: true, experts: 4}",
     "model.experts: only llama has experts: write 0, or model.arch llama"},
    {"model={experts: 4, experts_per_token: 5}", "model.experts_per_token: 5 experts per token of 4: write at most 4"},
    {"model={experts: 4, router: switch}",
     "job.yaml: model.experts_per_token: the router switch uses one expert per token: write 1, or model.router "
     "softmax"},
    {"model={experts: 4, experts_per_token: 1, router_norm: true}",
     "model.router_norm: with one expert per token the weight would always be 1, and the router would not learn: "
     "write false"},
    {"model={experts: 6, router_groups: 4}", "model.router_groups: 6 experts are not divisible by 4 groups: write 3"},
    {"model={experts: 6, router_groups: 3, router_groups_kept: 4}",
     "model.router_groups_kept: 4 of 3 groups: write at most 3"},
    {"model={experts: 6, experts_per_token: 3, router_groups: 3}",
     "job.yaml: model.router_groups_kept: 1 groups of 2 experts have fewer than the 3 experts that each token "
     "uses: write at least 2"},
    {"model={experts: 6, router_groups: 3, router_group_best: 3}",
     "model.router_group_best: a group has 2 experts: write at most 2"},
    {"model={experts: 4, moe_every: 5}",
     "model.moe_every: no layer would have experts, since model.layers is 4: write at most 4"},
    {"model={experts: 4, moe_every: 2, dense_layers: 4}",
     "model.dense_layers: no layer would have experts: write at most 3"},
    {"train.save_routing=a", "train.save_routing: there are no routers: write \"\", or set model.experts"},
    {"model={expert_capacity: 1.25}", "model.expert_capacity: there are no experts: write 0, or set model.experts"},
    {"model={experts: 4, expert_drop: probability}",
     "model.expert_drop: no token is dropped, since model.expert_capacity is 0: write position, or set "
     "model.expert_capacity"},
    {"model={experts: 4, shared_gate: true}",
     "model.shared_gate: there are no shared experts: write false, or set model.shared_experts"},
    {"parallel.dispatch=all_gather", "parallel.dispatch: parallel.ep is 1, so tokens stay with their ranks: leave "
                                     "the key out, or set parallel.ep"},
    {"parallel.ep=2", "parallel.ep: the model has no experts: write 1, or set model.experts"},
    {"parallel.expert_load=balanced", "parallel.expert_load: balances ranks among which experts are divided, but "
                                      "parallel.ep is 1: write routed, or set parallel.ep"},
    {"parallel.recompute=experts", "parallel.recompute: the model has no experts: write none, full, pointwise or "
                                   "attention, or set model.experts"},
};

TEST(rules_of_experts)
{
    SETS(experts_rules);
}

static const struct mistake train_rules[] = {
    {"train.micro_batch=17", "train.micro_batch: 17 is more than train.global_batch: write at most 16"},
    {"train.global_batch=3", "job.yaml:4: train.micro_batch: 4 is more than train.global_batch: write at most 3"},
    {"train.warmup=301", "train.warmup: 301 steps are more than train.steps: write at most 300"},
    {"train.decay=1", "train.decay: only train.schedule wsd has a decay phase: write 0, or train.schedule wsd"},
    {"train={numerics: proof, dtype: float32}",
     "train.dtype: train.numerics proof computes in float64: write float64, or leave the key out"},
    {"train={numerics: canonical, dtype: float64}",
     "train.dtype: train.numerics canonical computes in float32 or bfloat16: write one of them, or leave the key "
     "out"},
};

TEST(rules_of_training)
{
    SETS(train_rules);
}

static const struct mistake parallel_rules[] = {
    {"parallel={workers: 7, tp: 3}", "parallel.workers: 7 workers are not a multiple of fsdp x tp x pp x cp, which "
                                     "is 3: write 6 or 9, or parallel.tp 1 or 7"},
    {"parallel={workers: 8, tp: 3}",
     "parallel.workers: 8 workers are not a multiple of fsdp x tp x pp x cp, which is 3: write 6 or 9, "
     "or parallel.tp 2 or 4"},
    {"parallel={workers: 12, fsdp: 2, pp: 4, tp: 1}", "parallel.workers: 12 workers are not a multiple of fsdp x "
                                                      "tp x pp x cp, which is 8: write 8 or 16, or parallel.pp 3"},
    {"parallel={workers: 2, tp: 4}",
     "parallel.workers: 2 workers are fewer than fsdp x tp x pp x cp, which is 4: write 4, or parallel.tp 2"},
    {"parallel={fsdp: 1000000, tp: 1000000, cp: 1000000, pp: 2}",
     "job.yaml:6: parallel.workers: fsdp x tp x pp x cp is more than 1048576 workers"},
    {"parallel.pp=5", "parallel.pp: 5 stages need as many layers, but model.layers is 4: write at most 4"},
    {"parallel.zero=1",
     "parallel.zero: ZeRO 1 shards over parallel.fsdp, which is 1: write 0, or parallel.fsdp of at least 2"},
    {"parallel={tp: 9, workers: 9}", "parallel.tp: 9 ranks cannot share 8 heads: write 3"},
    {"parallel={cp: 129, workers: 129}",
     "parallel.cp: each rank takes two pieces of the sequence, which has 256 tokens: write at most 128"},
    {"parallel.async_tp=true", "parallel.async_tp: it overlaps the collectives of tensor parallelism, but "
                               "parallel.tp is 1: write false, or parallel.tp of at least 2"},
    {"parallel.post_validation=true",
     "parallel.post_validation: it needs a pipeline of at least 2 ranks with the schedule zb-h2 or zb-v: write "
     "false, or parallel.schedule zb-h2"},
    {"parallel={post_validation: true, pp: 2, workers: 2, schedule: zb-h1}",
     "parallel.post_validation: it needs a pipeline of at least 2 ranks with the schedule zb-h2 or zb-v: write "
     "false, or parallel.schedule zb-h2"},
    {"parallel={async_tp: true, tp: 2, workers: 2, sp: false}",
     "parallel.async_tp: it overlaps the collectives of sequence parallelism, but parallel.sp is false: write "
     "false, or parallel.sp true"},
    {"parallel.chunks=2",
     "parallel.chunks: 2 stages per pipeline rank, but parallel.pp is 1: write 1, or parallel.pp of at least 2"},
    {"parallel={chunks: 2, pp: 2}", "parallel.chunks: 2 stages per pipeline rank, but the schedule 1f1b has 1: write "
                                    "1, or parallel.schedule interleaved"},
    {"parallel={pp: 2, schedule: zb-v}",
     "job.yaml: parallel.chunks: 1 stages per pipeline rank, but the schedule zb-v has 2: write 2, or "
     "parallel.schedule 1f1b"},
    {"parallel={chunks: 3, pp: 2, schedule: zb-v}",
     "parallel.chunks: 3 stages per pipeline rank, but the schedule zb-v has 2: write 2, or parallel.schedule "
     "interleaved"},
    {"parallel={workers: 3, chunks: 2, pp: 3, schedule: zb-v}",
     "parallel.chunks: the schedule zb-v has 2 stages on each of 3 ranks, but model.layers is 4: write parallel.pp "
     "of at most 2"},
    {"parallel={chunks: 3, pp: 2, schedule: interleaved}",
     "parallel.chunks: 3 stages on each of 2 ranks, but model.layers is 4: write 2"},
    {"parallel={pp: 2, schedule: file}", "job.yaml: parallel.schedule_csv: it is empty, but parallel.schedule file "
                                         "needs it: write the schedule, or choose another parallel.schedule"},
    {"parallel.schedule_csv=F0.0", "parallel.schedule_csv: only parallel.schedule file uses it: leave the key out"},
    {"parallel={workers: 6, min_workers: 8}", "parallel.min_workers: 8 is more than parallel.workers: write 6 or 0"},
    {"parallel={workers: 6, min_workers: 3, pp: 2}",
     "parallel.min_workers: 3 workers are not a whole number of replicas of 2 workers: write 4"},
};

TEST(rules_of_layouts)
{
    SETS(parallel_rules);
}

static const struct mistake run_rules[] = {
    {"checkpoint.map=['a.*.*=b']", "checkpoint.map: expected FROM=TO with at most one * in FROM and, if FROM has "
                                   "one, at most one in TO, found the "
                                   "string \"a.*.*=b\""},
    {"checkpoint.map=['a=b.*']", "checkpoint.map: expected FROM=TO with at most one * in FROM and, if FROM has "
                                 "one, at most one in TO, found the "
                                 "string \"a=b.*\""},
    {"run.nodes=4", "run.nodes: 2 workers cannot be spread evenly over 4 nodes: write 2 or 0"},
    {"checkpoint.memory_every=5",
     "checkpoint.memory_every: this version cannot save checkpoints to memory: write 0 instead of 5"},
    {"run.comm=nccl",
     "run.comm: nccl transfers GPU memory, but run.device is cpu: write shm or auto, or run.device cuda"},
    {"run.comm=staged",
     "run.comm: staged transfers GPU memory, but run.device is cpu: write shm or auto, or run.device cuda"},
    {"run={device: cuda, comm: shm}", "run.comm: shm needs run.device cpu: write nccl, staged or auto"},
    {"run={device: cuda, comm: ucx}", "run.comm: ucx needs run.device cpu: write nccl, staged or auto"},
    {"run={device: cuda, comm_thread: on}", "run.comm_thread: workers on GPUs overlap communication and "
                                            "computation without a thread: write auto, or run.device cpu"},
    {"run.comm_thread=yes", "run.comm_thread: expected one of auto, on, off, found \"yes\""},
    {"run.comm=gloo", "run.comm: expected one of auto, shm, stream, ucx, nccl, staged, found \"gloo\""},
    {"run.workers_per_gpu=0", "run.workers_per_gpu: expected an integer from 1 to 64, found \"0\""},
    {"run.workers_per_gpu=65", "run.workers_per_gpu: expected an integer from 1 to 64, found \"65\""},
};

TEST(rules_of_checkpoints_and_runs)
{
    SETS(run_rules);
}

struct pair {
    const char *sets[3], *message; /* of the sets the last may be NULL. No message: they are accepted */
};

static void check_pairs(const struct pair *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct job_spec j;
        struct why why = {0};
        err_t err = job_parse("job.yaml", JOB_TEXT, strlen(JOB_TEXT), m[i].sets, m[i].sets[2] ? 3 : 2, &j, &why);
        if (err != (m[i].message ? ERR_INVALID : OK) || (err && !strstr(why.text, m[i].message)))
            fail_msg("%s %s gives %s %s", m[i].sets[0], m[i].sets[1], err_name(err), why.text);
        if (!err)
            job_fini(&j);
    }
}
#define PAIRS(list) check_pairs(list, sizeof(list) / sizeof((list)[0]))

/* Only GPUs and workers with a communication thread overlap anything. */
TEST(asynchronous_tensor_parallelism)
{
#define OVERLAPPED "parallel={async_tp: true, tp: 2, workers: 2}"
#define NO_THREAD                                                                                                    \
    "parallel.async_tp: a worker on a CPU computes nothing while it communicates, unless it has a thread for that: " \
    "write false, or run.comm_thread on where every worker has a core to spare"
    static const struct pair rows[] = {
        {{OVERLAPPED, "run.comm_thread=auto"}, NO_THREAD},
        {{OVERLAPPED, "run.comm_thread=off"}, NO_THREAD},
        {{OVERLAPPED, "run.comm_thread=on"}, NULL},
        {{OVERLAPPED, "run.device=cuda"}, NULL},
    };
    PAIRS(rows);
}

/* Rules over two keys of a GPU job. */
TEST(devices)
{
    static const struct pair rows[] = {
        {{"run.device=cuda", "model.head_dim=258"},
         "run.device: heads of 258 columns are wider than the 256 of attention on GPUs: write cpu, or more "
         "model.heads"},
        {{"run.device=cuda", "train.numerics=canonical"},
         "run.device: train.numerics canonical needs a CPU: write cpu, or train.numerics fast"},
        {{"run.device=cuda", "train={numerics: proof, dtype: float64}"},
         "run.device: train.numerics proof needs a CPU: write cpu, or train.numerics fast"},
        {{"run.device=cuda", "train.dtype=float64"},
         "train.dtype: this version does not support float64 on a GPU: write float32 or bfloat16, or run.device cpu"},
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
    PAIRS(rows);
}

/* Folds of expert parallelism over tp, cp and fsdp; the nearest one is named. */
TEST(expert_parallelism)
{
    static const struct {
        const char *parallel, *says;
    } rows[] = {
        {"parallel={workers: 6, tp: 6, ep: 3}", NULL},
        {"parallel={workers: 8, cp: 4, tp: 2, ep: 4}", NULL},
        {"parallel={workers: 8, fsdp: 4, zero: 3, tp: 2, ep: 4}", NULL},
        {"parallel={workers: 4, fsdp: 4, zero: 2, ep: 4}", NULL},
        {"parallel={workers: 12, cp: 2, tp: 6, ep: 4}",
         "parallel.ep: experts are cut over tp, then cp, then fsdp, 6 x 2 x 1 ranks: of the last axis over a part that "
         "divides it, of the others over all: write 3"},
        {"parallel={workers: 8, fsdp: 4, tp: 2, ep: 5}", "2 x 1 x 4 ranks: of the last axis over a part that divides "
                                                         "it, of the others over all: write 4"},
        {"parallel={workers: 8, tp: 2, ep: 4}", "others over all: write 2"}, /* dp is never crossed */
        {"parallel={workers: 32, fsdp: 32, ep: 16}", "16 ranks for 12 experts: write at most 12"},
    };
    static const char canonical[] = "parallel={workers: 4, fsdp: 2, tp: 2, ep: 4}";
    for (size_t i = 0; i <= sizeof(rows) / sizeof(rows[0]); i++) {
        const bool last = i == sizeof(rows) / sizeof(rows[0]);
        const char *sets[] = {last ? "train.numerics=canonical" : "train.numerics=fast",
                              "model={experts: 12, experts_per_token: 2}", last ? canonical : rows[i].parallel};
        const char *says = last ? "whose sums train.numerics canonical keeps apart: write at most 2" : rows[i].says;
        struct job_spec j;
        struct why why = {0};
        err_t err = job_parse("job.yaml", JOB_TEXT, strlen(JOB_TEXT), sets, 3, &j, &why);
        if (err != (says ? ERR_INVALID : OK) || (err && !strstr(why.text, says)))
            fail_msg("%s gives %s %s", sets[2], err_name(err), why.text);
        if (!err)
            job_fini(&j);
    }
}

/* All ranks count the rows of a token alike: one for each choice, on the rank of the expert. */
TEST(gathered_tokens)
{
#define GATHERED "parallel={workers: 2, tp: 2, ep: 2, dispatch: all_gather"
    static const struct pair rows[] = {
        {{"model={experts: 12, experts_per_token: 2}", GATHERED "}"}, NULL},
        {{"model={experts: 12, experts_per_token: 2, expert_capacity: 0}", GATHERED ", expert_load: routed}"}, NULL},
        {{"model={experts: 12, experts_per_token: 2}", GATHERED ", expert_load: balanced}"},
         "parallel.dispatch: a rank takes the rows of its own experts only, not those that parallel.expert_load "
         "balanced lends it: write all_to_all, or parallel.expert_load routed"},
        {{"model={experts: 12, experts_per_token: 2, expert_capacity: 1.25}", GATHERED "}"},
         "parallel.dispatch: every token needs a row for each of its choices, but model.expert_capacity drops some: "
         "write all_to_all, or model.expert_capacity 0"},
    };
    PAIRS(rows);
}

/* Rotary positions that are stretched need what they are stretched by. */
TEST(rotary_positions)
{
#define LLAMA3 "model={rope_type: llama3, rope_factor: 8, rope_original: 64"
    static const struct pair rows[] = {
        {{LLAMA3 "}", "train.seq=128"}, NULL},
        {{"model={rope_type: linear, rope_factor: 2}", "train.seq=128"}, NULL},
        {{"model={rope_type: dynamic, rope_factor: 2, rope_original: 128}", "train.seq=128"}, NULL},
        {{"model.rope_part=0.5", "train.seq=128"}, NULL},
        {{"model.rope_type=linear", "train.seq=128"},
         "model.rope_type: it needs model.rope_factor, at least 1: set it, or write default"},
        {{"model={rope_type: yarn, rope_factor: 4}", "train.seq=128"},
         "model.rope_type: it needs model.rope_original, original_max_position_embeddings of transformers: set it, or "
         "write default"},
        {{LLAMA3 ", rope_low: 4}", "train.seq=128"},
         "model.rope_type: model.rope_low must be below model.rope_high: write 1 and 4, as in Llama 3"},
        {{"model={rope_type: yarn, rope_factor: 4, rope_original: 64, rope_fast: 1}", "train.seq=128"},
         "model.rope_type: model.rope_slow must be below model.rope_fast: write 1 and 32, as in most models"},
        {{"model={rope_type: dynamic, rope_factor: 2, rope_original: 64}", "train.seq=128"},
         "model.rope_type: positions of sequences longer than model.rope_original would depend on the length of each: "
         "write a train.seq of at most 64"},
        {{"model={rope_part: 0.01}", "train.seq=128"},
         "model.rope_part: 0 of 32 columns of a head turn; positions turn pairs: write at least 0.0625"},
        {{"model={arch: gpt2, kv_heads: 0, rope_part: 0.5}", "train.seq=128"},
         "model.rope_part: gpt2 has no rotary positions: write 1"},
        {{"model={arch: gpt2, kv_heads: 0, rope_type: linear, rope_factor: 2}", "train.seq=128"},
         "model.rope_type: gpt2 has no rotary positions: write default"},
    };
    PAIRS(rows);
}

/* Rows of experts in rounds: only where a rank may get more rows than the mean, and computes them again. */
TEST(rounds_of_experts)
{
#define ROUNDS "parallel={workers: 2, tp: 2, ep: 2, recompute: experts, expert_rows: 1.25"
#define MIXTURE "model={experts: 12, experts_per_token: 2}"
    static const struct pair rows[] = {
        {{MIXTURE, ROUNDS "}"}, NULL},
        {{MIXTURE, "parallel={workers: 2, tp: 2, ep: 2, recompute: full, expert_rows: 1}"}, NULL},
        {{MIXTURE, "parallel={workers: 2, tp: 2, ep: 2, expert_rows: 0}"}, NULL},
        {{MIXTURE, "parallel={workers: 2, tp: 2, ep: 2, recompute: experts, expert_rows: 0.9}"},
         "parallel.expert_rows: a rank needs room for the mean at least: write 1 or more, or 0 for all rows that may "
         "come"},
        {{MIXTURE, "parallel={workers: 2, tp: 2, recompute: experts, expert_rows: 1.25}"},
         "parallel.expert_rows: parallel.ep is 1, so a rank always has the mean: write 0, or set parallel.ep"},
        {{MIXTURE, ROUNDS ", expert_load: balanced}"},
         "parallel.expert_rows: with parallel.expert_load balanced a rank never has more rows than the mean: write 0, "
         "or parallel.expert_load routed"},
        {{MIXTURE, ROUNDS ", dispatch: all_gather}"},
         "parallel.expert_rows: a rank takes all its rows at once from the tokens that parallel.dispatch all_gather "
         "sends: write 0, or parallel.dispatch all_to_all"},
        {{MIXTURE, "parallel={workers: 2, tp: 2, ep: 2, recompute: attention, expert_rows: 1.25}"},
         "parallel.expert_rows: a round overwrites the rows of the round before it, so the backward computes them "
         "again: write 0, or parallel.recompute experts"},
        {{MIXTURE, ROUNDS "}", "train.numerics=canonical"},
         "parallel.expert_rows: the gradient of an expert is then a sum over rounds, whose order train.numerics "
         "canonical does not allow: write 0, or train.numerics fast"},
        {{MIXTURE, ROUNDS "}", "run.device=cuda"},
         "parallel.expert_rows: this version computes rounds on CPUs only: write 0, or run.device cpu"},
    };
    PAIRS(rows);
}

/* A file must not be able to send control sequences to the terminal. */
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
    assert_non_null(strstr(why.text, "truncated"));
}

/* `parallel: auto` in a file and in a --set. */
TEST(automatic_layouts)
{
#define PARALLEL_KEYS                                                                                        \
    "workers, min_workers, auto, fixed, machine, zero, fsdp, tp, sp, async_tp, pp, schedule, schedule_csv, " \
    "post_validation, chunks, prefetch, reshard, cp, ep, expert_load, expert_rows, dispatch, recompute"
    static const struct mistake files[] = {
        {HEAD "train: {steps: 1}\nparallel: aut\n",
         "job.yaml:5: parallel: expected auto, or a map with some of the keys " PARALLEL_KEYS ", found \"aut\""},
        {HEAD "train: {steps: 1}\nparallel: [auto]\n",
         "job.yaml:5: parallel: expected auto, or a map with some of the keys " PARALLEL_KEYS ", found a list"},
        {HEAD "train: {steps: 1}\nparallel: {auto: yes}\n",
         "job.yaml:5: parallel.auto: expected true or false, found \"yes\""},
        {HEAD "train: {steps: 1}\nparallel: {fixed: [tp]}\n",
         "job.yaml:5: parallel.fixed: without parallel.auto all keys keep their values: leave the key out, or write "
         "parallel.auto true"},
        {HEAD "train: {steps: 1}\nparallel: {machine: a100}\n",
         "job.yaml:5: parallel.machine: only the planner uses it: leave the key out, or write parallel.auto true"},
        {HEAD "train: {steps: 1}\nparallel: {auto: true, fixed: [sp]}\n",
         "job.yaml:5: parallel.fixed: expected some of tp, cp, pp, ep, fsdp, zero, schedule, chunks, recompute, "
         "micro_batch, found \"sp\""},
        {HEAD "train: {steps: 1}\nparallel: {auto: true, workers: 3, fsdp: 2}\n",
         "job.yaml:5: parallel.workers: 3 workers are not a multiple of fsdp x tp x pp x cp, which is 2: write 2 or 4, "
         "or parallel.fsdp 1 or 3"},
        {HEAD "train: {steps: 1}\nparallel: {auto: true, schedule: zb-h2}\n",
         "job.yaml:5: parallel.auto: the planner has the schedules 1f1b, interleaved, zb-h1 and zb-v, but "
         "parallel.schedule is zb-h2: write false, or leave parallel.schedule out"},
        {HEAD "train: {steps: 1}\nparallel: {auto: true, workers: 4, async_tp: true}\n",
         "job.yaml:5: parallel.async_tp: it overlaps the collectives of tensor parallelism, but parallel.tp is 1: "
         "write "
         "false, or parallel.tp of at least 2"},
    };
    FILES(files);
}
