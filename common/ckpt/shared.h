/* A checkpoint directory that several dtd-io processes of one job share, one per node. One of them, the committer,
 * commits. They have no connection to each other; they communicate through marker files in the directory (marker.h):
 *
 *   .dtd.epoch              the job and epoch that the directory is prepared for
 *   .step-N.eE.I.index/     beside the partial folder, never in it; I: the job's incarnation
 *     __R_0.part            the index of rank R's part, which is durable; or why the part failed
 *     failed                the committer has abandoned the save, and why
 *
 * The committer's rename to step-N commits a save for all processes; `failed` abandons it for all. Both are final.
 * Blocking file I/O; any thread. */
#ifndef DTD_COMMON_CKPT_SHARED_H
#define DTD_COMMON_CKPT_SHARED_H

#include "common/ckpt/ckpt.h"

#define CKPT_EPOCH_FILE ".dtd.epoch"
#define CKPT_JOB_BYTES 32

/* Identity of a process that writes markers. The job id alone is not unique: job ids of every cluster start at 1. */
struct ckpt_writer_id {
    char job[CKPT_JOB_BYTES];
    int64_t submitted_ms; /* 0: unknown; then epochs of different submissions are not compared */
    uint64_t epoch;
    uint64_t writer; /* random, one per process */
    /* Of the cluster; a recovery makes a new one. Only leases have it: the same job of an earlier generation is another
     * owner. 0: the first, or unknown. */
    uint64_t generation;
};

/* A number of the job's submission, part of the names of its open saves. Two jobs that write into one directory have
 * different numbers, so neither writes into the other's folders. 0: submitted_ms is unknown. */
uint64_t ckpt_incarnation(const struct ckpt_writer_id *id);
#define CKPT_OPEN_NAME 96
/* ".step-N.eE.<incarnation>.<kind>", the name of a folder of an open save; kind: "partial" or "index". Without an
 * incarnation, ".step-N.eE.<kind>". */
void ckpt_open_name(int64_t step, const struct ckpt_writer_id *id, const char *kind, char ret[CKPT_OPEN_NAME]);
/* root/ckpt_open_name(.., "partial") */
NODISCARD err_t ckpt_partial_dir_of(const char *root, int64_t step, const struct ckpt_writer_id *id, char *ret,
                                    size_t size);

/* ---- the directory at the start of an epoch ---- */

/* For the committer: creates the directory if necessary, takes it over, removes uncommitted saves of older epochs,
 * moves steps after `resume_step` aside, and writes READY. This or another process may repeat it. ERR_STALE: a newer
 * epoch of the job owns the directory. ERR_OWNED: another job has the lease (lease.h), and nothing was changed. */
NODISCARD err_t ckpt_prepare(const char *root, const struct ckpt_writer_id *me, int64_t resume_step, struct why *why);
/* For the other processes: OK if the directory is ready for this epoch, ERR_AGAIN if not yet, ERR_STALE if a newer
 * epoch owns it. */
NODISCARD err_t ckpt_prepared(const char *root, const struct ckpt_writer_id *me, struct why *why);
/* For the committer: ERR_STALE if another process has taken the directory over since ckpt_prepare; ERR_OWNED if another
 * job has the lease. */
NODISCARD err_t ckpt_held(const char *root, const struct ckpt_writer_id *me, struct why *why);

/* ---- a save ---- */

struct ckpt_shared_save {
    const char *root;
    struct ckpt_writer_id me;
    int64_t step;
    int world;
};

/* Publishes the index of a durable part. */
NODISCARD err_t ckpt_index_put(const struct ckpt_shared_save *s, const struct ckpt_part *part, struct why *why);
/* Reads the index of a rank's part; OK implies that the part's file exists and has the right size. ERR_AGAIN: nothing
 * is published yet. ERR_CORRUPT: the sentence names the file. Any other error is the one that the part's writer
 * reported. */
NODISCARD err_t ckpt_index_get(const struct ckpt_shared_save *s, int rank, struct ckpt_part **ret, struct why *why);
/* Reports that a part failed (and removes its unfinished file), or, with rank -1, that the whole save is abandoned. */
NODISCARD err_t ckpt_failed_put(const struct ckpt_shared_save *s, int rank, err_t code, const char *text,
                                struct why *why);
/* The code and sentence with which the committer abandoned the save; OK if it has not. */
NODISCARD err_t ckpt_failed_get(const struct ckpt_shared_save *s, struct why *why);
/* State of the save: OK committed, or superseded by a newer commit; ERR_AGAIN undecided; any other error: it failed. */
NODISCARD err_t ckpt_outcome(const struct ckpt_shared_save *s, struct why *why);
/* For the committer, after the commit. */
NODISCARD err_t ckpt_index_remove(const struct ckpt_shared_save *s, struct why *why);

#endif
