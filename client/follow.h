/* Watching a job: shows its progress until the job ends or Ctrl-C detaches, across restarts of control. */
#ifndef DTD_CLIENT_FOLLOW_H
#define DTD_CLIENT_FOLLOW_H

#include "client/client.h"
#include "client/commands.h"
#include "common/conf/job.h"

#include <stdint.h>

struct follow_how {
    bool detach;             /* print the job's id, and do not watch it */
    bool command;            /* a job of dtctl run: it has no steps and saves nothing for dtd */
    bool output;             /* of a command: print the output of its workers */
    struct log_files *files; /* of a command: also write the output to these files; NULL: none */
};

/* Returns the job's exit code (0 done, 4 failed, 5 canceled), 130 after Ctrl-C, or 75 when dtd exited and did not come
 * back. Progress and the workers' output go to standard output; with -o json to standard error, and the last status to
 * standard output. */
int follow_job(struct global *g, const char *job, const struct follow_how *how);

/* From this call on, the first SIGUSR1 or SIGTERM makes follow_job request that the job saves and stops. When the job
 * has stopped because of it, follow_job returns 75. */
void follow_stop_on_signals(void);

/* Makes one call on a new connection, and repeats it while control does not answer: for 60 s if a supervisor runs, and
 * for 3 s if none runs but an earlier call of this process was answered; else it fails at once. Only for calls that may
 * be repeated. */
NODISCARD err_t follow_call(struct global *g, err_t (*call)(struct client *c, void *arg, struct why *why), void *arg,
                            struct why *why);
/* The status of one job, and of all jobs, by follow_call. The caller frees *ret. */
NODISCARD err_t client_job_by_id(struct global *g, const char *id, struct client_job *ret, struct why *why);
NODISCARD err_t client_job_list(struct global *g, struct client_job **ret, int *ret_n, struct why *why);
/* Whether the word is a job's number: digits only. */
bool follow_is_number(const char *word);
/* Whether both names lead to one folder. A folder that does not exist on this machine is compared by its name only. */
bool follow_same_folder(const char *a, const char *b);
/* If `*job` is the name of a job instead of its number, replaces it by the number: of the one job with this name that
 * has not ended, else of the newest with it. `number` is memory for it. ERR_INVALID: several have not ended. */
NODISCARD err_t follow_name(struct global *g, const char **job, char number[32], struct why *why);
/* ERR_EXISTS when a job that has not ended writes its checkpoints to `dir`. ret_newest (may be NULL): the newest job
 * whose checkpoints are in `dir`; "": none. */
NODISCARD err_t follow_check_dir(struct global *g, const char *dir, char ret_newest[32], struct why *why);
/* Empties `newest`, the id of a job, if `job` cannot continue it: another model was in the folder then, and the job's
 * record does not describe the checkpoints that are there now. */
void follow_check_parent(struct global *g, const struct job_spec *job, char newest[32]);
/* The last part of submit, resume and run: submits the job, prints its id, and watches it. Returns an exit code. */
int follow_new_job(struct global *g, const char *spec_yaml, const char *parent, const char *name,
                   const struct follow_how *how);

#endif
