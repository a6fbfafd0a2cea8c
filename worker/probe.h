/* `dt-worker --probe`: prints the node's processors, memory and GPUs as one JSON object on standard output. It is a
 * process of its own, so a driver that hangs blocks no daemon. */
#ifndef DTD_WORKER_PROBE_H
#define DTD_WORKER_PROBE_H

#include "common/base/err.h"

NODISCARD err_t probe_print(struct why *why);
/* `dt-worker --health`: prints the health of all GPUs as the driver's management library reports it, in the same
 * format. Jobs may use the GPUs meanwhile. */
NODISCARD err_t probe_health_print(struct why *why);

#endif
