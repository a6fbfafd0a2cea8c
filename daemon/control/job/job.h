/* One job, as the node that leads has it: its processes on all nodes, its epoch, and the two state machines that drive
 * it. Lives on the loop's thread; owned by the node. Everything that happens (a process's end, a report, a deadline, a
 * record in the log) is noted in the structs below, and then job_tick looks at them and takes the next step; nothing
 * else moves a machine.
 *
 * What the user sees (enum job_state):
 *
 *   pending --> starting --> running --> stopping --> done | failed | canceled
 *                   |           |  ^          ^
 *                   +--> recovering +---------+   (every live state may go to stopping)
 *
 * What control does (enum job_phase), with what each waits for:
 *
 *   WAITING     room for the job's workers
 *   GATHERING   every dtd-io and all workers have been started and attend
 *   SCANNING    io says which step folders are there
 *   COMMITTING  the epoch's record is in the log; only then is START said
 *   LOADING     every worker is ready
 *   STEPPING    every worker is done
 *   ENDING      an epoch was lost: survivors leave it, or are killed; on fewer or other nodes, room for the next one
 *   REJOINING   a new control: the processes of the epoch come back
 *   DRAINING    STOP was said: workers finish their step
 *   QUITTING    the job's last state is in the log; then workers, then io, are told to end
 *   RECORDING   nothing but that record, where the log took none before the processes had ended
 *   OVER
 *
 *   WAITING -> GATHERING -> SCANNING -> COMMITTING -> LOADING -> STEPPING -> QUITTING -> RECORDING -> OVER
 *      ^           ^------------------ ENDING <--------+----------+ |
 *      +------------------------------- (no room for what is left)  |
 *                                        |                          +--> DRAINING --> QUITTING
 *                                        +--> QUITTING (restarts used up, canceled) */
#ifndef DTD_DAEMON_CONTROL_JOB_JOB_H
#define DTD_DAEMON_CONTROL_JOB_JOB_H

#include "common/base/fsm.h"
#include "common/conf/job.h"
#include "daemon/control/local/processes.h"
#include "daemon/control/job/metrics.h"
#include "daemon/control/job/placement.h"
#include "daemon/control/state/state.h"
#include "daemon/control/job/rendezvous.h"
#include "daemon/supervisor/channel.h"

#include <sys/types.h>

struct agent; /* agent.h: a node */
struct node;
struct placement_node;
struct rpc_call; /* an Attend that commands are said to */
struct watch;    /* rpc_metrics.c: a client's stream */

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

enum job_phase {
    PHASE_WAITING,
    PHASE_GATHERING,
    PHASE_SCANNING,
    PHASE_COMMITTING,
    PHASE_LOADING,
    PHASE_STEPPING,
    PHASE_ENDING,
    PHASE_REJOINING,
    PHASE_DRAINING,
    PHASE_QUITTING,
    PHASE_RECORDING,
    PHASE_OVER,
};

enum process_state {
    PROCESS_ABSENT, /* not there, nothing known */
    PROCESS_ASKED,  /* the supervisor has been asked to start it */
    PROCESS_LIVE,
    PROCESS_ENDED, /* exit_status and exit_signal are known */
};

struct job_process {
    struct agent *agent; /* the node it is on; NULL: none yet */
    int slot;            /* there; CHANNEL_SLOT_IO: a dtd-io */
    uint64_t life;       /* of its node, in which it was asked for or heard of last */
    enum process_state state;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    pid_t pid;
    bool killed;   /* by us: its end is a consequence, not a cause */
    char proc;     /* what it does, from /proc: R, S, D, T; 0: not asked */
    bool stranded; /* a command without its store */
    bool lost;     /* with its node: how it ended is not known */
    bool failed;   /* it said so itself */
    bool has_exit;
    char cause[CHILD_CAUSE_BYTES]; /* as its node knows it (children.h) */
    int exit_status, exit_signal, spawn_error;
    int64_t exit_ns;         /* monotonic, the kernel's word */
    struct rpc_call *attend; /* NULL: commands cannot be said */
    bool attended;           /* in this life */
    int64_t silent_since_ms; /* live, and not attending since */
};

enum worker_told { TOLD_NOTHING, TOLD_START, TOLD_END, TOLD_STOP, TOLD_QUIT };

