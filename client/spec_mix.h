/* The sources of data.train in a mixture (data.weights): their files, their prepared sets, and how often the job passes
 * over each. */
#ifndef DTD_CLIENT_SPEC_MIX_H
#define DTD_CLIENT_SPEC_MIX_H

#include "client/spec.h"

/* Makes the items of data.train absolute, from `folder`, without replacing patterns: an item stays one source. Each
 * must match a file. */
NODISCARD err_t spec_mix_resolve(struct job_spec *job, const char *folder, struct why *why);
/* The job's data: tokens, samples and sources of the facts. */
NODISCARD err_t spec_mix_check(const struct job_spec *job, struct spec_facts *ret, struct why *why);

#endif
