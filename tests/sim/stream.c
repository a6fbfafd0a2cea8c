/* An end has the chunks on their way to it, the chunks that have arrived, and the callbacks of its process. Deliveries
 * are events of the network (host 0); callbacks are events of the process that owns the end. */
#include "tests/sim/stream.h"

#include "daemon/supervisor/channel.h"
#include "tests/sim/bugs.h"
#include "tests/sim/net.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_FD 1000             /* above all real descriptors of the process */
#define LOCAL_US 150              /* a local socket */
#define RETRY_US (40 * US_PER_MS) /* interval for testing whether a held stream may continue */
#define MAX_ENDS (65536 + 512 * MAX_HOSTS)

struct chunk {
    TAILQ_ENTRY(chunk) link;
    int64_t at_us;
    int status; /* 0: bytes; UV_EOF or UV_ECONNRESET: the last chunk */
    size_t len, taken;
    uint8_t bytes[];
};
TAILQ_HEAD(chunks, chunk);

struct writing {
    TAILQ_ENTRY(writing) link;
    struct end *end;
    uv_write_t *req;
    struct event *event;
    size_t bytes;
};

struct end {
    int fd, copies;                       /* made by dup, with the same number */
    bool is_deaf;                         /* by a planted bug */
    bool is_open, is_packets, is_waiting; /* is_waiting: for an accept, possibly by the computer's next process */
    struct host *host;                    /* the owner, or the computer on which it waits to be accepted */
    struct end *peer;                     /* NULL: closed */
    struct chunks coming, here;
    struct event *arrival;
    int64_t last_us, stalled_until, held_since;
    end_fn receive; /* receives packets at the world's end of a channel; NULL at all others */
    void *arg;
    uv_stream_t *stream;
    uv_alloc_cb alloc;
    uv_read_cb read;
    uv_poll_t *poll;
    uv_poll_cb polled;
    bool is_notify_queued; /* an event for its process is queued */
    size_t queued;
    TAILQ_HEAD(, writing) writes;
    TAILQ_HEAD(, end) backlog;
    TAILQ_ENTRY(end) waiting;
    TAILQ_ENTRY(end) of_host;
};

bool (*stream_has_no_descriptor)(void);

static struct {
    struct end *ends[MAX_ENDS];
    int n;
    struct end *listeners[MAX_HOSTS + 1], *channels[MAX_PROCESSES + 1];
    TAILQ_HEAD(, end) of_host[MAX_PROCESSES + 1]; /* the open ends of each, in the order of their descriptors */
} all;

static struct end *new_end(struct host *host)
{
    struct end *e = calloc(1, sizeof(*e));
    assert(e && all.n < MAX_ENDS);
    e->fd = FIRST_FD + all.n;
    e->is_open = true;
    e->host = host;
    TAILQ_INIT(&e->coming);
    TAILQ_INIT(&e->here);
    TAILQ_INIT(&e->writes);
    TAILQ_INIT(&e->backlog);
    all.ends[all.n++] = e;
    TAILQ_INSERT_TAIL(&all.of_host[host->id], e, of_host);
    return e;
}

void stream_init(void)
{
    memset(&all, 0, sizeof(all));
    for (int id = 0; id <= MAX_PROCESSES; id++)
        TAILQ_INIT(&all.of_host[id]);
    for (int id = 1; id <= world.n_hosts; id++)
        all.listeners[id] = new_end(&world.hosts[id]);
}

static struct end *end_of(int fd)
{
    if (fd == CHANNEL_FD)
        return all.channels[world.current->id];
    if (fd == CHANNEL_LISTENER_FD)
        return all.listeners[world.current->on->id];
    return fd >= FIRST_FD && fd < FIRST_FD + all.n ? all.ends[fd - FIRST_FD] : NULL;
}

/* ---- callbacks of a process ---- */

static void queue_notify(struct end *e);

static void drop_chunks(struct chunks *chunks)
{
    struct chunk *c;
    while ((c = TAILQ_FIRST(chunks))) {
        TAILQ_REMOVE(chunks, c, link);
        free(c);
    }
}

