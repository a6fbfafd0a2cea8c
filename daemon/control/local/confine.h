/* Confinement of dtd-control in a system-wide dtd. Before it accepts the first connection, it permanently gives up
 * access to files that it does not need (Landlock), system calls that it does not make (seccomp), and every way to gain
 * privileges (no_new_privs). The function is called once, while there is one thread; later threads inherit the
 * restrictions. tests/systemd/exposure.sh measures the result. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_CONFINE_H
#define DTD_DAEMON_CONTROL_LOCAL_CONFINE_H

#include "common/base/err.h"

/* `dir`: the state directory; its folders raft/, cluster/ and metrics/ remain writable. `config` (the configuration
 * file, which a reload reads again) and `key_file` (the cluster's key) remain readable; NULL or "": none. A kernel
 * without Landlock causes a warning in the log; a kernel without seccomp is an error. */
NODISCARD err_t confine(const char *dir, const char *config, const char *key_file, struct why *why);

#endif
