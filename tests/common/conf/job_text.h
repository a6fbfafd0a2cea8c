/* The job file that the tests of common/conf use, and helpers that parse it. */
#ifndef DTD_TESTS_COMMON_CONF_JOB_TEXT_H
#define DTD_TESTS_COMMON_CONF_JOB_TEXT_H

#include "common/conf/job.h"
#include "tests/lib/test.h"

#define JOB_TEXT                                                                                                   \
    "name: first-job\n"                                                                                            \
    "model: {arch: llama, dim: 256, layers: 4, heads: 8, kv_heads: 4, ffn: 688}\n"                                 \
    "data: {train: [\"/usr/share/common-licenses/*\"], valid: [], tokenizer: bytes}\n"                             \
    "train: {steps: 300, seq: 256, global_batch: 16, micro_batch: 4, lr: 3.0e-3, schedule: cosine, warmup: 20,\n"  \
    "        weight_decay: 0.1, clip: 1.0, dtype: float32, numerics: fast, eval_every: 50, seed: 1}\n"             \
    "parallel: {workers: 2, zero: 0, fsdp: 1, tp: 1, sp: true, pp: 1, schedule: 1f1b, cp: 1, ep: 1,\n"             \
    "           recompute: none}\n"                                                                                \
    "checkpoint: {dir: checkpoints/first-job, every: 100, memory_every: 0, keep_last: 3, keep_best: 1}\n"          \
    "run: {device: cpu, nodes: 1, threads: 0, restarts: 3, orphan_seconds: 60, max_seconds: 0, priority: 0, env: " \
    "{},\n"                                                                                                        \
    "      workdir: .}\n"

/* Parses JOB_TEXT with n overrides, which must be legal. */
static inline void job_make(struct job_spec *ret, int n, const char *const *sets)
{
    struct why why = {0};
    if (job_parse("job.yaml", JOB_TEXT, strlen(JOB_TEXT), sets, n, ret, &why))
        fail_msg("%s", why.text);
}
#define JOB(ret, ...) \
    job_make(ret, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

#endif