static void read_some(struct end *e)
{
    struct chunk *c = TAILQ_FIRST(&e->here);
    uv_buf_t buf = {0};
    uv_stream_t *stream = e->stream;
    e->alloc((uv_handle_t *)stream, 65536, &buf);
    if (c->status) {
        uv_read_cb read = e->read;
        int status = c->status;
        e->read = NULL;
        read(stream, status, &buf);
        return;
    }
    size_t n = c->len - c->taken < buf.len ? c->len - c->taken : buf.len;
    memcpy(buf.base, c->bytes + c->taken, n);
    c->taken += n;
    if (c->taken == c->len) {
        TAILQ_REMOVE(&e->here, c, link);
        free(c);
    }
    e->read(stream, (ssize_t)n, &buf);
}

static bool is_readable(const struct end *e)
{
    return !e->is_deaf && (!TAILQ_EMPTY(&e->here) || !TAILQ_EMPTY(&e->backlog));
}

static void notify(void *arg)
{
    struct end *e = arg;
    e->is_notify_queued = false;
    if (!e->is_open)
        return;
    while (e->is_open && e->stream && e->read && !TAILQ_EMPTY(&e->here))
        read_some(e);
    if (e->is_open && e->poll && e->polled && is_readable(e)) {
        e->polled(e->poll, 0, UV_READABLE);
        queue_notify(e);
    }
}

static void queue_notify(struct end *e)
{
    bool wants = e->read || e->polled;
    if (e->is_notify_queued || !wants || !is_readable(e))
        return;
    struct host *host = e->stream ? &world.hosts[e->stream->loop->backend_fd] : &world.hosts[e->poll->loop->backend_fd];
    e->is_notify_queued = true;
    world_after(host, 0, notify, e);
}

/* ---- delivery ---- */

static void arrive(void *arg);

static void schedule_arrival(struct end *to, int64_t at_us)
{
    if (!to->arrival)
        to->arrival = world_after(&world.hosts[0], at_us > world.now_us ? at_us - world.now_us : 0, arrive, to);
}

static void send_chunk(struct end *to, int status, const void *data, size_t len)
{
    struct chunk *c = malloc(sizeof(*c) + len);
    bool is_near = !to->peer || to->peer->host->on == to->host->on;
    int64_t at = world.now_us + world_between(FROM_NETWORK, 10, is_near ? LOCAL_US : net.delay_us + LOCAL_US);
    assert(c);
    if (to->peer)
        host_sends(to->peer->host->on, to->host->on, len);
    to->last_us = at > to->last_us ? at : to->last_us;
    *c = (struct chunk){.at_us = to->last_us, .status = status, .len = len};
    if (len)
        memcpy(c->bytes, data, len);
    TAILQ_INSERT_TAIL(&to->coming, c, link);
    schedule_arrival(to, TAILQ_FIRST(&to->coming)->at_us);
}

static void disconnect_ends(struct end *e)
{
    if (e->peer)
        e->peer->peer = NULL;
    e->peer = NULL;
}

/* Both ends get the error; bytes on their way are lost. */
static void fail_connection(struct end *e, int status)
{
    struct end *ends[2] = {e, e->peer};
    disconnect_ends(e);
    for (int i = 0; i < 2 && ends[i]; i++) {
        drop_chunks(&ends[i]->coming);
        send_chunk(ends[i], status, NULL, 0);
    }
}

static bool is_held(const struct end *to)
{
    const struct end *from = to->peer;
    return world.now_us < to->stalled_until ||
           (from && net.is_cut[from->host->on->id][to->host->on->id] && from->host->on != to->host->on);
}

static void arrive(void *arg)
{
    struct end *to = arg;
    struct chunk *c;
    to->arrival = NULL;
    if (is_held(to)) {
        if (!to->held_since)
            to->held_since = world.now_us;
        if (world.now_us - to->held_since > STREAM_LOST_US)
            fail_connection(to, UV_ETIMEDOUT);
        else
            schedule_arrival(to, world.now_us + RETRY_US);
        return;
    }
    to->held_since = 0;
    while ((c = TAILQ_FIRST(&to->coming)) && c->at_us <= world.now_us) {
        TAILQ_REMOVE(&to->coming, c, link);
        if (to->receive && to->is_open && !c->status)
            to->receive(to->arg, c->bytes, c->len);
        if (to->receive || !to->is_open)
            free(c);
        else
            TAILQ_INSERT_TAIL(&to->here, c, link);
    }
    if (c)
        schedule_arrival(to, c->at_us);
    if (to->is_open)
        queue_notify(to);
}

