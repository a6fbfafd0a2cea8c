/* Where the time of a job's workers went. Pure: integers only, so that the parts sum to the whole exactly. */
#ifndef DTD_CLIENT_REPORT_LEDGER_H
#define DTD_CLIENT_REPORT_LEDGER_H

#include "client/client.h"

/* X(id, name in JSON, label, meaning) */
#define LEDGER_PARTS(X)                                                                                         \
    X(PRODUCTIVE, "productive", "Productive", "steps whose result is in the model")                             \
    X(WAITING, "waiting", "Waiting for slower ranks",                                                           \
      "in these steps, ranks that wait until the slowest has computed")                                         \
    X(EVALUATION, "evaluation", "Evaluation", "loss of the validation and test data")                           \
    X(RECOMPUTED, "recomputed", "Recomputed", "steps that were lost in a failure and had to be repeated")       \
    X(SKIPPED, "skipped", "Skipped steps", "steps whose loss or norm was not finite and which updated nothing") \
    X(STARTING, "starting", "Starting", "from the slots to the first step")                                     \
    X(STALL, "checkpoint_stall", "Checkpoint stall", "training waits for a checkpoint")                         \
    X(DETECTION, "detection", "Detection", "from a failure, or the last report before it, to the decision")     \
    X(RESTART, "restart", "Restart", "from that decision to the next step")                                     \
    X(ENDING, "ending", "Ending", "from the last step to the end of the job")                                   \
    X(OTHER, "other", "Between steps", "reports, and a step that is not complete yet")

#define X(id, ...) LEDGER_##id,
enum ledger_part { LEDGER_PARTS(X) LEDGER_COUNT };
#undef X

struct ledger_row {
    const char *name, *label, *meaning;
};
extern const struct ledger_row ledger_rows[LEDGER_COUNT];

struct ledger {
    int64_t part_ms[LEDGER_COUNT]; /* worker-milliseconds */
    int64_t total_ms;              /* of each moment from the slots to the end, times the workers then: their sum */
    int64_t wall_ms;               /* from the slots to the end */
    int64_t queued_ms;             /* before the slots; no worker's */
    int64_t stall_ms;              /* wall time of all checkpoint stalls */
    int64_t saves;                 /* steps that were saved and followed by another step */
};

/* What ranks that wait for the slowest one lose of a step at a time: a fraction from 0 to 1. */
struct ledger_waits {
    double (*at)(const void *arg, int64_t wall_ms);
    const void *arg;
};

/* The steps that were saved: those of the catalog, which has lost the checkpoints that were removed, and every
 * `every`-th (checkpoint.every; 0: none). */
struct ledger_saves {
    const struct client_checkpoint *checkpoint;
    int n;
    int64_t every;
};

/* `end_ms`: of the job, or now. `waits` may be NULL. `row`: ascending by step, with the newest epoch of each. */
NODISCARD err_t ledger_make(const struct client_job *job, const struct metric *row, size_t n,
                            const struct ledger_saves *saves, int64_t end_ms, const struct ledger_waits *waits,
                            struct ledger *ret);

#endif
