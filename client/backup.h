/* Copies of a node's state directory (docs/operate/backup.md): the replicated log, and who the node is in its cluster.
 * A copy is a folder with the files below `raft/log` and `cluster`, and SHA256SUMS over all of them, in the format of
 * sha256sum. Blocking. */
#ifndef DTD_CLIENT_BACKUP_H
#define DTD_CLIENT_BACKUP_H

#include "common/base/err.h"

#include <stdint.h>

/* Copies while dtd may run. The copy is what a crash would have left at some moment during the call. `to` must not
 * exist. ERR_AGAIN: the log changed its files during every attempt. */
NODISCARD err_t backup_make(const char *state_dir, const char *to, uint64_t *ret_bytes, struct why *why);

struct backup_restore {
    const char *listen, *advertise; /* new addresses of the node; NULL: as before */
};
/* Copies back into a state directory without a log, for which no dtd runs. ERR_CORRUPT: the copy is damaged. The dtd
 * that starts there continues alone, as after `dtctl cluster recover`. */
NODISCARD err_t backup_restore(const char *from, const char *state_dir, const struct backup_restore *with,
                               struct why *why);

#endif
