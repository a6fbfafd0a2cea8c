/* Internal structs of a job: its processes on all nodes, its epoch, and the two state machines that drive it (enum
 * job_state of job.h is what the user sees). Loop thread; owned by jobs.h. Every event (the exit of a process, a
 * report, a deadline, a record in the log) is stored in the structs below; then job_tick reads them and takes the next
 * step. Nothing else changes the state of a machine.
 *
 * Phases of a job (enum job_phase), and what each waits for:
 *
 *   WAITING     free slots for the job's workers
 *   GATHERING   every dtd-io and every worker has been started and has opened its command stream (Attend)
 *   SCANNING    dtd-io lists the step folders that exist
 *   COMMITTING  waiting until the epoch record is committed; START is sent only after that
 *   LOADING     every worker is ready
 *   STEPPING    every worker is done
 *   ENDING      the epoch failed: surviving workers abort it or are killed; then slots for the next epoch are
 * allocated, possibly fewer and on other nodes REJOINING   a new dtd-control leads: the processes of the epoch
 * reconnect DRAINING    STOP has been sent; workers finish the current step QUITTING    the job's last state is
 * committed; then the workers, and after them dtd-io, are ended RECORDING   only that record, if the log did not
 * accept it before the processes had ended OVER        nothing
 *
 *   WAITING -> GATHERING -> SCANNING -> COMMITTING -> LOADING -> STEPPING -> QUITTING -> RECORDING -> OVER
 *      ^           ^------------------ ENDING <--------+----------+ |
 *      +------------------------------- (no room for what is left)  |
 *                                        |                          +--> DRAINING --> QUITTING
 *                                        +--> QUITTING (no restarts left, canceled) */
#ifndef DTD_DAEMON_CONTROL_JOB_INTERNAL_H
#define DTD_DAEMON_CONTROL_JOB_INTERNAL_H

#include "common/base/fsm.h"
#include "daemon/control/job/job.h"
#include "daemon/control/job/jobs.h"
#include "daemon/supervisor/channel.h"

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
    PROCESS_ABSENT, /* no such process, or no report about it */
    PROCESS_ASKED,  /* the supervisor has been asked to start it */
    PROCESS_LIVE,
    PROCESS_ENDED, /* exit_status and exit_signal are known */
};

struct job_process {
    struct node_view *node; /* the node it is on; NULL: none yet */
    int slot;               /* there; CHANNEL_SLOT_IO: a dtd-io */
    uint64_t incarnation;   /* of its node, when it was last started or reported */
    enum process_state state;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    pid_t pid;
    bool killed;   /* by dtd: its exit is a consequence, not a cause */
    char proc;     /* state from /proc: R, S, D, T; 0: not requested */
    bool stranded; /* a command whose c10d store is gone */
    bool lost;     /* with its node: exit status unknown */
    bool failed;   /* it reported FAILED */
    bool has_exit;
    enum child_cause cause; /* of its exit, as reported by its node */
    char cause_text[CHILD_CAUSE_BYTES];
    int exit_status, exit_signal, spawn_error;
    int64_t exit_ns;         /* monotonic time of SIGCHLD */
    struct rpc_call *attend; /* call on which commands are sent; NULL: none */
    bool attended;           /* at least once since it was started */
    int64_t silent_since_ms; /* LIVE without an Attend call since then */
};

enum worker_command { COMMAND_NONE, COMMAND_START, COMMAND_END, COMMAND_STOP, COMMAND_QUIT };

struct job_worker {
    struct job_process p; /* first */
    int device;           /* its GPU; -1: none, or none yet */
    uint64_t epoch;       /* that it is in, as last reported; 0: none */
    bool ready, done, idle;
    int64_t done_step;           /* at which it was done; -1: unknown */
    enum worker_command command; /* last command sent on this connection */
    uint64_t rendezvous_epoch;   /* the last one whose store it used */
};

enum io_scan { SCAN_DUE, SCAN_ASKED, SCAN_DONE };
enum job_history { HISTORY_KNOWN, HISTORY_DUE, HISTORY_ASKED };

/* The dtd-io of one node. Only the first one, on rank 0's node, lists folders and commits checkpoints. */
struct job_io {
    struct job_process p; /* first */
    enum io_scan scan;
    uint64_t epoch; /* last epoch sent to this process */
    bool told_quit;
    int failures; /* consecutive starts after which it exited without an Attend call */
    int64_t retry_ms;
};

