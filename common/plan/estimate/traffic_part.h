/* For which part of a step a communication is, so that its measured time stands beside the same part of the forecast
 * (struct plan_time, common/plan/search/step_time.h). Pure. */
#ifndef DTD_COMMON_PLAN_ESTIMATE_TRAFFIC_PART_H
#define DTD_COMMON_PLAN_ESTIMATE_TRAFFIC_PART_H

#include "common/plan/program.h"

/* X(id, name): the names are those of the fields of struct plan_time. */
#define TRAFFIC_PARTS(X)                                                               \
    X(TP, tp)         /* collectives of tensor parallelism, inside layers */           \
    X(CP, cp)         /* keys and values around the ring */                            \
    X(EP, ep)         /* rows of experts, and experts that are lent */                 \
    X(PP, pp)         /* messages between stages; a rank waits for its peer in them */ \
    X(PARAMS, params) /* gathers of parameters */                                      \
    X(GRADS, grads)   /* everything else: gradients, losses and norms over their groups */

#define X(id, ...) TRAFFIC_##id,
enum traffic_part { TRAFFIC_PARTS(X) TRAFFIC_COUNT };
#undef X

/* The part of an op that communicates, in an action of this kind. */
enum traffic_part traffic_part_of(const struct program *p, enum action_kind action, const struct op *op);

#endif
