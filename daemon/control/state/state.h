/* The replicated state: jobs, their newest epochs, the catalog of checkpoints, incidents, the nodes of the cluster with
 * its keys and join tokens, and the request ids of a day.
 * A pure machine: it changes by state_apply alone, in the log's order, and neither looks at a clock nor draws a number,
 * so that every node and every replay comes to the same bytes. Pointers into it hold until the next apply or restore.
 *
 * Bounds, so that memory and snapshots stay finite: at most STATE_MAX_JOBS jobs (a submit makes room by forgetting the
 * oldest ended one), STATE_MAX_INCIDENTS newest incidents and STATE_MAX_CHECKPOINTS checkpoints a job,
 * STATE_MAX_REQUESTS ids. */
#ifndef DTD_DAEMON_CONTROL_STATE_STATE_H
#define DTD_DAEMON_CONTROL_STATE_STATE_H

#include "daemon/control/state/record.h"

#define STATE_MAX_JOBS 2048
#define STATE_MAX_INCIDENTS 64
#define STATE_MAX_INCIDENT_LOGS 4 /* of a job: the newest incidents keep the end of a worker's log */
#define STATE_MAX_CHECKPOINTS 4096
#define STATE_MAX_REQUESTS 65536
#define STATE_MAX_NODES 1024
#define STATE_MAX_TOKENS 64
#define STATE_MAX_KEYS 16
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

struct state_node {
    uint64_t id;                   /* its number, also as a voter of the log; never given to another */
    char *name, *address, *domain; /* domain "": none */
    uint8_t instance[NODE_INSTANCE_BYTES];
    int64_t joined_ms, drained_ms;
    char *drained; /* why nothing new starts there; NULL: it may */
};

struct state_token {
    uint64_t id;
    uint8_t secret[TOKEN_SECRET_LENGTH];
    int64_t expires_ms;
    uint32_t uses; /* left; 0: nobody new */
};

struct state_key {
    uint32_t version;
    uint8_t secret[KEY_SECRET_LENGTH];
};

/* Who belongs to the cluster, and by which secrets. Without nodes there is none. */
struct state_cluster {
    uint64_t next_node;       /* number of the next one */
    struct state_node *nodes; /* ascending by name */
    int n_nodes;
    struct state_token tokens[STATE_MAX_TOKENS]; /* in the order of the log */
    int n_tokens;
    struct state_key keys[STATE_MAX_KEYS]; /* ascending by version */
    int n_keys;
    uint32_t key_used; /* the version to connect with; 0: none */
    uint64_t changes;  /* counts what was applied to it; not replicated */
};

/* The state machine's answer to a record; it is the proposer's answer too (log_propose). */
struct state_result {
    /* ERR_NOTFOUND no such job, node or key; ERR_STALE the job or the token has ended, or an epoch not above the
     * newest; ERR_DENIED no such token; ERR_EXISTS another node, or another key, is called so; ERR_LIMIT */
    err_t err;
    uint64_t node; /* RECORD_NODE: its number */
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

const struct state_cluster *state_cluster(const struct state *s);
/* NULL when there is none. */
const struct state_node *state_node_find(const struct state *s, const char *name);
const struct state_node *state_node_by_id(const struct state *s, uint64_t id);

/* Appends the cluster's part alone: state_restore of it gives a state without jobs. */
NODISCARD err_t state_cluster_snapshot(const struct state *s, struct buf *ret);
/* Appends; the same state gives the same bytes. */
NODISCARD err_t state_snapshot(const struct state *s, struct buf *ret);
/* Replaces the whole state, or (ERR_CORRUPT, ERR_UNSUPPORTED, ERR_NOMEM) nothing. */
NODISCARD err_t state_restore(struct state *s, const void *data, size_t len);

#endif
