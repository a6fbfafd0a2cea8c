/* The GPUs of a node: their number, their health, and the job that each one is assigned to. The module does bookkeeping
 * and parses the output of `dt-worker --probe` and `--health`.
 *
 * A GPU belongs to one job at a time; run.workers_per_gpu of the job's workers share it. A GPU is called sick if its
 * results cannot be trusted, or if it is lost. A sick GPU is not assigned again; a job that has it keeps it until the
 * job returns its GPUs. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_GPUS_H
#define DTD_DAEMON_CONTROL_LOCAL_GPUS_H

#include "common/base/err.h"
#include "common/rpc/node_load.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPUS_MAX 64
#define GPUS_PROBE_MAX (256u << 10) /* bytes of the probe's output: 4 KiB per GPU, several times what it needs */
#define GPUS_UUID_BYTES 64
#define GPUS_SICK_BYTES 128

struct gpus {
    bool known;   /* the probe has ended, or the configuration gives the number */
    bool watched; /* the probe could read data about health */
    int n;
    char model[64];    /* of the first GPU; "": not known */
    char missing[512]; /* the reason why there is no usable GPU, if so */
    char sick[256];    /* which GPUs are not used although they can be opened, and why; "": none */
    struct {
        int minor;                  /* M of /dev/nvidiaM; -1: not known */
        uint64_t job;               /* 0: free */
        int workers;                /* of that job, on this GPU */
        bool broken;                /* it could not be opened while no job had it: it is not assigned */
        bool seen;                  /* a health check has reported it at least once */
        int numa_node;              /* the kernel's number of the NUMA node that it is attached to; -1: not known */
        char uuid[GPUS_UUID_BYTES]; /* by which health checks identify it; "": not known */
        struct gpu_load load;       /* as the last health check reported it */
        char sick[GPUS_SICK_BYTES]; /* "has uncorrectable memory errors (1)"; "": healthy */
    } gpu[GPUS_MAX];                /* entries from n on: GPUs of workers that started when there were more */
};

/* Sets the number of GPUs, all healthy, from the configuration instead of a probe. Assignments to jobs remain. */
void gpus_set(struct gpus *g, int n);
/* Reads the JSON output of the probe. ERR_CORRUPT: it is invalid. */
NODISCARD err_t gpus_read(struct gpus *g, const char *text, size_t len, struct why *why);
/* The probe has failed for this reason: the node has no usable GPUs. */
void gpus_fail(struct gpus *g, const char *why);
/* Reads the JSON output of `dt-worker --health`. In *ret, bit i is set if GPU i has become sick now. A GPU that an
 * earlier check reported and this one does not is lost, unless this output contains a GPU without a uuid, which may be
 * that one. ERR_CORRUPT: the output is invalid; ERR_NOTFOUND: it lists no GPU, and `why` has its reason. On an error
 * nothing changes. */
NODISCARD err_t gpus_health_read(struct gpus *g, const char *text, size_t len, uint64_t *ret, struct why *why);
/* Another node reports that its GPU i is sick, or cannot be opened; the latter has no effect while a job has the GPU.
 */
void gpus_mark_sick(struct gpus *g, int i, const char *what);
void gpus_mark_broken(struct gpus *g, int i);
/* The defect of GPU i; "": none is known, or there is no such GPU. */
const char *gpus_sick(const struct gpus *g, int i);
/* The kernel's number of the NUMA node of GPU i; -1: not known, or there is no such GPU. */
int gpus_numa_node(const struct gpus *g, int i);
/* The minor numbers of the GPUs in `set` (bit i: GPU i), as bits. False: not all GPUs of the node have known ones. */
bool gpus_minors(const struct gpus *g, uint64_t set, uint64_t *ret);
/* The GPU can be assigned, now or after its job has returned it. */
bool gpus_is_usable(const struct gpus *g, int i);

/* The number of GPUs for `workers` workers, if `per_gpu` of them share one. */
int gpus_needed(int workers, int per_gpu);
/* The number of usable GPUs, and how many of them are free. */
int gpus_count(const struct gpus *g);
int gpus_free(const struct gpus *g);
/* The number of usable GPUs that other jobs than this one have. */
int gpus_busy(const struct gpus *g, uint64_t job);
/* Usable GPUs that `job` has. */
int gpus_held(const struct gpus *g, uint64_t job);
/* Assigns a GPU to every worker k with device[k] < 0: one of the job's GPUs with room for a worker, or else the first
 * free one. False: too few GPUs are free, and nothing was assigned. */
bool gpus_take(struct gpus *g, uint64_t job, int workers, int per_gpu, int *device);
/* Records a running worker that an earlier control, or an earlier leader, placed on this GPU. */
void gpus_adopt(struct gpus *g, uint64_t job, int device);
/* The job returns all its GPUs. */
void gpus_give(struct gpus *g, uint64_t job);
/* Removes all assignments. */
void gpus_forget(struct gpus *g);

#endif
