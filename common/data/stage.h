/* Staging: the large files of a set are copied, one after another, into one file, together with those of the job's
 * other sets, that is nearer than the cache (in memory, or on a disk of the node). A process that has opened the set in
 * the cache then reads the copy instead. The place of a file in the copy follows from the set's index, so the copy
 * needs no index of its own. */
#ifndef DTD_COMMON_DATA_STAGE_H
#define DTD_COMMON_DATA_STAGE_H

#include "common/data/data.h"

#include <stdatomic.h>

/* Size of the copy; a multiple of the largest page. */
int64_t stage_bytes(const struct data_set *d);

/* Copies the set to the end of `fd`, which is at `at`, with large reads in the order of the files, and compares sizes
 * and hashes with the index. `*cancel` ends it with ERR_CANCELED. *ret_target: the error is one of `fd` (it is full, or
 * failed) and not of the set, which can still be read in the cache. ERR_CORRUPT: a file of the set is damaged, or has
 * changed. */
NODISCARD err_t stage_copy(const struct data_set *d, int fd, int64_t at, const atomic_bool *cancel, bool *ret_target,
                           struct why *why);

/* From now on the set reads its copy at `at` in `fd`, which may be closed afterwards. No other thread uses d meanwhile.
 * ERR_INVALID: the file is too short; d is unchanged. On another error the set cannot be read and must be closed. */
NODISCARD err_t stage_use(struct data_set *d, int fd, int64_t at, struct why *why);

#endif
