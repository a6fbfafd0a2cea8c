/* All processes of jobs on this node: the supervisor's latest report about each, its cores, and the connection that
 * authenticated with its token. Leader and followers both need it: each node checks the tokens of its own processes
 * (Hello), and reports the list to a new leader.
 *
 * An entry exists from the request to start the process until its job is released or its slot gets another process; so
 * it remains after the process has exited. Loop thread; owned by struct local. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_PROCESSES_H
#define DTD_DAEMON_CONTROL_LOCAL_PROCESSES_H

#include "common/base/err.h"
#include "daemon/control/local/cores.h"
#include "daemon/supervisor/channel.h"

#include "daemon/control/local/sharing.h"
#include <stdbool.h>

#include <stdint.h>
#include <sys/types.h>

#define CHILD_LOG_BYTES (4u << 10) /* of a failed worker's log in its report: room for an error with a stack trace */
#define CHILD_CAUSE_BYTES 256
#define CHILD_OUT_OF_MEMORY_TEXT "the kernel killed it for lack of memory"

/* The reason why a process ended, if more is known than its status and signal. */
enum child_cause {
    CAUSE_UNKNOWN,
    CAUSE_OUT_OF_MEMORY, /* the kernel's out-of-memory killer */
    CAUSE_GPU,           /* its GPU is sick */
    CAUSE_OTHER,         /* another node reported the sentence in cause_text */
};

struct local;
struct peer; /* a connection; daemon/control/rpc/server.h */

struct child {
    struct child *next; /* in no order */
    uint64_t job;
    int slot;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    enum channel_state state; /* 0: the start was requested, and the supervisor has not answered yet */
    pid_t pid;
    int exit_status, exit_signal, error; /* as in channel.h */
    int64_t when_ns;                     /* time of the exit, on this node's monotonic clock */
    int device;                          /* a worker's GPU; -1: none */
    uint32_t uid;                        /* the user of the process; not used by a private dtd */
    char proc;                           /* state in /proc (R, S, D, T) when last looked at; 0: not looked at */
    const char *log;                     /* end of a failed worker's log, while its exit is reported; else NULL */
    int64_t log_bytes;                   /* limit of its log; 0: that of the node */
    const char *recorded;                /* what a failed command wrote to its error file (error_file.h); else NULL */
    int64_t recorded_ago_ms;             /* time since then; -1: unknown */
    uint64_t epoch;                      /* for which a command was started; 0: not known, or no command */
    bool stranded; /* a command that an earlier control started; its c10d store ended with that control */
    bool said;     /* used by leadership.c while it reports all processes */
    struct channel_limits limits; /* of its job */
    enum channel_oom oom;
    enum child_cause cause;
    char cause_text[CHILD_CAUSE_BYTES]; /* a sentence for messages; "": the cause is unknown */
    bool bound;                         /* `cpus` is set, even if it is empty */
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
    struct peer *peer; /* its connection; NULL: none */
};

struct children {
    struct child *head;
    struct cores cores;
    struct sharing sharing;
};

/* A request to start a process on this node. */
struct process_spawn {
    uint64_t job;
    int slot;     /* 0 .. slots-1, or CHANNEL_SLOT_IO */
    int slots;    /* of the job on this node; constant until the job is released */
    int workers;  /* of the job on this node in this epoch: they share its cores */
    int device;   /* a worker's GPU; -1: none */
    int threads;  /* number of cores for a worker; 0: an equal share */
    uint32_t uid; /* the user of the process */
    const uint8_t *token;
    char *const *env; /* "KEY=VALUE" */
    int n_env;
    const char *workdir;  /* of a worker; NULL or not absolute: none */
    char *const *command; /* of a command job; NULL: a managed job */
    int n_command;
    int64_t log_bytes;      /* limit of its log; 0: that of the node */
    uint64_t epoch;         /* of a command: the epoch that it is started for */
    const char *store_node; /* of a command: the node that has the epoch's c10d store; NULL: it has none, and `env` has
                               MASTER_PORT */
    int gpus;               /* of the job on this node */
    uint64_t gpu_set;       /* bit i: the job has GPU i there */
    int64_t memory_bytes;   /* run.memory */
    int64_t cores;          /* run.cores */
    const char *caller;     /* of a command: what it inherits (common/base/caller.h); NULL or "": the daemon's */
};

/* `dir`: the state directory. */
void local_processes_init(struct children *c, const char *dir);

/* Requests the process from the supervisor. A worker is bound to cores (cores.h): to those of the previous process of
 * its slot, unless its GPU is now in another NUMA node. A command is bound only if `threads` or `cores` is set, and to
 * `cores` only if the node has as many for all its workers. */
NODISCARD err_t local_process_spawn(struct local *l, const struct process_spawn *x);
/* Records a report of the supervisor about a process, and returns the entry. NULL: the report is about an earlier
 * process of the slot, or memory is exhausted. When a process has exited, its connection is closed. */
struct child *local_process_event(struct local *l, const struct channel_msg *m);
/* Removes the job's entries and closes its descriptors. `remove`: also removes its logs and metrics. While the job has
 * running processes here, nothing happens. */
NODISCARD err_t local_process_release(struct local *l, uint64_t job, bool remove);
/* Authenticates a process by its token and assigns it the connection `peer`; an older connection of the process is
 * closed. ERR_DENIED: no running process has this token, or the connection is another user's. */
NODISCARD err_t local_process_hello(struct local *l, uint64_t job, int slot, const void *token, size_t token_bytes,
                                    uint32_t uid, struct peer *peer);
/* The connection has been closed. */
void local_process_disconnected(struct local *l, struct peer *peer);
bool child_runs(const struct child *c);
/* The cause for a worker on GPU `device` of this node: "GPU 0 of n1 has uncorrectable memory errors (1)". False: the
 * GPU is not sick. */
bool local_process_gpu_cause(const struct local *l, int device, char ret[CHILD_CAUSE_BYTES]);
/* The process is a worker that exited with a signal or a status other than 0. */
bool child_failed(const struct child *c);
/* Reads the state of all running processes from /proc into `proc`. */
void local_processes_look(struct local *l);

#endif
