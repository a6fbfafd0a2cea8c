/* Internal structs of a job: its processes on all nodes, its epoch, and the two state machines that drive it (enum
 * job_state of job.h is what the user sees). Loop thread; owned by jobs.h. Every event (the exit of a process, a
 * report, a deadline, a record in the log) is stored in the structs below; then job_tick reads them and takes the next
 * step. Nothing else changes the state of a machine.
 *
 * Phases of a job (enum job_phase), and what each waits for:
 *
 *   WAITING     free slots for the job's workers
 *   GATHERING   every dtd-io and every worker has been started and has opened its command stream (Attend)
 *   SCANNING    dtd-io has listed the step folders that exist
 *   COMMITTING  the epoch record is committed; START is sent only after that
 *   LOADING     every worker is ready
 *   STEPPING    every worker is done
 *   ENDING      the epoch failed: surviving workers leave it or are killed; then the next epoch gets slots
 *   REJOINING   a new dtd-control leads: the processes of the epoch reconnect
 *   DRAINING    STOP has been sent: workers finish the current step
 *   QUITTING    the job's end is committed; then the workers exit, and after them dtd-io. The workers of a canceled
 *               command receive their signal at once
 *   RECORDING   only the record of the end, if it was not committed before the processes exited
 *   OVER        nothing
 *
 *   WAITING -> GATHERING -> SCANNING -> COMMITTING -> LOADING -> STEPPING -> QUITTING -> RECORDING -> OVER
 *      ^           ^------------------ ENDING <--------+----------+ |
 *      +------------------- (no slots for the next epoch)           |
 *                                        |                          +--> DRAINING --> QUITTING
 *                                        +--> QUITTING (no restarts left, canceled) */
#ifndef DTD_DAEMON_CONTROL_JOB_INTERNAL_H
#define DTD_DAEMON_CONTROL_JOB_INTERNAL_H

#include "common/base/fsm.h"
#include "common/base/log_limit.h"
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
    int signal;    /* the last one that dtd has sent to it; 0: none */
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
    int64_t done_step;                      /* at which it was done; -1: unknown */
    enum worker_command command;            /* last command sent on this connection */
    uint64_t rendezvous_epoch;              /* the last one whose store it used */
    double usage_credit;                    /* reports of usage that it may send at once */
    int64_t usage_ms;                       /* monotonic time of the last one; 0: none yet */
    int64_t usage_refused_ms;               /* when a refusal may be logged again */
    uint64_t profile_sent, profile_written; /* ids of profiles: sent on this connection; whose PROFILED has arrived */
};

/* The newest profile, profile.c. */
struct job_profile {
    uint64_t id; /* 0: none yet */
    uint64_t request, epoch;
    int steps, workers, written;
    char error[640]; /* "": none */
};

enum io_scan { SCAN_DUE, SCAN_ASKED, SCAN_DONE };
enum job_history { HISTORY_KNOWN, HISTORY_DUE, HISTORY_ASKED };

/* The dtd-io of one node. Only the first one, on rank 0's node, lists folders and commits checkpoints. */
struct job_io {
    struct job_process p; /* first */
    enum io_scan scan;
    uint64_t epoch; /* last epoch sent to this process */
    bool quit_sent;
    int failures; /* consecutive starts after which it exited without an Attend call */
    int64_t retry_ms;
};

/* The incident that the job recovers from. */
struct job_incident {
    bool open;
    bool ends;                    /* its epoch */
    bool by_exit;                 /* `seen` names an exit: a more precise cause than its peers' reports */
    struct incident fields;       /* for the log; `log` and `error` are allocated */
    char seen[512], decided[256]; /* of `fields` */
    int64_t decided_ns;           /* monotonic time of the decision */
    int64_t part_ns;              /* when the current part of the recovery began */
    int64_t step;                 /* step of the epoch that was lost; -1: unknown */
    int64_t error_s;              /* when `error` was recorded */
    bool log_by_exit; /* `log` is of a worker that ended by itself, not of one that was ended after its report */
    char killed[160]; /* which workers were killed after their time of grace: follows `decided`; "": none */
};

