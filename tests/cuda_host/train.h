/* Training on the stand-ins: every rank is a thread with its own device and uses the real engine, kernels, device layer
 * and collectives. Returns the results that must not depend on the order in which streams run. */
#ifndef DTD_TESTS_CUDA_HOST_TRAIN_H
#define DTD_TESTS_CUDA_HOST_TRAIN_H

#include "tests/cuda_host/counts.h"
#include "tests/parity/harness.h"

#define TRAIN_MAX_RANKS 4
#define TRAIN_MAX_STEPS 8

struct train_options {
    const char *comm; /* "nccl", "staged" */
    int64_t steps;
    int64_t snapshot;                                 /* take a snapshot after this step; 0: none */
    bool finish;                                      /* wait for it at once */
    void (*plant)(struct engine *e, const void *arg); /* called on every rank before the first step */
    const void *plant_arg;
};

struct train_result {
    int64_t n, n_params;
    double loss[TRAIN_MAX_STEPS], norm[TRAIN_MAX_STEPS], valid;
    double *grad, *param; /* of all ranks: after the first step, after the last */
    void *arena[TRAIN_MAX_RANKS];
    size_t arena_bytes[TRAIN_MAX_RANKS];
    int replicas_differ;
    struct cuda_host_counts first, last; /* after the first step, after the last */
    char error[1200];                    /* error of the first rank that failed; "": none */
};

/* Trains with parallel.workers ranks. A failure is described in `error`. */
struct train_result *train_run(const struct parity_model *m, const struct train_options *o);
void train_result_free(struct train_result *r);
bool train_same_bits(const struct train_result *a, const struct train_result *b);

#endif
