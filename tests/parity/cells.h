/* Cells of the matrix: a model, a layout, and every choice that a layout has; and who runs them. */
#ifndef DTD_TESTS_PARITY_CELLS_H
#define DTD_TESTS_PARITY_CELLS_H

#include "tests/parity/harness.h"

enum cell_model { CELL_LLAMA, CELL_GPT2, CELL_TRANSFORMER, CELL_MODELS };
enum cell_factor {
    CELL_DP,
    CELL_FSDP,
    CELL_TP,
    CELL_PP,
    CELL_CP,
    CELL_ZERO,      /* 0 to 3 */
    CELL_SP,        /* 0, 1; 2: with async_tp */
    CELL_SCHEDULE,  /* enum pipe_schedule but for the file */
    CELL_RECOMPUTE, /* enum recompute */
    CELL_UNEVEN,    /* 1: heads, vocabulary, sequence and layers that nothing divides */
    CELL_FACTORS
};

struct cell {
    enum cell_model model;
    int factor[CELL_FACTORS];
};

int cell_workers(const struct cell *c);
/* "llama dp 2 tp 2 sp": what differs from one worker. */
void cell_name(const struct cell *c, char *ret, size_t size);
/* The cell on one worker: what it is compared with. */
struct cell cell_alone(const struct cell *c);
bool cell_same(const struct cell *a, const struct cell *b);
/* The model with the cell's layout; `numerics` as in a job. */
void cell_init(const struct cell *c, const char *numerics, struct parity_model *ret);

struct cells {
    struct cell *list;
    int n;
};
void cells_fini(struct cells *c);
/* Every product with one or two axes above 1, up to `most` workers; choices that are no axis take turns. */
void cells_pairs(struct cells *c, enum cell_model model, int most);
/* More cells, so that every triple of values of three factors that can stand together is in one of up to `most`
 * workers; the same on every run. */
void cells_triples(struct cells *c, enum cell_model model, int most);
/* Products of 16 workers with four axes above 1. */
void cells_four_axes(struct cells *c, enum cell_model model);

/* Runs them all against one worker, the workers started once for each world size: losses of four steps, an evaluation,
 * every gradient of the first step and every parameter after the fourth in proof mode, and a float32 step on the fast
 * kernels. Every tenth is run by workers in two network namespaces over comm "stream", where these can be made. Prints
 * what fails and the numbers of cells, and fails the test when any did. */
void cells_run(const struct cells *c);

#endif
