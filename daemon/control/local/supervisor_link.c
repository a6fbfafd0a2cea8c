/* Messages are small and the supervisor reads them at once, so the queue is nearly always empty. It exists because a
 * blocking send to a stopped supervisor would stop the loop. */
#include "daemon/control/local/supervisor_link.h"

#include "common/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct supervisor_link_out {
    struct supervisor_link_out *next;
    size_t bytes;
    uint8_t m[]; /* a channel_msg, truncated after its env */
};

static void on_poll(uv_poll_t *poll, int status, int events);

static void arm(struct supervisor_link *s)
{
    (void)uv_poll_start(&s->poll, UV_READABLE | (s->head ? UV_WRITABLE : 0), on_poll);
}

err_t supervisor_link_start(struct supervisor_link *s, uv_loop_t *loop, int fd,
                            const struct supervisor_link_events *events, void *owner)
{
    *s = (struct supervisor_link){.fd = fd, .events = events, .owner = owner};
    s->tail = &s->head;
    int rc = uv_poll_init(loop, &s->poll, fd);
    if (rc) {
        log_error("channel to the supervisor not usable error=%s", uv_strerror(rc));
        return err_from_errno(-rc);
    }
    arm(s);
    return OK;
}

/* ---- sending ---- */

/* False: the socket cannot accept the message now, or the supervisor has exited (on_poll then reports that). */
static bool send_now(struct supervisor_link *s, const void *m, size_t bytes)
{
    return send(s->fd, m, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

static err_t send_or_queue(struct supervisor_link *s, const struct channel_msg *m)
{
    size_t bytes = channel_msg_bytes(m);
    if (!s->head && send_now(s, m, bytes))
        return OK;
    struct supervisor_link_out *o = malloc(sizeof(*o) + bytes);
    if (!o)
        return ERR_NOMEM;
    o->next = NULL;
    o->bytes = bytes;
    memcpy(o->m, m, bytes);
    *s->tail = o;
    s->tail = &o->next;
    arm(s);
    return OK;
}

static void flush(struct supervisor_link *s)
{
    while (s->head && send_now(s, s->head->m, s->head->bytes)) {
        struct supervisor_link_out *o = s->head;
        s->head = o->next;
        if (!s->head)
            s->tail = &s->head;
        free(o);
    }
    arm(s);
}

/* False: the message has no room for it. */
static bool put_env(struct channel_msg *m, const char *key, const char *text)
{
    size_t n = strlen(key) + strlen(text) + 1;
    if (n > sizeof(m->env) - m->env_bytes)
        return false;
    snprintf(m->env + m->env_bytes, n, "%s%s", key, text);
    m->env_bytes += (uint32_t)n;
    return true;
}

err_t supervisor_link_spawn(struct supervisor_link *s, const struct supervisor_link_spawn *x)
{
    struct channel_msg m = {.kind = CHANNEL_SPAWN,
                            .job = x->job,
                            .slot = x->slot,
                            .slots = x->slots,
                            .gpu = x->device + 1,
                            .uid = x->uid,
                            .epoch = x->epoch,
                            .log_bytes = x->log_bytes,
                            .limits = x->limits};
    memcpy(m.token, x->token, sizeof(m.token));
    if (x->cpus)
        memcpy(m.cpus, x->cpus, sizeof(m.cpus));
    for (int i = 0; i < x->n_env; i++)
        if (!put_env(&m, "", x->env[i]))
            return ERR_LIMIT;
    if (x->workdir && x->workdir[0] == '/' && !put_env(&m, "PWD=", x->workdir))
        return ERR_LIMIT;
    for (m.n_args = 0; m.n_args < x->n_command; m.n_args++)
        if (m.n_args == CHANNEL_MAX_ARGS || !put_env(&m, "", x->command[m.n_args]))
            return ERR_LIMIT;
    return send_or_queue(s, &m);
}

err_t supervisor_link_kill(struct supervisor_link *s, uint64_t job, int slot, int sig)
{
    const struct channel_msg m = {.kind = CHANNEL_KILL, .job = job, .slot = slot, .signal = sig};
    return send_or_queue(s, &m);
}

err_t supervisor_link_ack(struct supervisor_link *s, const struct channel_msg *child)
{
    struct channel_msg m = {.kind = CHANNEL_ACK, .job = child->job, .slot = child->slot};
    memcpy(m.token, child->token, sizeof(m.token));
    return send_or_queue(s, &m);
}

err_t supervisor_link_release(struct supervisor_link *s, uint64_t job, bool remove)
{
    const struct channel_msg m = {.kind = CHANNEL_RELEASE, .job = job, .state = remove};
    return send_or_queue(s, &m);
}

err_t supervisor_link_list(struct supervisor_link *s)
{
    const struct channel_msg m = {.kind = CHANNEL_LIST};
    return send_or_queue(s, &m);
}

err_t supervisor_link_heartbeat(struct supervisor_link *s, bool serves, uint64_t reloads, const char *status)
{
    struct channel_msg m = {.kind = CHANNEL_HEARTBEAT, .state = serves, .job = reloads};
    return put_env(&m, "", status) ? send_or_queue(s, &m) : ERR_LIMIT;
}

err_t supervisor_link_cut(struct supervisor_link *s, uint64_t job, int slot, uint32_t uid, int64_t from, int64_t to)
{
    const struct channel_msg m = {.kind = CHANNEL_CUT, .job = job, .slot = slot, .uid = uid, .from = from, .to = to};
    return send_or_queue(s, &m);
}

err_t supervisor_link_end(struct supervisor_link *s)
{
    const struct channel_msg m = {.kind = CHANNEL_END};
    return send_or_queue(s, &m);
}

/* ---- receiving ---- */

static void dispatch(struct supervisor_link *s, const struct channel_msg *m)
{
    switch (m->kind) {
    case CHANNEL_CHILD:
        s->events->child(s->owner, m);
        break;
    case CHANNEL_JOB:
        s->events->job(s->owner, m);
        break;
    case CHANNEL_LISTED:
        s->events->listed(s->owner);
        break;
    case CHANNEL_SHUTDOWN:
        s->events->shutdown(s->owner);
        break;
    case CHANNEL_RELOAD:
        s->events->reload(s->owner, m->job);
        break;
    default:
        log_error("unknown message from the supervisor ignored kind=%u", m->kind);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct supervisor_link *s = (struct supervisor_link *)((char *)poll - offsetof(struct supervisor_link, poll));
    if (events & UV_WRITABLE)
        flush(s);
    for (;;) {
        struct channel_msg m = {0};
        ssize_t n = recv(s->fd, &m, sizeof(m), MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            (void)uv_poll_stop(poll);
            s->events->lost(s->owner);
            return;
        }
        if (channel_msg_valid(&m, (size_t)n))
            dispatch(s, &m);
        else
            log_error("malformed message from the supervisor ignored bytes=%zd", n);
    }
}
