/* The GPUs' part of `dt-worker --probe`, and `dt-worker --health`. */
#ifndef DTD_WORKER_PROBE_GPU_H
#define DTD_WORKER_PROBE_GPU_H

#include "common/base/err.h"

#include <jansson.h>

/* Adds "driver", "gpus", and "gpu_missing" or what is known of their health. A GPU that cannot be opened has an
 * "error". ERR_NOMEM alone. */
NODISCARD err_t probe_gpus(json_t *root);
/* Adds "driver" and "gpus", with the health that the driver's library tells, or "gpu_missing". CUDA is not touched: it
 * takes nothing of the GPUs, and disturbs nobody. One that cannot be named has an "error", and "lost" where it is lost.
 * ERR_NOMEM alone. */
NODISCARD err_t probe_health(json_t *root);

#endif