/* ---- opening and closing ---- */

static void connect_ends(struct end *a, struct end *b)
{
    a->peer = b;
    b->peer = a;
}

void stream_pair(struct host *a, struct host *b, int *ret_a, int *ret_b)
{
    struct end *x = new_end(a), *y = new_end(b);
    connect_ends(x, y);
    *ret_a = x->fd;
    *ret_b = y->fd;
}

struct end *stream_channel(struct host *host, end_fn receive, void *arg)
{
    struct end *process = new_end(host), *outside = new_end(host);
    connect_ends(process, outside);
    process->is_packets = outside->is_packets = true;
    outside->receive = receive;
    outside->arg = arg;
    all.channels[host->id] = process;
    return outside;
}

void stream_send(struct end *channel, const void *data, size_t len)
{
    if (channel->peer)
        send_chunk(channel->peer, 0, data, len);
}

int stream_place(void)
{
    return new_end(world.current)->fd;
}

static void end_is_over(struct end *e)
{
    e->is_open = false;
    TAILQ_REMOVE(&all.of_host[e->host->id], e, of_host);
}

/* The other side reads the bytes sent before, then the end of the stream. */
static void end_close(struct end *e, int status)
{
    struct end *peer = e->peer;
    if (!e->is_open)
        return;
    end_is_over(e);
    drop_chunks(&e->coming);
    drop_chunks(&e->here);
    disconnect_ends(e);
    if (peer && peer->is_open)
        send_chunk(peer, status, NULL, 0);
}

/* The end's process has exited: some of the bytes on their way out may be lost. If it had not read everything, the
 * other end gets a reset. */
static void end_killed(struct end *e)
{
    struct chunk *c;
    int status = TAILQ_EMPTY(&e->here) && world_chance(FROM_NETWORK, 0.7) ? UV_EOF : UV_ECONNRESET;
    while (e->peer && !e->is_packets && (c = TAILQ_LAST(&e->peer->coming, chunks)) && world_chance(FROM_NETWORK, 0.3)) {
        TAILQ_REMOVE(&e->peer->coming, c, link);
        free(c);
    }
    end_close(e, status);
}

/* The computer has no power, so the other end is not notified and waits until its timeout. */
static void end_without_power(struct end *e)
{
    struct end *peer = e->peer;
    end_is_over(e);
    drop_chunks(&e->coming);
    disconnect_ends(e);
    if (!peer || !peer->is_open)
        return;
    drop_chunks(&peer->coming);
    peer->last_us = world.now_us + STREAM_LOST_US;
    send_chunk(peer, UV_ETIMEDOUT, NULL, 0);
}

void stream_forget(struct host *host, bool has_power)
{
    struct end *next;
    for (struct end *e = TAILQ_FIRST(&all.of_host[host->id]); e; e = next) {
        next = TAILQ_NEXT(e, of_host);
        bool is_listener = host->id <= MAX_HOSTS && e == all.listeners[host->id];
        if (is_listener || e->receive || e->is_waiting)
            continue;
        if (has_power || !e->peer || e->peer->host->on == host->on)
            end_killed(e);
        else
            end_without_power(e);
    }
    if (host->on != host)
        return;
    struct end *listener = all.listeners[host->id];
    listener->poll = NULL;
    listener->polled = NULL;
    listener->is_notify_queued = false;
    for (struct end *e; !has_power && (e = TAILQ_FIRST(&listener->backlog));) {
        TAILQ_REMOVE(&listener->backlog, e, waiting);
        e->is_waiting = false;
        end_close(e, UV_ECONNRESET);
    }
}

static struct end *one_of(struct host *computer)
{
    struct end *found = NULL;
    int n = 0;
    for (int i = 0; i < all.n; i++) {
        struct end *e = all.ends[i];
        if (e->is_open && e->peer && !e->is_packets && e->host->on == computer &&
            world_between(FROM_FAULTS, 0, n++) == 0)
            found = e;
    }
    return found;
}