/* The first start of the job, until its first step is complete. */
struct job_start {
    bool open;
    struct incident fields;    /* for the log */
    int64_t begin_ns, part_ns; /* monotonic times of the submit, and of the beginning of the current part */
    char decided[64];          /* of `fields` */
};

struct job_folder {
    struct state_checkpoint c; /* path is ours */
    bool own;                  /* this job's: in the catalog, or written since it was submitted */
};

/* Enough for a stable median; few enough that the median follows when steps become slower. */
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
    /* How long ENDING and QUITTING may take until workers are killed; 0: not at all; -1: as long as the phase may. */
    int64_t (*grace_ms)(const struct job *j);

    /* Starts what is absent or has ended and is needed; `workers`: not only dtd-ios. */
    void (*need)(struct job *j, bool workers);
    /* Adds what this kind's process needs; *ret_env is to be freed by job_command_env_free. */
    err_t (*complete_spawn)(struct job *j, const struct job_process *p, struct process_spawn *x, char ***ret_env);
    /* The worker's process has begun or ended. */
    void (*changed)(struct job *j, struct job_worker *w);
    /* No worker that was stopped runs any more. */
    void (*stopped)(struct job *j);
    /* The job has left the node of `io`. */
    void (*left)(struct job *j, struct job_io *io);
    /* Sends every process the command that the phase requires. */
    void (*command)(struct job *j);
    /* State of the worker as clients see it. */
    const char *(*worker_state)(const struct job *j, const struct job_worker *w);
};
extern const struct job_kind job_kind_managed, job_kind_command;

/* The layout of a job with parallel.auto, layout.c. */
struct job_layout {
    struct layout_task *task;      /* the planner's search; NULL: none runs */
    struct layout_answer *answers; /* n of them, oldest first */
    int n;
    bool pending;     /* the last search for slots waits for the planner */
    char none[640];   /* why there is no layout for the slots that are free; "": there is one */
    char *keys, *why; /* of the slots that the job has, as in the epoch's record; NULL: not chosen yet */
    char *yaml;       /* the spec with it, for its workers */
    char *shown;      /* the spec with it, for clients */
};

#define JOB_DAMAGED_MAX 16 /* if more are damaged, the disk is broken, and an older checkpoint does not help */
/* Processes start within a second or two; the rest is for nodes that load programs over a slow network file system. */
#define JOB_GATHER_MS 60000
/* A worker reads its part of the checkpoint and opens its GPU: a large model on a slow disk takes minutes. */
#define JOB_LOAD_MS 900000

struct job {
    const struct job_kind *kind;
    struct jobs *jobs;
    struct job *next;
    uint64_t id;
    uint32_t uid; /* of the user who submitted it */
    struct job_spec spec;
    const char *yaml; /* a reference to the text that the state has, too */
    size_t yaml_bytes;
    struct log_limit report_lines; /* about failures that its processes report */
    bool removing;                 /* it is over, and a record that removes it is under way */
    int64_t submitted_ms;
    struct fsm state, phase;
    int max_workers, n_workers; /* requested; allocated, or of the newest epoch */
    struct job_worker *workers; /* by rank */
    struct job_io *ios;         /* one per node, in the order of ranks; NULL: not placed yet */
    int n_ios;
    bool placed;   /* it has its slots */
    bool adopting; /* from the log, and some node has not listed its processes: no decision yet */
    bool never; /* WAITING, and it would not fit on the present nodes if they were empty: other jobs may overtake it */
    bool may_grow; /* it has fewer workers than requested, slots are free, and run.grow lets it take them */
    struct job_layout layout;
    bool resize;  /* ENDING in order to move to other slots */
    bool moving;  /* STEPPING, and one of its nodes is drained or shuts down: workers save and stop, then the next epoch
                     begins on other nodes */
    int queue_at; /* WAITING: its place in the queue; -1: it has none yet */
    int64_t user_slots;    /* the same: slots of its owner's jobs */
    int64_t room_ms;       /* next time to look for more slots, or whether it may overtake */
    int64_t room_since_ms; /* since when may_grow is true */
    bool clearing;         /* ENDING without slots for the next epoch: all its processes end, then it is WAITING */

