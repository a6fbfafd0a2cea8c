/* Rotary positions in config.json: rope_theta, and the fields of rope_scaling (transformers 4) or rope_parameters
 * (transformers 5). Where both stand there, rope_scaling counts, as in transformers. Gemma 3 has two sets of them, by
 * type of layer: rope_local_base_freq (transformers 4), or two objects in rope_parameters. */
#include "client/hf_rope.h"

#include "client/hf.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIT(type) (1u << ROPE_##type)
#define STRETCHED (BIT(LINEAR) | BIT(LLAMA3) | BIT(DYNAMIC) | BIT(YARN))

static const char *const type_names[] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3",
    [ROPE_DYNAMIC] = "dynamic", [ROPE_YARN] = "yarn",     [ROPE_LONGROPE] = "longrope"};
#define N_TYPES (sizeof(type_names) / sizeof(type_names[0]))

/* `otherwise`: the value of a missing field; NEEDED: it may not be missing. Such values are written too, but 0, which
 * stands for a field that is not there: transformers refuses llama3 without its fields. */
#define NEEDED (-1.0)
static const struct rope_field {
    unsigned types;
    const char *name;
    size_t offset; /* in struct job_model, of a double */
    double otherwise;
} fields[] = {
#define FIELD(types, name, field, otherwise)                      \
    {                                                             \
        types, name, offsetof(struct job_model, field), otherwise \
    }
    FIELD(STRETCHED, "factor", rope_factor, NEEDED),
    FIELD(BIT(LLAMA3), "low_freq_factor", rope_low, 1),
    FIELD(BIT(LLAMA3), "high_freq_factor", rope_high, 4),
    FIELD(BIT(YARN), "beta_fast", rope_fast, 32),
    FIELD(BIT(YARN), "beta_slow", rope_slow, 1),
    FIELD(BIT(LONGROPE), "factor", rope_factor, 0),
    FIELD(BIT(YARN) | BIT(LONGROPE), "attention_factor", rope_attention, 0),
    FIELD(BIT(YARN), "mscale", rope_mscale, 0),
    FIELD(BIT(YARN), "mscale_all_dim", rope_mscale_all, 0),
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))
static const char original_key[] = "original_max_position_embeddings";
static const char full_key[] = "full_attention", local_key[] = "sliding_attention"; /* types of layers */
static const char local_theta_key[] = "rope_local_base_freq";

const char *hf_rope_name(enum rope_type type)
{
    return type_names[type];
}

static double *value_of(struct job_model *m, const struct rope_field *f)
{
    return (double *)(void *)((char *)m + f->offset);
}

static bool is_known(enum rope_type type, const char *key)
{
    static const char *const all[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor", original_key};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(key, all[i]) == 0)
            return true;
    for (size_t i = 0; i < N_FIELDS; i++)
        if (strcmp(key, fields[i].name) == 0 && fields[i].types >> type & 1)
            return true;
    if (type == ROPE_LONGROPE)
        return strcmp(key, "short_factor") == 0 || strcmp(key, "long_factor") == 0;
    return type == ROPE_YARN && strcmp(key, "truncate") == 0;
}

static err_t type_read(const json_t *rope, bool phi, enum rope_type *ret, struct why *why)
{
    const json_t *named = json_object_get(rope, "rope_type"); /* "type" in configs of 2023 */
    const char *name = json_string_value(named ? named : json_object_get(rope, "type")), *key;
    json_t *value;
    if (phi && name && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0)) /* names in early files */
        name = "longrope";
    for (size_t i = 0; i < N_TYPES; i++)
        if (name && strcmp(name, type_names[i]) == 0) {
            *ret = (enum rope_type)i;
            json_object_foreach((json_t *)(uintptr_t)rope, key, value)
            {
                if (!is_known(*ret, key) && !json_is_null(value))
                    return why_set(why, ERR_UNSUPPORTED,
                                   "%s: rotary positions of the type %s have the field %.60s, "
                                   "which dtd does not support",
                                   HF_CONFIG, name, key);
            }
            return OK;
        }
    return why_set(why, ERR_UNSUPPORTED,
                   "%s: rope_type is \"%.60s\"; dtd supports default, linear, llama3, dynamic, yarn and longrope",
                   HF_CONFIG, name ? name : "");
}

