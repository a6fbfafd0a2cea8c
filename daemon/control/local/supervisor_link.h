/* Control's end of the channel to the supervisor (daemon/supervisor/channel.h). Loop thread. Messages that the socket
 * cannot accept at once wait in a queue. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_SUPERVISOR_LINK_H
#define DTD_DAEMON_CONTROL_LOCAL_SUPERVISOR_LINK_H

#include "common/base/err.h"
#include "daemon/supervisor/channel.h"

#include <stdbool.h>
#include <uv.h>

struct supervisor_link_events {
    /* A process has started, exited or was refused; the owner acknowledges it by supervisor_link_ack. */
    void (*child)(void *owner, const struct channel_msg *m);
    /* An entry of the list: the supervisor holds descriptors of this job. */
    void (*job)(void *owner, const struct channel_msg *m);
    void (*listed)(void *owner); /* the list is complete */
    /* Stop the jobs, then call supervisor_link_end. */
    void (*shutdown)(void *owner);
    /* Read the configuration again, then report `number` by supervisor_link_heartbeat. */
    void (*reload)(void *owner, uint64_t number);
    void (*lost)(void *owner); /* the supervisor has exited; control has to exit, too */
};

struct supervisor_link_out;
struct supervisor_link {
    uv_poll_t poll;
    int fd;
    const struct supervisor_link_events *events;
    void *owner;
    struct supervisor_link_out *head, **tail; /* messages that wait for the socket */
};

struct supervisor_link_spawn {
    uint64_t job;
    int slot, slots; /* CHANNEL_SLOT_IO: the job's dtd-io */
    int device;      /* a worker's GPU; -1: none */
    uid_t uid;       /* the user of the process */
    const uint8_t *token;
    const uint8_t *cpus; /* CHANNEL_MAX_CPUS / 8 bytes, NULL: unbound */
    char *const *env;    /* "KEY=VALUE" */
    int n_env;
    const char *workdir;  /* NULL or not absolute: none */
    char *const *command; /* to execute; NULL: dt-worker, or dtd-io */
    int n_command;
    uint64_t epoch;    /* for which it is started */
    int64_t log_bytes; /* limit of its log; 0: that of the node */
    struct channel_limits limits;
};

NODISCARD err_t supervisor_link_start(struct supervisor_link *s, uv_loop_t *loop, int fd,
                                      const struct supervisor_link_events *events, void *owner);
/* Requests a process. The result is reported as a `child` event. ERR_LIMIT: env is larger than CHANNEL_MAX_ENV. */
NODISCARD err_t supervisor_link_spawn(struct supervisor_link *s, const struct supervisor_link_spawn *spawn);
NODISCARD err_t supervisor_link_kill(struct supervisor_link *s, uint64_t job, int slot, int sig);
NODISCARD err_t supervisor_link_ack(struct supervisor_link *s, const struct channel_msg *child);
NODISCARD err_t supervisor_link_release(struct supervisor_link *s, uint64_t job, bool remove);
NODISCARD err_t supervisor_link_list(struct supervisor_link *s);
/* Sends a heartbeat. `serves`: clients are served; `reloads`: number of the newest reload that was done; `status`: a
 * text for users, at most CHANNEL_MAX_ENV - 1 bytes. */
NODISCARD err_t supervisor_link_heartbeat(struct supervisor_link *s, bool serves, uint64_t reloads, const char *status);
/* Leaves out the bytes [from, to) of a slot's log, which belongs to `uid`. */
NODISCARD err_t supervisor_link_cut(struct supervisor_link *s, uint64_t job, int slot, uint32_t uid, int64_t from,
                                    int64_t to);
NODISCARD err_t supervisor_link_end(struct supervisor_link *s);

#endif
