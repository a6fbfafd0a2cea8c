/* Every process of a job on this node, whoever decides about it: what the supervisor has said of it, its cores, and the
 * connection that has shown its token. A node that does not lead needs it as much as one that does: Hello is checked
 * here and nowhere else, and a new leader is told from here what lives.
 *
 * An entry is there from the moment the process is asked for until its job is released or its slot starts another one,
 * its end included. Loop thread; owned by the node. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_PROCESSES_H
#define DTD_DAEMON_CONTROL_LOCAL_PROCESSES_H

#include "common/base/err.h"
#include "daemon/control/local/cores.h"
#include "daemon/supervisor/channel.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CHILD_LOG_BYTES (4u << 10)
#define CHILD_CAUSE_BYTES 256
#define CHILD_OUT_OF_MEMORY_TEXT "the kernel killed it for lack of memory"

/* Why a process ended, where it is known better than by status and signal. */
enum child_cause {
    CAUSE_UNKNOWN,
    CAUSE_OUT_OF_MEMORY, /* the operating system killed it */
    CAUSE_GPU,           /* its GPU is sick */
    CAUSE_OTHER,         /* as the sentence of another node says */
};

struct local;
struct peer; /* a connection, of rpc/ */

struct child {
    struct child *next; /* in no order */
    uint64_t job;
    int slot;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    enum channel_state state; /* 0: the supervisor has been asked and has not answered */
    pid_t pid;
    int exit_status, exit_signal, error; /* as in channel.h */
    int64_t when_ns;                     /* monotonic, this node's: the kernel's word of its end */
    int device;                          /* a worker's GPU; -1: none */
    uint32_t uid;                        /* whose it is; of no meaning to a private dtd */
    char proc;                           /* what it does, where somebody has looked: R, S, D, T; else 0 */
    const char *log;                     /* the end of a failed worker's log, while its end is reported; else NULL */
    uint64_t epoch;                      /* that a command was started for; 0: not known, or no command */
    bool stranded; /* a command of before this control began, whose store went with the control before it */
    bool said;     /* lead.c's, while it says them all */
    enum child_cause cause;
    char cause_text[CHILD_CAUSE_BYTES]; /* for people; "" where the cause is unknown */
    bool bound;
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
    struct peer *peer; /* its connection; NULL: none */
};

struct children {
    struct child *head;
    struct cores cores;
};

/* A process that is to be started on this node. */
struct process_spawn {
    uint64_t job;
    int slot,
        slots;    /* on that node: 0 .. slots-1, or CHANNEL_SLOT_IO; `slots` is the same as long as the job is there */
    int workers;  /* of the job on that node at this time: they share its cores */
    int device;   /* a worker's GPU; -1: none */
    int threads;  /* cores that a worker wants; 0: its share */
    uint32_t uid; /* whose process it is */
    const uint8_t *token;
    char *const *env; /* "KEY=VALUE" */
    int n_env;
    const char *workdir;  /* of a worker; NULL or not absolute: none */
    char *const *command; /* of a job with one; NULL: none */
    int n_command;
    uint64_t epoch;         /* of a command: that it begins in, and ... */
    const char *store_node; /* ... the node that has the epoch's store */
};

void local_processes_init(struct children *c);

/* Asks the supervisor. A worker is bound to cores here (cores.h): to those of the process that had its slot, unless its
 * GPU now lies in another NUMA node. */
NODISCARD err_t local_process_spawn(struct local *l, const struct process_spawn *x);
/* What the supervisor says of a child: noted, and the entry is returned; NULL: word of an earlier one in this slot, or
 * there is no memory. The end of a process takes its connection from it. */
struct child *local_process_event(struct local *l, const struct channel_msg *m);
/* The job has nothing more to do here: its entries and descriptors go. While it has processes it stays. */
NODISCARD err_t local_process_release(struct local *l, uint64_t job);
/* ERR_DENIED: not the token of a process that lives, or shown by another user. An older connection of the process is
 * dropped. */
NODISCARD err_t local_process_hello(struct local *l, uint64_t job, int slot, const void *token, size_t token_bytes,
                                    uint32_t uid, struct peer *peer);
/* A connection has gone. */
void local_process_disconnected(struct local *l, struct peer *peer);
bool child_runs(const struct child *c);
/* Why a worker of this node ends that has GPU `device`: "GPU 0 of n1 has uncorrectable memory errors (1)". False: that
 * GPU is well. */
bool local_process_gpu_cause(const struct local *l, int device, char ret[CHILD_CAUSE_BYTES]);
/* A worker that ended, and not well. */
bool child_failed(const struct child *c);
/* Looks at all of them in /proc. */
void local_processes_look(struct local *l);

#endif
