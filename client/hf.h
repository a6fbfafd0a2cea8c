/* Hugging Face's models as ours and back: names, row order, config.json. Pure but for the two that move tensors.
 *
 * gpt2's names and layouts are Hugging Face's own. llama's here are torchtitan's; rows of q and k stand interleaved
 * here (rotary positions turn neighbours, as Meta trained them), and there the first of all pairs before the second. */
#ifndef DTD_CLIENT_HF_H
#define DTD_CLIENT_HF_H

#include "common/ckpt/ckpt.h"
#include "common/conf/job.h"
#include "common/plan/graph.h"

#include <jansson.h>

#define HF_CONFIG "config.json"
#define HF_MODEL "model.safetensors"
#define HF_INDEX "model.safetensors.index.json"
#define HF_SHARD_BYTES ((int64_t)5 << 30)

struct hf_tensor {
    const struct graph_tensor *tensor; /* ours: name and shape */
    char name[GRAPH_NAME_MAX + 32];    /* theirs */
    int64_t head_dim;                  /* rows of each head are turned; 0: they stand as they are */
};
struct hf_map {
    struct hf_tensor *list; /* in the order of the graph */
    int n;
};
/* Every parameter of the graph. ERR_UNSUPPORTED for an architecture that Hugging Face's names are not known of. */
NODISCARD err_t hf_map(const struct graph *g, const struct job_model *m, struct hf_map *ret, struct why *why);
void hf_map_fini(struct hf_map *map);
/* Turns whole heads of rows, src -> dst, which do not overlap: to Hugging Face's order, or from it. */
void hf_rows(int64_t head_dim, int64_t rows, size_t row_bytes, bool to_hf, const void *src, void *dst);

/* `positions`: rows of the position table (gpt2), longest sequence (llama). */
NODISCARD err_t hf_config_print(const struct job_model *m, const struct graph *g, int64_t positions, enum dtype dtype,
                                struct buf *ret);
/* ERR_UNSUPPORTED names a field that asks for what our models do not do. The model comes out complete: no zeros. */
NODISCARD err_t hf_config_read(const char *text, size_t len, struct job_model *ret, int64_t *ret_positions,
                               struct why *why);

/* What was done, for -o json and for people. */
struct hf_done {
    char path[4096];
    int tensors, files;
    int64_t params, bytes;
};
struct hf_export {
    const char *step_dir, *dir;
    enum dtype dtype;
    int64_t shard_bytes; /* of a file at most, unless one tensor is larger */
};
/* Writes a step's parameters, config.json and the tokenizer's files into `dir`, which is made, or empty. */
NODISCARD err_t hf_export(const struct hf_export *x, struct hf_done *ret, struct why *why);

struct hf_import {
    const char *dir;
    const char *job; /* a job file: its model must be this one, and the checkpoint goes into its folder; NULL */
    const char *out; /* without one: the folder, with a job file made from config.json */
};
/* Makes step-0 of a folder of checkpoints: parameters alone. */
NODISCARD err_t hf_import(const struct hf_import *x, struct hf_done *ret, struct why *why);

#endif
