/* The private dtd as seen from outside: who holds the lock of a state directory, starting one, waiting for its end. */
#ifndef DTD_CLIENT_DAEMON_H
#define DTD_CLIENT_DAEMON_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* True when a supervisor holds `<state dir>/dtd.lock`, or, where there is no lock for us to see, listens to
 * `<state dir>/control.sock`; ret_pid (0 when nobody says). */
bool daemon_running(const char *state_dir, pid_t *ret_pid);
/* The path of a program that was installed beside this one. ERR_IO when it is not there. */
NODISCARD err_t daemon_program(const char *name, char *ret, size_t size, struct why *why);
/* Starts `dtd --state-dir` in a session of its own, its output in `<state dir>/dtd.log`. */
NODISCARD err_t daemon_start(const char *state_dir, pid_t *ret_pid, struct why *why);
/* The last `lines` lines of `<state dir>/dtd.log` to standard error, each after "  ". */
void daemon_log_tail(const char *state_dir, int lines);
/* True once nobody holds the lock; looks every 20 ms until the deadline. */
bool daemon_wait_gone(const char *state_dir, int timeout_ms);

#endif
