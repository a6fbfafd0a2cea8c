/* The supervisor: parent of every process that dtd runs on a node, and owner of every descriptor that must survive
 * those processes. One thread, one poll loop, libc only. The supervisor makes no decisions: it starts what control
 * requests, keeps each exit status until control acknowledges it, and restarts control when control exits or hangs.
 *
 * A private dtd runs entirely as one user. A system-wide dtd (--system) is started by root. Its control runs as the
 * user `service`, and the processes of a job run as the user who submitted it. Then only the supervisor writes into the
 * folders of the state directory, so that no other user can place a symbolic link there for it to follow. */
#ifndef DTD_DAEMON_SUPERVISOR_SUPERVISOR_H
#define DTD_DAEMON_SUPERVISOR_SUPERVISOR_H

#include "common/base/err.h"
#include "common/base/exec.h"
#include "common/base/notify.h"
#include "common/base/paths.h"
#include "common/base/user.h"
#include "daemon/supervisor/cgroup.h"
#include "daemon/supervisor/channel.h"
#include "daemon/supervisor/descend.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

/* A job has a worker or more, so as many as there are workers can run. The rest is for jobs that have ended and are not
 * released yet, and for processes whose exit control has not acknowledged. */
#define SV_MAX_JOBS (2 * CHANNEL_MAX_WORKERS)
#define SV_MAX_CHILDREN (4 * CHANNEL_MAX_WORKERS + CHANNEL_PROBE_SLOTS) /* each job may have a dtd-io besides */

/* The resources of a job on this node. They outlive its processes. */
struct sv_job {
    uint64_t id; /* 0: a free entry */
    bool due;    /* a JOB message must be sent */
    int slots;
    struct user owner; /* system-wide dtd: the user who submitted the job */
    struct channel_limits limits;
    int listener;                          /* io.sock */
    uint8_t io_token[CHANNEL_TOKEN_BYTES]; /* the job's workers present it to its dtd-io */
    int segment;                           /* shared by its workers */
    int arena[CHANNEL_MAX_SLOTS];
};

/* A child process that runs, or whose exit control has not acknowledged. It counts as running until everything that it
 * started has ended, too, because that may still use its GPU and its memory. */
struct sv_child {
    uint64_t job; /* 0: a free entry */
    int slot;
    bool due; /* a CHILD message must be sent */
    pid_t pid;
    enum channel_state state;
    bool is_reaped;  /* it has exited; what it started is being killed */
    bool is_late;    /* .. which takes so long that it was logged */
    int64_t job_oom; /* the job's count when it was started */
    enum channel_oom oom;
    int exit_status, exit_signal, error, gpu;
    int64_t when_ns;
    uint64_t epoch;
    int64_t log_bytes;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
};

/* Each entry of the table, free ones too. */
#define SV_EACH_CHILD(s, c) for (struct sv_child *c = (s)->children; c < (s)->children + SV_MAX_CHILDREN; c++)

#define SV_MAX_LEFT 64 /* jobs end one after another, and a report takes a few seconds */

/* A released job of which a process may be left that writes its report. */
struct sv_left {
    uint64_t job; /* 0: a free entry */
    int64_t deadline_ms;
};

/* When a program of dtd was started, and when to start it again after its exit. */
struct sv_restart {
    int64_t since_ms, retry_ms, backoff_ms;
};

enum sv_phase {
    SV_SERVING,
    SV_STOPPING, /* control has been asked to stop the jobs */
    SV_ENDING,   /* the remaining processes have received SIGTERM; SIGKILL follows */
    SV_KILLING,
    SV_ENDED,
};

struct supervisor {
    char dir[PATH_STATE_DIR_MAX + 1];
    char run[PATH_STATE_DIR_MAX + 1]; /* folder of control.sock: dir, or /run/dtd */
    bool system;
    struct user service; /* system-wide dtd: the user of control */
    char bin[PATH_MAX];  /* folder of this executable; the other programs are in the same folder */
    const char *config;  /* NULL: none */
    int lock, listener, signals;
    int channel; /* -1: no control process */
    pid_t control;
    struct sv_restart control_restart;
    bool has_web;         /* dtd-web is to run */
    struct user web_user; /* of a system-wide dtd */
    pid_t web;            /* -1: does not run */
    struct sv_restart web_restart;
    bool listed_due, shutdown_due, reload_due;
    struct notify notify;
    int cut_error;                 /* errno of the last cut of a log, to log each failure once */
    bool ready;                    /* READY=1 has been sent to the service manager */
    uint64_t reloads;              /* RELOAD messages for this control process */
    int64_t hang_ms;               /* control hangs when it sends no heartbeat for this long; 0: never */
    int64_t heartbeat_deadline_ms; /* for the next heartbeat of this control process */
    enum sv_phase phase;
    int64_t deadline_ms; /* end of the phase */
    struct cgroup_tree groups;
    struct descend_list seen; /* without control groups: the processes of the machine, at this look */
    int guard_error;          /* errno of the last guard of GPUs, to log each failure once */
    struct sv_left left[SV_MAX_LEFT];
    int64_t next_look_ms; /* at `left`; 0: it is empty */
    bool is_sole;         /* every orphan that this process gets descends from a job */
    int64_t next_kill_ms; /* when to look again at what exited children have started; 0: at nothing */
    struct sv_job jobs[SV_MAX_JOBS];
    struct sv_child children[SV_MAX_CHILDREN];
};

