/* The supervisor: parent of everything that dtd runs on a node, and owner of every descriptor that must survive them.
 * One thread, one poll loop, libc only. It decides nothing: control says what to start, the supervisor starts it, holds
 * its exit status until control acknowledges it, and starts control again when that dies or hangs.
 *
 * A private dtd is all one user. A system-wide one (--system) is started by root: control runs as the user `service`,
 * what belongs to a job as the user who submitted it; then only the supervisor writes into the state directory's
 * folders, so that nobody can lay a link there for it to follow. */
#ifndef DTD_DAEMON_SUPERVISOR_SUPERVISOR_H
#define DTD_DAEMON_SUPERVISOR_SUPERVISOR_H

#include "common/base/err.h"
#include "common/base/exec.h"
#include "common/base/notify.h"
#include "common/base/paths.h"
#include "common/base/user.h"
#include "daemon/supervisor/channel.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#define SV_MAX_JOBS 64
#define SV_MAX_CHILDREN 1024

/* What a job has on this node, whoever of its processes lives. */
struct sv_job {
    uint64_t id; /* 0: a free entry */
    bool due;    /* to be told to control */
    int slots;
    struct user owner;                     /* system-wide: who submitted it */
    int listener;                          /* io.sock */
    uint8_t io_token[CHANNEL_TOKEN_BYTES]; /* what its workers show to its io */
    int segment;                           /* shared by its workers */
    int arena[CHANNEL_MAX_SLOTS];
};

/* A child that runs, or whose end control has not acknowledged. */
struct sv_child {
    uint64_t job; /* 0: a free entry */
    int slot;
    bool due;
    pid_t pid;
    enum channel_state state;
    int exit_status, exit_signal, error, gpu;
    int64_t when_ns;
    uint64_t epoch;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
};

enum sv_phase {
    SV_SERVING,
    SV_STOPPING, /* control has been asked to stop the jobs */
    SV_ENDING,   /* SIGTERM to all that is left, then SIGKILL */
    SV_KILLING,
    SV_ENDED,
};

struct supervisor {
    char dir[PATH_STATE_DIR_MAX + 1];
    char run[PATH_STATE_DIR_MAX + 1]; /* where control.sock lies: dir, or /run/dtd */
    bool system;
    struct user service; /* system-wide: control's */
    char bin[PATH_MAX];  /* folder of our own executable: the other programs are beside it */
    const char *config;  /* NULL: none */
    int lock, listener, signals;
    int channel; /* -1 while control is not there */
    pid_t control;
    int64_t control_since_ms, control_retry_ms, control_backoff_ms;
    bool listed_due, shutdown_due, reload_due;
    struct notify notify;
    bool ready;               /* and the service manager knows */
    uint64_t reloads;         /* asked of this control */
    int64_t hang_ms;          /* a control that is silent for this long hangs; 0: never */
    int64_t beat_deadline_ms; /* of this control's next word */
    enum sv_phase phase;
    int64_t deadline_ms; /* of the phase */
    struct sv_job jobs[SV_MAX_JOBS];
    struct sv_child children[SV_MAX_CHILDREN];
};

/* Takes the lock, makes control.sock and the signal descriptor. */
NODISCARD err_t sv_init(struct supervisor *s, struct why *why);
/* Serves until told to end; the process's exit code. */
int sv_run(struct supervisor *s);

/* ---- jobs.c: descriptors of jobs ---- */
struct sv_job *sv_job_find(struct supervisor *s, uint64_t id);
/* A listening Unix socket at `path`, replacing what lies there; -1 with errno. */
int sv_listen(const char *path, mode_t mode);
/* Finds the job or makes its folder, io.sock, segment and arenas. Returns 0 or an errno: EPERM for root's jobs and
 * those of nobody that is known here. */
int sv_job_need(struct supervisor *s, const struct channel_msg *m, struct sv_job **ret);
void sv_job_release(struct supervisor *s, const struct channel_msg *m);
/* A sealed memfd that holds the child's ticket; -1 with errno. */
int sv_ticket(const struct supervisor *s, const struct sv_job *j, const uint8_t token[CHANNEL_TOKEN_BYTES]);
/* A file in the state directory to append to; /dev/null when it cannot be opened (a full disk stops no job).
 * System-wide it is `owner`'s and control may read it. */
int sv_log_open(const struct supervisor *s, const char *name, const struct user *owner);

/* ---- spawn.c: processes ---- */
/* exec_start of the program argv[0] beside our own. */
pid_t sv_exec(const struct supervisor *s, const struct exec *x);
/* The child that runs, or NULL. */
struct sv_child *sv_child_find(struct supervisor *s, uint64_t job, int slot);
/* Starts the child that `m` asks for and records it; a failure is recorded as CHANNEL_REFUSED. */
void sv_child_spawn(struct supervisor *s, const struct channel_msg *m);
void sv_children_signal(struct supervisor *s, int sig);
void sv_control_start(struct supervisor *s);
/* Collects every child that has ended. */
void sv_reap(struct supervisor *s);

/* ---- service.c: what the service manager hears, and whether control hangs ---- */
void sv_service_start(struct supervisor *s);
/* A control has just been started. */
void sv_service_expect(struct supervisor *s);
void sv_service_beat(struct supervisor *s, const struct channel_msg *m);
void sv_service_reload(struct supervisor *s);
void sv_service_stop(struct supervisor *s);
/* Kills a control that hangs. */
void sv_service_tick(struct supervisor *s);

/* ---- talk.c: the channel ---- */
void sv_channel_read(struct supervisor *s);
/* Says what is due, as far as the socket takes it; true when all has been said. */
bool sv_channel_flush(struct supervisor *s);
/* control is gone: nothing is due until the next one asks. */
void sv_channel_close(struct supervisor *s);

#endif
