/* A prepared set as samples of a fixed length: one begins every data.stride tokens, or whole documents fill them; with
 * the places where documents begin, and with -1 for targets that do not count. Any number of threads may read a view.
 */
#ifndef DTD_COMMON_DATA_VIEW_H
#define DTD_COMMON_DATA_VIEW_H

#include "common/conf/job.h"
#include "common/data/data.h"

struct data_view;
/* `set` stays the caller's, and open. labels: model.labels; above 0, a sample is the first `seq` tokens of a document
 * with its label as the target of the last of them, and no other target. ERR_INVALID: documents are separate, but the
 * set has no boundaries; there are too few tokens for one sample; or the labels are not those of the set. */
NODISCARD err_t view_open(const struct data_set *set, const struct job_data *d, int64_t seq, int64_t labels,
                          struct data_view **ret, struct why *why);
void view_close(struct data_view *v);
/* Cut samples: floor((tokens - 1 - seq) / stride) + 1, which is floor((tokens - 1) / seq) if they do not overlap. */
int64_t view_samples(const struct data_view *v);
/* Tokens from the begin of a cut sample to that of the next. */
int64_t view_stride(const struct job_data *d, int64_t seq);
/* Whether targets of some samples may not count. */
bool view_masks(const struct data_view *v);
/* ids[seq], targets[seq]: the next token, or -1 where it does not count. Behind the last document of a packed sample
 * both are padding: 0 and -1. */
NODISCARD err_t view_sample(const struct data_view *v, int64_t index, int32_t *ret_ids, int32_t *ret_targets);
/* begins[seq]: the place in the sample where the document of each input begins (0 if before the sample), that is, the
 * first one that attention sees. All 0 where documents are joined. */
NODISCARD err_t view_begins(const struct data_view *v, int64_t index, int32_t *ret);
/* How many targets of the sample count. */
NODISCARD err_t view_count(const struct data_view *v, int64_t index, int64_t *ret);
/* The part of the inputs that is not padding. */
double view_filled(const struct data_view *v);

#endif
