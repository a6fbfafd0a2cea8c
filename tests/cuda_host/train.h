/* Training on the stand-ins: every rank a thread with a device of its own, the real engine, kernels, device layer and
 * collectives. Gives back what must not depend on the order in which streams do their work. */
#ifndef DTD_TESTS_CUDA_HOST_TRAIN_H
#define DTD_TESTS_CUDA_HOST_TRAIN_H

#include "tests/cuda_host/counts.h"
#include "tests/parity/harness.h"

#define TRAIN_MAX_RANKS 4
#define TRAIN_MAX_STEPS 8

struct train_options {
    const char *comm; /* "nccl", "staged" */
    int64_t steps;
    int64_t snapshot;                                 /* a snapshot behind this step; 0: none */
    bool finish;                                      /* and it is waited for at once */
    void (*plant)(struct engine *e, const void *arg); /* on every rank, before the first step */
    const void *plant_arg;
};

struct train_result {
    int64_t n, n_params;
    double loss[TRAIN_MAX_STEPS], norm[TRAIN_MAX_STEPS], valid;
    double *grad, *param; /* rank 0's: after the first step, after the last */
    void *arena[TRAIN_MAX_RANKS];
    size_t arena_bytes[TRAIN_MAX_RANKS];
    int replicas_differ;
    struct cuda_host_counts first, last; /* after the first step, after the last */
    char error[1200];                    /* of the first rank that failed; "" */
};

/* The ranks are parallel.workers of the job. What went wrong stands in `error`. */
struct train_result *train_run(const struct parity_model *m, const struct train_options *o);
void train_result_free(struct train_result *r);
bool train_same_bits(const struct train_result *a, const struct train_result *b);

#endif
