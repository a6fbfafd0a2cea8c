/* All jobs and all nodes as the leader has them, and the tick that drives the jobs. Owned by the daemon (control.h);
 * loop thread. A node that follows has neither jobs nor other nodes than its own. */
#ifndef DTD_DAEMON_CONTROL_JOB_JOBS_H
#define DTD_DAEMON_CONTROL_JOB_JOBS_H

#include "daemon/control/job/node_view.h"
#include "daemon/control/job/outbound.h"
#include "daemon/control/local/local.h"
#include "daemon/control/state/outbox.h"

struct job;

struct jobs {
    const struct job_outbound *out; /* how processes, nodes and clients are reached */
    void (*ticked)(void *owner);    /* every job has been ticked */
    void *owner;
    struct local *local;
    struct replica *replica;
    const char *dir; /* the state directory */
    struct outbox outbox;
    struct node_view self, *nodes; /* nodes, ours among them; ascending by name after the first, which is ours */
    struct job *head;              /* ascending by id */
    bool leads;                    /* this node decides */
    int64_t lists_due_ms;          /* leading: when the other nodes' lists are late; 0: all came */
    uint64_t state_index;          /* leading: of the log, that agents and jobs have been brought up to */
    bool stopping;                 /* this dtd ends */
    bool leaving;                  /* ... and other nodes go on with the jobs */
};

/* The fields up to `dir` have been set. `slots`: 0: as many as the node has cores for. */
void jobs_init(struct jobs *jobs, const char *name, int slots);
/* The job of that number; NULL: there is none. */
struct job *jobs_find(struct jobs *jobs, uint64_t id);
/* Takes up a job of the log, behind the others. */
NODISCARD err_t jobs_add(struct jobs *jobs, const struct state_job *s);
/* All are forgotten: this node does not lead any more. `each` is called before a job is freed. */
void jobs_clear(struct jobs *jobs, void (*each)(struct job *j));
/* Jobs that have ended and that the state has forgotten go from memory too. */
void jobs_forget(struct jobs *jobs);
/* Leading: brings the nodes up to what the log has of them. */
void jobs_take_nodes(struct jobs *jobs);
/* Takes up nodes and jobs that are new in the log, and ticks all jobs. Called after anything has happened to one that
 * others may wait for; not from inside a job's tick. */
void jobs_tick(struct jobs *jobs);

/* ---- all of them ---- */

/* This dtd ends: their processes save and go; the jobs stay what they are. */
void jobs_leave(struct jobs *jobs);
/* None has processes or will have any. */
bool jobs_are_over(const struct jobs *jobs);
/* Leading: a process of a job runs on a node that is about to end. */
bool jobs_await_leaving(const struct jobs *jobs);
/* The lists of nodes that have not come yet are not waited for any longer. */
void jobs_adopt_late(struct jobs *jobs);
/* Records an incident of each job that has its place. */
void jobs_incident_record(struct jobs *jobs, const char *seen, const char *decided);
/* Tries to write the metrics that wait in memory. */
void jobs_flush_metrics(struct jobs *jobs);
/* Of those that are not over: how many have their place, and how many wait for one. */
void jobs_count(const struct jobs *jobs, int *ret_placed, int *ret_waiting);
/* The job that writes its checkpoints there; NULL: none. */
const struct job *jobs_with_folder(const struct jobs *jobs, const char *dir);

#endif
