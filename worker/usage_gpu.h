/* Asks a GPU's driver for its use every few seconds, on a thread of its own, because the driver may take longer to
 * answer than a step may wait. Owned by worker/usage.c; the compute thread makes all calls. */
#ifndef DTD_WORKER_USAGE_GPU_H
#define DTD_WORKER_USAGE_GPU_H

#include "common/rpc/usage.h"

struct usage_gpu;

/* NULL: there is no memory or no thread for it. If the driver's library is missing, all values remain absent. */
struct usage_gpu *usage_gpu_start(const char *uuid);
void usage_gpu_stop(struct usage_gpu *g); /* NULL is legal; waits for a call of the driver that is running */
/* Sets the gpu_ fields to the newest answers, or leaves them absent. NULL is legal. */
void usage_gpu_fill(struct usage_gpu *g, struct usage *ret);

#endif
