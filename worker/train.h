/* A job's training on this worker: epoch after epoch, as control commands, on the calling (compute) thread. */
#ifndef DTD_WORKER_TRAIN_H
#define DTD_WORKER_TRAIN_H

#include "worker/link/link.h"

struct train_config {
    struct link *link;
    const char *job;
    int segment_fd, arena_fd;
    int device; /* index of the GPU, where the job wants one */
};

/* Returns when the process is to end: OK when it was told to. */
NODISCARD err_t train_serve(const struct train_config *config);

#endif
