/* Families of Hugging Face models: those with experts, with their tensors and fields of config.json. Used by hf.c. All
 * functions are pure. */
#ifndef DTD_CLIENT_HF_EXPERTS_H
#define DTD_CLIENT_HF_EXPERTS_H

#include "client/hf/llama.h"

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