static err_t real_read(const json_t *object, const char *name, double otherwise, double *ret, struct why *why)
{
    const json_t *value = json_object_get(object, name);
    if (!value || json_is_null(value)) {
        *ret = otherwise;
        return otherwise == NEEDED
                   ? why_set(why, ERR_INVALID, "%s: rotary positions need the field %s", HF_CONFIG, name)
                   : OK;
    }
    if (!json_is_number(value) || !(json_number_value(value) > 0))
        return why_set(why, ERR_INVALID, "%s: %s is not a number above 0", HF_CONFIG, name);
    *ret = json_number_value(value);
    return OK;
}

/* A number in as few digits as read back to it. */
static char *number_text(double x)
{
    char text[32];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    return strdup(text);
}

static err_t list_read(const json_t *rope, const char *name, char ***ret, int *ret_n, struct why *why)
{
    const json_t *list = json_object_get(rope, name);
    const size_t n = json_array_size(list);
    if (!n || n > 1 << 16)
        return why_set(why, ERR_INVALID, "%s: rotary positions need the field %s, a list of numbers", HF_CONFIG, name);
    if (!(*ret = calloc(n, sizeof(**ret))))
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_number(x) || !(json_number_value(x) > 0))
            return why_set(why, ERR_INVALID, "%s: %s has an element that is not a number above 0", HF_CONFIG, name);
        if (!((*ret)[i] = number_text(json_number_value(x))))
            return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        *ret_n = (int)i + 1;
    }
    return OK;
}

/* The length that the model was first trained on; a dynamic type starts from that of the model itself. */
static err_t original_read(const json_t *root, const json_t *rope, const struct hf_rope_like *like, int64_t positions,
                           struct job_model *m, struct why *why)
{
    const json_t *value = json_object_get(like->original ? root : rope, original_key);
    value = value && !json_is_null(value) ? value : like->original ? NULL : json_object_get(root, original_key);
    m->rope_original = m->rope_type != ROPE_DEFAULT && m->rope_type != ROPE_LINEAR ? positions : 0;
    if (!m->rope_original || m->rope_type == ROPE_DYNAMIC)
        return OK;
    m->rope_original = like->original ? like->original : positions;
    if (!value || json_is_null(value))
        return OK;
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > 1 << 30)
        return why_set(why, ERR_INVALID, "%s: %s is not a number from 1 to 1073741824", HF_CONFIG, original_key);
    m->rope_original = json_integer_value(value);
    return OK;
}

static err_t longrope_read(const json_t *rope, int64_t positions, struct job_model *m, struct why *why)
{
    if (m->rope_original < 2)
        return why_set(why, ERR_INVALID, "%s: %s is below 2", HF_CONFIG, original_key);
    if (m->rope_factor == 0) /* the factor that transformers computes */
        m->rope_factor = (double)positions / (double)m->rope_original;
    m->rope_factor = m->rope_factor < 1 ? 1 : m->rope_factor; /* below 1 it has no effect */
    err_t err = list_read(rope, "short_factor", &m->rope_short, &m->n_rope_short, why);
    return err ? err : list_read(rope, "long_factor", &m->rope_long, &m->n_rope_long, why);
}

static err_t fields_read(const json_t *root, const json_t *rope, const struct hf_rope_like *like, int64_t positions,
                         struct job_model *m, struct why *why)
{
    const json_t *truncate = json_object_get(rope, "truncate");
    err_t err = type_read(rope, like->original > 0, &m->rope_type, why);
    for (size_t i = 0; i < N_FIELDS && !err; i++)
        if (fields[i].types >> m->rope_type & 1)
            err = real_read(rope, fields[i].name, fields[i].otherwise, value_of(m, &fields[i]), why);
    if (!err && truncate && !json_is_boolean(truncate))
        err = why_set(why, ERR_INVALID, "%s: truncate is neither true nor false", HF_CONFIG);
    m->rope_exact = json_is_false(truncate);
    err = err ? err : original_read(root, rope, like, positions, m, why);
    return err || m->rope_type != ROPE_LONGROPE ? err : longrope_read(rope, positions, m, why);
}

