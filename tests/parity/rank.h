/* Ranks in processes of their own, and one rank's engine over shm that a test drives step by step. */
#ifndef DTD_TESTS_PARITY_RANK_H
#define DTD_TESTS_PARITY_RANK_H

#include "tests/parity/harness.h"

/* The work of one rank. `fd` is the segment that all ranks share. Returns 0 on success. */
typedef int (*parity_rank_fn)(void *arg, int fd, int rank);
/* Forks the ranks, waits for them, and fails the test if any rank returns nonzero. At most PARITY_MAX_WORKERS ranks. */
void parity_fork(int world, parity_rank_fn fn, void *arg);

/* One rank of `m`, with initial parameters and generated data. Zero it before parity_rank_open; call parity_rank_close
 * after an error, too. */
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
