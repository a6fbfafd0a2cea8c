/* A list of all layers is in between: the fields of a family make one, and the keys of a model name one. */
#include "client/hf_window.h"

#include <string.h>

#define DEFAULT_FROM 28 /* max_window_layers of qwen2 and qwen3 */

static const char window_key[] = "sliding_window", used_key[] = "use_sliding_window", from_key[] = "max_window_layers",
                  types_key[] = "layer_types", windowed[] = "sliding_attention", whole[] = "full_attention";

/* ---- reading ---- */

/* null: no window. */
static err_t length_read(const struct hf_config *c, const struct hf_llama *f, int64_t *ret)
{
    err_t err = hf_config_int(c, window_key, f->window_default, ret);
    if (!err && json_is_null(json_object_get(c->root, window_key)))
        *ret = 0;
    return err;
}

/* Without use_sliding_window, sliding_window and max_window_layers have no effect. */
static err_t switch_read(const struct hf_config *c, const struct hf_llama *f, struct job_model *m)
{
    const json_t *from = json_object_get(c->root, from_key);
    bool on;
    (void)hf_config_get(c, window_key);
    (void)hf_config_get(c, from_key);
    err_t err = hf_config_bool(c, used_key, false, &on);
    m->window_from = from ? json_integer_value(from) : DEFAULT_FROM;
    if (err || !on)
        return err;
    if (from && (!json_is_integer(from) || m->window_from < 0))
        return why_set(c->why, ERR_INVALID, "%s: %s is not a number from 0", HF_CONFIG, from_key);
    return length_read(c, f, &m->window);
}

static err_t off_check(const struct hf_config *c)
{
    static const char *const keys[] = {used_key, NULL};
    (void)hf_config_get(c, window_key);
    (void)hf_config_get(c, from_key);
    return hf_config_without(c, keys);
}

static err_t fields_read(const struct hf_config *c, const struct hf_llama *f, struct job_model *m, int64_t *ret_every)
{
    static const char *const none[] = {window_key, NULL};
    err_t err = OK;
    *ret_every = f->window_every;
    switch (f->window) {
    case HF_WINDOW_NONE:
        return hf_config_without(c, none);
    case HF_WINDOW_OFF:
        return off_check(c);
    case HF_WINDOW_SWITCH:
        return switch_read(c, f, m);
    case HF_WINDOW_LAYERS:
        if (f->rope.local > 0) {
            err = hf_config_int(c, "sliding_window_pattern", *ret_every, ret_every);
            err = err ? err : hf_config_int(c, "_sliding_window_pattern", *ret_every, ret_every);
        }
        break;
    case HF_WINDOW_ALL:
        break;
    }
    return err ? err : length_read(c, f, &m->window);
}

/* Of a config.json without layer_types. */
static bool is_sliding(const struct hf_llama *f, const struct job_model *m, int64_t every, int64_t layer)
{
    switch (f->window) {
    case HF_WINDOW_ALL:
        return m->window;
    case HF_WINDOW_SWITCH:
        return m->window && layer >= m->window_from;
    case HF_WINDOW_LAYERS:
        return (layer + 1) % every != 0;
    default:
        return false;
    }
}

/* Only some families read the list; in others it may contain nothing else. */
static err_t type_read(const struct hf_config *c, const struct hf_llama *f, const struct job_model *m, const char *type,
                       bool *sliding)
{
    const bool is = type && strcmp(type, windowed) == 0;
    if (!type || (!is && strcmp(type, whole) != 0))
        return why_set(c->why, ERR_UNSUPPORTED, "%s: %s has \"%.60s\"; dtd supports \"%s\" and \"%s\"", HF_CONFIG,
                       types_key, type ? type : "", whole, windowed);
    if (is != *sliding && f->window != HF_WINDOW_SWITCH && f->window != HF_WINDOW_LAYERS)
        return why_set(c->why, ERR_UNSUPPORTED, "%s: %s has \"%s\", which dtd does not support in %s%s", HF_CONFIG,
                       types_key, type, f->type, m->window ? " with a sliding_window" : "");
    *sliding = is;
    return OK;
}

static err_t types_read(const struct hf_config *c, const struct hf_llama *f, const struct job_model *m, bool *sliding)
{
    const json_t *types = hf_config_get(c, types_key);
    err_t err = OK;
    if (types && (!json_is_array(types) || (int64_t)json_array_size(types) != m->layers))
        return why_set(c->why, ERR_INVALID, "%s: %s is not a list of %lld entries, one for each layer", HF_CONFIG,
                       types_key, (long long)m->layers);
    for (int64_t l = 0; types && l < m->layers && !err; l++)
        err = type_read(c, f, m, json_string_value(json_array_get(types, (size_t)l)), &sliding[l]);
    return err;
}

