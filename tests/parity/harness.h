/* Training without a daemon: forks the ranks of a job over one segment, runs steps on made-up data, and gives back what
 * every layout must agree on. One process, results in shared memory. */
#ifndef DTD_TESTS_PARITY_HARNESS_H
#define DTD_TESTS_PARITY_HARNESS_H

#include "tests/lib/test.h"
#include "tests/parity/store.h"
#include "tests/worker/memory_store.h"
#include "worker/step/engine.h"

/* The small models of the matrix; `sets` are overrides as in dtctl --set, ended by NULL. */
extern const char parity_llama[], parity_gpt2[], parity_transformer[];

struct parity_model {
    struct job_spec job;
    struct graph graph;
};
void parity_model_init(struct parity_model *m, const char *yaml, const char *const *sets);
void parity_model_fini(struct parity_model *m);

/* The processor as a device, opened once for the process. */
struct dev *test_cpu(void);

/* This rank's pieces of all parameters, or of the gradients that the last update read, as doubles to their places in
 * `to`: all parameters of the graph, one after another in its order. `differ`: instead count elements that are not
 * those there. */
enum parity_what { PARITY_PARAM, PARITY_GRAD };
int64_t parity_collect(const struct engine *e, enum parity_what what, double *to, bool differ);

/* The first parameters of the whole model, in the same order, each by itself. Of float32 unless numerics are proof. */
void parity_first_params(const struct parity_model *m, double *to);

#define PARITY_MAX_STEPS 64
#define PARITY_MAX_WORKERS 16

/* Everything as doubles, which hold every float32 exactly. grad and param: all parameters of the graph, one after
 * another in its order; grad of the first step run, param after the last. */
struct parity_result {
    int64_t n;
    double loss[PARITY_MAX_STEPS], norm[PARITY_MAX_STEPS], valid; /* by step number - 1; valid: after the last step */
    double *grad, *param;
    int replicas_differ; /* ranks whose parameters at the end are not those of rank 0 */
    size_t bytes;
};
/* In memory that processes share. */
struct parity_result *parity_result_new(const struct parity_model *m);
void parity_result_free(struct parity_result *r);

/* Ranks on several nodes, for comm "stream"; what comm_config says of each. */
struct parity_nodes {
    int node_of[PARITY_MAX_WORKERS];
    const char *address; /* of this rank's */
    struct memory_store *store;
};

struct parity_options {
    struct store *load; /* start from this state instead of the initialisation */
    struct store *save; /* leave the state there after the last step */
    const char *comm;   /* backend; NULL: shm */
    const struct parity_nodes *nodes;
    struct dev *(*open)(void); /* the device, closed by `close`; NULL: the processor */
    void (*close)(struct dev *d);
    const struct engine_feed *feed; /* NULL: the made-up data */
    /* Called on every rank when the parameters are there, before the first step. */
    err_t (*before)(void *arg, struct engine *e, struct why *why);
    void *arg;
};

/* One rank of it over the memfd of its node, in a process that does nothing else meanwhile; 0 when all went well, else
 * the sentence is in why[512].
 */
int parity_run_rank(const struct parity_model *m, int fd, uint64_t epoch, int rank, int64_t last,
                    const struct parity_options *o, struct parity_result *r, char *why);
/* Runs steps until step number `last`, evaluates, and fails the test if any rank fails. */
struct parity_result *parity_run(const struct parity_model *m, int64_t last, const struct parity_options *options);

/* The made-up data: sample `index` of `seq` tokens below the vocabulary, learnable (mostly the successor of the last).
 */
err_t parity_sample(void *graph, int64_t index, int32_t *ret_ids, int32_t *ret_targets);
struct parity_feed {
    int64_t seq, vocab;
};

#endif
