/* Which logs of a node to cut on a disk that is nearly full. Pure. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_LOG_SIZES_H
#define DTD_DAEMON_CONTROL_LOCAL_LOG_SIZES_H

#include <stdint.h>

#define LOG_SIZES_LEAST_BYTES (4ll << 20) /* smaller logs are left as they are, even on a full disk */

struct log_size {
    uint64_t job;
    int slot;
    uint32_t uid;       /* the file's owner */
    int64_t size, used; /* bytes: up to the end of the file, and on the disk */
    int64_t keep;       /* cut the log to so many bytes; 0: leave it */
};

/* Sets `keep`: halves the largest of the logs, in any order, until `want` bytes are free or none is larger than
 * LOG_SIZES_LEAST_BYTES. */
void log_sizes_choose(struct log_size *logs, int n, int64_t want);

#endif
