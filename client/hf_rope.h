/* Rotary positions in the config.json of a Hugging Face model. Pure. Private to client/hf*.c and tests. */
#ifndef DTD_CLIENT_HF_ROPE_H
#define DTD_CLIENT_HF_ROPE_H

#include "common/base/err.h"
#include "common/conf/job.h"

#include <jansson.h>

const char *hf_rope_name(enum rope_type type);
/* Fills rope_theta, rope_part and the fields of rope_type; `m` has the defaults of all. `positions`:
 * max_position_embeddings. ERR_INVALID, ERR_UNSUPPORTED: `why` names the field. */
NODISCARD err_t hf_rope_read(const json_t *root, int64_t positions, struct job_model *m, struct why *why);
/* Adds the fields to `config`, in the form of `kept`, the config.json that was imported (NULL: none). Returns false if
 * memory is exhausted. */
bool hf_rope_print(const struct job_model *m, const json_t *kept, json_t *config);
/* Whether hf_rope_print writes the field. */
bool hf_rope_decides(const char *key);

#endif