    uint64_t epoch; /* the newest that is in the log; 0: none */
    int64_t resume_step;
    char *resume_path;                /* NULL: from the beginning */
    int64_t damaged[JOB_DAMAGED_MAX]; /* steps whose checkpoints could not be loaded; the next epoch puts them aside */
    int n_damaged;
    int64_t unread_step; /* whose load failed once with an I/O error, which may be gone at the second try; -1: none */
    uint64_t next_epoch;
    bool epoch_committed;
    int restarts;
    int64_t started_mono_ms; /* if is_timed: monotonic time of its start, perhaps before this node's */
    bool is_timed;
    int64_t attempt_ms;           /* monotonic time at which GATHERING began last; 0: another leader began this epoch */
    int quick_failures;           /* epochs in a row that failed soon after their start, each counted as a restart */
    int64_t retry_ms;             /* ENDING: the next epoch does not begin before; 0: at once */
    uint8_t secret[32];           /* of the epoch that this leader began; sent to its workers only, never logged */
    struct rendezvous rendezvous; /* of the epoch */

    enum state_end outcome; /* how the job will end; END_NONE with `leaving`: only this dtd shuts down */
    bool stopping, leaving, save_at_stop;
    bool canceled;       /* by a user */
    int64_t grace_ms;    /* set by a cancel; JOB_GRACE_OF_FILE */
    int64_t signaled_ms; /* monotonic time at which its workers were asked to stop, by a signal; 0: they were not */
    int64_t killed_ms;   /* the same of the first SIGKILL after that */
    char reason[1024];
    int reason_len;                /* bytes of `reason` with why it stops; the rest is how */
    bool end_proposed, end_logged; /* the record of its end is proposed, is committed */
    int incidents_due;             /* records of incidents that are not in the log yet */

    int64_t deadline_ms; /* of the phase; 0: none */
    struct job_hang hang;
    struct job_incident incident;
    struct job_start start;
    struct job_folder *folders; /* of the last scan */
    int n_folders;
    bool retention_due; /* job_retention is to run */
    char checkpoint_error[512];
    bool disk_low; /* the checkpoint folder is low on space, and an incident reports it */

    struct job_profile profile;
    struct metrics metrics;
    struct job_totals totals;
    /* Metrics that other leaders received: dtd-io reads them from the file in the checkpoint folder. */
    enum job_history history;
    int64_t history_at;   /* offset in that file */
    uint64_t known_epoch; /* epoch and step of the last line that this node already had */
    int64_t known_step;
    struct buf io_lines; /* the newest metrics for dtd-io; a replaced dtd-io gets them again */
    size_t io_sent;      /* bytes of io_lines that were sent to this dtd-io */
    int64_t io_lines_ms; /* when the next ones may be sent */
    struct watch *watches;

    struct usage_windows usage_windows;
    struct stragglers stragglers;
    struct usage_sample usage_newest; /* the newest window; ranks 0: none */
    struct usage_file usage;
    enum job_history usage_history;             /* as `history`, of the file of usage in the checkpoint folder */
    int64_t usage_history_at, usage_history_ms; /* offset in it; when to give up waiting for an answer */
    struct buf io_usage;                        /* lines for dtd-io that were not sent yet */
    int64_t io_usage_ms;                        /* when the next ones may be sent */
    bool dirty; /* the watching clients have not been notified of the newest change */
};

/* ---- job.c: creation and state machines ---- */

