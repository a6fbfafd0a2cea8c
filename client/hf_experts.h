/* Families of Hugging Face models: those with experts, with their tensors and fields of config.json. Used by hf.c. All
 * functions are pure. */
#ifndef DTD_CLIENT_HF_EXPERTS_H
#define DTD_CLIENT_HF_EXPERTS_H

#include "client/hf.h"

/* Which fields of config.json give a family windows (hf_window.h). */
enum hf_windows {
    HF_WINDOWS_UNKNOWN, /* transformers has no windows in this family */
    HF_WINDOWS_UNUSED,  /* dtd refuses use_sliding_window; sliding_window counts only with it */
    HF_WINDOWS_ALL,     /* sliding_window, in all layers */
    HF_WINDOWS_QWEN,    /* use_sliding_window, sliding_window, max_window_layers, layer_types */
};

/* What a family of model.arch llama has in its attention. Where transformers has a default for a field that config.json
 * may leave out, `head_dim` and `positions` are that; head_dim 0: hidden_size / heads. */
struct hf_llama {
    const char *type, *architecture; /* model_type; the class in transformers */
    bool qkv_bias;
    enum qk_norm qk_norm;
    int64_t head_dim, positions;
    int64_t window; /* HF_WINDOWS_ALL: sliding_window of a config.json that does not have the field; 0: none */
    enum hf_windows windows;
};

struct hf_family;

/* The family of a "model_type" that config.json names; NULL: none has this name. */
const struct hf_family *hf_family_find(const char *model_type);
/* The family that a model with experts is written as. ERR_UNSUPPORTED: none fits; the sentence names, for each, the
 * first key that does not. */
NODISCARD err_t hf_family_choose(const struct job_model *m, const struct hf_family **ret, struct why *why);
const struct hf_llama *hf_family_llama(const struct hf_family *f);
/* A list of all model types: "mixtral, ..". */
void hf_family_list(char *ret, size_t size);

/* Reads the fields of the experts into *m, which has all others already. */
NODISCARD err_t hf_family_read(const struct hf_family *f, const json_t *config, struct job_model *m, struct why *why);
/* Adds them to a config.json. `width`: of an expert. Returns whether there was enough memory. */
bool hf_family_print(const struct hf_family *f, const struct job_model *m, int64_t width, json_t *config);
/* Whether the checkpoint decides this key of config.json. */
bool hf_family_decides(const char *key);

/* Fills `name` (without "model.layers.N."), `other` and the fused fields for a tensor `ours` of a layer; `expert` -1: a
 * tensor of no single expert. Returns false if the family has no such tensor. */
bool hf_family_name(const struct hf_family *f, const char *ours, int expert, const char *prefix, struct hf_tensor *ret);

/* Layers of the model that have experts. */
int64_t hf_sparse_layers(const struct job_model *m);

#endif