struct job_worker {
    struct job_process p; /* first */
    int device;           /* its GPU; -1: none, or none yet */
    uint64_t epoch;       /* that it is in, as far as we know; 0: none */
    bool ready, done, idle;
    int64_t done_step;     /* that it was done at; -1: not known */
    enum worker_told told; /* on this connection */
    uint64_t store_epoch;  /* the last one whose store it used */
};

enum io_scan { SCAN_DUE, SCAN_ASKED, SCAN_DONE };
enum job_history { HISTORY_KNOWN, HISTORY_DUE, HISTORY_ASKED };

/* The dtd-io of one node. Only the first one, of rank 0's node, looks at folders and commits. */
struct job_io {
    struct job_process p; /* first */
    enum io_scan scan;
    uint64_t epoch; /* that this process has been told */
    bool told_quit;
    int failures; /* lives in a row in which it never attended */
    int64_t retry_ms;
};

/* The incident that the job recovers from. */
struct job_incident {
    bool open;
    bool ends;    /* its epoch */
    bool by_exit; /* `seen` names a process's end: a better cause than what its peers say */
    struct incident fields;       /* for the log; `log` is allocated */
    char seen[512], decided[256]; /* of `fields` */
    int64_t decided_ns;           /* monotonic time of the decision */
    int64_t part_ns;              /* when the part that goes on has begun */
    int64_t step;                 /* that the epoch had made; -1: not known */
    bool log_by_exit;             /* ... which died by itself, rather than to be ended because it said that it failed */
};

struct job_folder {
    struct state_checkpoint c; /* path is ours */
    bool own;                  /* this job's: in the catalog, or written since it was submitted */
};

#define JOB_HEALTH_STEPS 64

/* What the newest steps of the epoch took, by the times of their reports. */
struct job_health {
    int64_t took_ms[JOB_HEALTH_STEPS], longest_ms, since_ms;
    int n;
    bool stepped;     /* the epoch has made a step */
    bool slow;        /* ... and one with an evaluation or a save */
    int64_t asked_ms; /* the nodes, about a silence; 0: not */
};

struct job {
    struct node *node;
    struct job *next;
    uint64_t id;
    uint32_t uid; /* who submitted it */
    struct job_spec spec;
    char *yaml;
    int64_t submitted_ms;
    struct fsm state, phase;
    int max_workers, n_workers; /* asked for; that there is room for, or was in the newest epoch */
    struct job_worker *workers; /* by rank */
    struct job_io *ios;         /* one a node, in the order of ranks; NULL: not placed yet */
    int n_ios;
    bool placed;     /* it has its slots */
    bool adopting;   /* of the log, and not all that lives has been heard: nothing is decided about it */
    bool never;      /* WAITING, and the nodes there are could not have it if they were empty: others may pass */
    bool may_grow;   /* on fewer workers than it asked for, and there is room for more: at the next checkpoint */
    bool resize;     /* ENDING to have other places */
    bool moving;     /* STEPPING, and a node of it is to be left: workers save and stop, then comes the next epoch */
    int64_t room_ms; /* when room for more is looked for again */
    bool clearing;   /* ENDING, and no room for the next epoch: everything is to end, then it waits */

    uint64_t epoch; /* the newest that is in the log; 0: none */
    int64_t resume_step;
    char *resume_path; /* NULL: from the beginning */
    uint64_t next_epoch;
    bool epoch_committed;
    int restarts;
    uint8_t secret[32]; /* of the epoch that we have begun: for its workers alone, in no log */
    struct store store; /* of the epoch */

    enum state_end outcome; /* what the job stops for; END_NONE with `leaving`: only this dtd ends */
    bool stopping, leaving, save_at_stop;
    char reason[1024];
    bool end_proposed, end_logged; /* its record: under way, there */

    int64_t deadline_ms; /* of the phase; 0: none */
    struct job_health health;
    struct job_incident incident;
    struct job_folder *folders; /* of the last scan */
    int n_folders;
    bool keep_due; /* retention is to be looked at */
    char checkpoint_error[512];
    bool disk_low; /* of the checkpoint folder, and said */

    struct metrics metrics;
    enum job_history history; /* of the metrics, where another node has led: read back from beside the checkpoints */
    int64_t history_at;
    uint64_t known_epoch; /* the last line that was here before */
    int64_t known_step;
    struct buf io_lines; /* the newest metrics for io; a new io is told them again */
    size_t io_said;      /* of io_lines, to this io */
    int64_t io_lines_ms; /* when the next ones are said */
    struct watch *watches;
    bool dirty; /* watchers are to be told */
};

