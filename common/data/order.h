/* The order of training samples: position -> source and sample, without state.
 *
 * A mixture takes its sources in the proportion of their weights: after any number of positions, each source has given
 * its weight's part of them, to within less than one sample. A source's own samples follow in its own shuffled order,
 * pass after pass. A source with a limit of passes leaves the mixture after them, and the others go on in the
 * proportion of their weights. So a checkpoint needs no more than the position, and any number of workers may go on
 * from it. An order is immutable, so any thread may read it. */
#ifndef DTD_COMMON_DATA_ORDER_H
#define DTD_COMMON_DATA_ORDER_H

#include "common/base/err.h"
#include "common/conf/job.h"

#include <stdbool.h>
#include <stdint.h>

#define ORDER_MAX_SOURCES 1024

struct order_source {
    int64_t samples; /* of one pass, at least 1 */
    int64_t weight;  /* relative to the others, at least 1; order_weights */
    int64_t passes;  /* most passes; 0: no limit */
};

/* Turns decimal numbers ("0.7", "20") into integers of the same exact ratio, with a sum of at most 2^20. ERR_INVALID:
 * one is no positive number, or they have too many digits for that; the sentence follows a key's name. */
NODISCARD err_t order_weights(char *const *texts, int n, int64_t *ret, struct why *why);

struct data_order;
/* block_samples: of `blocks`, at least 1; see order_shuffled. ERR_LIMIT: the weights' sum is above 2^20. */
NODISCARD err_t order_new(const struct order_source *sources, int n, uint64_t seed, enum data_shuffle shuffle,
                          int64_t block_samples, struct data_order **ret);
void order_free(struct data_order *o);
/* The number of positions: when every source has its last pass behind it. INT64_MAX: no end. */
int64_t order_end(const struct data_order *o);
/* `position`: 0 to order_end - 1. */
void order_at(const struct data_order *o, int64_t position, int *ret_source, int64_t *ret_sample);
/* How many of positions [0, position) the source has given. */
int64_t order_count(const struct data_order *o, int source, int64_t position);

/* The sample at the given place of a source's own order. SHUFFLE_SAMPLES is data_sampler. SHUFFLE_BLOCKS is for
 * parallel file systems: blocks of so many consecutive samples are shuffled, and then the samples within windows of 16
 * such blocks; so about 16 places of the files are read at a time, each nearly in order. Samples behind the last whole
 * block are in the last window. */
int64_t order_shuffled(uint64_t seed, int64_t n, enum data_shuffle shuffle, int64_t block_samples, int64_t position);
/* Samples that begin every `stride` tokens in a block of 4 Mi tokens, 8 or 16 MiB: what Lustre and GPFS read at once.
 */
int64_t order_block_samples(int64_t stride);

#endif
