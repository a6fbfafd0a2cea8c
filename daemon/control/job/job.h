/* One job, as the leader has it: the functions for other folders. Loop thread; owned by jobs.h. The structs inside a
 * job and its state machines are in internal.h.
 *
 * The state that the user sees (enum job_state):
 *
 *   pending --> starting --> running --> stopping --> done | failed | canceled
 *                   |           |  ^          ^
 *                   +--> recovering +---------+   (every live state may go to stopping) */
#ifndef DTD_DAEMON_CONTROL_JOB_JOB_H
#define DTD_DAEMON_CONTROL_JOB_JOB_H

#include "common/conf/job.h"
#include "daemon/control/job/metrics.h"
#include "daemon/control/job/placement.h"
#include "daemon/control/job/rendezvous.h"
#include "daemon/control/job/stragglers.h"
#include "daemon/control/job/totals.h"
#include "daemon/control/job/usage_file.h"
#include "daemon/control/job/usage_windows.h"
#include "daemon/control/state/state.h"

#include <sys/types.h>

struct node_view; /* node_view.h */
struct job;
struct job_process; /* a worker or a dtd-io of a job */
struct jobs;
struct placement_node;
struct rpc_call; /* call on which commands are sent to a process */
struct watch;    /* rpc/watch.h: a client's stream */

enum job_state {
    JOB_PENDING,
    JOB_STARTING,
    JOB_RUNNING,
    JOB_RECOVERING,
    JOB_STOPPING,
    JOB_DONE,
    JOB_FAILED,
    JOB_CANCELED,
};

/* ---- its data ---- */

/* Pointers are borrowed from the job; they are valid until its next tick or the next report to it. */
struct job_view {
    uint64_t id;
    uint32_t uid; /* of the user who submitted it */
    int64_t submitted_ms;
    const struct job_spec *spec;
    const char *yaml;               /* with the layout of the newest epoch */
    const char *layout_why;         /* parallel.auto: the layout and why; NULL: none */
    const char *state;              /* the name of its enum job_state */
    const struct state_job *logged; /* its entry in the replicated state; NULL: removed */
    const char *reason;             /* its own, else why the log accepts no records; NULL: none */
    const char *checkpoint_error;   /* of the newest save; "": none */
    uint64_t epoch;                 /* the newest that is in the log; 0: none */
    int64_t step;
    int n_workers;         /* number that has slots, or had them in the newest epoch */
    int max_workers;       /* number that it wants */
    int64_t grace_left_ms; /* while it stops: until workers that still run are killed; 0: no such wait */
    int restarts;
    const struct metrics *metrics;
    const struct totals *totals;
};
struct job_view job_view_of(const struct job *j);

struct job_rank_view {
    const char *node;  /* NULL: it has no slot yet */
    int slot;          /* on that node */
    const char *state; /* "running", "loading", .., as clients see it */
    pid_t pid;
    bool has_exit;
    int exit_status, exit_signal;
};
/* `rank` is below n_workers. */
struct job_rank_view job_rank_view_of(const struct job *j, int rank);

/* The next one by id; NULL: none. The first is jobs.head. */
struct job *job_next(const struct job *j);
bool job_over(const struct job *j);
/* metrics_curve_due of its metrics. */
bool job_curve_due(struct job *j);
/* The list of clients that watch it. */
struct watch **job_watches(struct job *j);
const struct usage_file *job_usage_file(const struct job *j);
const struct usage_sample *job_usage_newest(const struct job *j); /* ranks 0: there is none */
#define JOB_STRAGGLERS_MAX 16 /* that are named; more are no stragglers, but a slow job */
/* Fills up to `max` ranks that compute longer than others; returns their number. */
int job_stragglers(const struct job *j, struct straggler *ret, int max);

/* ---- stopping and adopting ---- */

/* A request to stop a job. */
struct job_cancel {
    enum state_desired desired; /* as in the job's log entry; DESIRED_RUN: none, which has no effect */
    int64_t grace_ms;           /* time for its workers; 0: they are killed at once; JOB_GRACE_OF_FILE */
    bool repeated;              /* the same request has been answered before: it does not count as another one */
};
#define JOB_GRACE_OF_FILE (-1) /* run.grace_seconds */
/* Stops it. If an earlier request has canceled it and it still runs, this one sets a new time of grace from now;
 * without a time of its own and without a save, it ends the job at once. */
void job_cancel(struct job *j, const struct job_cancel *request);
/* This dtd shuts down: the job's processes save and exit; its entry in the log does not change. */
void job_leave(struct job *j);
/* Takes the slots of its workers from the newest epoch record. Called before the nodes' lists arrive. */
NODISCARD err_t job_adopt_begin(struct job *j);
/* A node's list of processes is complete. Continues the job if no list is missing any more, or if `late`. */
void job_adopt(struct job *j, bool late);

