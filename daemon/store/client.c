/* One connection. Its socket is read once per turn of the loop, at most STORE_READ_BYTES, and the answers to these
 * requests are sent with one write. Bytes that the socket does not accept stay in `out`.
 *
 *   readable -> store_client_feed -> (wire_next -> serve) .. -> send_out
 *                    \-> held back (`out` is full, or a MULTI_GET is half answered): the rest of the input is kept, and
 *                        the socket is polled for writing only
 *   writable -> send_out -> store_client_feed of the rest
 *   woken by another client's request -> list of ready clients -> send_ready at the end of the turn
 *
 * A client that fails while another client's request is served is closed at the end of the turn. */
#include "common/base/log.h"
#include "daemon/store/server_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEPT_BYTES 4096     /* memory that an empty output buffer keeps for reuse */
#define SENDS_PER_TURN 1024 /* to woken clients; bounds the length of a turn of the loop */

/* ---- close ---- */

static void poll_closed(uv_handle_t *handle)
{
    struct store_client *c = handle->data;
    struct store_server *s = c->server;
    free(c);
    store_server_handle_gone(s);
}

static void leave_news(struct store_client *c)
{
    if (!c->greeted)
        TAILQ_REMOVE(&c->server->news, c, of_new);
    c->greeted = true;
}

static void leave_begun(struct store_client *c)
{
    if (c->has_begun)
        TAILQ_REMOVE(&c->server->begun, c, of_new);
    c->has_begun = false;
}

void store_client_close(struct store_client *c)
{
    struct store_server *s = c->server;
    if (c->closing)
        return;
    c->closing = true;
    table_wait_cancel(s->table, &c->waiter);
    leave_news(c);
    leave_begun(c);
    if (c->ready)
        TAILQ_REMOVE(&s->ready, c, of_ready);
    LIST_REMOVE(c, of_all);
    wire_fini(&c->wire);
    bytebuf_fini(&c->out);
    bytebuf_fini(&c->rest);
    bytebuf_fini(&c->asked);
    uv_close((uv_handle_t *)&c->poll, poll_closed);
    close(c->fd);
    store_listener_connection_closed(&s->listener);
}

void store_client_break(struct store_client *c, const char *reason)
{
    if (c->closing)
        return;
    if (log_limit_line(&c->server->listener.lines, "store connections closed"))
        log_warn("store connection closed store=%s pid=%u op=%s why=\"%s\"", c->server->listener.name, c->pid,
                 c->wire.started ? wire_op_name(c->wire.op) : "none", reason);
    c->server->stats.broken++;
    store_client_close(c);
}

static const char *reason_of(err_t err)
{
    switch (err) {
    case ERR_LIMIT:
        return "the store is full";
    case ERR_INVALID:
        return "ADD to a value that is not a number";
    case ERR_PROTO:
        return "a second wait before the end of the first";
    default:
        return err_text(err);
    }
}

/* ---- output ---- */

static size_t unsent(const struct store_client *c)
{
    return c->out.len - c->sent;
}

/* True: the client is not read or served until it has received its answers. */
static bool held_back(const struct store_client *c)
{
    return c->answering || unsent(c) >= STORE_OUTPUT_HIGH_BYTES;
}

/* Moves the unsent bytes to the front when at least as many have been sent, so that no more bytes are moved than sent.
 */
static void forget_sent(struct store_client *c)
{
    if (c->sent < unsent(c))
        return;
    memmove(c->out.data, c->out.data + c->sent, unsent(c));
    c->out.len -= c->sent;
    c->sent = 0;
}

/* False: the connection has been closed. */
static bool send_out(struct store_client *c)
{
    while (unsent(c)) {
        ssize_t n = send(c->fd, c->out.data + c->sent, unsent(c), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n < 0) {
            log_debug("store connection lost store=%s pid=%u why=\"%s\"", c->server->listener.name, c->pid,
                      strerror(errno));
            store_client_close(c);
            return false;
        }
        c->sent += (size_t)n;
        if (unsent(c)) {
            forget_sent(c);
            return true;
        }
    }
    c->sent = 0;
    bytebuf_clear(&c->out, KEPT_BYTES);
    return true;
}

static void polled(uv_poll_t *poll, int status, int events);

static void watch(struct store_client *c)
{
    int events = (held_back(c) || c->rest.len ? 0 : UV_READABLE) | (unsent(c) || c->rest.len ? UV_WRITABLE : 0);
    if (events == c->events)
        return;
    c->events = events;
    uv_poll_start(&c->poll, events, polled);
}

/* ---- input ---- */

static void greet(struct store_client *c)
{
    if (!c->greeted)
        leave_news(c);
}

/* Serves until the input ends or the client is held back. False: the connection has been closed. */
static void note_begun(struct store_client *c);

static bool serve_all(struct store_client *c, struct byte_view *in)
{
    struct wire_request r;
    err_t err = serve_asked(c);
    while (!err && !held_back(c)) {
        enum wire_result result = wire_next(&c->wire, in, &r);
        if (result == WIRE_MORE) {
            note_begun(c);
            return true;
        }
        if (result == WIRE_BROKEN) {
            store_client_break(c, c->wire.reason);
            return false;
        }
        greet(c);
        if (!r.left)
            leave_begun(c);
        err = serve(c, &r);
    }
    if (err)
        store_client_break(c, reason_of(err));
    return !err;
}

/* Keeps the input that has not been served. It is already in `rest`, or is copied there. */
static err_t rest_keep(struct store_client *c, struct byte_view in)
{
    if (c->rest.len) {
        c->rest_at = c->rest.len - in.len;
        if (!in.len) {
            c->rest_at = 0;
            bytebuf_clear(&c->rest, 0);
        }
        return OK;
    }
    return in.len ? bytebuf_add(&c->rest, in.data, in.len) : OK;
}

