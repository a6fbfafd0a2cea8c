/* The replicated state: jobs, their newest epochs, the catalog of checkpoints, incidents, the nodes of the cluster with
 * its keys and join tokens, and the request ids of the last day.
 *
 * A deterministic state machine: it changes only by state_apply, in the order of the log, and uses neither a clock nor
 * random numbers, so every node and every replay gets the same bytes. Pointers into it are valid until the next apply
 * or restore.
 *
 * Bounds keep memory and snapshots finite: at most STATE_MAX_JOBS jobs (a submit removes the oldest job that has ended
 * to make room), per job the newest STATE_MAX_INCIDENTS incidents and STATE_MAX_CHECKPOINTS checkpoints,
 * STATE_MAX_REQUESTS request ids, and the newest STATE_MAX_EVENTS events. */
#ifndef DTD_DAEMON_CONTROL_STATE_STATE_H
#define DTD_DAEMON_CONTROL_STATE_STATE_H

#include "common/base/pieces.h"
#include "common/rpc/event.h"
#include "daemon/control/state/record.h"

#define STATE_MAX_JOBS 2048
#define STATE_MAX_INCIDENTS 64
#define STATE_MAX_INCIDENT_LOGS 4 /* per job: so many of the newest incidents keep the tail of a worker's log */
#define STATE_MAX_CHECKPOINTS 4096
#define STATE_MAX_REQUESTS 65536
/* Some weeks of a small cluster, and below 1 MiB of a snapshot. */
#define STATE_MAX_EVENTS 2048
#define STATE_MAX_JOB_EVENTS 256 /* of one job, and of all nodes together */
#define STATE_EVENT_TEXT 400     /* bytes; longer texts are cut */
#define STATE_MAX_LEFT 1024      /* the nodes of a cluster, with a rank each */
#define STATE_MAX_NODES 16384
#define STATE_MAX_NODES_BEFORE \
    1024 /* of versions without changes of the view, whose voters would refuse the next one */
#define STATE_MAX_TOKENS 64
#define STATE_MAX_KEYS 16
#define STATE_MAX_RETIRED 8
/* A recovery leaves so many numbers of jobs unused: more than the lost voters will have given meanwhile. */
#define STATE_RECOVERY_GAP 1000
#define STATE_REQUEST_MS (24 * 3600 * INT64_C(1000))

struct state_epoch {
    uint64_t epoch; /* 0: none yet */
    struct state_member *members;
    int n_members;
    int64_t resume_step;
    int32_t restarts;
    int64_t wall_ms;
    char *layout, *layout_why; /* of a job with parallel.auto: what the planner chose, and why; NULL: no such job, or an
                                  older dtd wrote the record */
};

/* A place where a rank of an earlier epoch ran and no rank of the newest one does. Its log is still on the node. */
struct state_left {
    char *node;
    int slot, rank;
};

struct state_job {
    uint64_t id;
    const char *spec; /* YAML, as submitted; a reference (spec.h) */
    uint64_t parent;  /* 0: none */
    uint32_t uid;
    int64_t submitted_ms, started_ms, ended_ms;                      /* 0: not yet; started_ms: the first epoch */
    int64_t submitted_clock_ms, started_clock_ms, incident_clock_ms; /* by the cluster's clock; 0: not known */
    enum state_desired desired;
    enum state_end end; /* END_NONE: it has not ended */
    char *reason;       /* NULL: none */
    struct state_epoch epoch;
    struct state_left *left; /* in order of time; of more than STATE_MAX_LEFT the newest */
    int n_left;
    struct state_checkpoint *checkpoints; /* ascending by step */
    int n_checkpoints;
    struct incident *incidents; /* in order of time */
    int n_incidents;
    struct incident start; /* durations of the first start; epoch 0: unknown */
    int refs;              /* the state, and the frozen states that have it; with more than one it does not change */
};