/* Creates the job of an entry of the state, in PHASE_WAITING or PHASE_OVER. */
NODISCARD err_t job_new(struct jobs *jobs, const struct state_job *s, struct job **ret);
void job_free(struct job *j);
/* Takes every transition that is possible now. May be called at any time, but not from inside itself. */
void job_tick(struct job *j);
void job_show(struct job *j, enum job_state state, const char *why);
/* Ends the job as `end` with a reason; the first caller wins. `save`: workers save before they stop. */
void job_stop(struct job *j, enum state_end end, bool save, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Sets the deadline of the phase from now. 0: it is over; below 0: there is none. */
void job_deadline(struct job *j, int64_t ms);
/* The time that workers have to stop: that of the cancel, else run.grace_seconds. */
int64_t job_grace_ms(const struct job *j);
/* While it stops: time until its workers are killed; 0: they have been, or none has to stop. */
int64_t job_grace_left_ms(const struct job *j);
/* The last part of that time, in which workers of a training job exit after the command to quit. */
int64_t job_quit_ms(const struct job *j);
/* How long the job has run, in all its epochs; 0: it has not begun. */
int64_t job_ran_ms(struct job *j);
/* Its end is recorded only after its processes have ended. The log already has the request to cancel it, so a new
 * leader continues to stop it, with a new time of grace. */
bool job_ends_late(const struct job *j);
/* Replaces the part of the reason about how the job stops. */
void job_reason_how(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void job_move(struct job *j, enum job_phase to, const char *why);
/* The last step that was reported, or the step from which the epoch starts. */
int64_t job_step(const struct job *j);
bool job_past_deadline(const struct job *j);
/* Whether `pick` is false for every worker. */
bool job_none(const struct job *j, bool (*pick)(const struct job_worker *w));
/* It has no open command stream, or is being killed. */
bool job_worker_is_missing(const struct job_worker *w);
bool job_worker_is_not_ready(const struct job_worker *w);
/* START of j->epoch is sent to its workers, or was. */
bool job_in_epoch(const struct job *j);

/* ---- allocate.c: slots and GPUs ---- */

/* Allocates slots and GPUs, or returns false and sets the reason. Live processes keep their slots where possible. */
bool job_allocate(struct job *j);

/* ---- waiting.c ---- */

void jobs_queue_sort(struct jobs *jobs);
void jobs_queue_drop(struct jobs *jobs); /* to be called before a job is freed */
/* The job for which a waiting job has to wait, unless it may overtake; NULL: none. */
const struct job *job_ahead_of(const struct job *j);
bool job_may_overtake(struct job *j, const struct job *first);
void job_set_reason_behind(struct job *j, const struct job *o);
/* Sets the reason of a job that is not stopping. */
void job_set_reason(struct job *j, const char *text);
/* STEPPING with fewer workers than requested: looks for free slots now and then, and sets may_grow and the reason.
 * `after`: what precedes the growth, for the reason. */
void job_look_for_room(struct job *j, const char *after);
/* Ends the epoch so that the next one gets the free slots. No restart is counted. */
void job_grow(struct job *j);
/* Its GPU is unhealthy: its results cannot be trusted, and no process may start there. */
bool job_worker_is_sick(const struct job_worker *w);
/* Assigns a GPU to every worker that has none; false if too few are free, or a node has not reported its GPUs yet. */
bool job_take_gpus(struct job *j);
/* Marks the slots and GPUs of its workers as used. Every worker has a node. */
void job_place(struct job *j);
/* Frees its slots and GPUs, and orders its nodes to release its files. None of its processes runs any more. */
void job_release(struct job *j);

/* ---- layout.c: the layout of a job with parallel.auto ---- */

enum job_layout_known { LAYOUT_FITS, LAYOUT_PENDING, LAYOUT_NONE };
/* Whether the planner has a layout for `workers` ranks, whose nodes are numbered in `node`. If the answer is not known,
 * the search begins on a thread, and all jobs are ticked at its end. LAYOUT_NONE: layout.none has the reason. */
enum job_layout_known job_layout_look(struct job *j, const int *node, int workers);
/* Sets the layout for the slots that the job has got, for which job_layout_look has found one. */
NODISCARD err_t job_layout_take(struct job *j);
/* The epoch may begin: the job has its layout, or no parallel.auto. A start that another leader began has none yet. */
bool job_layout_ready(struct job *j);
/* Sets the layout of the newest epoch in the log. */
NODISCARD err_t job_layout_adopt(struct job *j, const struct state_epoch *e);
void job_layout_fini(struct job *j);

/* ---- process.c: processes and their connections ---- */

/* The dtd-io that lists folders and commits; NULL while the job has no slots. */
struct job_io *job_committer(const struct job *j);
/* Assigns a dtd-io to each node that has workers, and ends those of other nodes. */
NODISCARD err_t job_ios_assign(struct job *j);
/* It is absent or has ended. */
bool job_process_is_due(const struct job_process *p);
/* Sends the request to start it to its node. If the node cannot be reached, the next tick repeats the request. */
void job_process_start(struct job *j, struct job_process *p);
/* The same for a worker, with a GPU if it needs one. False: no GPU is free; the job has changed its phase, or waits. */
bool job_worker_start(struct job *j, struct job_worker *w);
/* Kills a process that runs but has had no command stream for longer than run.orphan_seconds. */
void job_process_watch_silence(struct job *j, struct job_process *p);
void job_process_child(struct job *j, struct job_process *p, const struct child *c);
/* The node's list is complete: processes that it does not name have ended. */
void job_node_listed(struct job *j, const struct node_view *a);
/* The node is lost: its processes count as ended. */
void job_node_lost(struct job *j, const struct node_view *a, double silent_ms, const char *seen);
void job_process_kill(struct job *j, struct job_process *p, int sig);
void job_process_lost(struct job *j, struct job_process *p);
bool job_workers_gone(const struct job *j);
bool job_ios_gone(const struct job *j);
/* "worker rank 1 (pid 4711) was killed by signal 9 (Killed)" */
void job_process_describe_exit(const struct job *j, const struct job_process *p, char *ret, size_t size);
/* Writes "worker rank 1, 3": those for which `pick` is true. Returns their number. */
int job_workers_name(const struct job *j, bool (*pick)(const struct job_worker *w), char *ret, size_t size);

/* ---- commands.c: commands to processes ---- */

/* job_kind.command of a managed job. */
void job_commands(struct job *j);
/* The job's end is committed, or cannot be: a full disk must not keep finished processes alive, so the end is recorded
 * when there is space. */
bool job_may_quit(const struct job *j);

/* ---- command.c: workers that are a command ---- */

void job_command_env_free(char **env, int n);
/* A process of the epoch runs but its store is gone. Ends the epoch; this does not count as a failure of the job. */
void job_command_stranded(struct job *j, const struct job_process *p);

/* ---- profile.c ---- */

/* Sends PROFILE to workers that have not received it; ends a profile whose epoch has ended. */
void job_profile_tick(struct job *j);
/* A worker has written its file, or `text` is the reason why not. */
void job_profile_written(struct job *j, int rank, uint64_t id, const char *text);

/* ---- epoch.c: losing an epoch, choosing and starting the next ---- */

/* Something ended the epoch, or the attempt at one: decides between the next epoch and the end of the job. */
void job_epoch_lost(struct job *j, double detect_ms, bool by_exit, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the epoch for a cause that is no failure of the job, so that no restart is counted. `seen`: the cause. */
void job_epoch_again(struct job *j, const char *seen);
/* ENDING: whether the next epoch has to wait because the last ones failed soon after their start. */
bool job_epoch_backs_off(struct job *j);
/* The previous leader ended the epoch with incident `by`, and may have counted a restart: continues the same incident.
 * Its duration is measured with the wall clocks of both leaders. */
void job_epoch_ended(struct job *j, const struct incident *by);
void job_epoch_propose(struct job *j);
/* Ends the epoch so that the next one gets other slots. `seen`: the reason. */
void job_epoch_resize(struct job *j, const char *seen);
/* The checkpoint of the epoch cannot be loaded. If it is damaged and an older one can be tried instead, ends the epoch,
 * without counting a restart, and returns true. */
bool job_epoch_unreadable(struct job *j, err_t err, const char *text);
/* Fails the job: a restart would not help. */
void job_epoch_fatal(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets resume_path to the checkpoint of resume_step. */
void job_epoch_find_resume(struct job *j);

/* ---- incident.c ---- */

/* Opens an incident, in the log at once; job_incident_decided and _recovered complete it. */
void job_incident_open(struct job *j, const char *seen, double detect_ms, bool by_exit);
/* Attaches the tail of a worker's log to the open incident. The log of a worker that exited by itself wins over that of
 * one that dtd killed. */
void job_incident_attach_log(struct job *j, const char *log, bool by_exit);
/* Attaches the error that worker `rank` recorded at `when_s` (seconds since 1970), if no worker recorded one earlier.
 * An error that is later than the incident is a consequence of it. */
void job_incident_attach_error(struct job *j, int rank, const char *error, int64_t when_s);
/* The job was submitted and has had no epoch: measures its first start. */
void job_incident_start(struct job *j);
/* A worker has loaded its state; see enum load_part. */
void job_incident_loaded(struct job *j, const double part_ms[LOAD_PARTS]);
void job_incident_decided(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void job_incident_recovered(struct job *j);
/* The job enters phase `to`: records how long the part of the recovery before it took. */
void job_incident_phase(struct job *j, enum job_phase to);
/* An incident that ends no epoch and is over at once; not while the job recovers from another. */
void job_incident_record(struct job *j, double detect_ms, const char *seen, const char *decided);
/* The same for a save that failed while training goes on. */
void job_incident_save_failed(struct job *j, const char *seen);
/* Workers were killed after their time of grace: completes the open incident, or records one with the cause `seen`. */
void job_incident_killed(struct job *j, const char *seen, const char *words);
/* Replaces the cause of the open incident by the exit of a process, which is more precise than the reports of its peers
 * that often arrive first. */
void job_incident_better_cause(struct job *j, const char *seen);

/* ---- catalog.c: checkpoints and their folders ---- */

/* After a scan: makes the catalog agree with the folders. */
void job_catalog_scanned(struct job *j);
/* The newest step of the current epoch that has a folder, else the step from which the epoch starts. dtd-io moves
 * folders of later steps away. */
int64_t job_io_step(const struct job *j);
void job_scan_forget(struct job *j);

/* ---- hang.c: hang detection ---- */

void job_hang_begin(struct job *j);
void job_hang_step(struct job *j);
/* Tick of STEPPING: ends the epoch if no report has arrived for too long. */
void job_hang_tick(struct job *j);

/* ---- usage.c: usage of ranks ---- */

/* Sends the lines that are due to the dtd-io that commits. */
void job_usage_send(struct job *j, struct rpc_call *committer);
/* Asks for the next lines of the file beside the checkpoints, if some may be missing here. */
void job_usage_ask(struct job *j, struct rpc_call *committer);
/* Lines of the file beside the checkpoints; "": there are no more. */
void job_usage_history(struct job *j, const char *text);
/* There will be no lines: writes what has waited for them. */
void job_usage_history_failed(struct job *j, const char *why);

/* ---- retention.c: retention ---- */

/* Asks dtd-io to remove the checkpoints that the rules do not keep. */
void job_retention(struct job *j);

/* ---- adopt.c: a new dtd-control or leader adopts live processes ---- */

/* As job_process_find. A job that was being started when the previous control exited has no epoch record with its
 * slots; the process then gets the rank that equals its slot. */
struct job_process *job_adopt_process(struct job *j, struct node_view *a, int slot);

#endif
