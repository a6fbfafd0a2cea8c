/* A checkpoint directory that several dtd-ios of one job share, one per node. One of them commits; they need no
 * connection to each other, since the directory carries what they must know:
 *
 *   .dtd.epoch              which epoch of which job the directory has been made ready for
 *   .step-N.eE.index/       beside the partial folder, never in it:
 *     __R_0.part            rank R's part is durable, and this is its index; or why it is not
 *     failed                the committer has given the save up, and why
 *
 * The committer's rename to step-N decides a save for all, `failed` decides it the other way; both are final.
 * Blocking file I/O; any thread. */
#ifndef DTD_COMMON_CKPT_SHARED_H
#define DTD_COMMON_CKPT_SHARED_H

#include "common/ckpt/ckpt.h"

#define CKPT_EPOCH_FILE ".dtd.epoch"
#define CKPT_JOB_BYTES 32

/* Who speaks. A job's number alone is not enough: another cluster counts from 1 as well. */
struct ckpt_writer_id {
    char job[CKPT_JOB_BYTES];
    int64_t submitted_ms; /* 0: not known; then an epoch's number is held against none of another start */
    uint64_t epoch;
    uint64_t writer; /* of this process, random */
};

/* ---- the directory at the beginning of an epoch ---- */

/* The committer's: makes the directory if need be, takes it over, removes what older epochs left half, puts steps
 * behind `resume_step` aside, and says that it is ready. May be repeated, by this or another process. ERR_STALE: a
 * newer epoch of the job has it. */
NODISCARD err_t ckpt_prepare(const char *root, const struct ckpt_writer_id *me, int64_t resume_step, struct why *why);
/* The others': OK when it is ready for my epoch, ERR_AGAIN when not yet, ERR_STALE when a newer one has it. */
NODISCARD err_t ckpt_prepared(const char *root, const struct ckpt_writer_id *me, struct why *why);
/* The committer's: ERR_STALE when it has been taken over by anybody since ckpt_prepare. */
NODISCARD err_t ckpt_held(const char *root, const struct ckpt_writer_id *me, struct why *why);

/* ---- a save ---- */

struct ckpt_shared_save {
    const char *root;
    struct ckpt_writer_id me;
    int64_t step;
    int world;
};

/* A durable part is made known. */
NODISCARD err_t ckpt_index_put(const struct ckpt_shared_save *s, const struct ckpt_part *part, struct why *why);
/* What is known of a rank's part: ERR_AGAIN nothing yet, ERR_CORRUPT names the file, any other error is what its
 * writer said. The part's file is there and has its size. */
NODISCARD err_t ckpt_index_get(const struct ckpt_shared_save *s, int rank, struct ckpt_part **ret, struct why *why);
/* A part that will not come (its own unfinished file is removed), or, with rank -1, the whole save given up. */
NODISCARD err_t ckpt_failed_put(const struct ckpt_shared_save *s, int rank, err_t code, const char *text,
                                struct why *why);
/* The code and sentence with which the committer gave the save up; OK when it has not. */
NODISCARD err_t ckpt_failed_get(const struct ckpt_shared_save *s, struct why *why);
/* What has become of the save: OK committed (or left behind by a newer one), ERR_AGAIN still open, else failed. */
NODISCARD err_t ckpt_outcome(const struct ckpt_shared_save *s, struct why *why);
/* The committer's, when the save is decided and committed. */
NODISCARD err_t ckpt_index_remove(const struct ckpt_shared_save *s, struct why *why);

#endif
