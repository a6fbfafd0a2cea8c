/* From the model section of a job to its graph. Pure. */
#ifndef DTD_COMMON_PLAN_MODELS_BUILD_H
#define DTD_COMMON_PLAN_MODELS_BUILD_H

#include "common/plan/graph.h"

/* Builds the graph of `model` for sequences of `seq` tokens. ERR_INVALID when a dimension is not legal: `why` names the
 * key, its value and the nearest legal value. Freed by graph_fini. */
/* The model with the values that keys of 0 stand for: kv_heads, head_dim, ffn, expert_ffn. */
struct job_model graph_model(const struct job_model *model);
NODISCARD err_t graph_build(const struct job_model *model, int64_t seq, struct graph *ret, struct why *why);

#endif
