/* What this voter knows of the logs of the other ones: the newest term and index that each has acknowledged.
 *
 * A voter whose folder is replaced by an old copy, such as the image of a virtual machine, has forgotten records that
 * it has acknowledged, and may vote for a leader without them. It cannot find that out by itself. So each voter shows
 * to the others, with each stream, what it had when its log was opened (log_opened), and these compare it with what
 * they know (log_judge). A leader knows what the others have acknowledged to it, and passes it on (log_marks,
 * log_learn).
 *
 * The marks are in DIR/witness, which is written without a sync, when they have changed. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_WITNESS_H
#define DTD_DAEMON_CONTROL_LOG_WITNESS_H

#include "common/base/err.h"
#include "daemon/control/log/log.h"

#include <stdbool.h>

struct log_witness {
    struct log_mark marks[LOG_MAX_MEMBERS];
    bool is_old[LOG_MAX_MEMBERS]; /* it has shown an old copy; not in the file */
    int n;
    bool is_dirty;
};

/* The process `mark->process` of a voter has this. Keeps the newest. */
void witness_note(struct log_witness *w, const struct log_mark *mark);
/* A process shows what it had at its start. False: less than an earlier one has acknowledged. */
bool witness_judge(struct log_witness *w, const struct log_mark *shown);
/* NULL: nothing is known of this voter. */
const struct log_mark *witness_find(const struct log_witness *w, uint64_t id);
bool witness_is_old(const struct log_witness *w, uint64_t id);

/* ---- the file ---- */

#define WITNESS_BYTES (8 + 32 * LOG_MAX_MEMBERS + 4)
void witness_encode(const struct log_witness *w, uint8_t ret[WITNESS_BYTES]);
/* ERR_CORRUPT. */
NODISCARD err_t witness_decode(const uint8_t *data, size_t len, struct log_witness *ret);
/* A file that is missing or damaged is an empty one. */
void witness_load(struct log_witness *w, const char *dir);
void witness_save(struct log_witness *w, const char *dir);

#endif
