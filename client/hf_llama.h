/* Families of Hugging Face models without experts that are model.arch llama: what their blocks have, tensor names, and
 * fields of config.json. Used by hf.c. All functions are pure. */
#ifndef DTD_CLIENT_HF_LLAMA_H
#define DTD_CLIENT_HF_LLAMA_H

#include "client/hf.h"
#include "client/hf_config.h"
#include "client/hf_rope.h"

/* Parts in which families differ; each has a small number as value (hf_part_of). */
enum hf_part {
    HF_QKV_BIAS,
    HF_OUT_BIAS,
    HF_FFN_BIAS,
    HF_HEAD_BIAS,
    HF_QK_NORM,
    HF_FFN_PLAIN,
    HF_NORM,
    HF_NORM_PLACE,
    HF_BRANCHES,
    HF_EMBED_SCALE, /* 0: none, 1: sqrt(dim), 2: another */
    HF_RESIDUAL_SCALE,
    HF_SCORE_SCALE,
    HF_LOGIT_SCALE,
    HF_LOGIT_CAP,
    HF_SCORE_CAP,
    HF_WINDOWS,     /* in some layer; hf_window.h has the layers of each family */
    HF_ROPE_LAYERS, /* 0: all as usual, 1: some do not rotate, 2: some by the local base */
    HF_ROPE_PART,
    HF_LONGROPE,
    HF_HEAD_DIM, /* other than dim / heads */
    HF_GROUPED,
    HF_PARTS
};

/* How the rows of a tensor stand in theirs. Tensors of one name are one tensor there: their rows follow each other, or
 * with HF_BY_HEAD so do the rows of each head. */
enum { HF_TURNED = 1, HF_FUSED = 2, HF_BY_HEAD = 4 };
struct hf_name {
    const char *ours, *theirs; /* in a layer, without the prefixes "layers.N." and that of the family */
    unsigned how;
};

/* Fields beside the sizes, which all families have. */
enum hf_field_kind {
    HF_FIELD_BIAS,     /* bool: the biases of `parts` */
    HF_FIELD_FACTOR,   /* number */
    HF_FIELD_DIVISOR,  /* 1 / number */
    HF_FIELD_ROOT,     /* number^-0.5 */
    HF_FIELD_CAP,      /* number, null for none */
    HF_FIELD_PARALLEL, /* bool: branches in parallel */
    HF_FIELD_UNUSED,   /* transformers has it and does not compute with it */
};
struct hf_field {
    const char *key;
    enum hf_field_kind kind;
    unsigned parts;   /* bits 1 << enum hf_part */
    size_t at;        /* of a number: offset in struct job_model */
    double otherwise; /* where the field is missing */
};

/* Which layers have windows of sliding_window tokens (hf_window.h). */
enum hf_window {
    HF_WINDOW_NONE,   /* sliding_window must not be set */
    HF_WINDOW_OFF,    /* use_sliding_window must not be set; without it sliding_window has no effect */
    HF_WINDOW_ALL,    /* all, if sliding_window is set */
    HF_WINDOW_SWITCH, /* with use_sliding_window those of layer_types, or from max_window_layers on */
    HF_WINDOW_LAYERS, /* those of layer_types; without it all but each `window_every`th */
};

struct hf_llama {
    const char *type, *architecture;     /* model_type; the class in transformers */
    const struct hf_name *layer, *rest;  /* NULL: those of llama */
    const char *prefix, *layers, *model; /* NULL: "model.layers."; "layers."; the prefix of all but the head */
    int8_t part[HF_PARTS];
    unsigned any;      /* parts that config.json decides without a row of `fields`: bits 1 << enum hf_part */
    int64_t kv_heads;  /* of a missing num_key_value_heads; 0: heads, as for null */
    int64_t head_dim;  /* of a missing field; 0: hidden_size / heads */
    int64_t positions; /* max_position_embeddings of a missing field */
    enum hf_window window;
    int64_t window_default, window_every; /* window_default: of a missing sliding_window; 0: none */
    const char *eps;                      /* NULL: rms_norm_eps */
    double eps_default;                   /* 0: 1e-6 */
    const char *act, *act_2; /* fields with the activation, the first that is set counts; NULL: hidden_act */
    const char *act_default; /* NULL: silu */
    bool gelu_is_tanh;       /* "gelu" means the tanh form */
    bool tied;               /* of a missing tie_word_embeddings */
    struct hf_rope_like rope;
    const struct hf_field *fields; /* ends with a NULL key; NULL: none */
    const char *const *refused;    /* fields that must not be set; NULL: none */
    bool no_rope_layers;           /* has this field, and no_rope_layer_interval */
};

extern const struct hf_llama hf_llamas[];
extern const int n_hf_llamas;

/* The value of a part in a model. */
int hf_part_of(const struct job_model *m, enum hf_part part);
/* Its key in a job file. */
const char *hf_part_key(enum hf_part part);
/* The first part of a model that the family does not have; HF_PARTS: the model fits. */
enum hf_part hf_llama_misfit(const struct hf_llama *f, const struct job_model *m);
/* `type`: the model_type to which it should belong if it fits; NULL: any. ERR_UNSUPPORTED: none fits. */
NODISCARD err_t hf_llama_choose(const struct job_model *m, const char *type, const struct hf_llama **ret,
                                struct why *why);
const struct hf_llama *hf_llama_find(const char *type);
/* Fills name, order of rows and place of a tensor. Returns false if the family has no such tensor. */
bool hf_llama_name(const struct hf_llama *f, const struct job_model *m, struct hf_tensor *ret);
/* The family's name of one of dtd's tensors outside the layers. */
const char *hf_llama_rest(const struct hf_llama *f, const char *ours);
/* Reads all fields; *m has the defaults of a job. */
NODISCARD err_t hf_llama_read(const struct hf_config *c, const struct hf_llama *f, struct job_model *m,
                              int64_t *ret_positions);
/* The longest sequence of a new config.json: that from which transformers computes the factor of longrope. */
int64_t hf_llama_positions(const struct job_model *m, int64_t positions);
/* A new config.json without rotary positions; NULL: no memory. */
json_t *hf_llama_print(const struct hf_llama *f, const struct job_model *m, int64_t ffn, int64_t positions);
/* Reads the field with an activation, as gpt2 has it too. */
NODISCARD err_t hf_activation_read(const struct hf_config *c, const char *key, const char *otherwise, bool gelu_is_tanh,
                                   bool gated, enum activation *ret);

#endif
