/* Ranks in processes of their own, and an engine over shm that a test drives step by step. */
#ifndef DTD_TESTS_PARITY_RANK_H
#define DTD_TESTS_PARITY_RANK_H

#include "tests/parity/harness.h"

/* A rank's part: `fd` is the segment that all share; 0 when all was right. */
typedef int (*parity_rank_fn)(void *arg, int fd, int rank);
/* Forks the ranks, waits for them, and fails the test if any of them does. At most PARITY_MAX_WORKERS. */
void parity_fork(int world, parity_rank_fn fn, void *arg);

/* One rank of `m` with its parameters filled, on made-up data. Zero it before parity_rank_open; parity_rank_close also
 * after an error.
 */
struct parity_rank {
    const struct parity_model *m;
    struct engine e;
    struct comm *comm;
    struct parity_feed data;
};
err_t parity_rank_open(struct parity_rank *r, const struct parity_model *m, int fd, int rank, struct why *why);
err_t parity_rank_step(struct parity_rank *r, struct engine_result *ret, struct why *why);
void parity_rank_close(struct parity_rank *r);

#endif
