/* `dt-worker --probe`: what this node can compute with, as one JSON object on standard output. Its own process, so that
 * a driver that hangs hangs nobody. */
#ifndef DTD_WORKER_PROBE_H
#define DTD_WORKER_PROBE_H

#include "common/base/err.h"

NODISCARD err_t probe_print(struct why *why);

#endif
