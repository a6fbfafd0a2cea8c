/* A dtd of its own for a test case: real programs, copied into tests/bin beside the worker double, state in a folder of
 * the test. Everything that a test starts is killed with it: dtd dies with the test (PR_SET_PDEATHSIG), its children
 * with dtd. */
#ifndef DTD_TESTS_DAEMON_PROGRAMS_HARNESS_H
#define DTD_TESTS_DAEMON_PROGRAMS_HARNESS_H

#include "client/client.h"
#include "tests/lib/test.h"

#include <sys/types.h>

struct dtd {
    pid_t pid;
    char dir[256]; /* of the state */
    struct client *client;
};

/* Starts dtd on `dir` (a name in the test's folder) and waits until it answers. */
void dtd_start(struct dtd *d, const char *dir);
/* The same with a configuration. */
void dtd_start_with(struct dtd *d, const char *dir, const char *config);
/* A system-wide one, which only root can start; control runs as nobody. d->dir is the folder of control.sock, the state
 * lies in "state" beside it. The test's folder is opened to all users. */
void dtd_start_system(struct dtd *d);
/* Kills it and forgets the connection. */
void dtd_kill(struct dtd *d);
/* `dtctl down`, and waits for its end; the exit code. */
int dtd_down(struct dtd *d);
/* A connection that was made anew if the last one is of no use (control has died). */
struct client *dtd_client(struct dtd *d);
/* Runs dtd with these arguments in the foreground until it ends; the exit code; its standard error goes to `ret`. */
int dtd_run(const char *const *args, char *ret, size_t size);

/* A small job's file; `env` is the inside of run.env's braces, `more` more keys of run ("restarts: 0"), both may be "".
 */
const char *spec_text(const char *name, int workers, int steps, const char *env, const char *more);
void job_submit(struct dtd *d, const char *spec, char ret[32]);
/* Waits until the job's state is `state`; fails the test after `ms`, or when the job has ended otherwise. */
void job_wait(struct dtd *d, const char *job, const char *state, int ms);
/* Waits until the job has made `step` in `epoch` or a later one. */
void job_wait_step(struct dtd *d, const char *job, uint64_t epoch, int64_t step, int ms);
/* The newest status; freed at the next call. */
const struct client_job *job_status(struct dtd *d, const char *job);
void sleep_ms(int ms);
/* The file's text, "" when there is none; the caller frees. */
char *read_text(const char *path);
int count_text(const char *text, const char *what);

#endif
