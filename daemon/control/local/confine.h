/* What control of a system-wide dtd gives up for good before it serves anybody: files that it does not need (Landlock),
 * system calls that it does not make (seccomp), and every way to rights that it does not have. Called by the only
 * thread, once; threads that come later inherit it. tests/systemd/exposure.sh says what it amounts to. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_CONFINE_H
#define DTD_DAEMON_CONTROL_LOCAL_CONFINE_H

#include "common/base/err.h"

/* `dir`: the state directory, of which raft/, cluster/ and jobs' metrics stay writable. `config`, which is read again
 * on a reload, and `key_file`, the cluster's, stay readable; NULL or "": none. A kernel without Landlock is a warning
 * in the log; without seccomp it is an error. */
NODISCARD err_t confine(const char *dir, const char *config, const char *key_file, struct why *why);

#endif
