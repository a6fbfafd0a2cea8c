/* Models of usual sizes, as their publishers describe them, with a batch that is usual for training them. */
#include "client/planner/planner.h"

#include <stdio.h>
#include <string.h>

static const struct size {
    const char *name, *model;
    int seq, batch;
} sizes[] = {
    {"124m", "{arch: gpt2, dim: 768, layers: 12, heads: 12, vocab: 50304}", 1024, 512},
    {"1b", "{arch: llama, dim: 2048, layers: 16, heads: 32, kv_heads: 8, ffn: 8192, vocab: 128256, tied: true}", 8192,
     256},
    {"3b", "{arch: llama, dim: 3072, layers: 28, heads: 24, kv_heads: 8, ffn: 8192, vocab: 128256, tied: true}", 8192,
     256},
    {"7b", "{arch: llama, dim: 4096, layers: 32, heads: 32, ffn: 11008, vocab: 32000}", 4096, 1024},
    {"8b", "{arch: llama, dim: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}", 8192, 512},
    {"13b", "{arch: llama, dim: 5120, layers: 40, heads: 40, ffn: 13824, vocab: 32000}", 4096, 1024},
    {"70b", "{arch: llama, dim: 8192, layers: 80, heads: 64, kv_heads: 8, ffn: 28672, vocab: 128256}", 8192, 1024},
    {"405b", "{arch: llama, dim: 16384, layers: 126, heads: 128, kv_heads: 8, ffn: 53248, vocab: 128256}", 8192, 2048},
    {"8x7b",
     "{arch: llama, dim: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 32000, experts: 8, "
     "experts_per_token: 2}",
     4096, 1024},
};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

err_t planner_size(const char *name, struct job_spec *ret, struct why *why)
{
    char text[1024], names[256];
    size_t n = 0;
    for (size_t i = 0; i < N_SIZES; i++) {
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "", sizes[i].name);
        if (strcmp(sizes[i].name, name) != 0)
            continue;
        int len = snprintf(text, sizeof(text),
                           "name: %s\nmodel: %s\ndata: {train: [none], tokenizer: words}\n"
                           "train: {steps: 1, seq: %d, global_batch: %d, micro_batch: 1, dtype: bfloat16}\n"
                           "run: {device: cuda}\n",
                           sizes[i].name, sizes[i].model, sizes[i].seq, sizes[i].batch);
        return job_parse(name, text, (size_t)len, NULL, 0, ret, why);
    }
    return why_set(why, ERR_NOTFOUND, "--memory %s: there is no such size; write one of %s, or plan a job file", name,
                   names);
}
