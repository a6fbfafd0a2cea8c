/* Runs a separate dtd for a test case. The programs are real ones, copied into tests/bin beside the worker double; the
 * state is in the test's folder. All processes end with the test: the kernel kills dtd when the test exits
 * (PR_SET_PDEATHSIG), and dtd's children when dtd exits. */
#ifndef DTD_TESTS_DAEMON_PROGRAMS_HARNESS_H
#define DTD_TESTS_DAEMON_PROGRAMS_HARNESS_H

#include "client/client.h"
#include "tests/lib/test.h"

#include <sys/types.h>

struct dtd {
    pid_t pid;
    char dir[256]; /* the state directory */
    struct client *client;
};

/* Starts dtd on `dir` (a name in the test's folder) and waits until it answers. */
void dtd_start(struct dtd *d, const char *dir);
/* The same with a configuration. */
void dtd_start_with(struct dtd *d, const char *dir, const char *config);
/* Starts a system-wide dtd, which needs root; its control runs as the user nobody. d->dir is the folder of
 * control.sock; the state is in the folder "state" beside it. All users may enter the test's folder. */
void dtd_start_system(struct dtd *d);
void dtd_start_system_with(struct dtd *d, const char *more); /* more lines of the configuration */
/* The same in a folder of its own, which all users may enter: for a test with several. */
void dtd_start_system_at(struct dtd *d, const char *folder, const char *more);
/* Kills dtd and closes the connection. */
void dtd_kill(struct dtd *d);
/* `dtctl down`; waits for the exit of dtd and returns its exit code. */
int dtd_down(struct dtd *d);
/* A working connection; reconnects if control has exited. */
struct client *dtd_client(struct dtd *d);
/* The pid of its dtd-control. */
int dtd_control_pid(struct dtd *d);
/* Loads the library tests/lib`library`.so into all programs that are started from now on, and returns `size` bytes that
 * it shares with the test: a file, whose path is in the variable `env`. */
void *dtd_preload(const char *library, const char *env, size_t size);
/* Runs dtd with these arguments in the foreground until it exits; returns its exit code, and its standard error in
 * `ret`. */
int dtd_run(const char *const *args, char *ret, size_t size);

/* The file of a small job. `env`: the text inside the braces of run.env, or ""; `more`: more keys of `run`, for example
 * "restarts: 0", or "". */
const char *spec_text(const char *name, int workers, int steps, const char *env, const char *more);
void job_submit(struct dtd *d, const char *spec, char ret[32]);
/* Waits until the job's state is `state`; fails the test after `ms`, or if the job ends in another state. */
void job_wait(struct dtd *d, const char *job, const char *state, int ms);
/* Waits until the job has completed `step` in `epoch` or a later epoch. */
void job_wait_step(struct dtd *d, const char *job, uint64_t epoch, int64_t step, int ms);
/* The current status; the next call frees it. */
const struct client_job *job_status(struct dtd *d, const char *job);
void sleep_ms(int ms);
/* The file's text, "" if there is no such file; the caller frees it. */
char *read_text(const char *path);
int count_text(const char *text, const char *what);

#endif
