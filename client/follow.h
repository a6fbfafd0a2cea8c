/* Attending a job: progress until it ends, across restarts of control, until Ctrl-C detaches. */
#ifndef DTD_CLIENT_FOLLOW_H
#define DTD_CLIENT_FOLLOW_H

#include "client/client.h"
#include "client/commands.h"

#include <stdint.h>

/* Returns the job's exit code (0 done, 4 failed, 5 canceled); 0 when the person detached; 75 when dtd went away for
 * good. Progress goes to standard output; with -o json to standard error, and the last status to standard output. */
int follow_job(struct global *g, const char *job);

/* From here on SIGUSR1 and SIGTERM ask the job that is followed to save and to stop, once; when that has stopped it,
 * follow_job returns 75. */
void follow_stop_on_signals(void);

/* One call on a connection of its own, made again while control is away but a dtd is there (60 s), or may be coming
 * back (3 s; not at all when none has answered this program before). Only for calls that may be repeated. */
NODISCARD err_t follow_call(struct global *g, err_t (*call)(struct client *c, void *arg, struct why *why), void *arg,
                            struct why *why);
/* The status of one job, and of all jobs, by follow_call. The caller frees *ret. */
NODISCARD err_t client_job_by_id(struct global *g, const char *id, struct client_job *ret, struct why *why);
NODISCARD err_t client_job_list(struct global *g, struct client_job **ret, int *ret_n, struct why *why);
/* Refuses (ERR_EXISTS) when a job that has not ended writes its checkpoints to `dir`. ret_newest (may be NULL): the
 * newest job that wrote there, "" for none. */
NODISCARD err_t follow_check_dir(struct global *g, const char *dir, char ret_newest[32], struct why *why);
/* The tail of submit and of resume: submits, says so, and attends unless `detach`. Returns an exit code. */
int follow_new_job(struct global *g, const char *spec_yaml, const char *parent, const char *name, bool detach);

#endif