/* Something that happened (events.c). */
struct state_event {
    uint64_t id;               /* ascending from 1, with gaps only where old events were removed */
    int64_t wall_ms, clock_ms; /* clock_ms: by the cluster's clock; 0: an older version recorded it */
    enum event_kind kind;      /* or a number of a newer version */
    uint64_t job;              /* 0: an event of the nodes */
    uint32_t uid;              /* owner of the job */
    uint64_t epoch;            /* 0: none */
    int64_t step;              /* -1: none */
    const char *node;          /* "": none */
    const char *text;
};

struct state_node {
    uint64_t id;                   /* its number and voter id; never reused */
    char *name, *address, *domain; /* domain "": none */
    uint8_t instance[NODE_INSTANCE_BYTES];
    uint8_t public_key[NODE_KEY_BYTES]; /* zeros: it has not shown one yet; then never replaced */
    int64_t joined_ms, drained_ms;
    char *drained;    /* the reason why no new job starts there; NULL: not drained */
    uint64_t changed; /* `changes` of the cluster when it was last changed, at least 1; not replicated */
};

struct state_token {
    uint64_t id;
    uint8_t secret[TOKEN_SECRET_LENGTH];
    int64_t expires_ms, until_ms; /* until_ms: by the cluster's clock; 0: an older version made the token */
    uint32_t uses;                /* remaining; 0: used up */
};

struct state_key {
    uint32_t version;
    uint8_t secret[KEY_SECRET_LENGTH];
};

/* Which cluster this is. A recovery makes a new generation of it, of which the voters that were lost are no part. */
struct state_lineage {
    uint64_t id, generation; /* 0: none yet */
    int64_t at_ms;           /* when the generation began, by its node's clock */
    uint32_t uid;            /* by whom it was recovered, and on which node; "": it was not */
    char by[NODE_NAME_MAX + 1];
    uint32_t first_key; /* version of the generation's first key; 0: the cluster was not recovered */
};

/* Nodes and secrets of the cluster. Without nodes there is no cluster. */
struct state_cluster {
    uint64_t next_node;       /* number of the next node */
    struct state_node *nodes; /* ascending by name */
    int n_nodes;
    struct state_token tokens[STATE_MAX_TOKENS]; /* in the order of the log */
    int n_tokens;
    struct state_key keys[STATE_MAX_KEYS]; /* ascending by version */
    int n_keys;
    uint32_t key_used; /* the version to connect with; 0: none */
    uint32_t version;  /* as recorded; 0: 1, see state_version */
    uint64_t changes;  /* number of records applied to it; not replicated */
    struct state_lineage lineage;
    struct state_key retired[STATE_MAX_RETIRED]; /* dropped keys of the generations before */
    int n_retired;
};

/* The state machine's answer to a record. The proposer gets it as the result of log_propose. */
struct state_result {
    /* ERR_NOTFOUND: no such job, node, key or token; ERR_STALE: the job has ended, the token has expired, the epoch,
     * the generation or the cluster version is not above the newest, or a node has joined since; ERR_UNSUPPORTED: the
     * node's dtd is older than the cluster version; ERR_AGAIN: the job to be removed has not ended; ERR_DENIED: no such
     * token, or it is used up; ERR_EXISTS: another node has this name, another key this version or another token this
     * id; ERR_INVALID: the key is in use; ERR_LIMIT */
    err_t err;
    uint64_t node; /* RECORD_NODE: its number */
    uint64_t job;  /* the job that the record changed (RECORD_SUBMITTED: the new id) */
    bool repeated; /* the request id was applied before: nothing has changed, this is the first answer */
};

struct state;

NODISCARD err_t state_new(struct state **ret);
void state_free(struct state *s); /* NULL too */

/* `ret` gets the answer, refusals included. Returns OK or ERR_NOMEM (nothing has changed, the log must stop). */
NODISCARD err_t state_apply(struct state *s, const struct record *record, struct state_result *ret);

