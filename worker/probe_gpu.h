/* The GPU part of `dt-worker --probe`, and `dt-worker --health`. */
#ifndef DTD_WORKER_PROBE_GPU_H
#define DTD_WORKER_PROBE_GPU_H

#include "common/base/err.h"

#include <jansson.h>

/* Adds "driver", "gpus", and "gpu_missing" or the known facts about their health. A GPU that cannot be opened has an
 * "error". The only error is ERR_NOMEM. */
NODISCARD err_t probe_gpus(json_t *root);
/* Adds "driver" and "gpus", with the health that the driver's management library reports, or "gpu_missing". CUDA is not
 * used, so this takes no GPU memory and does not disturb running jobs. A GPU that cannot be identified has an "error",
 * and "lost" if the driver has lost it. The only error is ERR_NOMEM. */
NODISCARD err_t probe_health(json_t *root);

#endif
