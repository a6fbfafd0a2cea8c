/* A run of TensorBoard: a folder with event files. A struct tf_run writes one of them. Blocking; one thread.
 *
 * Records follow TensorFlow's record format: u64 length, masked CRC-32C of it, an Event message, masked CRC-32C of
 * that. Readers never get past a damaged record, so a file is only appended to by the process that created it: after a
 * restart, and wherever the job goes back to an earlier step, there is a new file. It begins with a session start,
 * whose step is the first that runs again: readers drop the points from this step on that older files have. */
#ifndef DTD_COMMON_METRICS_TFEVENTS_H
#define DTD_COMMON_METRICS_TFEVENTS_H

#include "common/metrics/curve.h"

#define TF_RECORD_BYTES 16 /* of a record, besides its message */

/* Appends one record. */
NODISCARD err_t tf_record(struct buf *b, const void *message, size_t len);
/* The number of bytes of the record at the beginning of the block; *ret: its message. 0: there is no whole record;
 * *ret_damaged: because a checksum is wrong, and not because bytes are missing. */
size_t tf_record_read(const void *block, size_t len, const uint8_t **ret, size_t *ret_len, bool *ret_damaged);

struct tf_run {
    char *dir;
    int fd; /* of the file that this process writes; -1: none */
    char *path;
    struct curve_points points; /* what a reader of all files shows */
    int64_t newest_s;           /* largest seconds of the names of the files; -1: there are none */
    bool busy;                  /* another process is writing to the run */
    bool has_card, has_end;     /* settings; how the job ended */
};
/* Reads the files that are there; a missing folder has none. */
NODISCARD err_t tf_run_open(struct tf_run *r, const char *dir, struct why *why);
/* Writes the rows, ascending by step. Rows that the run has are skipped; one that replaces a point starts a new file,
 * and all later points are gone. After an error the file is never continued. */
NODISCARD err_t tf_run_add(struct tf_run *r, const struct card *card, const struct metric *rows, size_t n,
                           struct why *why);
/* Makes the run end before `step`: later points are gone. */
NODISCARD err_t tf_run_cut(struct tf_run *r, const struct card *card, int64_t step, struct why *why);
/* Records how the job ended, once. */
NODISCARD err_t tf_run_end(struct tf_run *r, const struct card *card, bool success, int64_t wall_ms, struct why *why);
void tf_run_close(struct tf_run *r); /* may be called on a zeroed struct */

#endif
