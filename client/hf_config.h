/* Reading config.json: fields by name. Every field that is asked for is marked, so that a field which changes the model
 * and was not asked for is refused (hf_config_rest). Private to client/hf*.c. */
#ifndef DTD_CLIENT_HF_CONFIG_H
#define DTD_CLIENT_HF_CONFIG_H

#include "common/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct hf_config {
    const json_t *root;
    json_t *used; /* an object with a key for each field that was asked for */
    struct why *why;
};

/* The value of a field; NULL: it is missing or null. */
const json_t *hf_config_get(const struct hf_config *c, const char *name);
/* A number from 1 to 2^24. `otherwise`: of a missing field; below 0: it may not be missing. */
NODISCARD err_t hf_config_int(const struct hf_config *c, const char *name, int64_t otherwise, int64_t *ret);
/* A number above 0. */
NODISCARD err_t hf_config_real(const struct hf_config *c, const char *name, double otherwise, double *ret);
NODISCARD err_t hf_config_bool(const struct hf_config *c, const char *name, bool otherwise, bool *ret);
/* Fields that must be missing, null, false or 0; the list ends with NULL. */
NODISCARD err_t hf_config_without(const struct hf_config *c, const char *const *names);
/* Refuses fields that were not asked for, unless they are known to have no effect or have an empty value. `known` may
 * name further fields; NULL: none. */
NODISCARD err_t hf_config_rest(const struct hf_config *c, bool (*known)(const char *key));
/* Whether the field has no effect on logits of a model in evaluation. For tests. */
bool hf_config_idle(const char *key);

#endif
