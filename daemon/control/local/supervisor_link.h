/* Control's end of the channel to the supervisor (daemon/supervisor/channel.h). Lives on the loop's thread; messages
 * that the socket does not take wait in order. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_SUPERVISOR_LINK_H
#define DTD_DAEMON_CONTROL_LOCAL_SUPERVISOR_LINK_H

#include "common/base/err.h"
#include "daemon/supervisor/channel.h"

#include <stdbool.h>
#include <uv.h>

struct sup_events {
    void (*child)(void *owner,
                  const struct channel_msg *m); /* started, ended or refused; to be acknowledged by sup_ack */
    void (*job)(void *owner, const struct channel_msg *m); /* of the list: it has descriptors there */
    void (*listed)(void *owner);                           /* the list has ended */
    void (*shutdown)(void *owner);                         /* stop the jobs, then sup_end */
    void (*reload)(void *owner, uint64_t number);          /* read the configuration again, then sup_beat */
    void (*lost)(void *owner);                             /* the supervisor is gone; so shall we be */
};

struct sup_out;
struct sup {
    uv_poll_t poll;
    int fd;
    const struct sup_events *events;
    void *owner;
    struct sup_out *head, **tail; /* not taken by the socket yet */
};

struct sup_spawn {
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

NODISCARD err_t sup_start(struct sup *s, uv_loop_t *loop, int fd, const struct sup_events *events, void *owner);
/* ERR_LIMIT: env is larger than CHANNEL_MAX_ENV. Answered by a `child` event. */
NODISCARD err_t sup_spawn(struct sup *s, const struct sup_spawn *spawn);
NODISCARD err_t sup_kill(struct sup *s, uint64_t job, int slot, int sig);
NODISCARD err_t sup_ack(struct sup *s, const struct channel_msg *child);
NODISCARD err_t sup_release(struct sup *s, uint64_t job);
NODISCARD err_t sup_list(struct sup *s);
/* We live; `status` for people, at most CHANNEL_MAX_ENV - 1 bytes. */
NODISCARD err_t sup_beat(struct sup *s, bool serves, uint64_t reloads, const char *status);
NODISCARD err_t sup_end(struct sup *s);

#endif
