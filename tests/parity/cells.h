/* Cells of the matrix: a model, a layout, and a value for every other choice of a layout; and the function that runs
 * them. */
#ifndef DTD_TESTS_PARITY_CELLS_H
#define DTD_TESTS_PARITY_CELLS_H

#include "tests/parity/harness.h"

/* mixture: llama with experts. qwen: llama with biases of q, k and v, with heads that are wider than dim / heads, and
 * with norms of heads. olmo: llama with norms of all heads together. */
enum cell_model {
    CELL_LLAMA,
    CELL_GPT2,
    CELL_TRANSFORMER,
    CELL_MIXTURE,
    CELL_QWEN,
    CELL_OLMO,
    CELL_NEOX,
    CELL_GEMMA,
    CELL_MODELS
};
/* usual: two experts of a few for each token. sparse: one of many experts, so that in a microbatch some have no
 * token. balance: losses of the router that are larger than the loss of the tokens. */
enum cell_routing { ROUTING_USUAL, ROUTING_SPARSE, ROUTING_BALANCE };
enum cell_factor {
    CELL_DP,
    CELL_FSDP,
    CELL_TP,
    CELL_PP,
    CELL_CP,
    CELL_ZERO,      /* 0 to 3 */
    CELL_SP,        /* 0, 1; 2: with async_tp */
    CELL_SCHEDULE,  /* enum pipe_schedule, without schedules from a file */
    CELL_RECOMPUTE, /* enum recompute; experts only in a mixture, and not in triples */
    CELL_EP,        /* 0: ep is 1; n: the n-th larger value that folds over tp, cp and fsdp */
    CELL_UNEVEN,    /* 1: sizes of heads, vocabulary, sequence and layers that no degree divides */
    CELL_ROUTING,   /* enum cell_routing */
    CELL_LOAD,      /* enum expert_load; balanced only with ep above 1 */
    CELL_FACTORS
};

struct cell {
    enum cell_model model;
    int factor[CELL_FACTORS];
};

int cell_workers(const struct cell *c);
/* The cell's name, such as "llama dp 2 tp 2 sp": its differences from one worker. */
void cell_name(const struct cell *c, char *ret, size_t size);
/* The same cell on one worker, with which it is compared. */
struct cell cell_alone(const struct cell *c);
bool cell_same(const struct cell *a, const struct cell *b);
/* The model with the cell's layout; `numerics` and `dtype` as in a job file. */
void cell_init(const struct cell *c, const char *numerics, const char *dtype, struct parity_model *ret);

struct cells {
    struct cell *list;
    int n;
};
void cells_fini(struct cells *c);
/* Adds every product with one or two axes above 1, up to `most` workers. Choices other than axes take turns. */
void cells_pairs(struct cells *c, enum cell_model model, int most);
/* Adds pipelines with a schedule, of 2 ranks with every other axis of 2 and every stage of ZeRO, and of up to `most`
 * ranks alone. */
void cells_schedule(struct cells *c, enum cell_model model, int schedule, int most);
/* Adds cells until every legal triple of values of three factors is in a cell of at most `most` workers. The result is
 * the same in every run. */
void cells_triples(struct cells *c, enum cell_model model, int most);
/* Adds the products of 16 workers with four axes above 1. */
void cells_four_axes(struct cells *c, enum cell_model model);
/* The same of a mixture, each with every value of ep above 1 and three stages of ZeRO. */
void cells_five_axes(struct cells *c);
/* Adds of a mixture every product of axes of 1, 2 and 4 ranks up to `most` workers, with every value of ep above 1 and
 * every stage of ZeRO. */
void cells_folds(struct cells *c, int most);

/* Runs all cells and compares each with one worker; the workers are started once for each world size. Compared are the
 * losses of four steps, an evaluation, every gradient of the first step and every parameter after the fourth in proof
 * mode, and a step with the fast kernels in float32 and in bfloat16. Every tenth cell runs over comm "stream" in two
 * network namespaces, if these can be created. Prints the failed cells and the numbers of cells, and fails the test if
 * any cell failed. */
void cells_run(const struct cells *c);

#endif
