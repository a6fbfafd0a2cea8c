/* The lock of a state directory (`dtd.lock`), and the process that holds it.
 *
 * The kernel releases the lock when the holder ends for any reason, so the lock itself shows whether a dtd runs.
 * Network file systems pass it on between hosts. The file names the holder in four lines: process id, start time (clock
 * ticks since boot, from /proc/PID/stat), host name, and the kernel's boot id. They are valid only while the lock is
 * held. The first line alone is what dtd 1.0 wrote. */
#ifndef DTD_COMMON_BASE_HOLDER_H
#define DTD_COMMON_BASE_HOLDER_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct holder {
    pid_t pid;           /* 0: unknown */
    uint64_t start_time; /* 0: not recorded */
    char host[65];       /* HOST_NAME_MAX and the end; "": not recorded */
    char boot_id[40];    /* 36 characters; "": not recorded */
};

/* Creates the folder `dir` with `mode` and takes its lock for this process, which keeps it until it ends. ERR_BUSY:
 * another process holds it; the sentence names its host. *ret is the descriptor. */
NODISCARD err_t holder_take_lock(const char *dir, mode_t mode, int *ret, struct why *why);
/* Reads what the open lock file records. A file without a valid line gives zeros. */
void holder_read(int fd, struct holder *ret);
/* Another kernel recorded it: then neither its pid nor its sockets mean anything here. Containers of one machine share
 * its boot id. */
bool holder_is_elsewhere(const struct holder *h);
/* Sends a signal to the holder if it is certain that this is the process that wrote the file: same boot, same start
 * time, and a pidfd that was opened before both were compared. Otherwise no process gets a signal: ERR_DENIED, or
 * ERR_NOTFOUND if there is no such process. */
NODISCARD err_t holder_signal(const struct holder *h, int sig, struct why *why);

#endif