/* ---- job.c: life, the machines ---- */

/* From the state's entry, in PHASE_WAITING or PHASE_OVER. */
NODISCARD err_t job_new(struct node *node, const struct state_job *s, struct job **ret);
void job_free(struct job *j);
/* Takes every step that can be taken now. Safe to call at any time, but not from inside itself. */
void job_tick(struct job *j);
void job_show(struct job *j, enum job_state state, const char *why);
bool job_over(const struct job *j);
/* Ends the job as `end` with a reason; the first caller wins. `save`: workers save before they stop. */
void job_stop(struct job *j, enum state_end end, bool save, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Stops it as the log's record says; nothing where that says to run. */
void job_cancel(struct job *j, enum state_desired desired);
/* This dtd ends: the job's processes save and go, the job itself stays what it is. */
void job_leave(struct job *j);
void job_deadline(struct job *j, int64_t ms);
void job_move(struct job *j, enum job_phase to, const char *why);
/* The step that the job is at. */
int64_t job_step(const struct job *j);
/* Its workers have been told to be in j->epoch. */
bool job_in_epoch(const struct job *j);

/* ---- job_room.c: places for workers, slots, GPUs ---- */

/* Takes what it needs, or says false with what it waits for in its reason. What lives where it may stay, stays. */
bool job_take_room(struct job *j);
/* On fewer workers than it asked for: whether there is room for more by now; what it waits for is in its reason. */
bool job_has_more_room(struct job *j);
/* What a job of this spec asks of the nodes. */
struct placement_want job_want(const struct job_spec *spec);
/* The nodes as they are for this job, or (NULL) for a new one; NULL in *ret: no memory. The caller frees. */
int job_nodes(struct node *n, const struct job *j, struct placement_node **ret);
/* GPUs that it takes; 0: it computes on processors. */
int job_gpus(const struct job_spec *spec);
/* Its GPU has become sick: nothing of it is to be trusted, and nothing starts there. */
bool job_worker_is_sick(const struct job_worker *w);
/* A GPU for every worker that has none; false when too few are free, or it is not known yet what there is. */
bool job_take_gpus(struct job *j);
/* Counts the slots and GPUs of its workers, whose nodes are known, as taken. */
void job_place(struct job *j);
/* Gives its slots and GPUs back; its nodes forget it, once nothing of it runs there. */
void job_room_leave(struct job *j);

/* ---- job_process.c: starting, ending, attending ---- */

/* The process that has, or is to have, this place; NULL: none of the job's. */
struct job_process *job_process_find(struct job *j, const struct agent *a, int slot);
/* Its rank; -1: a dtd-io. */
int job_process_rank(const struct job *j, const struct job_process *p);
/* The dtd-io that looks at folders and commits; NULL while the job has no place. */
struct job_io *job_committer(const struct job *j);
/* A dtd-io for each node that has workers. */
NODISCARD err_t job_ios_settle(struct job *j);
/* Starts what is absent or ended. */
void job_processes_need(struct job *j, bool workers);
void job_process_child(struct job *j, struct job_process *p, const struct child *c);
/* It has shown its token to its node; `epoch` is the one that it is in. ERR_DENIED: not a process that lives. */
NODISCARD err_t job_process_hello(struct job *j, struct job_process *p, uint64_t epoch);
/* Its node has said all that lives there, and did not name some: those have gone. */
void job_node_listed(struct job *j, const struct agent *a);
/* Its node is lost: all that was there has ended. */
void job_node_lost(struct job *j, const struct agent *a, double silent_ms, const char *seen);
void job_process_attended(struct job *j, struct job_process *p, struct rpc_call *call);
void job_process_lost(struct job *j, struct job_process *p);
void job_process_kill(struct job *j, struct job_process *p, int sig);
/* Says to every attending process what the phase wants of it. */
void job_commands(struct job *j);
bool job_workers_gone(const struct job *j);
bool job_ios_gone(const struct job *j);
bool job_process_running(const struct job_process *p);
/* "worker rank 1 (pid 4711) was killed by signal 9 (Killed)" */
void job_process_obituary(const struct job *j, const struct job_process *p, char *ret, size_t size);
/* "worker rank 1, 3" of those for which `pick` holds; returns how many. */
int job_workers_name(const struct job *j, bool (*pick)(const struct job_worker *w), char *ret, size_t size);

/* ---- job_command.c: workers that are a command ---- */

/* "KEY=VALUE" for the process of this rank, all but MASTER_PORT. */
NODISCARD err_t job_command_env(const struct job *j, int rank, char ***ret, int *ret_n);
void job_command_env_free(char **env, int n);
/* SIGTERM to those that run and have had none. */
void job_command_terminate(struct job *j);
/* Takes down what is known of its process: whether it is ready, or has done what it was to do. */
void job_command_note(struct job *j, struct job_worker *w);
/* A process of the epoch lives and has no store any more: the epoch ends, and that is no failure of the job's. */
void job_command_stranded(struct job *j, const struct job_process *p);
/* False: as with any other job, not all of it is there. */
bool job_command_adopted(struct job *j);

/* ---- job_epoch.c: losing an epoch, choosing and starting the next ---- */

/* Something ended the epoch, or the attempt at one: decides between the next epoch and the end of the job. */
void job_epoch_lost(struct job *j, double detect_ms, bool by_exit, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The epoch ends for the next by what is no failure of the job's: counts as no restart. `seen`: what. */
void job_epoch_again(struct job *j, const char *seen);
/* Who led before had ended the epoch, and may have counted a restart: the same incident goes on. Its recovery is timed
 * by the clocks of both. */
void job_epoch_ended(struct job *j, const struct incident *by);
/* After a scan: brings the catalog in line with the folders and picks what to resume from. */
void job_catalog_scanned(struct job *j);
void job_epoch_propose(struct job *j);
/* The next one is on other places. `seen`: why. */
void job_epoch_resize(struct job *j, const char *seen);
/* The job cannot go on, and a restart would not help. */
void job_epoch_fatal(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets resume_path to what resume_step names. */
void job_epoch_find_resume(struct job *j);
/* Opens an incident, in the log at once; job_incident_decided and _recovered complete it. */
void job_incident_open(struct job *j, const char *seen, double detect_ms, bool by_exit);
/* Of the open incident: the end of a worker's log. Words of one that died by itself say more than others'. */
void job_incident_words(struct job *j, const char *log, bool by_exit);
void job_incident_decided(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void job_incident_recovered(struct job *j);
/* The job begins this phase: a part of the recovery is over. */
void job_incident_phase(struct job *j, enum job_phase to);
/* An incident that ends no epoch and is over at once; not while the job recovers from another. */
void job_note(struct job *j, double detect_ms, const char *seen, const char *decided);
/* The step that io's newer folders may not be below. */
int64_t job_io_step(const struct job *j);
void job_scan_forget(struct job *j);

/* ---- job_report.c: what workers and io say ---- */

enum worker_report_kind { REPORT_IDLE, REPORT_READY, REPORT_METRIC, REPORT_DONE, REPORT_FAILED, REPORT_SAVE_FAILED };
struct worker_report {
    enum worker_report_kind kind;
    uint64_t epoch;
    int rank;
    int64_t step;                    /* that the worker is at; -1: not said */
    const struct metric *metric;     /* NULL: none */
    const char *text;                /* never NULL */
    bool fatal;
};
void job_worker_report(struct job *j, int rank, const struct worker_report *r);

enum io_report_kind { IO_COMMITTED, IO_SAVE_FAILED, IO_SCANNED, IO_REMOVED, IO_HISTORY };
struct io_report {
    enum io_report_kind kind;
    uint64_t epoch;
    const struct state_checkpoint *checkpoint; /* NULL: none */
    const char *text;                          /* never NULL */
};
void job_io_report(struct job *j, struct job_io *io, const struct io_report *r);

/* ---- job_health.c: whether it gets on ---- */

void job_health_begin(struct job *j);
void job_health_step(struct job *j);
/* While it steps: a silence that is too long ends the epoch. */
void job_health_tick(struct job *j);

/* ---- job_keep.c: retention ---- */

/* Asks io to remove what the rules do not keep. */
void job_keep(struct job *j);

/* ---- job_adopt.c: a new control, or a new leader, finds what lives ---- */

/* Before the lists come: the places that the newest epoch in the log names. */
NODISCARD err_t job_adopt_begin(struct job *j);
/* As job_process_find; a job that was being started when control died has no epoch that says where, so the process
 * then takes the rank of its slot. */
struct job_process *job_adopt_process(struct job *j, struct agent *a, int slot);
/* A node has said all that lives there: goes on, when it was the last one to be waited for; or, when it is `late`,
 * without the others. */
void job_adopt(struct job *j, bool late);

#endif
