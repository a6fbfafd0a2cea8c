/* Where dtd keeps its state. One answer for the supervisor, control and the client. */
#ifndef DTD_COMMON_BASE_PATHS_H
#define DTD_COMMON_BASE_PATHS_H

#include "common/base/err.h"

#include <stddef.h>

/* Of a dtd that serves all users of the machine, when its configuration names no others. */
#define PATH_SYSTEM_STATE_DIR "/var/lib/dtd"
#define PATH_SYSTEM_RUN_DIR "/run/dtd"

/* The longest state directory: jobs/<20 digits>/io.sock must fit into a socket's address (108 bytes). */
#define PATH_STATE_DIR_MAX 72

/* `given` when it is not NULL or empty, else $DTD_DIR, else $XDG_STATE_HOME/dtd, else ~/.local/state/dtd; made
 * absolute. Nothing is created. ERR_LIMIT when it is too long for the sockets in it. */
NODISCARD err_t path_state_dir(const char *given, char *ret, size_t size, struct why *why);

/* Where the kernel's sysfs is mounted: /sys, or $DTD_SYSFS, a folder that tests fill as other machines would. */
const char *path_sysfs(void);

#endif