/* The incident that the job recovers from. */
struct job_incident {
    bool open;
    bool ends;                    /* its epoch */
    bool by_exit;                 /* `seen` names an exit: a more precise cause than its peers' reports */
    struct incident fields;       /* for the log; `log` is allocated */
    char seen[512], decided[256]; /* of `fields` */
    int64_t decided_ns;           /* monotonic time of the decision */
    int64_t part_ns;              /* when the current part of the recovery began */
    int64_t step;                 /* step of the epoch that was lost; -1: unknown */
    bool log_by_exit; /* `log` is of a worker that ended by itself, not of one that was ended after its report */
};

struct job_folder {
    struct state_checkpoint c; /* path is ours */
    bool own;                  /* this job's: in the catalog, or written since it was submitted */
};

#define JOB_HANG_STEPS 64

/* Durations of the newest steps of the epoch, from the times of their reports. */
struct job_hang {
    int64_t took_ms[JOB_HANG_STEPS], longest_ms, since_ms;
    int n;
    bool stepped;     /* the epoch has made a step */
    bool slow;        /* ... and one with an evaluation or a save */
    int64_t asked_ms; /* when the nodes were asked for process states; 0: not asked */
};

/* Operations that differ by kind of job: workers are dt-worker (managed.c) or a command of the user (command.c). */
struct job_kind {
    bool saves;       /* it saves checkpoints by dtd-ios, and can be resumed from them */
    bool kills_again; /* a process that is to be killed and still runs is sent SIGKILL once more */
    const char *done; /* why it stops when every worker is done */

    /* Tick of the phase; true: the job has moved to another phase. */
    bool (*gather)(struct job *j);
    bool (*load)(struct job *j);
    /* Tick of STEPPING. */
    void (*watch)(struct job *j);
    /* A new leader has received all lists. False: a process is missing, so the epoch fails. */
    bool (*adopted)(struct job *j);
    /* How long ENDING and QUITTING may take; 0: as long as the phase may. */
    int64_t (*grace_ms)(const struct job *j);

    /* Starts what is absent or has ended and is needed; `workers`: not only dtd-ios. */
    void (*need)(struct job *j, bool workers);
    /* Adds what this kind's process needs; *ret_env is to be freed by job_command_env_free. */
    err_t (*complete_spawn)(struct job *j, const struct job_process *p, struct process_spawn *x, char ***ret_env);
    /* The worker's process has begun or ended. */
    void (*changed)(struct job *j, struct job_worker *w);
    /* The job has left the node of `io`. */
    void (*left)(struct job *j, struct job_io *io);
    /* Sends every process the command that the phase requires. */
    void (*command)(struct job *j);
    /* State of the worker as clients see it. */
    const char *(*worker_state)(const struct job *j, const struct job_worker *w);
};
extern const struct job_kind job_kind_managed, job_kind_command;

#define JOB_DAMAGED_MAX 16 /* more damaged checkpoints of one job are a broken disk, which no older one repairs */
#define JOB_GATHER_MS 60000
#define JOB_LOAD_MS 900000

struct job {
    const struct job_kind *kind;
    struct jobs *jobs;
    struct job *next;
    uint64_t id;
    uint32_t uid; /* of the user who submitted it */
    struct job_spec spec;
    char *yaml;
    int64_t submitted_ms;
    struct fsm state, phase;
    int max_workers, n_workers; /* requested; allocated, or of the newest epoch */
    struct job_worker *workers; /* by rank */
    struct job_io *ios;         /* one a node, in the order of ranks; NULL: not placed yet */
    int n_ios;
    bool placed;   /* it has its slots */
    bool adopting; /* from the log, and some node has not listed its processes: no decision yet */
    bool never; /* WAITING, and it would not fit on the present nodes if they were empty: other jobs may overtake it */
    bool may_grow; /* it has fewer workers than requested, and slots are free: resize at the next checkpoint */
    bool resize;   /* ENDING in order to move to other slots */
    bool moving; /* STEPPING, and one of its nodes is to be vacated: workers save and stop, then the next epoch follows
                  */
    int64_t room_ms; /* next time to look for more slots */
    bool clearing;   /* ENDING without slots for the next epoch: all its processes end, then it is WAITING */