static const char *theta_key(const struct hf_rope_like *like)
{
    return like->theta_key ? like->theta_key : "rope_theta";
}

static const char *part_key(const struct hf_rope_like *like)
{
    return like->part_key ? like->part_key : "partial_rotary_factor";
}

/* `local`: the object of the layers with windows, which may be NULL. */
static err_t local_read(const json_t *root, const json_t *local, const struct hf_rope_like *like, struct job_model *m,
                        struct why *why)
{
    enum rope_type type = ROPE_DEFAULT;
    err_t err = local && (json_object_get(local, "rope_type") || json_object_get(local, "type"))
                    ? type_read(local, false, &type, why)
                    : OK;
    if (!err && type != ROPE_DEFAULT)
        err = why_set(why, ERR_UNSUPPORTED, "%s: rope_type of %s is %s; dtd stretches positions of %s only", HF_CONFIG,
                      local_key, type_names[type], full_key);
    err = err ? err : real_read(root, local_theta_key, like->local, &m->rope_local_theta, why);
    return err ? err : real_read(local, "rope_theta", m->rope_local_theta, &m->rope_local_theta, why);
}

err_t hf_rope_read(const json_t *root, const struct hf_rope_like *like, int64_t positions, struct job_model *m,
                   struct why *why)
{
    const json_t *parameters = json_object_get(root, "rope_parameters"),
                 *scaling = json_object_get(root, "rope_scaling"), *local = NULL;
    const bool nested =
        like->local > 0 && (json_object_get(parameters, full_key) || json_object_get(parameters, local_key));
    if (nested) {
        local = json_object_get(parameters, local_key);
        parameters = json_object_get(parameters, full_key);
    }
    const json_t *rope = json_is_object(scaling) ? scaling : json_is_object(parameters) ? parameters : NULL;
    const double theta = like->theta > 0 ? like->theta : 10000, part = like->part > 0 ? like->part : 1;
    err_t err = real_read(root, theta_key(like), theta, &m->rope_theta, why);
    err = err ? err : real_read(parameters, "rope_theta", m->rope_theta, &m->rope_theta, why);
    err = err ? err : real_read(rope, "rope_theta", m->rope_theta, &m->rope_theta, why);
    err = err ? err : real_read(root, part_key(like), part, &m->rope_part, why);
    err = err ? err : real_read(rope, "partial_rotary_factor", m->rope_part, &m->rope_part, why);
    if (!err && m->rope_part > 1)
        err = why_set(why, ERR_INVALID, "%s: %s is above 1", HF_CONFIG, part_key(like));
    if (!err && m->heads > 0 && (int64_t)((double)job_head_dim(m) * m->rope_part) % 2)
        err = why_set(why, ERR_UNSUPPORTED,
                      "%s: %s is %g, an odd number of the %lld columns of a head; positions in dtd turn pairs",
                      HF_CONFIG, part_key(like), m->rope_part, (long long)job_head_dim(m));
    if (!err && like->local > 0)
        err = local_read(root, local, like, m, why);
    return err || !rope ? err : fields_read(root, rope, like, positions, m, why);
}

/* ---- writing ---- */

static json_t *list_print(char *const *list, int n)
{
    json_t *ret = json_array();
    for (int i = 0; i < n && ret; i++)
        if (json_array_append_new(ret, json_real(strtod(list[i], NULL)))) {
            json_decref(ret);
            return NULL;
        }
    return ret;
}

