/* The node's GPUs: how many there are, which of them are well, and which job has which. Pure book-keeping, and the
 * reading of the words of `dt-worker --probe` and `--health`. A GPU belongs to one job at a time;
 * run.workers_per_gpu of its workers share it. One that is sick is given to nobody any more; a job that has it keeps it
 * until it gives its GPUs back. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_GPUS_H
#define DTD_DAEMON_CONTROL_LOCAL_GPUS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPUS_MAX 64
#define GPUS_PROBE_MAX (256u << 10) /* bytes of the probe's words */
#define GPUS_UUID_BYTES 64
#define GPUS_SICK_BYTES 128

struct gpus {
    bool known;   /* the probe is over, or the configuration says */
    bool watched; /* by the probe something of their health can be known */
    int n;
    char model[64];    /* of the first one, "" when nobody has said */
    char missing[512]; /* when there are none: why */
    char sick[256];    /* of those that are not used although they can be opened: which and why; "": none */
    struct {
        uint64_t job; /* 0: nobody's */
        int workers;
        bool broken;                /* it could not be opened, when no job had it: given to nobody */
        bool seen;                  /* words on health have named it */
        int numa_node;              /* the kernel's number of the node that it is attached to; -1: not known */
        char uuid[GPUS_UUID_BYTES]; /* how these name it; "": not known */
        char sick[GPUS_SICK_BYTES]; /* "has uncorrectable memory errors (1)"; "": it is well */
    } gpu[GPUS_MAX];                /* beyond n: of workers that were started when there were more */
};

/* So many, all of them well; what the configuration says instead of a probe. Jobs keep theirs. */
void gpus_set(struct gpus *g, int n);
/* From the probe's JSON; ERR_CORRUPT with a sentence when it is none. */
NODISCARD err_t gpus_read(struct gpus *g, const char *text, size_t len, struct why *why);
/* The probe has failed: there are none, and this is why. */
void gpus_fail(struct gpus *g, const char *why);
/* From the words of `dt-worker --health`. *ret: bit i: GPU i has become sick by them. A GPU that former words named and
 * these do not is lost, unless they leave open which one it is that they cannot name. ERR_CORRUPT: no such words;
 * ERR_NOTFOUND: they name none, with their reason. Then nothing has changed. */
NODISCARD err_t gpus_health_read(struct gpus *g, const char *text, size_t len, uint64_t *ret, struct why *why);
/* What another node says of its own: GPU i is sick, or cannot be opened (which counts where no job has it). */
void gpus_mark_sick(struct gpus *g, int i, const char *what);
void gpus_mark_broken(struct gpus *g, int i);
/* What ails GPU i; "": nothing that is known, or there is none such. */
const char *gpus_sick(const struct gpus *g, int i);
/* The kernel's number of the NUMA node beside GPU i; -1: not known, or there is none such. */
int gpus_numa_node(const struct gpus *g, int i);
/* It may be given to somebody, now or when a job has given it back. */
bool gpus_is_usable(const struct gpus *g, int i);

/* For `workers` of which `per_gpu` share one. */
int gpus_needed(int workers, int per_gpu);
/* Those that can be used. */
int gpus_count(const struct gpus *g);
int gpus_free(const struct gpus *g);
/* Of those, what jobs other than this one have. */
int gpus_busy(const struct gpus *g, uint64_t job);
/* Gives every worker k with device[k] < 0 a GPU: one of the job that has room, else the first free one. False when too
 * few are free: then nothing was given. */
bool gpus_take(struct gpus *g, uint64_t job, int workers, int per_gpu, int *device);
/* A worker that is found alive on a GPU. */
void gpus_adopt(struct gpus *g, uint64_t job, int device);
void gpus_give(struct gpus *g, uint64_t job);
/* No job has any. */
void gpus_forget(struct gpus *g);

#endif
