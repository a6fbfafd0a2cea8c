/* Training on this worker: runs the epochs that control starts, one after another, on the calling (compute) thread. */
#ifndef DTD_WORKER_TRAIN_H
#define DTD_WORKER_TRAIN_H

#include "worker/link/link.h"

struct train_config {
    struct link *link;
    const char *job;
    int segment_fd, arena_fd;
    int device; /* index of the GPU, if the job uses GPUs */
};

/* Returns when the process must exit: OK when control has ended it. */
NODISCARD err_t train_serve(const struct train_config *config);

#endif
