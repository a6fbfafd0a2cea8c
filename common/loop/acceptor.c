/* See acceptor.h. All sockets of an acceptor pause and resume together, because what makes accept fail (descriptors,
 * memory, the owner's limit) holds for all of them. */
#include "common/loop/acceptor.h"

#include "common/base/log.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static void socket_readable(uv_poll_t *poll, int status, int events);

void acceptor_pause(struct acceptor *a)
{
    for (int i = 0; i < a->n_fds; i++)
        uv_poll_stop(&a->polls[i]);
}

void acceptor_resume(struct acceptor *a)
{
    for (int i = 0; i < a->n_fds; i++)
        uv_poll_start(&a->polls[i], UV_READABLE, socket_readable);
}

static void retry_due(uv_timer_t *timer)
{
    acceptor_resume(timer->data);
}

/* ECONNABORTED concerns the one connection that its client closed while it waited. */
static void accept_failed(struct acceptor *a, int errnum)
{
    if (errnum == EAGAIN || errnum == EINTR || errnum == ECONNABORTED)
        return;
    log_error("accept failed server=%s error=\"%s\" retry_ms=%d", a->config.name, strerror(errnum), ACCEPTOR_RETRY_MS);
    acceptor_pause(a);
    uv_timer_start(&a->retry, retry_due, ACCEPTOR_RETRY_MS, 0);
}

/* An error that poll reports is not looked at: accept4 returns it. */
static void socket_readable(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct acceptor *a = poll->data;
    const struct acceptor_config *c = &a->config;
    for (int i = 0; i < c->accepts_per_turn && !a->closing; i++) {
        if (c->may_accept && !c->may_accept(c->owner)) {
            acceptor_pause(a);
            return;
        }
        struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
        socklen_t len = sizeof(from);
        int fd = accept4(a->fds[poll - a->polls], (struct sockaddr *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            accept_failed(a, errno);
            return;
        }
        c->accepted(c->owner, fd, &from);
    }
}

void acceptor_init(struct acceptor *a, const struct acceptor_config *config)
{
    *a = (struct acceptor){.config = *config, .open_handles = 1};
    uv_timer_init(config->loop, &a->retry);
    a->retry.data = a;
}

err_t acceptor_add(struct acceptor *a, int fd)
{
    assert(a->n_fds < ACCEPTOR_SOCKETS_MAX && !a->closing);
    uv_poll_t *poll = &a->polls[a->n_fds];
    int status = uv_poll_init(a->config.loop, poll, fd); /* sets O_NONBLOCK */
    if (status < 0)
        return err_from_errno(-status);
    poll->data = a;
    a->fds[a->n_fds++] = fd;
    a->open_handles++;
    uv_poll_start(poll, UV_READABLE, socket_readable);
    return OK;
}

static void handle_closed(uv_handle_t *handle)
{
    struct acceptor *a = handle->data;
    if (--a->open_handles == 0)
        a->closed(a->config.owner);
}

void acceptor_close(struct acceptor *a, void (*closed)(void *owner))
{
    assert(!a->closing);
    a->closing = true;
    a->closed = closed;
    for (int i = 0; i < a->n_fds; i++)
        uv_close((uv_handle_t *)&a->polls[i], handle_closed);
    uv_close((uv_handle_t *)&a->retry, handle_closed);
}
