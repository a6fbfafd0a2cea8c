#include "client/hf_config.h"

#include "client/hf.h"

#include <string.h>

const json_t *hf_config_get(const struct hf_config *c, const char *name)
{
    const json_t *value = json_object_get(c->root, name);
    if (c->used && json_object_set_new(c->used, name, json_true()))
        return value; /* without memory the field may be refused as unknown, which is harmless */
    return json_is_null(value) ? NULL : value;
}

err_t hf_config_int(const struct hf_config *c, const char *name, int64_t otherwise, int64_t *ret)
{
    const json_t *value = hf_config_get(c, name);
    if (!value && otherwise >= 0) {
        *ret = otherwise;
        return OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > 1 << 24)
        return why_set(c->why, ERR_INVALID, "%s: %s is missing or not a number from 1 to 16777216", HF_CONFIG, name);
    *ret = json_integer_value(value);
    return OK;
}

err_t hf_config_real(const struct hf_config *c, const char *name, double otherwise, double *ret)
{
    const json_t *value = hf_config_get(c, name);
    if (value && (!json_is_number(value) || !(json_number_value(value) > 0)))
        return why_set(c->why, ERR_INVALID, "%s: %s is not a number above 0", HF_CONFIG, name);
    *ret = value ? json_number_value(value) : otherwise;
    return OK;
}

err_t hf_config_bool(const struct hf_config *c, const char *name, bool otherwise, bool *ret)
{
    const json_t *value = hf_config_get(c, name);
    if (value && !json_is_boolean(value))
        return why_set(c->why, ERR_INVALID, "%s: %s is neither true nor false", HF_CONFIG, name);
    *ret = value ? json_is_true(value) : otherwise;
    return OK;
}

static bool is_empty(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
           (json_is_string(v) && !json_string_length(v)) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v));
}

err_t hf_config_without(const struct hf_config *c, const char *const *names)
{
    for (; *names; names++)
        if (!is_empty(hf_config_get(c, *names)))
            return why_set(c->why, ERR_UNSUPPORTED, "%s: %s is set, which dtd does not support", HF_CONFIG, *names);
    return OK;
}

/* Fields of any transformers model that do not change float32 logits in evaluation: names, tokens, generation,
 * dropout, initialisation, and how the model is run. */
static const char *const idle[] = {"_attn_implementation",
                                   "_attn_implementation_autoset",
                                   "_name_or_path",
                                   "add_bos_token",
                                   "architectures",
                                   "attention_dropout",
                                   "attention_probs_dropout_prob",
                                   "attn_implementation",
                                   "attn_pdrop",
                                   "auto_map",
                                   "bad_words_ids",
                                   "begin_suppress_tokens",
                                   "bos_token_id",
                                   "cache_implementation",
                                   "chunk_size_feed_forward",
                                   "classifier_dropout",
                                   "decoder_start_token_id",
                                   "diversity_penalty",
                                   "do_sample",
                                   "dtype",
                                   "early_stopping",
                                   "embd_pdrop",
                                   "embedding_dropout",
                                   "encoder_no_repeat_ngram_size",
                                   "eos_token_id",
                                   "exponential_decay_length_penalty",
                                   "finetuning_task",
                                   "forced_bos_token_id",
                                   "forced_eos_token_id",
                                   "gradient_checkpointing",
                                   "hidden_dropout",
                                   "hidden_dropout_prob",
                                   "id2label",
                                   "initializer_range",
                                   "is_decoder",
                                   "is_encoder_decoder",
                                   "label2id",
                                   "length_penalty",
                                   "max_length",
                                   "min_length",
                                   "model_type",
                                   "n_ctx",
                                   "name_or_path",
                                   "no_repeat_ngram_size",
                                   "num_beam_groups",
                                   "num_beams",
                                   "num_return_sequences",
                                   "output_attentions",
                                   "output_hidden_states",
                                   "output_router_logits",
                                   "output_scores",
                                   "pad_token_id",
                                   "prefix",
                                   "pretraining_tp",
                                   "problem_type",
                                   "pruned_heads",
                                   "remove_invalid_values",
                                   "reorder_and_upcast_attn",
                                   "repetition_penalty",
                                   "resid_pdrop",
                                   "residual_dropout",
                                   "return_dict",
                                   "return_dict_in_generate",
                                   "router_aux_loss_coef",
                                   "sep_token_id",
                                   "summary_activation",
                                   "summary_first_dropout",
                                   "summary_proj_to_labels",
                                   "summary_type",
                                   "summary_use_proj",
                                   "suppress_tokens",
                                   "task_specific_params",
                                   "temperature",
                                   "tf_legacy_loss",
                                   "tie_encoder_decoder",
                                   "tokenizer_class",
                                   "top_k",
                                   "top_p",
                                   "torch_dtype",
                                   "torchscript",
                                   "transformers_version",
                                   "typical_p",
                                   "unsloth_fixed",
                                   "unsloth_version",
                                   "use_bfloat16",
                                   "use_cache"};

bool hf_config_idle(const char *key)
{
    for (size_t i = 0; i < sizeof(idle) / sizeof(idle[0]); i++)
        if (strcmp(key, idle[i]) == 0)
            return true;
    return false;
}

err_t hf_config_rest(const struct hf_config *c, bool (*known)(const char *key))
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)c->root, key, value)
    {
        if (!json_object_get(c->used, key) && !hf_config_idle(key) && !(known && known(key)) && !is_empty(value))
            return why_set(
                c->why, ERR_UNSUPPORTED,
                "%s: dtd does not support the field %.60s in a model of this type. If it does not change what "
                "the model computes, remove it",
                HF_CONFIG, key);
    }
    return OK;
}
