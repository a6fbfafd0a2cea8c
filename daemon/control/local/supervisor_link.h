/* Control's end of the channel to the supervisor (daemon/supervisor/channel.h). Lives on the loop's thread; messages
 * that the socket does not take wait in order. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_SUPERVISOR_LINK_H
#define DTD_DAEMON_CONTROL_LOCAL_SUPERVISOR_LINK_H

#include "common/base/err.h"
#include "daemon/supervisor/channel.h"

#include <stdbool.h>
#include <uv.h>

struct supervisor_link_events {
    void (*child)(
        void *owner,
        const struct channel_msg *m); /* started, ended or refused; to be acknowledged by supervisor_link_ack */
    void (*job)(void *owner, const struct channel_msg *m); /* of the list: it has descriptors there */
    void (*listed)(void *owner);                           /* the list has ended */
    void (*shutdown)(void *owner);                         /* stop the jobs, then supervisor_link_end */
    void (*reload)(void *owner, uint64_t number); /* read the configuration again, then supervisor_link_heartbeat */
    void (*lost)(void *owner);                    /* the supervisor is gone; so shall we be */
};

struct supervisor_link_out;
struct supervisor_link {
    uv_poll_t poll;
    int fd;
    const struct supervisor_link_events *events;
    void *owner;
    struct supervisor_link_out *head, **tail; /* not taken by the socket yet */
};

struct supervisor_link_spawn {
    uint64_t job;
    int slot, slots; /* CHANNEL_SLOT_IO: the job's dtd-io */
    int device;      /* a worker's GPU; -1: none */
    uid_t uid;       /* whose it is */
    const uint8_t *token;
    const uint8_t *cpus; /* CHANNEL_MAX_CPUS / 8 bytes, NULL: unbound */
    char *const *env;    /* "KEY=VALUE" */
    int n_env;
    const char *workdir;  /* NULL or not absolute: none */
    char *const *command; /* that it is to be; NULL: dt-worker, or dtd-io */
    int n_command;
    uint64_t epoch; /* that it is started for */
};

NODISCARD err_t supervisor_link_start(struct supervisor_link *s, uv_loop_t *loop, int fd,
                                      const struct supervisor_link_events *events, void *owner);
/* ERR_LIMIT: env is larger than CHANNEL_MAX_ENV. Answered by a `child` event. */
NODISCARD err_t supervisor_link_spawn(struct supervisor_link *s, const struct supervisor_link_spawn *spawn);
NODISCARD err_t supervisor_link_kill(struct supervisor_link *s, uint64_t job, int slot, int sig);
NODISCARD err_t supervisor_link_ack(struct supervisor_link *s, const struct channel_msg *child);
NODISCARD err_t supervisor_link_release(struct supervisor_link *s, uint64_t job);
NODISCARD err_t supervisor_link_list(struct supervisor_link *s);
/* We live; `status` for people, at most CHANNEL_MAX_ENV - 1 bytes. */
NODISCARD err_t supervisor_link_heartbeat(struct supervisor_link *s, bool serves, uint64_t reloads, const char *status);
NODISCARD err_t supervisor_link_end(struct supervisor_link *s);

#endif
