/* The worker's device, which stays open between epochs because opening a GPU takes seconds, and the choice of the comm
 * backend. Compute thread. */
#ifndef DTD_WORKER_DEVICE_H
#define DTD_WORKER_DEVICE_H

#include "common/conf/job.h"
#include "kernels/device.h"
#include "worker/step/engine.h"

struct worker_device {
    struct dev *dev; /* NULL before the first epoch */
    enum device kind;
    int index; /* dt-worker --device */
};

/* Opens the job's device, unless it is open, with the job's algorithm file (run.algorithms). A device of another kind
 * is closed: nothing of it may be in use. */
NODISCARD err_t worker_device_need(struct worker_device *d, const struct job_spec *job, struct why *why);
void worker_device_close(struct worker_device *d);
/* Whether the device has failed. A GPU that has failed once rejects all calls until the process exits. */
bool worker_device_lost(const struct worker_device *d);
/* Fails if the engine does not fit into the device's memory. */
NODISCARD err_t worker_device_fits(const struct worker_device *d, const struct engine *e, struct why *why);
/* The comm backend for run.comm. */
const char *worker_device_comm(const struct job_spec *job);

#endif