    uint64_t epoch; /* the newest that is in the log; 0: none */
    int64_t resume_step;
    char *resume_path;                /* NULL: from the beginning */
    int64_t damaged[JOB_DAMAGED_MAX]; /* steps whose checkpoints could not be loaded; the next epoch puts them aside */
    int n_damaged;
    int64_t unread_step; /* whose load failed once with an I/O error, which may be gone at the second try; -1: none */
    uint64_t next_epoch;
    bool epoch_committed;
    int restarts;
    uint8_t secret[32];           /* of the epoch that this leader began; sent to its workers only, never logged */
    struct rendezvous rendezvous; /* of the epoch */

    enum state_end outcome; /* what the job stops for; END_NONE with `leaving`: only this dtd ends */
    bool stopping, leaving, save_at_stop;
    char reason[1024];
    bool end_proposed, end_logged; /* its record: under way, there */

    int64_t deadline_ms; /* of the phase; 0: none */
    struct job_hang hang;
    struct job_incident incident;
    struct job_folder *folders; /* of the last scan */
    int n_folders;
    bool retention_due; /* job_retention is to run */
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
NODISCARD err_t job_new(struct jobs *jobs, const struct state_job *s, struct job **ret);
void job_free(struct job *j);
/* Takes every step that can be taken now. Safe to call at any time, but not from inside itself. */
void job_tick(struct job *j);
void job_show(struct job *j, enum job_state state, const char *why);
/* Ends the job as `end` with a reason; the first caller wins. `save`: workers save before they stop. */
void job_stop(struct job *j, enum state_end end, bool save, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void job_deadline(struct job *j, int64_t ms);
void job_move(struct job *j, enum job_phase to, const char *why);
/* The step that the job is at. */
int64_t job_step(const struct job *j);
bool job_past_deadline(const struct job *j);
/* Whether it holds for no worker. */
bool job_none(const struct job *j, bool (*pick)(const struct job_worker *w));
/* It does not attend, or is being killed. */
bool job_worker_is_missing(const struct job_worker *w);
bool job_worker_is_not_ready(const struct job_worker *w);
/* Its workers have been told to be in j->epoch. */
bool job_in_epoch(const struct job *j);

/* ---- allocate.c: places for workers, slots, GPUs ---- */

/* Allocates slots and GPUs, or returns false and sets the reason. Live processes keep their slots where possible. */
bool job_allocate(struct job *j);
/* On fewer workers than it asked for: whether there is room for more by now; what it waits for is in its reason. */
bool job_has_more_room(struct job *j);
/* Its GPU is unhealthy: its results cannot be trusted, and no process may start there. */
bool job_worker_is_sick(const struct job_worker *w);
/* A GPU for every worker that has none; false when too few are free, or it is not known yet what there is. */
bool job_take_gpus(struct job *j);
/* Counts the slots and GPUs of its workers, whose nodes are known, as taken. */
void job_place(struct job *j);
/* Frees its slots and GPUs, and releases it on its nodes once no process of it runs there. */
void job_release(struct job *j);

/* ---- process.c: starting, ending, attending ---- */

/* The dtd-io that looks at folders and commits; NULL while the job has no place. */
struct job_io *job_committer(const struct job *j);
/* A dtd-io for each node that has workers. */
NODISCARD err_t job_ios_assign(struct job *j);
/* It is absent or has ended. */
bool job_process_is_due(const struct job_process *p);
/* Asks its node to start it; a node that cannot be reached is asked again by the next tick. */
void job_process_start(struct job *j, struct job_process *p);
/* The same for a worker, with a GPU where it needs one. False: there is none, and the job has moved or waits. */
bool job_worker_start(struct job *j, struct job_worker *w);
/* Kills a process that lives for its supervisor and has not attended for longer than a worker goes on without us. */
void job_process_watch_silence(struct job *j, struct job_process *p);
void job_process_child(struct job *j, struct job_process *p, const struct child *c);
/* Its node has said all that lives there, and did not name some: those have gone. */
void job_node_listed(struct job *j, const struct node_view *a);
/* Its node is lost: all that was there has ended. */
void job_node_lost(struct job *j, const struct node_view *a, double silent_ms, const char *seen);
void job_process_kill(struct job *j, struct job_process *p, int sig);
void job_process_lost(struct job *j, struct job_process *p);
bool job_workers_gone(const struct job *j);
bool job_ios_gone(const struct job *j);
/* "worker rank 1 (pid 4711) was killed by signal 9 (Killed)" */
void job_process_describe_exit(const struct job *j, const struct job_process *p, char *ret, size_t size);
/* "worker rank 1, 3" of those for which `pick` holds; returns how many. */
int job_workers_name(const struct job *j, bool (*pick)(const struct job_worker *w), char *ret, size_t size);

/* ---- commands.c: commands to processes ---- */

/* job_kind.command of a managed job. */
void job_commands(struct job *j);
/* The job's end is committed, or cannot be: a full disk must not keep finished processes alive, so the end is recorded
 * when there is space. */
bool job_may_quit(const struct job *j);

/* ---- command.c: workers that are a command ---- */

void job_command_env_free(char **env, int n);
/* A process of the epoch lives and has no store any more: the epoch ends, and that is no failure of the job's. */
void job_command_stranded(struct job *j, const struct job_process *p);

/* ---- epoch.c: losing an epoch, choosing and starting the next ---- */

/* Something ended the epoch, or the attempt at one: decides between the next epoch and the end of the job. */
void job_epoch_lost(struct job *j, double detect_ms, bool by_exit, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the epoch for a cause that is no failure of the job, so that no restart is counted. `seen`: the cause. */
void job_epoch_again(struct job *j, const char *seen);
/* Who led before had ended the epoch, and may have counted a restart: the same incident goes on. Its recovery is timed
 * by the clocks of both. */
void job_epoch_ended(struct job *j, const struct incident *by);
void job_epoch_propose(struct job *j);
/* The next one is on other places. `seen`: why. */
void job_epoch_resize(struct job *j, const char *seen);
/* The checkpoint of the epoch cannot be loaded. If it is damaged and an older one can be tried instead, ends the epoch,
 * without counting a restart, and returns true. */
bool job_epoch_unreadable(struct job *j, err_t err, const char *text);
/* Fails the job: a restart would not help. */
void job_epoch_fatal(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets resume_path to what resume_step names. */
void job_epoch_find_resume(struct job *j);

/* ---- incident.c ---- */

/* Opens an incident, in the log at once; job_incident_decided and _recovered complete it. */
void job_incident_open(struct job *j, const char *seen, double detect_ms, bool by_exit);
/* Attaches the tail of a worker's log to the open incident. The log of a worker that exited by itself wins over that of
 * one that dtd killed. */
void job_incident_attach_log(struct job *j, const char *log, bool by_exit);
void job_incident_decided(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void job_incident_recovered(struct job *j);
/* The job begins this phase: a part of the recovery is over. */
void job_incident_phase(struct job *j, enum job_phase to);
/* An incident that ends no epoch and is over at once; not while the job recovers from another. */
void job_incident_record(struct job *j, double detect_ms, const char *seen, const char *decided);
/* Replaces the cause of the open incident by the exit of a process, which is more precise than the reports of its peers
 * that often arrive first. */
void job_incident_better_cause(struct job *j, const char *seen);

/* ---- catalog.c: checkpoints and their folders ---- */

/* After a scan: brings the catalog in line with the folders and picks what to resume from. */
void job_catalog_scanned(struct job *j);
/* The step that io's newer folders may not be below. */
int64_t job_io_step(const struct job *j);
void job_scan_forget(struct job *j);

/* ---- hang.c: hang detection ---- */

void job_hang_begin(struct job *j);
void job_hang_step(struct job *j);
/* Tick of STEPPING: ends the epoch after too long a time without a report. */
void job_hang_tick(struct job *j);

/* ---- retention.c: retention ---- */

/* Asks dtd-io to remove the checkpoints that the rules do not keep. */
void job_retention(struct job *j);

/* ---- adopt.c: a new dtd-control or leader adopts live processes ---- */

/* As job_process_find; a job that was being started when control died has no epoch that says where, so the process
 * then takes the rank of its slot. */
struct job_process *job_adopt_process(struct job *j, struct node_view *a, int slot);

#endif