/* The fields of the type, and rope_type itself. */
static json_t *fields_print(const struct job_model *m)
{
    struct job_model copy = *m;
    const bool is_long = m->rope_type == ROPE_LONGROPE;
    json_t *rope = json_pack("{s:s}", "rope_type", type_names[m->rope_type]);
    int bad = rope == NULL;
    for (size_t i = 0; i < N_FIELDS && !bad; i++)
        if (fields[i].types >> m->rope_type & 1 && *value_of(&copy, &fields[i]) != 0)
            bad = json_object_set_new(rope, fields[i].name, json_real(*value_of(&copy, &fields[i])));
    if (!bad && (m->rope_type == ROPE_LLAMA3 || m->rope_type == ROPE_YARN || is_long))
        bad = json_object_set_new(rope, original_key, json_integer(m->rope_original));
    if (!bad && is_long)
        bad = json_object_set_new(rope, "short_factor", list_print(m->rope_short, m->n_rope_short)) ||
              json_object_set_new(rope, "long_factor", list_print(m->rope_long, m->n_rope_long));
    if (!bad && m->rope_type == ROPE_YARN && m->rope_exact)
        bad = json_object_set_new(rope, "truncate", json_false());
    if (bad) {
        json_decref(rope);
        return NULL;
    }
    return rope;
}

bool hf_rope_decides(const char *key)
{
    static const char *const keys[] = {"rope_theta", "rope_scaling",    "rope_parameters", "partial_rotary_factor",
                                       "rotary_pct", "rotary_emb_base", local_theta_key,   original_key};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Adds the two numbers under these names; the part only where it is not what the family has without it. */
static bool numbers_print(const struct job_model *m, const struct hf_rope_like *like, const char *theta,
                          const char *part, json_t *to)
{
    const double usual = like->part > 0 ? like->part : 1, ours = m->rope_part > 0 ? m->rope_part : 1;
    return to && !json_object_set_new(to, theta, json_real(m->rope_theta)) &&
           (ours == usual || !json_object_set_new(to, part, json_real(ours)));
}

/* As transformers 4 writes it. */
static bool print_beside(const struct job_model *m, const struct hf_rope_like *like, json_t *config)
{
    if (!numbers_print(m, like, theta_key(like), part_key(like), config) ||
        (like->local > 0 && json_object_set_new(config, local_theta_key, json_real(m->rope_local_theta))))
        return false;
    return m->rope_type == ROPE_DEFAULT || !json_object_set_new(config, "rope_scaling", fields_print(m));
}

/* As transformers 5 writes it; a part that was given beside the object stays there too. */
static bool print_inside(const struct job_model *m, const struct hf_rope_like *like, const json_t *kept, json_t *config)
{
    json_t *rope = fields_print(m), *all;
    if (!numbers_print(m, like, "rope_theta", "partial_rotary_factor", rope)) {
        json_decref(rope);
        return false;
    }
    if (json_object_get(kept, part_key(like)) &&
        json_object_set_new(config, part_key(like), json_real(m->rope_part > 0 ? m->rope_part : 1))) {
        json_decref(rope);
        return false;
    }
    all = like->local > 0 ? json_pack("{s:{s:s, s:f}, s:o}", local_key, "rope_type", "default", "rope_theta",
                                      m->rope_local_theta, full_key, rope)
                          : rope;
    return all && !json_object_set_new(config, "rope_parameters", all);
}

/* Of a longrope without a factor, which is then the model's longest sequence over the first one. */
static void factor_drop(const struct job_model *m, const json_t *kept, json_t *config)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"}, positions[] = "max_position_embeddings";
    const json_int_t ours = json_integer_value(json_object_get(config, positions)),
                     theirs = json_integer_value(json_object_get(kept, positions));
    for (size_t i = 0; i < 2 && m->rope_type == ROPE_LONGROPE; i++) {
        json_t *rope = json_object_get(config, keys[i]);
        if (json_object_get(kept, keys[i]) && !json_object_get(json_object_get(kept, keys[i]), "factor") &&
            (double)(ours > theirs ? ours : theirs) / (double)m->rope_original == m->rope_factor)
            json_object_del(rope, "factor");
    }
}

bool hf_rope_print(const struct job_model *m, const struct hf_rope_like *like, const json_t *kept, json_t *config)
{
    const bool inside = json_is_object(json_object_get(kept, "rope_parameters"));
    if (like->original &&
        json_object_set_new(config, original_key, json_integer(m->rope_original ? m->rope_original : like->original)))
        return false;
    const bool made = inside ? print_inside(m, like, kept, config) : print_beside(m, like, config);
    if (made)
        factor_drop(m, kept, config);
    return made;
}
