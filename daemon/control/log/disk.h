/* The log's folder: its space, its reserve, and where libraft's files are. Blocking, but only for metadata.
 *
 *   DIR/log      libraft's segments, snapshots and metadata
 *   DIR/log.new  the same while it is made for the first time; renamed when whole
 *   DIR/reserve   allocated blocks, given back on a full disk so that the log can close and open */
#ifndef DTD_DAEMON_CONTROL_LOG_DISK_H
#define DTD_DAEMON_CONTROL_LOG_DISK_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct log_disk {
    const char *dir;
    uint64_t segment_bytes, reserve_bytes;
};

/* Space for this user, in bytes; 0 when nobody can say. */
uint64_t log_disk_free(const struct log_disk *disk);
/* Below this nothing is proposed: the next segment might not be had. */
uint64_t log_disk_least(const struct log_disk *disk);
/* From here on a log that ran out of space opens again. More than closing it gives back, so that it does not swing. */
uint64_t log_disk_enough(const struct log_disk *disk);

/* Makes the reserve where there is enough space for it; true when it is there. */
bool log_disk_reserve(const struct log_disk *disk);
void log_disk_release(const struct log_disk *disk);

/* Of libraft's newest snapshot in DIR/log; 0: none. */
uint64_t log_disk_snapshot(const struct log_disk *disk);

bool log_disk_is_new(const struct log_disk *disk);
NODISCARD err_t log_disk_make_new(const struct log_disk *disk);   /* an empty DIR/log.new */
NODISCARD err_t log_disk_commit_new(const struct log_disk *disk); /* becomes DIR/log */

#endif
