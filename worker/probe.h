/* `dt-worker --probe`: what this node can compute with, as one JSON object on standard output. Its own process, so that
 * a driver that hangs hangs nobody. */
#ifndef DTD_WORKER_PROBE_H
#define DTD_WORKER_PROBE_H

#include "common/base/err.h"

NODISCARD err_t probe_print(struct why *why);
/* `dt-worker --health`: what the driver's library says of the health of all GPUs, in the same manner. Jobs may use them
 * meanwhile. */
NODISCARD err_t probe_health_print(struct why *why);

#endif
