/* Conversion between dtd checkpoints and Hugging Face models: tensor names, row order, config.json. All functions are
 * pure, except hf_export and hf_import, which read and write files.
 *
 * gpt2: names and layouts are those of Hugging Face. llama: dtd uses torchtitan's names. The rows of q and k, with
 * their biases and norms, are interleaved in dtd (rotary positions rotate neighbouring rows, as in Meta's training
 * code); Hugging Face stores the first rows of all pairs before the second rows. The other families are model.arch
 * llama with other keys (hf_llama.h, hf_experts.h). */
#ifndef DTD_CLIENT_HF_H
#define DTD_CLIENT_HF_H

#include "common/ckpt/ckpt.h"
#include "common/conf/job.h"
#include "common/plan/graph.h"

#include <jansson.h>

#define HF_CONFIG "config.json"
#define HF_MODEL "model.safetensors"
#define HF_INDEX "model.safetensors.index.json"
#define HF_SCORE "score.weight" /* the head of a model with labels, here and there */
/* Default size of a file, close to the 5 GB that transformers 4 writes. */
#define HF_SHARD_BYTES ((int64_t)5 << 30)

/* A tensor of Hugging Face's model: a whole tensor of dtd's, or one expert's rows of it. */
struct hf_tensor {
    const struct graph_tensor *tensor; /* name and shape in dtd */
    char name[GRAPH_NAME_MAX + 32];    /* name in Hugging Face's model */
    int64_t first, rows;               /* its rows in `tensor`, where the experts' matrices are one below the other */
    int64_t cols;                      /* elements of a row */
    int expert;                        /* -1: a whole tensor */
    int64_t head_dim;                  /* the rows of each head of this size are reordered; 0: same order */
    int64_t turned;                    /* of a head, from the first on; the others keep their order */
    /* unit above 0: one of several that are one tensor there, of file_rows rows, and follow each other in the map. Row
     * r is row r / unit * stride + place + r % unit of it. */
    int64_t unit, stride, place, file_rows;
    /* A second name, which a file may have in place of `name`; "": none. With fused_parts 0 the tensor is the same.
     * Else it is [experts, fused_parts * rows, cols], and this one is part fused_part of its expert. */
    char other[GRAPH_NAME_MAX + 32];
    int fused_parts, fused_part;
};
struct hf_map {
    struct hf_tensor *list; /* in the order of the graph, and of a tensor's experts */
    int n;
};
/* Maps every parameter of the graph. `type`: the model_type to which the model belongs if it can; NULL: any.
 * ERR_UNSUPPORTED: Hugging Face has no such model; the sentence has the reason. */
NODISCARD err_t hf_map(const struct graph *g, const struct job_model *m, const char *type, struct hf_map *ret,
                       struct why *why);
void hf_map_fini(struct hf_map *map);
/* Reorders the rows of whole heads, to Hugging Face's order or from it. src and dst must not overlap. */
void hf_rows(int64_t head_dim, int64_t turned, int64_t rows, size_t row_bytes, bool to_hf, const void *src, void *dst);

/* `positions`: rows of the position table (gpt2), longest sequence (llama). `kept`: config.json of the model that was
 * imported, or NULL: its keys that the checkpoint does not decide (tokens, dropout, a longer sequence) stay. */
NODISCARD err_t hf_config_print(const struct job_model *m, const struct graph *g, int64_t positions, enum dtype dtype,
                                const json_t *kept, struct buf *ret);
/* The dtype that a config.json names; DT_NONE: none. */
enum dtype hf_config_dtype(const json_t *config);
/* Reads config.json. ERR_UNSUPPORTED names a field that dtd's models do not support. Every size in *ret is set: none is
 * 0 for "default". The caller frees *ret with job_model_fini. */
NODISCARD err_t hf_config_read(const char *text, size_t len, struct job_model *ret, int64_t *ret_positions,
                               struct why *why);

/* Files of a model's folder beside config.json and the tensors that an import keeps in the checkpoint (CKPT_HF_FILE)
 * and an export writes back byte for byte. The list ends with NULL; config.json is its first name. */
extern const char *const hf_small_files[];

/* The coefficient of transformers' auxiliary loss in a config.json, converted to a model.aux_loss of about the same
 * strength, which depends on the model's experts per token and layers. 0: there is none. */
double hf_config_aux(const json_t *config, const struct job_model *m);

#define HF_WARNINGS 16
#define HF_WARNING_BYTES 1024
/* Summary of an export or import, which the commands print. */
struct hf_done {
    char path[4096];
    int tensors, files;
    int64_t params, bytes;
    enum dtype dtype;                             /* of an export */
    char warnings[HF_WARNINGS][HF_WARNING_BYTES]; /* what the user should know although the command succeeded */
    int n_warnings;
};
struct hf_export {
    const char *step_dir, *dir;
    enum dtype dtype;    /* DT_NONE: that of the model that was imported, else float32 */
    int64_t shard_bytes; /* largest size of a file; a larger tensor gets a file of its own */
};
/* Writes a step's parameters, config.json and the tokenizer's files into `dir`, which must be empty or not exist. */
NODISCARD err_t hf_export(const struct hf_export *x, struct hf_done *ret, struct why *why);

struct hf_import {
    const char *dir;
    const char *job; /* a job file for this model, whose checkpoint.dir gets the checkpoint; NULL: none */
    const char *out; /* used without `job`: the folder for the checkpoint; the job file is made from config.json */
    /* Bytes of parameters in memory at a time, and so the size of a file; 0: 1 GiB. A matrix larger than that is read
     * as a whole. */
    int64_t part_bytes;
};
/* Writes a checkpoint step-0, which holds parameters only. */
NODISCARD err_t hf_import(const struct hf_import *x, struct hf_done *ret, struct why *why);

#endif
