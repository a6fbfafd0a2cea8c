/* Rotary positions in config.json: rope_theta, and the fields of rope_scaling (transformers 4) or rope_parameters
 * (transformers 5). Where both stand there, rope_scaling counts, as in transformers. */
#include "client/hf_rope.h"

#include "client/hf.h"

#include <stddef.h>
#include <string.h>

#define BIT(type) (1u << ROPE_##type)
#define STRETCHED (BIT(LINEAR) | BIT(LLAMA3) | BIT(DYNAMIC) | BIT(YARN))

static const char *const type_names[] = {[ROPE_DEFAULT] = "default",
                                         [ROPE_LINEAR] = "linear",
                                         [ROPE_LLAMA3] = "llama3",
                                         [ROPE_DYNAMIC] = "dynamic",
                                         [ROPE_YARN] = "yarn"};
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
    FIELD(STRETCHED, "factor", rope_factor, NEEDED),      FIELD(BIT(LLAMA3), "low_freq_factor", rope_low, 1),
    FIELD(BIT(LLAMA3), "high_freq_factor", rope_high, 4), FIELD(BIT(YARN), "beta_fast", rope_fast, 32),
    FIELD(BIT(YARN), "beta_slow", rope_slow, 1),          FIELD(BIT(YARN), "attention_factor", rope_attention, 0),
    FIELD(BIT(YARN), "mscale", rope_mscale, 0),           FIELD(BIT(YARN), "mscale_all_dim", rope_mscale_all, 0),
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))
static const char original_key[] = "original_max_position_embeddings";

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
        if (strcmp(key, fields[i].name) == 0)
            return fields[i].types >> type & 1;
    return type == ROPE_YARN && strcmp(key, "truncate") == 0;
}

static err_t type_read(const json_t *rope, enum rope_type *ret, struct why *why)
{
    const json_t *named = json_object_get(rope, "rope_type"); /* "type" in configs of 2023 */
    const char *name = json_string_value(named ? named : json_object_get(rope, "type")), *key;
    json_t *value;
    for (size_t i = 0; i < N_TYPES; i++)
        if (name && strcmp(name, type_names[i]) == 0) {
            *ret = (enum rope_type)i;
            json_object_foreach((json_t *)(uintptr_t)rope, key, value)
            {
                if (!is_known(*ret, key) && !json_is_null(value))
                    return why_set(why, ERR_UNSUPPORTED,
                                   "%s: rotary positions of the type %s have the field %.60s, "
                                   "which dtd does not know",
                                   HF_CONFIG, name, key);
            }
            return OK;
        }
    return why_set(why, ERR_UNSUPPORTED,
                   "%s: rope_type is \"%.60s\"; dtd supports default, linear, llama3, dynamic and yarn", HF_CONFIG,
                   name ? name : "");
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

/* The length that the model was first trained on; a dynamic type starts from that of the model itself. */
static err_t original_read(const json_t *root, const json_t *rope, int64_t positions, struct job_model *m,
                           struct why *why)
{
    const json_t *value = json_object_get(rope, original_key);
    value = value && !json_is_null(value) ? value : json_object_get(root, original_key);
    m->rope_original = m->rope_type == ROPE_LLAMA3 || m->rope_type == ROPE_YARN ? positions : 0;
    m->rope_original = m->rope_type == ROPE_DYNAMIC ? positions : m->rope_original;
    if (!m->rope_original || m->rope_type == ROPE_DYNAMIC || !value || json_is_null(value))
        return OK;
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > 1 << 30)
        return why_set(why, ERR_INVALID, "%s: %s is not a number from 1 to 1073741824", HF_CONFIG, original_key);
    m->rope_original = json_integer_value(value);
    return OK;
}

static err_t fields_read(const json_t *root, const json_t *rope, int64_t positions, struct job_model *m,
                         struct why *why)
{
    const json_t *truncate = json_object_get(rope, "truncate");
    err_t err = type_read(rope, &m->rope_type, why);
    for (size_t i = 0; i < N_FIELDS && !err; i++)
        if (fields[i].types >> m->rope_type & 1)
            err = real_read(rope, fields[i].name, fields[i].otherwise, value_of(m, &fields[i]), why);
    if (!err && truncate && !json_is_boolean(truncate))
        err = why_set(why, ERR_INVALID, "%s: truncate is neither true nor false", HF_CONFIG);
    m->rope_exact = json_is_false(truncate);
    return err ? err : original_read(root, rope, positions, m, why);
}

err_t hf_rope_read(const json_t *root, int64_t positions, struct job_model *m, struct why *why)
{
    const json_t *parameters = json_object_get(root, "rope_parameters"),
                 *scaling = json_object_get(root, "rope_scaling");
    const json_t *rope = json_is_object(scaling) ? scaling : json_is_object(parameters) ? parameters : NULL;
    err_t err = real_read(root, "rope_theta", 10000, &m->rope_theta, why);
    err = err ? err : real_read(parameters, "rope_theta", m->rope_theta, &m->rope_theta, why);
    err = err ? err : real_read(rope, "rope_theta", m->rope_theta, &m->rope_theta, why);
    err = err ? err : real_read(root, "partial_rotary_factor", 1, &m->rope_part, why);
    err = err ? err : real_read(rope, "partial_rotary_factor", m->rope_part, &m->rope_part, why);
    if (!err && m->rope_part > 1)
        err = why_set(why, ERR_INVALID, "%s: partial_rotary_factor is above 1", HF_CONFIG);
    return err || !rope ? err : fields_read(root, rope, positions, m, why);
}

/* The fields of the type, and rope_type itself. */
static json_t *fields_print(const struct job_model *m)
{
    struct job_model copy = *m;
    json_t *rope = json_pack("{s:s}", "rope_type", type_names[m->rope_type]);
    int bad = rope == NULL;
    for (size_t i = 0; i < N_FIELDS && !bad; i++)
        if (fields[i].types >> m->rope_type & 1 && *value_of(&copy, &fields[i]) != 0)
            bad = json_object_set_new(rope, fields[i].name, json_real(*value_of(&copy, &fields[i])));
    if (!bad && (m->rope_type == ROPE_LLAMA3 || m->rope_type == ROPE_YARN))
        bad = json_object_set_new(rope, original_key, json_integer(m->rope_original));
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
    static const char *const keys[] = {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

bool hf_rope_print(const struct job_model *m, const json_t *kept, json_t *config)
{
    const bool inside = json_is_object(json_object_get(kept, "rope_parameters")); /* as transformers 5 writes it */
    const bool whole = m->rope_part == 0 || m->rope_part == 1;
    json_t *rope = inside || m->rope_type != ROPE_DEFAULT ? fields_print(m) : NULL, *to = inside ? rope : config;
    if ((inside || m->rope_type != ROPE_DEFAULT) && !rope)
        return false;
    if (json_object_set_new(to, "rope_theta", json_real(m->rope_theta)) ||
        (!whole && json_object_set_new(to, "partial_rotary_factor", json_real(m->rope_part)))) {
        json_decref(rope);
        return false;
    }
    return !rope || !json_object_set_new(config, inside ? "rope_parameters" : "rope_scaling", rope);
}
