/* Counts what a job does, on the leader, for /metrics. Embedded in the job. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_JOB_TOTALS_H
#define DTD_DAEMON_CONTROL_JOB_TOTALS_H

#include "common/rpc/metric.h"
#include "common/rpc/totals.h"

/* A save is as a rule complete within a few steps; of one that takes longer the duration is not counted. */
#define TOTALS_STEPS_KEPT 256

struct job_totals {
    struct totals t;
    int64_t top_step; /* the last step that was complete; a row up to it is of a repeated step */
    int64_t tick_ms;  /* of the last tick with workers; 0: there was none */
    struct {
        int64_t step, ms;
    } kept[TOTALS_STEPS_KEPT]; /* when the newest steps were complete, by step % TOTALS_STEPS_KEPT */
};

/* `now_ms`: monotonic clock. */
void job_totals_step(struct job_totals *t, const struct metric *row, int64_t now_ms);
void job_totals_saved(struct job_totals *t, int64_t step, int64_t bytes, int64_t now_ms);
/* A start (`failed` false) or a recovery is complete: its duration, of so many workers. */
void job_totals_recovered(struct job_totals *t, bool failed, double ms, int workers);
/* Called about once a second, also without workers. */
void job_totals_tick(struct job_totals *t, int workers, int64_t now_ms);

#endif
