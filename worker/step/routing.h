/* Choices of routers that a job saves by token, or takes from an earlier one (train.save_routing,
 * train.replay_routing). Belongs to the engine; compute thread. All functions do nothing where a job does neither. */
#ifndef DTD_WORKER_STEP_ROUTING_H
#define DTD_WORKER_STEP_ROUTING_H

#include "worker/step/run.h"

NODISCARD err_t routing_init(struct engine *e, struct why *why);
void routing_fini(struct engine *e);
/* Before the next step: reads what it is given. ERR_NOTFOUND, ERR_INVALID or ERR_CORRUPT: the folder has not what this
 * step needs; `why` names the file. */
NODISCARD err_t routing_begin(struct engine *e, struct why *why);
/* After it: writes what it has chosen. */
NODISCARD err_t routing_end(struct engine *e, struct why *why);
/* The experts that a router's op must use, [tokens, k], valid until the next call; NULL: it chooses itself. */
const int32_t *routing_given(const struct run *r, const struct op *op);
/* ids[tokens, k] are those that the op has used. */
void routing_made(const struct run *r, const struct op *op, const int32_t *ids);

#endif