/* Takes the lock, creates control.sock and the signal descriptor. */
NODISCARD err_t sv_init(struct supervisor *s, struct why *why);
/* Serves until a signal or control ends it. Returns the exit code of the process. */
int sv_run(struct supervisor *s);

/* ---- jobs.c: descriptors of jobs ---- */
struct sv_job *sv_job_find(struct supervisor *s, uint64_t id);
/* Returns a listening Unix socket at `path`, replacing an existing file, or -1 with errno. */
int sv_listen(const char *path, mode_t mode);
/* Finds the job or creates its folder, io.sock, segment and arenas. Returns 0 or an errno: EPERM if the job's owner is
 * root or an unknown user. */
int sv_job_need(struct supervisor *s, const struct channel_msg *m, struct sv_job **ret);
void sv_job_release(struct supervisor *s, const struct channel_msg *m);
/* Returns a sealed memfd that holds the child's ticket, or -1 with errno. */
int sv_ticket(const struct supervisor *s, const struct sv_job *j, const uint8_t token[CHANNEL_TOKEN_BYTES]);
/* Opens a file in the state directory for appending, or /dev/null when that fails, since a full disk must not stop a
 * job. In a system-wide dtd the file belongs to `owner`, and control can read it. */
int sv_log_open(const struct supervisor *s, const char *name, const struct user *owner);
/* Cuts a worker's log, opened with the rights of its user. */
void sv_log_cut(struct supervisor *s, const struct channel_msg *m);

/* ---- spawn.c: processes ---- */
/* exec_start of the program argv[0] in the folder of this executable. */
pid_t sv_exec(const struct supervisor *s, const struct exec *x);
/* The running child, or NULL. */
struct sv_child *sv_child_find(struct supervisor *s, uint64_t job, int slot);
/* Starts the child that `m` requests and records it; a failure is recorded as CHANNEL_REFUSED. */
void sv_child_spawn(struct supervisor *s, const struct channel_msg *m);
void sv_children_signal(struct supervisor *s, int sig);
void sv_control_start(struct supervisor *s);
void sv_web_start(struct supervisor *s);
/* Collects every child process that has exited. */
void sv_reap(struct supervisor *s);

/* ---- contain.c: what a child has started ends with it ---- */
err_t sv_contain_start(struct supervisor *s, struct why *why);
/* Prepares the groups of the job and of the child that `m` requests. `ret`: for struct exec. Returns 0 or an errno. */
int sv_contain_spawn(struct supervisor *s, struct sv_job *j, const struct channel_msg *m, int *ret);
/* The child has been reaped: kills what it has started. sv_contain_tick repeats it until nothing runs there, and
 * then marks the child as exited. */
void sv_contain_ended(struct supervisor *s, struct sv_child *c);
void sv_contain_tick(struct supervisor *s);
/* The job has been released: removes its group, at the latest when its report is written. */
void sv_contain_release(struct supervisor *s, uint64_t job);

/* ---- service.c: messages to the service manager, detection of a control that hangs ---- */
void sv_service_start(struct supervisor *s);
/* Control has just been started: expect its first heartbeat. */
void sv_service_expect(struct supervisor *s);
void sv_heartbeat(struct supervisor *s, const struct channel_msg *m);
void sv_service_reload(struct supervisor *s);
void sv_service_stop(struct supervisor *s);
/* Kills a control that hangs. */
void sv_service_tick(struct supervisor *s);

/* ---- channel.c: messages from and to control ---- */
void sv_channel_read(struct supervisor *s);
/* Sends what is due, as far as the socket accepts it. Returns true when everything has been sent. */
bool sv_channel_flush(struct supervisor *s);
/* Control has exited: clears all `due` marks, since the next control process sends LIST. */
void sv_channel_close(struct supervisor *s);

#endif
