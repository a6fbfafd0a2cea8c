/* Where dtd keeps its state. One answer for the supervisor, control and the client. */
#ifndef DTD_COMMON_BASE_PATHS_H
#define DTD_COMMON_BASE_PATHS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Of a dtd that serves all users of the machine, when its configuration names no others. */
#define PATH_SYSTEM_STATE_DIR "/var/lib/dtd"
#define PATH_SYSTEM_RUN_DIR "/run/dtd"

/* The longest state directory: jobs/<20 digits>/io.sock must fit into a socket's address (108 bytes). */
/* The variable with which control names the file of the number of workers on this node to a managed job's worker. */
#define PATH_WORKERS_ENV "DTD_WORKERS_FILE"
#define PATH_STATE_DIR_MAX 72

/* `given` when it is not NULL or empty, else $DTD_DIR, else $XDG_STATE_HOME/dtd, else ~/.local/state/dtd; made
 * absolute. If one of the last two is on a file system that other hosts may share, the default is /var/tmp/dtd-UID of
 * this host instead. That folder is created with mode 0700; nothing else is. ERR_DENIED when it belongs to another user
 * or others may enter it, ERR_LIMIT when the path is too long for the sockets in it. */
NODISCARD err_t path_state_dir(const char *given, char *ret, size_t size, struct why *why);

/* The name of the file system of `path`, or of its nearest folder that exists, if it is one that several hosts may
 * share ("nfs"); NULL: it is local. May block as long as the file system does. */
const char *path_shared_fs(const char *path);
/* The same by the type of struct statfs. */
const char *path_shared_fs_name(long type);

/* If `dir` is the local default place, or is on a shared file system, writes a sentence about that for the user and
 * returns true. */
bool path_state_dir_note(const char *dir, char *ret, size_t size);

/* Where the kernel's sysfs is mounted: /sys, or $DTD_SYSFS, a folder that tests fill as other machines would. */
const char *path_sysfs(void);

#endif
