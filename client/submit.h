/* The submission of a spec that a command of dtctl has made: checks it, starts the job and shows its progress. */
#ifndef DTD_CLIENT_SUBMIT_H
#define DTD_CLIENT_SUBMIT_H

#include "client/commands.h"
#include "common/conf/job.h"

/* Submits the spec of an earlier job, as `dtctl submit --batch` does, but with the signals of an ordinary submit.
 * Prints whether a training job resumes or starts afresh. Changes `job`; the caller frees it. Returns an exit code. */
int submit_again(struct global *g, struct job_spec *job, bool detach);

#endif
