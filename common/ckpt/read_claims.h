/* The units of files that the readers of one process have read past the page cache. A reader claims each unit before it
 * reads it so. When a unit is claimed for the second time, its file is shared: from then on it is read through the page
 * cache, from which the other readers get it. Replicas of a model on one node load the same bytes; readers of different
 * shards never meet, and need no page cache.
 *
 * Embedded by value in the caller, which shares it between threads; outlives all readers that use it. */
#ifndef DTD_COMMON_CKPT_READ_CLAIMS_H
#define DTD_COMMON_CKPT_READ_CLAIMS_H

#include "common/base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct read_claim; /* of one file that is open at least once */

struct read_claims {
    pthread_mutex_t lock;
    struct read_claim *first;
};

NODISCARD err_t read_claims_init(struct read_claims *c);
void read_claims_fini(struct read_claims *c);
/* Enters a file with `n_units` units. NULL: out of memory; the file is then read as if no other reader had it. */
struct read_claim *read_claims_enter(struct read_claims *c, dev_t dev, ino_t ino, uint64_t n_units);
void read_claims_leave(struct read_claims *c, struct read_claim *claim);
/* True: the caller may read the unit past the page cache. A caller claims each unit once. */
bool read_claims_take(struct read_claims *c, struct read_claim *claim, uint64_t unit);

#endif
