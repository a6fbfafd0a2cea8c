/* Rotary positions in the config.json of a Hugging Face model. Pure. Private to this folder and tests. */
#ifndef DTD_CLIENT_HF_ROPE_H
#define DTD_CLIENT_HF_ROPE_H

#include "common/base/err.h"
#include "common/conf/job.h"

#include <jansson.h>

/* What a family has in place of the usual fields. */
struct hf_rope_like {
    double theta, part;               /* of missing fields; 0: 10000, 1 */
    double local;                     /* theta of layers with windows; 0: the family has none of its own */
    const char *theta_key, *part_key; /* NULL: rope_theta, partial_rotary_factor */
    int64_t original; /* Phi-3: of a missing original_max_position_embeddings, which counts before that of the rope; all
                       * stretched types are longrope. 0: as usual */
};

const char *hf_rope_name(enum rope_type type);
/* Fills rope_theta, rope_part, rope_local_theta and the fields of rope_type; `m` has the defaults of all. `positions`:
 * max_position_embeddings. ERR_INVALID, ERR_UNSUPPORTED: `why` names the field. */
NODISCARD err_t hf_rope_read(const json_t *root, const struct hf_rope_like *like, int64_t positions,
                             struct job_model *m, struct why *why);
/* Adds the fields to `config`, in the form of `kept`, the config.json that was imported (NULL: none). Returns false if
 * memory is exhausted. */
bool hf_rope_print(const struct job_model *m, const struct hf_rope_like *like, const json_t *kept, json_t *config);
/* Whether the field belongs to rotary positions. */
bool hf_rope_decides(const char *key);

#endif
