/* Which layers have the window: in mistral and mixtral all, if sliding_window is a number. In qwen2 and qwen3 it counts
 * only with use_sliding_window, in the layers from max_window_layers on, or in those that layer_types names
 * (configuration_mistral.py and configuration_qwen2.py of transformers). */
#include "client/hf_window.h"

#include <string.h>

#define MAX_WINDOW (1 << 24)   /* of model.window */
#define DEFAULT_WINDOW 4096    /* of qwen2 and qwen3 */
#define DEFAULT_WINDOW_FROM 28 /* the same: max_window_layers */

static const char window_key[] = "sliding_window", used_key[] = "use_sliding_window", from_key[] = "max_window_layers",
                  types_key[] = "layer_types", windowed[] = "sliding_attention", whole[] = "full_attention";

static err_t count_read(const json_t *root, const char *key, int64_t least, int64_t otherwise, int64_t *ret,
                        struct why *why)
{
    const json_t *value = json_object_get(root, key);
    *ret = otherwise;
    if (!value)
        return OK;
    if (json_is_null(value)) {
        *ret = 0;
        return OK;
    }
    *ret = json_integer_value(value);
    return json_is_integer(value) && *ret >= least && *ret <= MAX_WINDOW
               ? OK
               : why_set(why, ERR_INVALID, "%s: %s is neither null nor a number from %lld to %d", HF_CONFIG, key,
                         (long long)least, MAX_WINDOW);
}

/* Whether model.window_from and model.window_period, with a window, name the layers of the list. */
static bool types_fit(const json_t *types, const struct job_model *m)
{
    for (int64_t i = 0; i < m->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (job_layer_has_window(m, i) != (strcmp(type, windowed) == 0))
            return false;
    }
    return true;
}

static err_t types_check(const json_t *types, int64_t layers, struct why *why)
{
    if (!json_is_array(types) || (int64_t)json_array_size(types) != layers)
        return why_set(why, ERR_INVALID, "%s: %s is not a list of %lld entries, one for each layer", HF_CONFIG,
                       types_key, (long long)layers);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || (strcmp(type, windowed) != 0 && strcmp(type, whole) != 0))
            return why_set(why, ERR_UNSUPPORTED, "%s: %s has \"%.60s\"; dtd supports \"%s\" and \"%s\"", HF_CONFIG,
                           types_key, type ? type : "", whole, windowed);
    }
    return OK;
}

/* Finds the layers of the list: those from one on, or all but every n-th. */
static err_t types_read(const json_t *types, struct job_model *m, struct why *why)
{
    struct job_model none = *m;
    none.window = 0;
    err_t err = types_check(types, m->layers, why);
    if (err)
        return err;
    if (types_fit(types, &none)) {
        m->window = 0;
        return OK;
    }
    if (!m->window)
        return why_set(why, ERR_INVALID, "%s: %s has \"%s\", but %s is no number: write the number of tokens there",
                       HF_CONFIG, types_key, windowed, window_key);
    for (m->window_period = 0; m->window_period <= m->layers; m->window_period++)
        for (m->window_from = 0; m->window_from < m->layers; m->window_from++)
            if (m->window_period != 1 && types_fit(types, m))
                return OK;
    return why_set(why, ERR_UNSUPPORTED,
                   "%s: dtd has no windows in the layers that %s names; it has them in all layers from one on, and "
                   "in all but every n-th",
                   HF_CONFIG, types_key);
}

static bool is_set(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_number(value) && json_number_value(value) == 0);
}

static err_t qwen_read(const json_t *root, struct job_model *m, struct why *why)
{
    const json_t *types = json_object_get(root, types_key);
    err_t err = OK;
    if (is_set(root, used_key))
        err = count_read(root, window_key, 1, DEFAULT_WINDOW, &m->window, why);
    if (types && !json_is_null(types))
        return err ? err : types_read(types, m, why);
    return err || !m->window ? err : count_read(root, from_key, 0, DEFAULT_WINDOW_FROM, &m->window_from, why);
}

/* Of a family that does not read layer_types: it may say nothing else. */
static err_t types_compare(const struct hf_llama *f, const json_t *root, const struct job_model *m, struct why *why)
{
    const json_t *types = json_object_get(root, types_key);
    if (!types || json_is_null(types))
        return OK;
    err_t err = types_check(types, m->layers, why);
    return err || types_fit(types, m)
               ? err
               : why_set(why, ERR_UNSUPPORTED, "%s: %s has \"%s\", which dtd does not support in %s%s", HF_CONFIG,
                         types_key, m->window ? whole : windowed, f->type, m->window ? " with a sliding_window" : "");
}

/* Families without windows: none of the fields may ask for one. */
static err_t none_read(const struct hf_llama *f, const json_t *root, const struct job_model *m, struct why *why)
{
    const char *const keys[] = {f->windows == HF_WINDOWS_UNKNOWN ? window_key : used_key, used_key};
    for (size_t i = 0; i < 2; i++)
        if (is_set(root, keys[i]))
            return why_set(why, ERR_UNSUPPORTED, "%s: %s is set, which dtd does not support in %s", HF_CONFIG, keys[i],
                           f->type);
    return types_compare(f, root, m, why);
}

err_t hf_window_read(const struct hf_llama *f, const json_t *root, struct job_model *m, struct why *why)
{
    err_t err = OK;
    switch (f->windows) {
    case HF_WINDOWS_UNKNOWN:
    case HF_WINDOWS_UNUSED:
        return none_read(f, root, m, why);
    case HF_WINDOWS_ALL:
        err = count_read(root, window_key, 1, f->window, &m->window, why);
        err = err ? err : types_compare(f, root, m, why);
        break;
    case HF_WINDOWS_QWEN:
        err = qwen_read(root, m, why);
        break;
    }
    if (!err && (!m->window || m->window_from >= m->layers))
        m->window = m->window_from = m->window_period = 0;
    return err;
}

bool hf_window_fits(const struct hf_llama *f, const struct job_model *m)
{
    bool all = !m->window_from && !m->window_period;
    return !m->window || f->windows == HF_WINDOWS_QWEN || (f->windows == HF_WINDOWS_ALL && all);
}

static json_t *types_print(const struct job_model *m)
{
    json_t *types = json_array();
    for (int64_t i = 0; i < m->layers; i++)
        if (json_array_append_new(types, json_string(job_layer_has_window(m, i) ? windowed : whole)))
            return types;
    return types;
}

bool hf_window_print(const struct hf_llama *f, const struct job_model *m, json_t *config)
{
    if (f->windows == HF_WINDOWS_ALL)
        return !json_object_set_new(config, window_key, m->window ? json_integer(m->window) : json_null());
    if (!m->window)
        return true;
    bool failed = json_object_set_new(config, window_key, json_integer(m->window)) ||
                  json_object_set_new(config, used_key, json_true()) ||
                  json_object_set_new(config, from_key, json_integer(m->window_from));
    return !failed && (!m->window_period || !json_object_set_new(config, types_key, types_print(m)));
}