void store_client_feed(struct store_client *c, struct byte_view in)
{
    if (!serve_all(c, &in))
        return;
    err_t err = rest_keep(c, in);
    if (err) {
        store_client_break(c, reason_of(err));
        return;
    }
    if (send_out(c))
        watch(c);
}

static void client_continue(struct store_client *c)
{
    if (!send_out(c))
        return;
    if (unsent(c) >= STORE_OUTPUT_HIGH_BYTES)
        watch(c);
    else if (c->rest.len)
        store_client_feed(c, (struct byte_view){c->rest.data + c->rest_at, c->rest.len - c->rest_at});
    else
        store_client_feed(c, (struct byte_view){NULL, 0});
}

/* False: there was no input, or the connection has been closed. */
static bool read_in(struct store_client *c)
{
    struct store_server *s = c->server;
    ssize_t n = recv(c->fd, s->scratch, sizeof(s->scratch), MSG_DONTWAIT);
    if (n > 0)
        store_client_feed(c, (struct byte_view){s->scratch, (size_t)n});
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        store_client_close(c);
    return n > 0 && !c->closing;
}

/* The peer has reset the connection. The requests that it sent before are still served: a client may SET a value and
 * exit without reading all answers. */
static void read_last(struct store_client *c)
{
    while (!held_back(c) && !c->rest.len)
        if (!read_in(c))
            break;
    store_client_close(c);
}

static void polled(uv_poll_t *poll, int status, int events)
{
    struct store_client *c = poll->data;
    if (status < 0)
        read_last(c);
    else if (events & UV_WRITABLE)
        client_continue(c);
    else
        read_in(c);
}

/* ---- clients woken by requests of others ---- */

static void send_ready(struct store_server *s)
{
    struct store_client *c;
    for (int i = 0; i < SENDS_PER_TURN && (c = TAILQ_FIRST(&s->ready)); i++) {
        TAILQ_REMOVE(&s->ready, c, of_ready);
        c->ready = false;
        if (c->failed)
            store_client_break(c, c->failed);
        else if (send_out(c))
            watch(c);
    }
}

static void turn_over(uv_check_t *check)
{
    struct store_server *s = check->data;
    send_ready(s);
    if (!TAILQ_EMPTY(&s->ready) || s->closing)
        return;
    uv_check_stop(&s->check);
    uv_idle_stop(&s->idle);
}

/* An idle handle that is active keeps the loop from sleeping. */
static void keep_awake(uv_idle_t *idle)
{
    (void)idle;
}

static void woken(struct table_waiter *w)
{
    struct store_client *c = (struct store_client *)(void *)((char *)w - offsetof(struct store_client, waiter));
    struct store_server *s = c->server;
    if (serve_woken(c))
        c->failed = "the store is full";
    if (c->ready)
        return;
    c->ready = true;
    TAILQ_INSERT_TAIL(&s->ready, c, of_ready);
    if (s->closing || uv_is_active((uv_handle_t *)&s->check))
        return;
    uv_check_start(&s->check, turn_over);
    uv_idle_start(&s->idle, keep_awake);
}

/* ---- open ---- */

static void expire(uv_timer_t *timer);

static void wake_at(struct store_server *s, uint64_t due)
{
    uint64_t now = uv_now(s->loop);
    if (!uv_is_active((uv_handle_t *)&s->greet) || due < s->greet_due)
        uv_timer_start(&s->greet, expire, due > now ? due - now : 0, 0);
    else
        return;
    s->greet_due = due;
}

/* All clients of a list have the same time limit, so that it is ordered by deadline. */
static void expire_list(struct store_server *s, struct store_client_list *list, const char *why)
{
    struct store_client *c;
    while ((c = TAILQ_FIRST(list)) && c->due <= uv_now(s->loop))
        store_client_break(c, why);
    if (c)
        wake_at(s, c->due);
}

static void expire(uv_timer_t *timer)
{
    struct store_server *s = timer->data;
    expire_list(s, &s->news, "no request within the time limit");
    expire_list(s, &s->begun, "a request that began was not completed within the time limit");
}

static void await_greeting(struct store_client *c)
{
    struct store_server *s = c->server;
    c->due = uv_now(s->loop) + s->handshake_ms;
    wake_at(s, c->due);
    TAILQ_INSERT_TAIL(&s->news, c, of_new);
}

/* The input has ended. A client without its first request has a time limit already. */
static void note_begun(struct store_client *c)
{
    struct store_server *s = c->server;
    if (!c->greeted || !wire_in_request(&c->wire) || c->has_begun)
        return;
    c->has_begun = true;
    c->due = uv_now(s->loop) + s->request_ms;
    wake_at(s, c->due);
    TAILQ_INSERT_TAIL(&s->begun, c, of_new);
}

err_t store_client_open(struct store_server *s, int fd)
{
    struct store_client *c = calloc(1, sizeof(*c));
    int status = c ? uv_poll_init(s->loop, &c->poll, fd) : UV_ENOMEM; /* sets O_NONBLOCK */
    if (status < 0) {
        free(c);
        close(fd);
        return err_from_errno(-status);
    }
    c->server = s;
    c->fd = fd;
    c->poll.data = c;
    c->waiter.woken = woken;
    c->out.budget = c->rest.budget = c->asked.budget = &s->budget;
    wire_init(&c->wire, &s->budget);
    LIST_INSERT_HEAD(&s->all, c, of_all);
    s->open_handles++;
    s->listener.connections++;
    s->stats.accepted++;
    await_greeting(c);
    watch(c);
    return OK;
}
