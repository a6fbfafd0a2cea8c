/* The training data of a job: its sources, cut into samples, in the order that the job file asks for. Opened once; any
 * number of threads may read it. */
#ifndef DTD_COMMON_DATA_MIXTURE_H
#define DTD_COMMON_DATA_MIXTURE_H

#include "common/conf/job.h"
#include "common/data/data.h"
#include "common/data/order.h"
#include "common/data/view.h"

struct mixture_source {
    struct data_set *set;
    struct data_view *view;
    int64_t weight, passes; /* as in order_source */
};

struct mixture {
    int64_t seq;
    struct mixture_source *sources;
    int n;
    struct data_order *order;
};

/* Whether the job has more sources than one. */
static inline bool mixture_is(const struct job_data *d)
{
    return d->n_weights > 0;
}
/* The prepared set of each source. */
const char *mixture_hash(const struct job_data *d, int source);

/* Opens the sets that the job names. ERR_INVALID: a source has too few tokens for one sample, weights or passes are no
 * numbers, or all sources together give fewer samples than the job's steps need; the sentence begins with the key. */
NODISCARD err_t mixture_open(const struct job_spec *job, struct mixture *ret, struct why *why);
void mixture_close(struct mixture *m); /* legal on a zeroed struct */
/* Whether targets of some samples may not count. */
bool mixture_masks(const struct mixture *m);
/* The sample at the global position, as the functions of view.h. */
NODISCARD err_t mixture_sample(const struct mixture *m, int64_t position, int32_t *ret_ids, int32_t *ret_targets);
NODISCARD err_t mixture_begins(const struct mixture *m, int64_t position, int32_t *ret);
NODISCARD err_t mixture_count(const struct mixture *m, int64_t position, int64_t *ret);
/* How often the job's steps pass over the source. */
double mixture_passes(const struct mixture *m, int source, int64_t positions);

#endif