void stream_reset_one(struct host *computer)
{
    struct end *e = one_of(computer);
    if (e)
        fail_connection(e, UV_ECONNRESET);
}

void stream_reset(int fd)
{
    struct end *e = end_of(fd);
    if (e && e->is_open)
        fail_connection(e, UV_ECONNRESET);
}

void stream_stall_one(struct host *computer, int64_t us)
{
    struct end *e = one_of(computer);
    if (e)
        e->stalled_until = world.now_us + us;
}

/* ---- libuv ---- */

int uv_pipe_init(uv_loop_t *loop, uv_pipe_t *pipe, int ipc)
{
    (void)ipc;
    memset(pipe, 0, sizeof(*pipe));
    pipe->loop = loop;
    pipe->type = UV_NAMED_PIPE;
    return 0;
}

int uv_tcp_init(uv_loop_t *loop, uv_tcp_t *tcp)
{
    (void)loop, (void)tcp;
    return UV_ENOSYS;
}

int uv_tcp_open(uv_tcp_t *tcp, uv_os_sock_t fd)
{
    (void)tcp, (void)fd;
    return UV_ENOSYS;
}

static struct end *of_handle(const uv_handle_t *handle)
{
    return handle->u.reserved[0];
}

struct host *stream_other(const uv_stream_t *stream)
{
    const struct end *e = of_handle((const uv_handle_t *)stream);
    return e->is_open && e->peer ? e->peer->host : NULL;
}

bool stream_meets(const uv_stream_t *a, const uv_stream_t *b)
{
    const struct end *e = of_handle((const uv_handle_t *)a);
    return e->is_open && e->peer && e->peer == of_handle((const uv_handle_t *)b);
}

int uv_pipe_open(uv_pipe_t *pipe, uv_file fd)
{
    struct end *e = end_of(fd);
    assert(e && e->is_open && e->host == world.current);
    e->stream = (uv_stream_t *)pipe;
    pipe->u.reserved[0] = e;
    return 0;
}

int uv_read_start(uv_stream_t *stream, uv_alloc_cb alloc, uv_read_cb read)
{
    struct end *e = of_handle((uv_handle_t *)stream);
    e->alloc = alloc;
    e->read = read;
    queue_notify(e);
    return 0;
}

int uv_read_stop(uv_stream_t *stream)
{
    of_handle((uv_handle_t *)stream)->read = NULL;
    return 0;
}

size_t uv_stream_get_write_queue_size(const uv_stream_t *stream)
{
    return of_handle((const uv_handle_t *)stream)->queued;
}

static void written(struct writing *w, int status)
{
    uv_write_t *req = w->req;
    TAILQ_REMOVE(&w->end->writes, w, link);
    w->end->queued -= w->bytes;
    free(w);
    req->cb(req, status);
}

static void write_over(void *arg)
{
    written(arg, 0);
}

int uv_write(uv_write_t *req, uv_stream_t *stream, const uv_buf_t bufs[], unsigned n, uv_write_cb cb)
{
    struct end *e = of_handle((uv_handle_t *)stream);
    struct writing *w = calloc(1, sizeof(*w));
    assert(w && n == 1);
    req->handle = stream;
    req->cb = cb;
    *w = (struct writing){.end = e, .req = req, .bytes = bufs[0].len};
    if (e->peer && host_acts(world.current))
        send_chunk(e->peer, 0, bufs[0].base, bufs[0].len);
    e->queued += w->bytes;
    TAILQ_INSERT_TAIL(&e->writes, w, link);
    w->event = world_after(world.current, world_between(FROM_NETWORK, 1, 100), write_over, w);
    return 0;
}

int uv_poll_init(uv_loop_t *loop, uv_poll_t *poll, int fd)
{
    memset(poll, 0, sizeof(*poll));
    poll->loop = loop;
    poll->type = UV_POLL;
    poll->u.reserved[0] = end_of(fd);
    of_handle((uv_handle_t *)poll)->poll = poll;
    return 0;
}

