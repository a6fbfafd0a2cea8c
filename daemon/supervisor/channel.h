/* The messages between dtd (the supervisor) and dtd-control over descriptor 3 of control. Each packet of the
 * SOCK_SEQPACKET pair is one message, a fixed C struct: both ends are built together, and the supervisor parses nothing
 * else.
 *
 * (job, slot) names a child process. The token that control made for the child's ticket distinguishes it from its
 * predecessors. The supervisor keeps the record of a child, including its exit status, until control acknowledges it. A
 * control process that has just started sends LIST and receives every record that has not been acknowledged. Nothing
 * here blocks: the supervisor marks what it has to send and sends it when the socket accepts it. */
#ifndef DTD_DAEMON_SUPERVISOR_CHANNEL_H
#define DTD_DAEMON_SUPERVISOR_CHANNEL_H

#include "common/base/log_mark.h"

#include <stddef.h>
#include <stdint.h>

#define CHANNEL_FD 3          /* in dtd-control */
#define CHANNEL_LISTENER_FD 4 /* in dtd-control: control.sock */
#define CHANNEL_TOKEN_BYTES 32
#define CHANNEL_SLOT_IO (-1)         /* the slot of a job's dtd-io */
#define CHANNEL_MAX_SLOTS 256        /* workers of one job on one node; its dtd-io inherits a descriptor for each */
#define CHANNEL_MAX_WORKERS 512      /* workers of all jobs on one node: the limit of `slots` in the configuration */
#define CHANNEL_JOB_PROBE UINT64_MAX /* not a job: its children examine the GPUs and write the result to files: */
#define CHANNEL_SLOT_GPUS 0          /* `dt-worker --probe`, probe.json */
#define CHANNEL_SLOT_HEALTH 1        /* `dt-worker --health`, health.json */
#define CHANNEL_PROBE_SLOTS 2
#define CHANNEL_MAX_CPUS 1024 /* EXEC_MAX_CPUS */
#define CHANNEL_MAX_ARGS 1024
/* Begins a line in the log of a slot, before the output of each process but the first. */
#define CHANNEL_LOG_MARK LOG_MARK
#define CHANNEL_MAX_ENV 65536 /* a process's environment and command */

enum channel_kind {
    /* control to supervisor */
    CHANNEL_SPAWN = 1, /* job, slot, slots, token, uid, log_bytes, limits; for a worker gpu, cpus, env (PWD: its
                          folder), n_args */
    CHANNEL_KILL,      /* job, slot, signal: sent to the child's process group */
    CHANNEL_RELEASE,   /* job: close its arenas, segment and socket; state 1: remove its folder, too; ignored while the
                          job has children */
    CHANNEL_LIST,      /* answered by JOB and CHILD messages and then LISTED */
    CHANNEL_ACK,       /* job, slot, token: control has recorded the exit; drop the record */
    CHANNEL_END,       /* stop every child and exit */
    CHANNEL_CUT,       /* job, slot, uid, from, to: leave out this part of the slot's log (common/base/log_cut.h) */
    CHANNEL_HEARTBEAT, /* state: 1 while control serves, job: number of the last RELOAD done, env: status text */
    /* supervisor to control */
    CHANNEL_CHILD = 64, /* job, slot, token, pid, state and the fields of that state; also the answer to SPAWN */
    CHANNEL_JOB,        /* job, slots: the supervisor holds descriptors of this job */
    CHANNEL_LISTED,
    CHANNEL_SHUTDOWN, /* the supervisor received SIGTERM: stop the jobs, then send END */
    CHANNEL_RELOAD,   /* job: a sequence number. Read the configuration again, then send the number in a HEARTBEAT */
};

enum channel_state {
    CHANNEL_RUNNING = 1,
    CHANNEL_EXITED,  /* with all that it started; exit_status, or exit_signal when that is not 0; when_ns; oom */
    CHANNEL_REFUSED, /* the child was not started: error (an errno), when_ns */
};

/* Limits of a job's processes on this node, all together, in the job's control group. */
struct channel_limits {
    int64_t memory_bytes;    /* 0: none */
    uint8_t memory_required; /* the job asks for the limit: without it, its processes are not started */
    uint8_t memory_is_share; /* it is the job\'s share of the node, and not run.memory */
    uint8_t gpu_guard;       /* the job may open no other GPUs than these: */
    uint64_t gpu_minors;     /* bit m: /dev/nvidiaM */
    int32_t cores;           /* 0: none; a job that asks for a limit is not started without it */
    int32_t workers;         /* share of the CPU time, while other jobs want it, too: so many workers' */
    int32_t processes;       /* and threads; 0: any number */
};

/* Whether the kernel killed a process, or one that it started, for lack of memory. */
enum channel_oom {
    CHANNEL_OOM_NO,
    CHANNEL_OOM_LIMIT,   /* the job had reached limits.memory_bytes */
    CHANNEL_OOM_MACHINE, /* the memory of the machine was used up, or that of dtd's own control group */
};

struct channel_msg {
    uint32_t kind;
    int32_t slot;
    uint64_t job;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    int32_t slots;
    int32_t signal;
    int32_t pid;
    int32_t state;
    int32_t exit_status, exit_signal, error;
    int32_t gpu;                        /* of a worker: 1 + the GPU's index; 0: none */
    uint32_t uid;                       /* owner of the job; a private dtd ignores it */
    int64_t when_ns;                    /* monotonic time at which the supervisor received SIGCHLD */
    uint8_t cpus[CHANNEL_MAX_CPUS / 8]; /* bit c: core c; none set: unbound */
    uint64_t epoch;                     /* the epoch for which a command is started; 0: not a command */
    int64_t log_bytes;                  /* limit of its log, kept for the next control; 0: that of the node */
    int64_t from, to;                   /* CUT: offsets in the log */
    struct channel_limits limits;       /* of the job: SPAWN, CHILD */
    int32_t oom;                        /* enum channel_oom, of a child that has exited */
    int32_t n_args;                     /* number of strings at the end of env that are a command; 0: run dt-worker */
    uint32_t env_bytes;
    char env[CHANNEL_MAX_ENV]; /* "KEY=VALUE\0" .., "ARGUMENT\0" .. */
};

/* dt-worker's option for a child of CHANNEL_JOB_PROBE; NULL: no such slot. Without its dashes the option is also the
 * name of the file. */
static inline const char *channel_probe(int slot)
{
    return slot == CHANNEL_SLOT_GPUS ? "--probe" : slot == CHANNEL_SLOT_HEALTH ? "--health" : NULL;
}

/* The socket carries only the used part of `env`. */
static inline size_t channel_msg_bytes(const struct channel_msg *m)
{
    return offsetof(struct channel_msg, env) + m->env_bytes;
}

/* A receiver checks this before it reads any other field. */
static inline int channel_msg_valid(const struct channel_msg *m, size_t len)
{
    return len >= offsetof(struct channel_msg, env) && m->env_bytes <= CHANNEL_MAX_ENV && len == channel_msg_bytes(m) &&
           (m->env_bytes == 0 || m->env[m->env_bytes - 1] == '\0') && m->slot >= CHANNEL_SLOT_IO &&
           m->slot < CHANNEL_MAX_SLOTS && m->slots >= 0 && m->slots <= CHANNEL_MAX_SLOTS && m->gpu >= 0 &&
           m->n_args >= 0 && m->n_args <= CHANNEL_MAX_ARGS && m->limits.memory_bytes >= 0 && m->limits.cores >= 0 &&
           m->limits.workers >= 0 && m->limits.workers <= CHANNEL_MAX_SLOTS && m->limits.processes >= 0;
}

#endif
