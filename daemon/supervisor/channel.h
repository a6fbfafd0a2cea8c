/* What dtd (the supervisor) and dtd-control say to each other over descriptor 3 of control: one message per packet of a
 * SOCK_SEQPACKET pair, a fixed C struct, because both ends are built together and the supervisor parses nothing else.
 *
 * A child is named by (job, slot) and told apart from its predecessors by the token that control made for its ticket.
 * The supervisor keeps what it knows of a child, the exit status included, until control acknowledges it; a control
 * process that has just started asks LIST and is told everything that has not been acknowledged. Nothing here blocks:
 * the supervisor marks what it has to say and says it when the socket takes it. */
#ifndef DTD_DAEMON_SUPERVISOR_CHANNEL_H
#define DTD_DAEMON_SUPERVISOR_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#define CHANNEL_FD 3          /* in dtd-control */
#define CHANNEL_LISTENER_FD 4 /* in dtd-control: control.sock */
#define CHANNEL_TOKEN_BYTES 32
#define CHANNEL_SLOT_IO (-1)         /* the slot of a job's dtd-io */
#define CHANNEL_MAX_SLOTS 256        /* workers of one job on one node */
#define CHANNEL_JOB_PROBE UINT64_MAX /* its children look at GPUs, and write what they see into files: */
#define CHANNEL_SLOT_GPUS 0          /* `dt-worker --probe`, probe.json */
#define CHANNEL_SLOT_HEALTH 1        /* `dt-worker --health`, health.json */
#define CHANNEL_PROBE_SLOTS 2
#define CHANNEL_MAX_CPUS 1024 /* EXEC_MAX_CPUS */
#define CHANNEL_MAX_ARGS 1024
#define CHANNEL_MAX_ENV 65536 /* a process's environment and command */

enum channel_kind {
    /* control to supervisor */
    CHANNEL_SPAWN = 1, /* job, slot, slots, token, uid; a worker's gpu, cpus and env, whose PWD is entered; n_args */
    CHANNEL_KILL,      /* job, slot, signal: to the child's process group */
    CHANNEL_RELEASE,   /* job: its arenas, segment and socket go; refused while it has children */
    CHANNEL_LIST,      /* answered by JOB and CHILD messages and LISTED */
    CHANNEL_ACK,       /* job, slot, token: the exit is known, forget it */
    CHANNEL_END,       /* stop every child and end */
    CHANNEL_BEAT, /* control's loop turns: state 1 when it serves, job: the last RELOAD it has done, env: its status */
    /* supervisor to control */
    CHANNEL_CHILD = 64, /* job, slot, token, pid, state and what belongs to it; also the answer to SPAWN */
    CHANNEL_JOB,        /* job, slots: it has descriptors here */
    CHANNEL_LISTED,
    CHANNEL_SHUTDOWN, /* the supervisor was told to end: stop the jobs, then say END */
    CHANNEL_RELOAD,   /* job, a number: read the configuration again, and say the number in a BEAT */
};

enum channel_state {
    CHANNEL_RUNNING = 1,
    CHANNEL_EXITED,  /* exit_status, or exit_signal when that is not 0; when_ns */
    CHANNEL_REFUSED, /* it was not started: error is an errno, when_ns */
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
    int32_t gpu;                        /* of a worker: 1 + its index; 0: none */
    uint32_t uid;                       /* whose job it is; of no meaning to a private dtd */
    int64_t when_ns;                    /* monotonic clock at the kernel's word */
    uint8_t cpus[CHANNEL_MAX_CPUS / 8]; /* bit c: core c; none set: unbound */
    uint64_t epoch;                     /* that a command is started for; 0: no command */
    int32_t n_args;                     /* the last ones of env: a command, the worker's program; 0: it is dt-worker */
    uint32_t env_bytes;
    char env[CHANNEL_MAX_ENV]; /* "KEY=VALUE\0" .., "ARGUMENT\0" .. */
};

/* dt-worker's option for a child of CHANNEL_JOB_PROBE; behind its dashes it is the name of the file. NULL: no such
 * slot.
 */
static inline const char *channel_probe(int slot)
{
    return slot == CHANNEL_SLOT_GPUS ? "--probe" : slot == CHANNEL_SLOT_HEALTH ? "--health" : NULL;
}

/* Only as much of `env` as is used goes over the socket. */
static inline size_t channel_msg_bytes(const struct channel_msg *m)
{
    return offsetof(struct channel_msg, env) + m->env_bytes;
}

/* What a receiver checks before it looks at anything else. */
static inline int channel_msg_valid(const struct channel_msg *m, size_t len)
{
    return len >= offsetof(struct channel_msg, env) && m->env_bytes <= CHANNEL_MAX_ENV && len == channel_msg_bytes(m) &&
           (m->env_bytes == 0 || m->env[m->env_bytes - 1] == '\0') && m->slot >= CHANNEL_SLOT_IO &&
           m->slot < CHANNEL_MAX_SLOTS && m->slots >= 0 && m->slots <= CHANNEL_MAX_SLOTS && m->gpu >= 0 &&
           m->n_args >= 0 && m->n_args <= CHANNEL_MAX_ARGS;
}

#endif
