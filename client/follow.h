/* Attending a job: progress until it ends, across restarts of control, until Ctrl-C detaches. */
#ifndef DTD_CLIENT_FOLLOW_H
#define DTD_CLIENT_FOLLOW_H

#include "client/commands.h"

#include <stdint.h>

/* Returns the job's exit code (0 done, 4 failed, 5 canceled); 0 when the person detached; 75 when dtd went away for
 * good. Progress goes to standard output; with -o json to standard error, and the last status to standard output. */
int follow_job(struct global *g, const char *job);

/* Submits, trying again with the same request id while control is away. ret_job: the new id. */
NODISCARD err_t follow_submit(struct global *g, const char *spec_yaml, const char *parent, char ret_job[32],
                              struct why *why);
/* The tail of submit and of resume: submits, says so, and attends unless `detach`. Returns an exit code. */
int follow_new_job(struct global *g, const char *spec_yaml, const char *parent, const char *name, bool detach);

#endif
