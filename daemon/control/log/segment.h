/* libraft's open segments, read before libraft reads them.
 *
 * libraft ends an open segment at the first batch that is not whole and drops all bytes behind it. That is right for a
 * write that a crash has cut, and loses acknowledged entries if the disk has changed a bit. Pure; any thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_SEGMENT_H
#define DTD_DAEMON_CONTROL_LOG_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct log_segment {
    uint64_t entries;    /* in the whole batches at its beginning */
    size_t used_bytes;   /* end of these batches */
    bool has_rest;       /* a byte behind them is not zero */
    bool has_late_batch; /* a whole batch lies behind one that is not whole, so the latter was not the last write */
    bool is_unreadable;  /* the format in its first 8 bytes is not libraft's */
};

/* Examines the bytes of an open segment. */
void log_segment_examine(const void *bytes, size_t len, struct log_segment *ret);

#endif
