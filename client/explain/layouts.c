/* Ready-made jobs, one for each layout. All train the same small model, so that their pictures can be compared; a
 * layer's matrices take about as long to compute as to send. Their step has no save. */
#include "client/explain/explain.h"

#include <string.h>

#define MODEL(more)                                                                                    \
    "name: explain\n"                                                                                  \
    "model: {arch: llama, dim: 256, layers: 4, heads: 4, kv_heads: 4, ffn: 688, vocab: 256" more "}\n" \
    "data: {train: [none], tokenizer: bytes}\n"                                                        \
    "train: {steps: 1, seq: 64, global_batch: 8, micro_batch: 1, lr: 1.0e-3}\n"                        \
    "run: {comm_thread: on}\n"
#define DENSE MODEL("")
#define EXPERTS MODEL(", experts: 8, experts_per_token: 2, expert_ffn: 256, router: softmax")

const struct explain_layout explain_layouts[] = {
    {"ddp", "Every rank has the whole model and other samples; the ranks sum their gradients.",
     DENSE "parallel: {workers: 4}\n"},
    {"zero1", "ZeRO 1: each rank has a part of the optimizer state, and updates that part of the parameters.",
     DENSE "parallel: {workers: 4, fsdp: 4, zero: 1}\n"},
    {"zero2", "ZeRO 2: each rank has a part of the optimizer state and of the summed gradients.",
     DENSE "parallel: {workers: 4, fsdp: 4, zero: 2}\n"},
    {"zero3", "ZeRO 3 (FSDP): each rank has a part of everything, and gathers a layer's parameters to use them.",
     DENSE "parallel: {workers: 4, fsdp: 4, zero: 3}\n"},
    {"tensor",
     "Tensor parallelism: each rank has some columns of a layer's first matrices and the same rows of the "
     "next; between the layers each has a part of the tokens.",
     DENSE "parallel: {workers: 2, tp: 2, sp: true}\n"},
    {"tensor-whole",
     "Tensor parallelism without sequence parallelism: both ranks have all tokens between the layers, "
     "and sum what the rows of each matrix contribute.",
     DENSE "parallel: {workers: 2, tp: 2, sp: false}\n"},
    {"gpipe", "A pipeline that computes all forwards, then all backwards.",
     DENSE "parallel: {workers: 4, pp: 4, schedule: gpipe}\n"},
    {"1f1b", "A pipeline in which a backward follows each forward as soon as it can.",
     DENSE "parallel: {workers: 4, pp: 4, schedule: 1f1b}\n"},
    {"interleaved", "A pipeline in which each rank has two stages, so that it waits less.",
     DENSE "parallel: {workers: 2, pp: 2, schedule: interleaved, chunks: 2}\n"},
    {"zero-bubble", "A pipeline that splits the backward, and computes the gradients of weights while it would wait.",
     DENSE "parallel: {workers: 4, pp: 4, schedule: zb-h1}\n"},
    {"ring", "Ring attention: each rank has a part of every sequence; keys and values go round a ring.",
     DENSE "parallel: {workers: 4, cp: 4}\n"},
    {"experts", "Expert parallelism: each rank has some of the experts; tokens travel to theirs and back.",
     EXPERTS "parallel: {workers: 4, fsdp: 4, zero: 1, ep: 4}\n"},
    {"3d", "Two pipeline stages of two data-parallel shards of two tensor-parallel ranks.",
     DENSE "parallel: {workers: 8, fsdp: 2, zero: 3, tp: 2, sp: true, pp: 2, schedule: 1f1b}\n"},
};
const int n_explain_layouts = sizeof(explain_layouts) / sizeof(explain_layouts[0]);

const struct explain_layout *explain_layout_find(const char *name)
{
    for (int i = 0; i < n_explain_layouts; i++)
        if (strcmp(explain_layouts[i].name, name) == 0)
            return &explain_layouts[i];
    return NULL;
}

err_t explain_layout_job(const struct explain_layout *l, struct job_spec *ret, struct why *why)
{
    return job_parse(l->name, l->job, strlen(l->job), NULL, 0, ret, why);
}