/* ---- a profile of its next steps ---- */

/* The most steps: the files of all ranks of a large job must still fit into a browser. */
#define JOB_PROFILE_STEPS 64
/* Starts one. OK also if the profile of this request has been started already. ERR_INVALID: there is nothing to profile
 * now; ERR_EXISTS: another profile runs. `why` names the reason. */
NODISCARD err_t job_profile_start(struct job *j, uint64_t request, int steps, struct why *why);
struct job_profile_view {
    uint64_t id, epoch;
    int steps, workers, written; /* written: ranks whose files are complete */
    const char *error;           /* "": none */
    bool done;
};
/* The newest one; id 0: none. */
struct job_profile_view job_profile_view_of(const struct job *j);

/* ---- its requirements ---- */

/* What a job of this spec requires of the nodes. */
struct placement_want job_want(const struct job_spec *spec);
/* Capacities of all nodes, for this job or (NULL) for a new one. Returns their number; NULL in *ret: no memory. The
 * caller frees *ret. */
int job_nodes(struct jobs *jobs, const struct job *j, struct placement_node **ret);
/* Number of GPUs that it needs; 0: it computes on CPUs. */
int job_gpus(const struct job_spec *spec);

/* ---- its processes ---- */

/* The process of the job that has this slot, or will get it; NULL: none. */
struct job_process *job_process_find(struct job *j, const struct node_view *a, int slot);
/* Its rank; -1: a dtd-io. */
int job_process_rank(const struct job *j, const struct job_process *p);
bool job_process_running(const struct job_process *p);
/* Its node has checked its token; `epoch` is the epoch in which it is. ERR_DENIED: this process is not running. */
NODISCARD err_t job_process_hello(struct job *j, struct job_process *p, uint64_t epoch);
/* The process has opened its command stream. ERR_EXISTS: it has another one. */
NODISCARD err_t job_process_attended(struct job *j, struct job_process *p, struct rpc_call *call);
/* A command stream is closed. */
void job_process_detached(struct job *j, const struct rpc_call *call);

/* The rendezvous of epoch `epoch`, for process `p`, which is a worker. ERR_STALE: that epoch has ended. A new leader
 * that still waits for the nodes' lists treats the newest epoch as running. */
NODISCARD err_t job_rendezvous(struct job *j, struct job_process *p, uint64_t epoch, struct rendezvous **ret);
/* Writes "worker rank 1, 3": those that have not used the epoch's rendezvous. Returns their number. */
int job_rendezvous_missing(const struct job *j, char *ret, size_t size);
/* The same without a check of the epoch, to remove or end waits. */
struct rendezvous *job_rendezvous_of(struct job *j);

/* ---- reports of its processes ---- */

enum worker_report_kind {
    REPORT_IDLE,
    REPORT_READY,
    REPORT_METRIC,
    REPORT_DONE,
    REPORT_FAILED,
    REPORT_SAVE_FAILED,
    REPORT_PROFILED
};
struct worker_report {
    enum worker_report_kind kind;
    uint64_t epoch;
    int rank;
    int64_t step;                /* step of the worker; -1: not reported */
    const struct metric *metric; /* NULL: none */
    const char *text;            /* never NULL */
    bool fatal;
    err_t load_error;      /* REPORT_FAILED: the error of loading the epoch's checkpoint; OK: it is another one */
    const double *part_ms; /* REPORT_READY: LOAD_PARTS durations; NULL: an older worker reports none */
    uint64_t profile;      /* REPORT_PROFILED: its id */
};
void job_worker_report(struct job *j, int rank, const struct worker_report *r);

/* Whether the numbers of a report are possible. */
bool job_usage_valid(const struct usage_report *r);
/* Whether this worker may report usage now; counts the report. False: it reports far more often than it should. */
bool job_usage_allowed(struct job *j, int rank);
/* A report was refused. Whether that is to be logged: at most once a minute, so that no worker fills the log. */
bool job_usage_refused(struct job *j, int rank);
void job_usage_report(struct job *j, int rank, uint64_t epoch, const struct usage_report *r);

enum io_report_kind {
    IO_COMMITTED,
    IO_SAVE_FAILED,
    IO_SCANNED,
    IO_REMOVED,
    IO_HISTORY,
    IO_LOST,
    IO_USAGE_HISTORY,
};
struct io_report {
    enum io_report_kind kind;
    uint64_t epoch;
    const struct state_checkpoint *checkpoint; /* NULL: none */
    const char *text;                          /* never NULL */
};
void job_io_report(struct job *j, struct job_process *io, const struct io_report *r);

#endif