/* The newest reading of the cluster's clock; 0: none. */
int64_t state_clock_of(const struct state *s);
/* NULL when there is none. */
const struct state_job *state_job_find(const struct state *s, uint64_t id);
/* All jobs, ascending by id; returns the number. */
int state_jobs(const struct state *s, const struct state_job *const **ret);
/* The newest checkpoint; NULL: none. */
const struct state_checkpoint *state_newest_checkpoint(const struct state_job *job);
/* True if this request id was applied within the last day; `ret` gets the first answer. Also used before proposing. */
bool state_request_find(const struct state *s, const uint8_t id[REQUEST_ID_BYTES], struct state_result *ret);
/* True if the record of a command would change nothing now: `ret` gets its answer, and it need not be proposed. Its
 * request id is not compared. The state decides for a cancel, a node that joins, leaves, or is drained or no longer
 * drained; of other kinds false. A refused submit is recorded, because a late repeat of it must be refused, too. */
bool state_is_idle(const struct state *s, const struct record *record, struct state_result *ret);

/* The events that are kept, in the order of the log; returns the number. */
int state_events(const struct state *s, const struct state_event *const **ret);
/* The number of the next event. */
uint64_t state_event_next(const struct state *s);
/* Whether the newest event of the node is that it was lost. */
bool state_node_is_lost(const struct state *s, const char *node);

const struct state_cluster *state_cluster(const struct state *s);
/* The cluster version: what needs a higher one must not be used yet (features.h). Without nodes there is no cluster,
 * and this dtd's newest version holds. */
uint32_t state_version(const struct state *s);
/* NULL when there is none. */
const struct state_node *state_node_find(const struct state *s, const char *name);
const struct state_node *state_node_by_id(const struct state *s, uint64_t id);

/* Appends the cluster's part alone; state_restore turns it into a state without jobs. */
NODISCARD err_t state_cluster_snapshot(const struct state *s, struct buf *ret);
/* The same with these nodes alone, which are nodes of the state in the order of names. */
NODISCARD err_t state_cluster_excerpt(const struct state *s, const struct state_node *const *nodes, int n,
                                      struct buf *ret);
/* Appends what the cluster of `to` has and that of `from` has not: the nodes that are new or differ, the numbers of
 * those that are gone, and all tokens and keys. */
NODISCARD err_t state_cluster_change(const struct state *from, const struct state *to, struct buf *ret);
/* Makes such a change. Made on the state that was `from`, it gives the cluster of `to`; the caller compares. After an
 * error (as of state_restore) the state is unchanged. */
NODISCARD err_t state_cluster_merge(struct state *s, const void *data, size_t len);
/* Appends the whole state. The same state gives the same bytes. */
NODISCARD err_t state_snapshot(const struct state *s, struct buf *ret);
/* Replaces the whole state. After an error (ERR_CORRUPT, ERR_UNSUPPORTED, ERR_NOMEM) the state is unchanged. */
NODISCARD err_t state_restore(struct state *s, const void *data, size_t len);
/* The same in two steps: the first makes a state of a snapshot in any thread, the second puts it in the place of `s`
 * and frees `fresh`. */
NODISCARD err_t state_read(const void *data, size_t len, struct state **ret);
void state_adopt(struct state *s, struct state *fresh);

/* The state as it is now, for a snapshot that another thread writes while records are applied to `s`. Jobs are shared,
 * and copied when a record changes them, so this takes some milliseconds for any number of jobs of any size. */
struct state_frozen;
NODISCARD err_t state_freeze(const struct state *s, struct state_frozen **ret);
/* Appends the bytes of state_snapshot. They point into `f`. Any thread. */
NODISCARD err_t state_frozen_write(const struct state_frozen *f, struct pieces *ret);
/* NULL too. On the thread of the state. */
void state_thaw(struct state_frozen *f);

#endif
