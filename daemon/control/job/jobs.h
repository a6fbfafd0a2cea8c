/* All jobs and all nodes as the leader has them, and the tick that drives the jobs. Owned by the daemon (control.h);
 * loop thread. A follower has no jobs and only its own node. */
#ifndef DTD_DAEMON_CONTROL_JOB_JOBS_H
#define DTD_DAEMON_CONTROL_JOB_JOBS_H

#include "daemon/control/job/node_view.h"
#include "daemon/control/job/outbound.h"
#include "daemon/control/local/local.h"
#include "daemon/control/state/outbox.h"

struct job;
struct queue_job;

struct jobs {
    const struct job_outbound *out; /* how processes, nodes and clients are reached */
    void (*ticked)(void *owner);    /* every job has been ticked */
    void (*tick_soon)(void *owner); /* calls jobs_tick in the next turn of the loop, before it waits for anything */
    void *owner;
    struct local *local;
    struct replica *replica;
    const char *dir;                   /* the state directory */
    struct pool *parses;               /* for work on files; NULL: none */
    struct metrics_thinning *thinning; /* metrics_limit.c; NULL: no file is being thinned out */
    struct outbox outbox;
    struct node_view self, *nodes; /* nodes, ours among them; ascending by name */
    struct node_index index;       /* of the others */
    struct job *head, *last;       /* ascending by id */
    struct job *made, **made_end;  /* a node that begins to lead: jobs that are not in the list yet (jobs_make) */
    int n_made;                    /* so many jobs of the log have been looked at */
    struct queue_job *queue;       /* jobs that wait, in their order (waiting.c); NULL: none */
    int n_queue, queue_first;      /* queue_first: those before it have slots */
    uint64_t queue_seen;           /* a hash of what the order was computed from */
    const struct job *adopting;    /* a job that waits for lists of processes, as of the last sort; NULL: none */
    bool leads;                    /* this node is the leader */
    uint64_t unread;               /* leader: a job of the log whose spec this dtd cannot read (jobs_unread); 0: none */
    int64_t lists_due_ms;          /* leader: deadline of the other nodes' lists; 0: none pending */
    uint64_t state_index;          /* leader: log index that node views and jobs reflect */
    uint64_t nodes_changes;        /* leader: `changes` of the state's cluster that the node views reflect */
    bool tick_is_due;              /* jobs_tick_soon has been called since the last tick */
    bool stopping;                 /* this dtd is shutting down */
    bool leaving;                  /* ... and other nodes continue its jobs */
};

/* The fields up to `dir` have been set. `slots`: 0: as many as the node has cores for. */
void jobs_init(struct jobs *jobs, const char *name, int slots);
/* Of the cluster, from the state; above 1: it was recovered. */
uint64_t jobs_generation(const struct jobs *jobs);
/* NULL: no job has this id. */
struct job *jobs_find(struct jobs *jobs, uint64_t id);
/* Makes jobs of the log beside the list, for a node that begins to lead: reading their job files may take a second. It
 * returns after `until_ms` of the monotonic clock, false if some are left for the next call. No job may be added to the
 * log meanwhile. */
bool jobs_make(struct jobs *jobs, int64_t until_ms);
/* Puts the jobs that were made into the empty list. */
void jobs_take_made(struct jobs *jobs);
/* Appends a job of the log to the list. */
NODISCARD err_t jobs_add(struct jobs *jobs, const struct state_job *s);
/* Whether the log has a job of this id that has not ended and is not in the list, because a newer dtd wrote its spec.
 * Its processes are left alone: another leader continues the job. */
bool jobs_is_unread(const struct jobs *jobs, uint64_t id);
/* Such a job; 0: there is none. Its processes may have any slot, so that no job may be given slots. */
uint64_t jobs_unread(const struct jobs *jobs);
/* Frees all jobs, also those that were only made, because this node stepped down. `each` is called before a job is
 * freed. */
void jobs_clear(struct jobs *jobs, void (*each)(struct job *j));
/* A user has removed an ended job: all nodes that can be reached remove its logs. */
void jobs_remove(struct jobs *jobs, uint64_t id);
/* Frees jobs that have ended and that the state no longer contains. */
void jobs_forget(struct jobs *jobs);
/* Leader: updates the node views from the log. */
void jobs_take_nodes(struct jobs *jobs);
/* Adds nodes and jobs that are new in the log, then ticks all jobs. To be called after any event of a job that other
 * jobs may wait for; not from inside a job's tick. */
void jobs_tick(struct jobs *jobs);
/* As jobs_tick, but once for all events of one turn of the loop: a tick looks at every job, and records are committed
 * by the hundred. Jobs that are new in the log are added at once, so that the next call finds them. `j`: this one is
 * ticked at once; NULL: none. */
void jobs_tick_soon(struct jobs *jobs, struct job *j);
/* Ticks `j` alone, after an event of a job that has its slots and keeps them. Reports arrive by the thousand in a
 * second, and jobs_tick takes milliseconds where hundreds of jobs wait. */
void jobs_tick_one(struct jobs *jobs, struct job *j);

/* ---- operations on all jobs ---- */

/* This dtd is shutting down: processes save and exit; the jobs keep their state in the log. */
void jobs_leave(struct jobs *jobs);
/* No job has processes or will start any. */
bool jobs_are_over(const struct jobs *jobs);
/* Leader: a process of a job runs on a node that is shutting down. */
bool jobs_await_leaving(const struct jobs *jobs);
/* Stops waiting for the lists of nodes that have not sent theirs. */
void jobs_adopt_late(struct jobs *jobs);
/* Records an event that follows from no other record (common/rpc/event.h). `job`: 0: of a node. `node`: "": none. */
void jobs_event_record(struct jobs *jobs, uint64_t job, enum event_kind kind, const char *node, const char *text);
/* Records an incident for each job that has its slots. */
void jobs_incident_record(struct jobs *jobs, const char *seen, const char *decided);
/* Tries to write the metrics that are buffered in memory. */
void jobs_flush_metrics(struct jobs *jobs);
/* The number of jobs whose metrics could not be written the last time. */
int jobs_unwritten(const struct jobs *jobs);
/* Counts jobs that are not over: those with slots, and those that wait for slots. */
void jobs_count(const struct jobs *jobs, int *ret_placed, int *ret_waiting);
/* The job that writes its checkpoints there; NULL: none. A job of another user than `uid` counts only once it has
 * begun: until then it has only named the folder, which it may not be able to write to. */
const struct job *jobs_with_folder(const struct jobs *jobs, const char *dir, uint32_t uid);
/* Counts jobs that are not over: those of this user, and all. */
void jobs_count_of(const struct jobs *jobs, uint32_t uid, int *ret_his, int *ret_all);
/* The bytes of the job files of this user's jobs: of those that are not over, and of those that are. */
void jobs_spec_bytes_of(const struct jobs *jobs, uint32_t uid, size_t *ret_live, size_t *ret_over);
/* Removes his oldest jobs that are over, as `dtctl rm` does, until their job files have `bytes` bytes together. */
void jobs_remove_ended(struct jobs *jobs, uint32_t uid, size_t bytes);

#endif
