/* The GPUs' part of `dt-worker --probe`. */
#ifndef DTD_WORKER_PROBE_GPU_H
#define DTD_WORKER_PROBE_GPU_H

#include "common/base/err.h"

#include <jansson.h>

/* Adds "driver", "gpus", and "gpu_missing" or what is known of their health. A GPU that cannot be opened has an
 * "error". ERR_NOMEM alone. */
NODISCARD err_t probe_gpus(json_t *root);

#endif
