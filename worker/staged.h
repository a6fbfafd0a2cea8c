/* The copy of the job's data on this node (data.stage), which dtd-io makes and holds. */
#ifndef DTD_WORKER_STAGED_H
#define DTD_WORKER_STAGED_H

#include "common/data/data.h"
#include "worker/link/link.h"

/* Waits for the copy and lets the sets read it; sets[i] may be NULL. ask: world and need_bytes; the rest is undefined
 * afterwards, but for `bytes`. Without a copy the sets stay as they are, and the log of one worker of the node gives
 * the reason. ERR_CORRUPT: a file of a set is damaged or has changed. */
NODISCARD err_t staged_use(struct link *l, struct link_stage *ask, struct data_set *const *sets, int n,
                           struct why *why);

#endif
