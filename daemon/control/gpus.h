/* The node's GPUs: how many there are, and which job has which. Pure book-keeping, and the reading of the probe's words
 * (`dt-worker --probe`). A GPU belongs to one job at a time; run.workers_per_gpu of its workers share it. */
#ifndef DTD_DAEMON_CONTROL_GPUS_H
#define DTD_DAEMON_CONTROL_GPUS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPUS_MAX 64
#define GPUS_PROBE_MAX (256u << 10) /* bytes of the probe's words */
#define GPUS_BROKEN UINT64_MAX      /* the job that has those which cannot be opened, or are sick */

struct gpus {
    bool known; /* the probe is over, or the configuration says */
    int n;
    char model[64];    /* of the first one, "" when nobody has said */
    char missing[512]; /* when there are none: why */
    char sick[256];    /* of those that are not used although they can be opened: which and why; "": none */
    struct {
        uint64_t job; /* 0: free */
        int workers;
    } gpu[GPUS_MAX]; /* beyond n: of workers that were started when there were more */
};

/* What the configuration says instead of a probe. */
void gpus_set(struct gpus *g, int n);
/* From the probe's JSON; ERR_CORRUPT with a sentence when it is none. */
NODISCARD err_t gpus_read(struct gpus *g, const char *text, size_t len, struct why *why);
/* The probe has failed: there are none, and this is why. */
void gpus_fail(struct gpus *g, const char *why);

/* For `workers` of which `per_gpu` share one. */
int gpus_needed(int workers, int per_gpu);
/* Those that can be used. */
int gpus_count(const struct gpus *g);
int gpus_free(const struct gpus *g);
/* Gives every worker k with device[k] < 0 a GPU: one of the job that has room, else the first free one. False when too
 * few are free: then nothing was given. */
bool gpus_take(struct gpus *g, uint64_t job, int workers, int per_gpu, int *device);
/* A worker that is found alive on a GPU. */
void gpus_adopt(struct gpus *g, uint64_t job, int device);
void gpus_give(struct gpus *g, uint64_t job);

#endif
