/* The replicated state: jobs, their newest epochs, the catalog of checkpoints, incidents, and the request ids of a day.
 * A pure machine: it changes by state_apply alone, in the log's order, and neither looks at a clock nor draws a number,
 * so that every node and every replay comes to the same bytes. Pointers into it hold until the next apply or restore.
 *
 * Bounds, so that memory and snapshots stay finite: at most STATE_MAX_JOBS jobs (a submit makes room by forgetting the
 * oldest ended one), STATE_MAX_INCIDENTS newest incidents and STATE_MAX_CHECKPOINTS checkpoints a job,
 * STATE_MAX_REQUESTS ids. */
#ifndef DTD_DAEMON_CONTROL_STATE_H
#define DTD_DAEMON_CONTROL_STATE_H

#include "daemon/control/record.h"

#define STATE_MAX_JOBS 2048
#define STATE_MAX_INCIDENTS 64
#define STATE_MAX_CHECKPOINTS 4096
#define STATE_MAX_REQUESTS 65536
#define STATE_REQUEST_MS (24 * 3600 * INT64_C(1000))

struct state_epoch {
    uint64_t epoch; /* 0: none yet */
    struct state_member *members;
    int n_members;
    int64_t resume_step;
    int32_t restarts;
    int64_t wall_ms;
};

struct state_job {
    uint64_t id;
    char *spec;      /* YAML, as submitted */
    uint64_t parent; /* 0: none */
    uint32_t uid;
    int64_t submitted_ms, started_ms, ended_ms; /* 0: not yet; started: the first epoch */
    enum state_desired desired;
    enum state_end end; /* END_NONE while it lives */
    char *reason;       /* NULL: none */
    struct state_epoch epoch;
    struct state_checkpoint *checkpoints; /* ascending by step */
    int n_checkpoints;
    struct state_incident *incidents; /* in order of time */
    int n_incidents;
};

/* The state machine's answer to a record; it is the proposer's answer too (log_propose). */
struct state_result {
    err_t err; /* ERR_NOTFOUND no such job; ERR_STALE the job has ended, or an epoch not above the newest; ERR_LIMIT */
    uint64_t job;  /* whose state the record changed (for RECORD_SUBMITTED: the new id) */
    bool repeated; /* the request id was there already: nothing changed, this is the first answer */
};

struct state;

NODISCARD err_t state_new(struct state **ret);
void state_free(struct state *s); /* NULL too */

/* Everything is in `ret`; the return value is OK or ERR_NOMEM (nothing changed, the log must not go on). */
NODISCARD err_t state_apply(struct state *s, const struct record *record, struct state_result *ret);

/* NULL when there is none. */
const struct state_job *state_job_find(const struct state *s, uint64_t id);
/* All, ascending by id; returns how many. */
int state_jobs(const struct state *s, const struct state_job *const **ret);
/* The newest checkpoint, NULL for none. */
const struct state_checkpoint *state_newest_checkpoint(const struct state_job *job);
/* True, and the first answer, when this request id was applied within the last day: asked before proposing, too. */
bool state_request_find(const struct state *s, const uint8_t id[REQUEST_ID_BYTES], struct state_result *ret);

/* Appends; the same state gives the same bytes. */
NODISCARD err_t state_snapshot(const struct state *s, struct buf *ret);
/* Replaces the whole state, or (ERR_CORRUPT, ERR_UNSUPPORTED, ERR_NOMEM) nothing. */
NODISCARD err_t state_restore(struct state *s, const void *data, size_t len);

#endif
