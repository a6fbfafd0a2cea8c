/* The dtd of a state directory: find out whether it runs, start it, wait until it has exited. */
#ifndef DTD_CLIENT_DAEMON_H
#define DTD_CLIENT_DAEMON_H

#include "common/base/holder.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* True when a supervisor holds `<state dir>/dtd.lock`, or, if we cannot read the lock file, when a process listens on
 * `<state dir>/control.sock`. ret_pid: its process id; 0: unknown. */
bool daemon_running(const char *state_dir, pid_t *ret_pid);
/* The same; *ret has all that the lock file records about the supervisor. */
bool daemon_holder(const char *state_dir, struct holder *ret);
/* ERR_INVALID, with a sentence that names the host, when the dtd of this directory runs on another host, so that no
 * command of this host reaches it. Takes 0.3 s to return that, and no time otherwise. */
NODISCARD err_t daemon_check_host(const char *state_dir, struct why *why);
/* The path of a program in the directory of dtctl. ERR_IO when it is missing or not executable. */
NODISCARD err_t daemon_program(const char *name, char *ret, size_t size, struct why *why);
/* Starts `dtd --state-dir` in a session of its own, with its output in `<state dir>/dtd.log`. */
NODISCARD err_t daemon_start(const char *state_dir, pid_t *ret_pid, struct why *why);
/* Prints the last `lines` lines of `<state dir>/dtd.log` on standard error, each indented by two spaces. */
void daemon_log_tail(const char *state_dir, int lines);
/* Size of `<state dir>/control.log` in bytes; 0: there is none. */
off_t daemon_control_log_size(const char *state_dir);
/* Stores the message of the last error in `<state dir>/control.log` behind byte `from`. False: there is none. */
bool daemon_control_error(const char *state_dir, off_t from, char *ret, size_t size);
/* Checks every 20 ms whether the lock is free. False when the time is over. */
bool daemon_wait_gone(const char *state_dir, int timeout_ms);

#endif
