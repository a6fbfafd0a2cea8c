/* Training without a daemon: forks the ranks of a job over one segment, runs steps on generated data, and returns the
 * values on which all layouts must agree. Results are in shared memory. */
#ifndef DTD_TESTS_PARITY_HARNESS_H
#define DTD_TESTS_PARITY_HARNESS_H

#include "tests/lib/test.h"
#include "tests/parity/store.h"
#include "tests/worker/memory_store.h"
#include "worker/step/engine.h"

/* The small models of the matrix. `sets` are overrides as in dtctl --set, ended by NULL. */
extern const char parity_llama[], parity_gpt2[], parity_transformer[];

struct parity_model {
    struct job_spec job;
    struct graph graph;
};
void parity_model_init(struct parity_model *m, const char *yaml, const char *const *sets);
void parity_model_fini(struct parity_model *m);

/* The CPU as a device, opened once per process. */
struct dev *test_cpu(void);

/* Copies this rank's pieces of all parameters, or of the gradients that the last update read, as doubles to their
 * places in `to`: all parameters of the graph, one after another in its order. With `differ`, counts the elements that
 * differ from `to` instead. */
enum parity_what { PARITY_PARAM, PARITY_GRAD, PARITY_STATE };
int64_t parity_collect(const struct engine *e, enum parity_what what, double *to, bool differ);

/* The initial parameters of the whole model, in the same order, computed tensor by tensor. They are float32 unless
 * numerics are proof. */
void parity_first_params(const struct parity_model *m, double *to);

#define PARITY_MAX_STEPS 64
#define PARITY_MAX_WORKERS 16
#define PARITY_MAX_STATES 1024 /* elements of all states of a model */

/* All values as doubles, which represent every float32 exactly. grad and param have all parameters of the graph, one
 * after another in its order; grad after the first step of the run, param after the last. */
struct parity_result {
    int64_t n;
    double loss[PARITY_MAX_STEPS], norm[PARITY_MAX_STEPS],
        valid; /* loss and norm: by step number - 1; valid: after the last step */
    double *grad, *param;
    double state[PARITY_MAX_STATES]; /* all states of the graph after the last step; beyond them 0 */
    int64_t ahead, repeated;         /* rank 0: updates with an assumed clip factor; those that were repeated */
    int replicas_differ;             /* ranks whose final parameters differ from those of rank 0 */
    size_t bytes;
};
/* In memory that forked processes share. */
struct parity_result *parity_result_new(const struct parity_model *m);
void parity_result_free(struct parity_result *r);

/* Ranks on several nodes, for comm "stream". The fields are those of comm_config, for each rank. */
struct parity_nodes {
    int node_of[PARITY_MAX_WORKERS];
    const char *address; /* of this rank */
    struct memory_store *store;
};

struct parity_options {
    struct store *load; /* state to start from instead of the initialization */
    struct store *save; /* the state after the last step is stored here */
    const char *comm;   /* backend; NULL: shm */
    const struct parity_nodes *nodes;
    struct dev *(*open)(void); /* opens the device, which `close` closes; NULL: the CPU */
    void (*close)(struct dev *d);
    const struct engine_feed *feed; /* NULL: the generated data */
    int64_t evaluate;               /* evaluates after every so many steps too, whatever has begun; 0: never */
    int64_t save_at;                /* with `save`: the step after which the state is stored; 0: the last */
    int64_t pause;                  /* after every so many steps, ranks do not begin the next one ahead; 0: never */
    /* Called on every rank after the parameters are filled, before the first step. */
    err_t (*before)(void *arg, struct engine *e, struct why *why);
    void (*each)(void *arg, struct engine *e); /* before every step */
    void *arg;
};

/* Runs one rank over the memfd of its node, in a process that does nothing else meanwhile. Returns 0 on success;
 * otherwise a message is in why[512]. */
int parity_run_rank(const struct parity_model *m, int fd, uint64_t epoch, int rank, int64_t last,
                    const struct parity_options *o, struct parity_result *r, char *why);
/* Runs steps until step number `last`, evaluates, and fails the test if any rank fails. */
struct parity_result *parity_run(const struct parity_model *m, int64_t last, const struct parity_options *options);

/* The generated data: sample `index` of `seq` tokens below the vocabulary. It is learnable: a token is mostly the
 * successor of the one before. */
err_t parity_sample(void *feed, int64_t index, int32_t *ret_ids, int32_t *ret_targets);
err_t parity_count(void *feed, int64_t index, int64_t *ret); /* targets that count */
/* Which targets count: all; about six of ten, but none of every fifth sample; the others; none. */
enum parity_mask { PARITY_ALL, PARITY_SOME, PARITY_OTHERS, PARITY_NONE };
struct parity_feed {
    int64_t seq, vocab;
    enum parity_mask mask;
    /* Above 0: each sample has one target, a class below this, at the last token of a text that mostly ends before the
     * sample. `mask` has no effect then. */
    int64_t labels;
};
/* The data of a job, and what the engine needs of it. */
struct parity_feed parity_feed_of(const struct job_spec *job);
struct engine_feed parity_engine_feed(struct parity_feed *f);

#endif