int uv_poll_start(uv_poll_t *poll, int events, uv_poll_cb cb)
{
    struct end *e = of_handle((uv_handle_t *)poll);
    e->polled = events & UV_READABLE ? cb : NULL;
    queue_notify(e);
    return 0;
}

int uv_poll_stop(uv_poll_t *poll)
{
    of_handle((uv_handle_t *)poll)->polled = NULL;
    return 0;
}

void stream_handle_close(uv_handle_t *handle)
{
    struct end *e = of_handle(handle);
    if (!e)
        return;
    e->read = NULL;
    e->polled = NULL;
    e->poll = NULL;
    if (handle->type == UV_NAMED_PIPE)
        end_close(e, UV_EOF);
}

void stream_handle_closed(uv_handle_t *handle)
{
    struct end *e = of_handle(handle);
    struct writing *w;
    while (e && (w = TAILQ_FIRST(&e->writes))) {
        world_cancel(w->event);
        written(w, UV_ECANCELED);
    }
}

/* ---- system calls, by --wrap ---- */

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
ssize_t __wrap_send(int fd, const void *data, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t len, int flags);
int __wrap_close(int fd);
int __real_close(int fd);
int __wrap_dup(int fd);
int __real_dup(int fd);

static bool lacks_descriptor(void)
{
    if (!stream_has_no_descriptor || !stream_has_no_descriptor())
        return false;
    errno = EMFILE;
    return true;
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    (void)address, (void)len, (void)flags;
    struct end *listener = end_of(fd), *e = TAILQ_FIRST(&listener->backlog);
    if (lacks_descriptor()) {
        listener->is_deaf = bug(BUG_ACCEPT_GIVEN_UP);
        return -1;
    }
    if (!e) {
        errno = EAGAIN;
        return -1;
    }
    TAILQ_REMOVE(&listener->backlog, e, waiting);
    e->is_waiting = false;
    return e->fd;
}

int __wrap_socket(int domain, int type, int protocol)
{
    (void)domain, (void)type, (void)protocol;
    return lacks_descriptor() ? -1 : new_end(world.current)->fd;
}

/* The only address to which a process connects is control.sock of its own computer. */
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t len)
{
    (void)address, (void)len;
    struct end *e = end_of(fd), *listener = all.listeners[world.current->on->id];
    struct end *other = new_end(listener->host);
    connect_ends(e, other);
    other->is_waiting = true;
    TAILQ_INSERT_TAIL(&listener->backlog, other, waiting);
    queue_notify(listener);
    return 0;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    const struct end *e = end_of(fd);
    (void)level, (void)len;
    assert(e && (name == SO_PEERCRED || name == SO_DOMAIN));
    if (name == SO_DOMAIN)
        *(int *)value = AF_UNIX;
    else
        *(struct ucred *)value =
            (struct ucred){.pid = e->peer ? e->peer->host->id : 1, .uid = getuid(), .gid = getgid()};
    return 0;
}

ssize_t __wrap_send(int fd, const void *data, size_t len, int flags)
{
    struct end *e = end_of(fd);
    (void)flags;
    if (e->peer && host_acts(world.current))
        send_chunk(e->peer, 0, data, len);
    return (ssize_t)len;
}

ssize_t __wrap_recv(int fd, void *data, size_t len, int flags)
{
    struct chunk *c = TAILQ_FIRST(&end_of(fd)->here);
    (void)flags;
    if (!c) {
        errno = EAGAIN;
        return -1;
    }
    ssize_t n = c->status ? 0 : (ssize_t)c->len;
    assert(c->len <= len);
    memcpy(data, c->bytes, c->len);
    TAILQ_REMOVE(&end_of(fd)->here, c, link);
    free(c);
    return n;
}

int __wrap_close(int fd)
{
    struct end *e = fd >= FIRST_FD ? end_of(fd) : NULL;
    if (!e)
        return __real_close(fd);
    if (e->copies)
        e->copies--;
    else
        end_close(e, UV_EOF);
    return 0;
}

int __wrap_dup(int fd)
{
    struct end *e = fd >= FIRST_FD ? end_of(fd) : NULL;
    if (!e)
        return __real_dup(fd);
    if (lacks_descriptor())
        return -1;
    e->copies++;
    return fd;
}
