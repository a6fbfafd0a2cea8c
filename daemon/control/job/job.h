/* One job, as the leader has it: what the other rooms may ask of it and report to it. Loop thread; owned by jobs.h.
 * What a job consists of, and how it is driven, is internal.h.
 *
 * What the user sees (enum job_state):
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
#include "daemon/control/state/state.h"

#include <sys/types.h>

struct node_view; /* node_view.h */
struct job;
struct job_process; /* a worker or a dtd-io of a job */
struct jobs;
struct placement_node;
struct rpc_call; /* by which a process is given commands */
struct watch;    /* rpc/metrics.c: a client's stream */

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

/* ---- what is known of it ---- */

/* Borrowed from the job, until it is ticked or something is reported to it. */
struct job_view {
    uint64_t id;
    uint32_t uid; /* of the user who submitted it */
    int64_t submitted_ms;
    const struct job_spec *spec;
    const char *yaml;
    const char *state;              /* the name of its enum job_state */
    const struct state_job *logged; /* what the log has of it; NULL: nothing any more */
    const char *reason;             /* its own, else why the log takes nothing; NULL: none */
    const char *checkpoint_error;   /* of the newest save; "": none */
    uint64_t epoch;                 /* the newest that is in the log; 0: none */
    int64_t step;
    int n_workers; /* that there is room for, or were in the newest epoch */
    int restarts;
    const struct metrics *metrics;
};
struct job_view job_view_of(const struct job *j);

struct job_rank_view {
    const char *node;  /* NULL: it has no place yet */
    int slot;          /* on that node */
    const char *state; /* "running", "loading", .. as clients get it */
    pid_t pid;
    bool has_exit;
    int exit_status, exit_signal;
};
/* Of a rank below n_workers. */
struct job_rank_view job_rank_view_of(const struct job *j, int rank);

/* The next one by id; NULL: none. The first is jobs.head. */
struct job *job_next(const struct job *j);
bool job_over(const struct job *j);
/* The list of clients that watch it. */
struct watch **job_watches(struct job *j);

/* ---- what is asked of it ---- */

/* Stops it as the log's record says; nothing where that says to run. */
void job_cancel(struct job *j, enum state_desired desired);
/* This dtd ends: the job's processes save and go, the job itself stays what it is. */
void job_leave(struct job *j);
/* Before the lists come: the places that the newest epoch in the log names. */
NODISCARD err_t job_adopt_begin(struct job *j);
/* A node has said all that lives there: goes on, when it was the last one to be waited for; or, when it is `late`,
 * without the others. */
void job_adopt(struct job *j, bool late);

/* ---- what a job would need ---- */

/* What a job of this spec asks of the nodes. */
struct placement_want job_want(const struct job_spec *spec);
/* The nodes as they are for this job, or (NULL) for a new one; NULL in *ret: no memory. The caller frees. */
int job_nodes(struct jobs *jobs, const struct job *j, struct placement_node **ret);
/* GPUs that it takes; 0: it computes on processors. */
int job_gpus(const struct job_spec *spec);

/* ---- its processes ---- */

/* The process that has, or is to have, this place; NULL: none of the job's. */
struct job_process *job_process_find(struct job *j, const struct node_view *a, int slot);
/* Its rank; -1: a dtd-io. */
int job_process_rank(const struct job *j, const struct job_process *p);
bool job_process_running(const struct job_process *p);
/* It has shown its token to its node; `epoch` is the one that it is in. ERR_DENIED: not a process that lives. */
NODISCARD err_t job_process_hello(struct job *j, struct job_process *p, uint64_t epoch);
/* The process asks for commands by this call. ERR_EXISTS: it has another one by which it gets them. */
NODISCARD err_t job_process_attended(struct job *j, struct job_process *p, struct rpc_call *call);
/* That call has gone. */
void job_process_detached(struct job *j, const struct rpc_call *call);

/* The rendezvous of epoch `epoch`, for process `p`, which is a worker. ERR_STALE: that epoch has ended. A leader that
 * has just been elected does not know yet whether the epoch goes on: until then it does. */
NODISCARD err_t job_rendezvous(struct job *j, struct job_process *p, uint64_t epoch, struct rendezvous **ret);
/* "worker rank 1, 3" of those that have not used the epoch's rendezvous; returns how many. */
int job_rendezvous_missing(const struct job *j, char *ret, size_t size);
/* For waits that end when the job does. */
struct rendezvous *job_rendezvous_of(struct job *j);

/* ---- what its processes report ---- */

enum worker_report_kind { REPORT_IDLE, REPORT_READY, REPORT_METRIC, REPORT_DONE, REPORT_FAILED, REPORT_SAVE_FAILED };
struct worker_report {
    enum worker_report_kind kind;
    uint64_t epoch;
    int rank;
    int64_t step;                /* that the worker is at; -1: not said */
    const struct metric *metric; /* NULL: none */
    const char *text;            /* never NULL */
    bool fatal;
    err_t load_error; /* REPORT_FAILED: the error of loading the epoch's checkpoint; OK: it is another one */
};
void job_worker_report(struct job *j, int rank, const struct worker_report *r);

enum io_report_kind { IO_COMMITTED, IO_SAVE_FAILED, IO_SCANNED, IO_REMOVED, IO_HISTORY };
struct io_report {
    enum io_report_kind kind;
    uint64_t epoch;
    const struct state_checkpoint *checkpoint; /* NULL: none */
    const char *text;                          /* never NULL */
};
void job_io_report(struct job *j, struct job_process *io, const struct io_report *r);

#endif