/* The first layer from `from` on that is of the kind; m->layers: none is. */
static int64_t layer_find(const struct job_model *m, const bool *sliding, int64_t from, bool is)
{
    while (from < m->layers && sliding[from] != is)
        from++;
    return from;
}

static bool layers_fit(const struct job_model *m, const bool *sliding)
{
    for (int64_t l = 0; l < m->layers; l++)
        if (job_layer_has_window(m, l) != sliding[l])
            return false;
    return true;
}

/* Sets the least window_period, and with it the least window_from, that name the layers. The first whole layer behind a
 * sliding one is a multiple of the period. */
static bool layers_name(struct job_model *m, const bool *sliding)
{
    const int64_t first = layer_find(m, sliding, 0, true), next = layer_find(m, sliding, first, false);
    m->window_from = first;
    m->window_period = 0;
    if (next == m->layers)
        return true;
    for (m->window_period = 2; m->window_period <= next + 1; m->window_period++)
        if ((next + 1) % m->window_period == 0 && layers_fit(m, sliding)) {
            m->window_from -= first > 0 && first % m->window_period == 0;
            return true;
        }
    return false;
}

err_t hf_window_read(const struct hf_config *c, const struct hf_llama *f, int64_t positions, struct job_model *m,
                     bool *sliding)
{
    int64_t every;
    err_t err = fields_read(c, f, m, &every);
    for (int64_t l = 0; !err && l < m->layers; l++)
        sliding[l] = is_sliding(f, m, every, l);
    err = err ? err : types_read(c, f, m, sliding);
    if (err)
        return err;
    const bool any = layer_find(m, sliding, 0, true) < m->layers;
    if (any && !m->window)
        return why_set(c->why, ERR_INVALID,
                       "%s: layers have \"%s\", but no %s counts: write the number of tokens there%s", HF_CONFIG,
                       windowed, window_key,
                       f->window == HF_WINDOW_SWITCH ? ", and set use_sliding_window to true" : "");
    if (any && layers_name(m, sliding))
        return OK;
    if (any && m->window < positions)
        return why_set(c->why, ERR_UNSUPPORTED,
                       "%s: dtd has no windows in the layers that %s names; it has them in all layers from one on, and "
                       "in all but every n-th",
                       HF_CONFIG, types_key);
    m->window = m->window_from = m->window_period = 0;
    return OK;
}

/* ---- writing ---- */

bool hf_window_any(const struct job_model *m)
{
    for (int64_t l = 0; l < m->layers; l++)
        if (job_layer_has_window(m, l))
            return true;
    return false;
}

/* Gemma 3 has one list for windows and for layers that rotate by the local base. */
static bool is_local(const struct hf_llama *f, const struct job_model *m, int64_t layer)
{
    return f->rope.local > 0 && job_rope_of(m, layer) == 'l';
}

bool hf_window_fits(const struct hf_llama *f, const struct job_model *m)
{
    if (!hf_window_any(m))
        return true;
    for (int64_t l = 0; l < m->layers; l++) {
        const bool has = job_layer_has_window(m, l);
        if ((f->window == HF_WINDOW_ALL && !has) || (f->rope.local > 0 && has != is_local(f, m, l)))
            return false;
    }
    return f->window == HF_WINDOW_ALL || f->window == HF_WINDOW_SWITCH || f->window == HF_WINDOW_LAYERS;
}

static json_t *types_print(const struct hf_llama *f, const struct job_model *m)
{
    json_t *types = json_array();
    for (int64_t l = 0; types && l < m->layers; l++)
        json_array_append_new(types, json_string(job_layer_has_window(m, l) || is_local(f, m, l) ? windowed : whole));
    return types;
}

static bool set(json_t *config, const char *key, json_t *value)
{
    return !json_object_set_new(config, key, value);
}

bool hf_window_print(const struct hf_llama *f, const struct job_model *m, int64_t positions, json_t *config)
{
    const bool any = hf_window_any(m);
    switch (f->window) {
    case HF_WINDOW_ALL:
        return set(config, window_key, any ? json_integer(m->window) : json_null());
    case HF_WINDOW_LAYERS: /* a window of all positions changes nothing */
        return set(config, types_key, types_print(f, m)) &&
               set(config, window_key, json_integer(any ? m->window : positions));
    case HF_WINDOW_SWITCH:
        return !any || (set(config, window_key, json_integer(m->window)) && set(config, used_key, json_true()) &&
                        set(config, from_key, json_integer(m->window_from)) &&
                        (!m->window_period || set(config, types_key, types_print(f, m))));
    default:
        return true;
    }
}
