/* Staging: the large files of a set are copied, one after another, into one file that is nearer than the cache (in
 * memory, or on a disk of the node). A process that has opened the set in the cache then reads the copy instead. The
 * place of a file in the copy follows from the set's index, so the copy needs no index of its own. */
#ifndef DTD_COMMON_DATA_STAGE_H
#define DTD_COMMON_DATA_STAGE_H

#include "common/data/data.h"

#include <stdatomic.h>

/* Size of the copy. */
int64_t stage_bytes(const struct data_set *d);

/* Copies the set to the empty file `fd`, with large reads in the order of the files, and compares sizes and hashes with
 * the index. `*cancel` ends it with ERR_CANCELED. *ret_target: the error is one of `fd` (it is full, or failed) and not
 * of the set, which can still be read in the cache. ERR_CORRUPT: a file of the set is damaged, or has changed. */
NODISCARD err_t stage_copy(const struct data_set *d, int fd, const atomic_bool *cancel, bool *ret_target,
                           struct why *why);

/* From now on the set reads the copy in `fd`, which may be closed afterwards. No other thread uses d meanwhile. On an
 * error the set cannot be read and must be closed. ERR_INVALID: it is the copy of another set; d is unchanged. */
NODISCARD err_t stage_use(struct data_set *d, int fd, struct why *why);

#endif
