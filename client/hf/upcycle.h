/* Makes a model with experts from a dense one ("sparse upcycling", Komatsuzaki et al. 2022): every expert of a layer
 * starts as a copy of the layer's feed-forward, routers start random, and all else is copied. */
#ifndef DTD_CLIENT_UPCYCLE_H
#define DTD_CLIENT_UPCYCLE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct upcycle {
    const char *step_dir;    /* the dense checkpoint */
    const char *out;         /* folder of the new one; the current folder is the base of a relative path */
    const char *const *sets; /* overrides of the dense job's keys, as in job_parse: those of the experts, and others */
    int n_sets;
};

struct upcycle_done {
    char path[4096];         /* the new step folder */
    int64_t experts, layers; /* experts of a layer; layers that have them */
    uint64_t seed;           /* of the routers */
    int tensors;
    int64_t params, bytes;
    bool same; /* the first forward is that of the dense model, since the weights of a token's experts have the sum 1 */
};

/* Writes a checkpoint step-0, which holds parameters only, in the type of the dense ones. Blocking. ERR_INVALID: the
 * overrides are no legal job, or change more than the experts; ERR_UNSUPPORTED: the checkpoint is no dense llama. */
NODISCARD err_t upcycle_run(const struct upcycle *x, struct upcycle_done *ret, struct why *why);

#endif
