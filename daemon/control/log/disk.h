/* The folder of the replicated log: its free space, its reserve file and libraft's files. The functions block, but only
 * for metadata operations. Loop thread.
 *
 *   DIR/log      libraft's segments, snapshots and metadata
 *   DIR/log.new  the same folder while it is created for the first time; renamed to DIR/log when it is complete
 *   DIR/probe    exists while log_disk_probe runs
 *   DIR/reserve  allocated blocks; removed on a full disk, so that libraft gets its next segments */
#ifndef DTD_DAEMON_CONTROL_LOG_DISK_H
#define DTD_DAEMON_CONTROL_LOG_DISK_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct log_disk {
    const char *dir;
    uint64_t segment_bytes, reserve_bytes;
};

/* Free space for this user, in bytes; 0: unknown. */
uint64_t log_disk_free(const struct log_disk *disk);
/* With less free space than this, in bytes, the disk is low: libraft might not get its next segment. */
uint64_t log_disk_low_mark(const struct log_disk *disk);
/* With this much free space, in bytes, a log that was closed on a full disk is opened again. It is more than closing
 * gives back, so that the log does not open and close in turns. */
uint64_t log_disk_reopen_mark(const struct log_disk *disk);

/* Creates the reserve file if it does not exist and there is enough space. Returns whether it exists now. */
bool log_disk_reserve(const struct log_disk *disk);
void log_disk_release(const struct log_disk *disk);

/* Whether a closed segment has an entry of index `from` or above. */
bool log_disk_has_entries(const struct log_disk *disk, uint64_t from);
/* Does once what libraft does for a new segment, with a file of its own. `why` names the operation that fails. Blocks
 * on a disk that hangs: called in a thread. */
NODISCARD err_t log_disk_probe(const struct log_disk *disk, struct why *why);

/* Index of libraft's newest snapshot in DIR/log; 0: none. */
uint64_t log_disk_snapshot(const struct log_disk *disk);

bool log_disk_is_new(const struct log_disk *disk);
NODISCARD err_t log_disk_make_new(const struct log_disk *disk);   /* creates an empty DIR/log.new */
NODISCARD err_t log_disk_commit_new(const struct log_disk *disk); /* renames it to DIR/log */

#endif
