/* Private parts of the replicated state, shared by state.c, nodes.c and the codec in snapshot.c. */
#ifndef DTD_DAEMON_CONTROL_STATE_INTERNAL_H
#define DTD_DAEMON_CONTROL_STATE_INTERNAL_H

#include "daemon/control/state/state.h"

struct state_request {
    uint8_t id[REQUEST_ID_BYTES];
    int64_t wall_ms, clock_ms;
    uint64_t job;
    err_t err;
};

struct state {
    uint64_t next_job;
    struct state_job *jobs[STATE_MAX_JOBS]; /* ascending by id */
    int n_jobs;
    struct state_request *requests; /* in the order of the log */
    int n_requests, cap_requests;
    struct state_cluster cluster;
    struct state_event *events[STATE_MAX_EVENTS]; /* in the order of the log */
    int n_events;
    uint64_t next_event;
    int64_t clock_ms; /* the newest reading of the cluster's clock; 0: none */
};

/* Applies a record of the cluster: RECORD_NODE and later kinds. */
err_t state_nodes_apply(struct state *s, const struct record *r, struct state_result *ret);
/* state_is_idle for these kinds. */
bool state_nodes_is_idle(const struct state *s, const struct record *r, struct state_result *ret);
bool state_is_same_text(const char *a, const char *b); /* NULL is equal to NULL only */
void state_node_fini(struct state_node *n);
void state_nodes_clear(struct state_cluster *c);
err_t state_node_reserve(struct state_cluster *c);

/* lineage.c. Applies RECORD_LINEAGE; keeps a dropped key if it is of a generation before. */
err_t state_lineage_apply(struct state *s, const struct record *r, struct state_result *ret);
void state_key_retire(struct state_cluster *c, const struct state_key *key);

/* The event of a record that is about to be applied; NULL: it is none. ERR_NOMEM. */
err_t state_event_prepare(const struct state *s, const struct record *r, struct state_event **ret);
/* Takes over the event. It replaces the one with its number; one without a number gets the next one, and an old one is
 * removed if there are too many. */
void state_event_add(struct state *s, struct state_event *e);
/* A copy in one piece of memory; NULL: no memory. */
struct state_event *state_event_copy(const struct state_event *e);
void state_events_clear(struct state *s);

void state_clear(struct state *s);
/* Frees the job with its last reference; NULL too. */
void state_job_unref(struct state_job *job);
/* Each makes room for one more element; existing ones may move in memory. */
err_t state_request_reserve(struct state *s);
err_t state_checkpoint_reserve(struct state_job *job);
err_t state_incident_reserve(struct state_job *job);
err_t state_epoch_copy(const struct record *r, struct state_epoch *ret);

#endif
