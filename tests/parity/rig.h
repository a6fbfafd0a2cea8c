/* Ranks in processes of their own, and an engine over shm that a test drives step by step. */
#ifndef DTD_TESTS_PARITY_RIG_H
#define DTD_TESTS_PARITY_RIG_H

#include "tests/parity/harness.h"

/* A rank's part: `fd` is the segment that all share; 0 when all was right. */
typedef int (*rig_fn)(void *arg, int fd, int rank);
/* Forks the ranks, waits for them, and fails the test if any of them does. At most PARITY_MAX_WORKERS. */
void rig_fork(int world, rig_fn fn, void *arg);

/* One rank of `m` with its parameters filled, on made-up data. Zero it before rig_open; rig_close also after an error.
 */
struct rig {
    const struct parity_model *m;
    struct engine e;
    struct comm *comm;
    struct parity_feed data;
};
err_t rig_open(struct rig *r, const struct parity_model *m, int fd, int rank, struct why *why);
err_t rig_step(struct rig *r, struct engine_result *ret, struct why *why);
void rig_close(struct rig *r);

#endif
