/* A connection has one socket, one timer and two lists of calls.
 *
 *   conn_read -> rpc_conn_feed -> header_complete -> admit -> (body bytes kept or skipped) -> body_complete -> take
 *
 * Admission looks only at the header. Memory is allocated only for a body that was admitted, with exactly its length.
 * Each write is one struct, freed by its callback. All deadlines share one timer, which may fire early but never late.
 *
 * Closing: rpc_conn_close sets the state and closes both handles. The last close callback fails the outstanding calls,
 * calls on_close and frees the connection. Therefore a callback may close its own connection, and every loop in this
 * file checks the state after each callback. */
#include "common/rpc/conn.h"

#include "common/base/log.h"
#include "common/base/log_limit.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct conn_write {
    uv_write_t req;
    uint8_t bytes[];
};

err_t rpc_err_from_uv(int status)
{
    return status == UV_EOF ? ERR_CLOSED : err_from_errno(-status);
}

/* ---- close ---- */

static void handle_closed(uv_handle_t *handle)
{
    struct rpc_conn *conn = handle->data;
    if (--conn->open_handles)
        return;
    rpc_server_closed(conn);
    rpc_client_closed(conn);
    if (conn->link_closed)
        conn->link_closed(conn->link, conn);
    else if (conn->config.on_close)
        conn->config.on_close(conn->config.owner, conn);
    free(conn->body);
    free(conn->rest);
    free(conn);
}

void rpc_conn_close(struct rpc_conn *conn)
{
    if (conn->state == CONN_CLOSING)
        return;
    conn->state = CONN_CLOSING;
    if (conn->config.account)
        rpc_account_remove(conn->config.account, conn);
    uv_close((uv_handle_t *)&conn->timer, handle_closed);
    uv_close((uv_handle_t *)&conn->stream, handle_closed);
}

void rpc_conn_break(struct rpc_conn *conn, const char *reason)
{
    if (conn->state == CONN_CLOSING)
        return;
    static _Thread_local struct log_limit lines;
    if (log_limit_line(&lines, "rpc connections closed"))
        log_warn("rpc connection closed pid=%d uid=%d why=\"%s\" frame=%" PRIu64, (int)conn->peer.pid,
                 (int)conn->peer.uid, reason, conn->stats.frames_in);
    rpc_conn_close(conn);
}

void rpc_conn_finish(struct rpc_conn *conn)
{
    if (conn->state != CONN_OPEN)
        return;
    if (!rpc_conn_queued(conn)) {
        rpc_conn_close(conn);
        return;
    }
    conn->state = CONN_FINISHING;
    uv_read_stop(&conn->stream);
    conn->stalled_since = uv_now(conn->config.loop);
    rpc_conn_wake_at(conn, conn->stalled_since + RPC_FINISH_MS);
}

/* ---- deadlines ---- */

static bool account_is_full(const struct rpc_conn *conn)
{
    return conn->config.account && conn->config.account->is_full;
}

/* A paused peer with unread output must read something every RPC_STALL_MS; a finishing connection has RPC_FINISH_MS in
 * all. */
static uint64_t stall_due(struct rpc_conn *conn, uint64_t now)
{
    if (conn->state == CONN_FINISHING)
        return conn->stalled_since + RPC_FINISH_MS;
    if (!conn->paused || !rpc_conn_queued(conn))
        return UINT64_MAX;
    if (rpc_conn_queued(conn) < conn->stalled_bytes) {
        conn->stalled_bytes = rpc_conn_queued(conn);
        conn->stalled_since = now;
    }
    return conn->stalled_since + (account_is_full(conn) ? RPC_STALL_FULL_MS : RPC_STALL_MS);
}

static uint64_t message_due(const struct rpc_conn *conn)
{
    uint64_t ms = conn->config.message_ms ? conn->config.message_ms : RPC_MESSAGE_MS;
    if (!conn->begun || conn->paused || conn->state != CONN_OPEN)
        return UINT64_MAX;
    return conn->begun + ms +
           (conn->header_len == RPC_HEADER_BYTES ? conn->frame.length / RPC_SLOWEST_BYTES_PER_MS : 0);
}

static void drain(struct rpc_conn *conn)
{
    if (conn->state == CONN_OPEN && rpc_conn_queued(conn) < RPC_STREAM_LOW_BYTES)
        rpc_server_drained(conn);
}

static void resume_if_due(struct rpc_conn *conn);

/* When a paused connection may be read again, if that depends on time alone. */
static uint64_t rest_due(const struct rpc_conn *conn)
{
    const struct rpc_account *a = conn->config.account;
    uint64_t due = a && a->rest_ms > conn->rest_until ? a->rest_ms : conn->rest_until;
    return due > uv_now(conn->config.loop) ? due : UINT64_MAX;
}

static void timer_fired(uv_timer_t *timer)
{
    struct rpc_conn *conn = timer->data;
    uint64_t now = uv_now(conn->config.loop);
    conn->timer_due = UINT64_MAX;
    resume_if_due(conn);
    uint64_t due = stall_due(conn, now), message = message_due(conn);
    if (due <= now || message <= now) {
        rpc_conn_break(conn, due <= now ? "the peer does not read its answers"
                                        : "the peer has not completed a message that it began");
        return;
    }
    due = message < due ? message : due;
    due = conn->paused && rest_due(conn) < due ? rest_due(conn) : due;
    uint64_t client = rpc_client_expire(conn, now);
    uint64_t server = conn->state == CONN_CLOSING ? UINT64_MAX : rpc_server_expire(conn, now);
    due = client < due ? client : due;
    rpc_conn_wake_at(conn, server < due ? server : due);
    drain(conn);
}

void rpc_conn_wake_at(struct rpc_conn *conn, uint64_t due)
{
    if (due >= conn->timer_due || conn->state == CONN_CLOSING)
        return;
    conn->timer_due = due;
    uint64_t now = uv_now(conn->config.loop);
    uv_timer_start(&conn->timer, timer_fired, due > now ? due - now : 0, 0);
}

/* ---- reading ---- */

/* Requests and cancels go to server.c; all other kinds are answers and go to call.c. */
static bool is_for_server(const struct frame *frame)
{
    return frame->kind == RPC_REQUEST || frame->kind == RPC_CANCEL;
}

static void body_complete(struct rpc_conn *conn)
{
    /* The read state is reset first, because the take functions may close the connection. */
    struct frame frame = conn->frame;
    uint8_t *body = conn->body;
    conn->body = NULL;
    conn->header_len = 0;
    conn->body_len = 0;
    conn->begun = 0;
    if (conn->config.account)
        rpc_account_give_request(conn->config.account, conn);
    if (conn->fate == BODY_KEEP) {
        const char *reason =
            is_for_server(&frame) ? rpc_server_take(conn, &frame, body) : rpc_client_take(conn, &frame, body);
        if (reason)
            rpc_conn_break(conn, reason);
    }
    free(body);
}

static void header_complete(struct rpc_conn *conn)
{
    const char *reason;
    struct frame *f = &conn->frame;
    if (frame_decode(conn->header, f, &reason)) {
        rpc_conn_break(conn, reason);
        return;
    }
    conn->stats.frames_in++;
    if (f->version < conn->version)
        conn->version = f->version;
    reason = is_for_server(f) ? rpc_server_admit(conn, f, &conn->fate) : rpc_client_admit(conn, f, &conn->fate);
    if (!reason && conn->fate == BODY_KEEP && f->length) {
        conn->body = malloc(f->length);
        conn->stats.body_bytes += f->length;
        reason = conn->body ? NULL : "out of memory";
    }
    if (reason)
        rpc_conn_break(conn, reason);
    else if (!f->length)
        body_complete(conn);
}

static void frame_part_complete(struct rpc_conn *conn, bool is_header)
{
    struct rpc_account *a = conn->config.account;
    uint64_t begin = a ? uv_hrtime() : 0;
    if (is_header)
        header_complete(conn);
    else
        body_complete(conn);
    if (a)
        rpc_account_spend(a, begin, uv_now(conn->config.loop));
}

/* Keeps what cannot be processed before the peer has read its answers. `data` may be a part of the rest. */
static void rest_keep(struct rpc_conn *conn, const uint8_t *data, size_t len)
{
    if (conn->rest) {
        conn->rest_at = conn->rest_len - len;
        return;
    }
    conn->rest = malloc(len);
    if (!conn->rest) {
        rpc_conn_break(conn, "out of memory");
        return;
    }
    memcpy(conn->rest, data, len);
    conn->rest_at = 0;
    conn->rest_len = len;
}

/* The time for a message starts with its first byte, or when its peer is read again. */
static void message_begins(struct rpc_conn *conn)
{
    if (!conn->header_len || conn->begun || conn->state != CONN_OPEN)
        return;
    conn->begun = uv_now(conn->config.loop);
    rpc_conn_wake_at(conn, message_due(conn));
}

void rpc_conn_feed(struct rpc_conn *conn, const uint8_t *data, size_t len)
{
    while (len && conn->state == CONN_OPEN && !conn->paused) {
        bool in_header = conn->header_len < RPC_HEADER_BYTES;
        size_t want = in_header ? RPC_HEADER_BYTES - conn->header_len : conn->frame.length - conn->body_len;
        size_t n = len < want ? len : want;
        if (in_header) {
            memcpy(conn->header + conn->header_len, data, n);
            conn->header_len += n;
        } else {
            /* read_alloc lets libuv read large bodies in place: then source and target are the same. */
            if (conn->body && conn->body + conn->body_len != data)
                memcpy(conn->body + conn->body_len, data, n);
            conn->body_len += n;
        }
        data += n;
        len -= n;
        if (n == want)
            frame_part_complete(conn, in_header);
    }
    if (len && conn->state == CONN_OPEN)
        rest_keep(conn, data, len);
    message_begins(conn);
}

/* Of all connections on this thread: libuv reads into it and calls conn_read at once, which uses all of it. A leader of
 * 1,000 nodes would have 64 MB of them. */
static _Thread_local uint8_t scratch[RPC_SCRATCH_BYTES];

static void read_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    (void)suggested;
    struct rpc_conn *conn = handle->data;
    size_t left = conn->body ? conn->frame.length - conn->body_len : 0;
    if (left >= RPC_SCRATCH_BYTES)
        *ret = uv_buf_init((char *)conn->body + conn->body_len, (unsigned)left);
    else
        *ret = uv_buf_init((char *)scratch, RPC_SCRATCH_BYTES);
}

static void conn_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct rpc_conn *conn = stream->data;
    struct rpc_account *a = conn->config.account;
    if (n > 0)
        conn->stats.bytes_in += (uint64_t)n;
    if (n > 0 && a && conn->state == CONN_OPEN)
        rpc_account_spend(a, uv_hrtime() - (uint64_t)n / RPC_READ_BYTES_PER_NS, uv_now(conn->config.loop));
    if (n > 0)
        rpc_conn_feed(conn, (const uint8_t *)buf->base, (size_t)n);
    else if (n == UV_EOF && conn->header_len)
        rpc_conn_break(conn, "the stream ended inside a frame");
    else if (n < 0)
        rpc_conn_close(conn);
}

/* ---- writing ---- */

size_t rpc_conn_queued(const struct rpc_conn *conn)
{
    return uv_stream_get_write_queue_size(&conn->stream);
}

size_t rpc_conn_held(const struct rpc_conn *conn)
{
    return rpc_conn_queued(conn) + (size_t)conn->n_writes * sizeof(struct conn_write);
}

static bool must_pause(struct rpc_conn *conn)
{
    struct rpc_account *a = conn->config.account;
    uint64_t now = uv_now(conn->config.loop);
    conn->is_full = rpc_conn_held(conn) >= RPC_PAUSE_BYTES / (conn->is_full ? 2 : 1);
    return conn->is_full || conn->rest_until > now || (a && rpc_account_is_paused(a, now));
}

void rpc_conn_pause_if_due(struct rpc_conn *conn)
{
    if (conn->paused || conn->state != CONN_OPEN || !must_pause(conn))
        return;
    conn->paused = true;
    conn->begun = 0;
    conn->stalled_bytes = rpc_conn_queued(conn);
    conn->stalled_since = uv_now(conn->config.loop);
    uv_read_stop(&conn->stream);
    uint64_t due = rest_due(conn), stall = stall_due(conn, conn->stalled_since);
    rpc_conn_wake_at(conn, due < stall ? due : stall);
}

/* Called only by callbacks of the loop: it processes the rest of what was read before, one request after another. */
static void resume_if_due(struct rpc_conn *conn)
{
    if (!conn->paused || conn->state != CONN_OPEN || must_pause(conn))
        return;
    size_t at = conn->rest_at;
    conn->paused = false;
    conn->rest_at = conn->rest_len;
    if (conn->rest)
        rpc_conn_feed(conn, conn->rest + at, conn->rest_len - at);
    if (conn->paused || conn->state != CONN_OPEN)
        return;
    free(conn->rest);
    conn->rest = NULL;
    uv_read_start(&conn->stream, read_alloc, conn_read);
    message_begins(conn);
}

static void write_done(uv_write_t *req, int status)
{
    struct rpc_conn *conn = req->handle->data;
    free((char *)req - offsetof(struct conn_write, req));
    conn->n_writes--;
    if (conn->state == CONN_CLOSING)
        return;
    if (conn->config.account)
        rpc_account_answers(conn->config.account, conn);
    if (status < 0) {
        rpc_conn_close(conn);
        return;
    }
    if (conn->state == CONN_FINISHING) {
        if (!rpc_conn_queued(conn))
            rpc_conn_close(conn);
        return;
    }
    rpc_conn_pause_if_due(conn);
    resume_if_due(conn);
    drain(conn);
}

err_t rpc_conn_write(struct rpc_conn *conn, struct frame frame, const ProtobufCMessage *body)
{
    if (conn->state != CONN_OPEN)
        return ERR_CLOSED;
    frame.version = conn->version;
    frame.length = body ? (uint32_t)protobuf_c_message_get_packed_size(body) : 0;
    struct rpc_account *a = conn->config.account;
    if (a && !rpc_account_make_room(a, conn, sizeof(struct conn_write) + RPC_HEADER_BYTES + frame.length))
        return ERR_CLOSED;
    struct conn_write *w = malloc(sizeof(*w) + RPC_HEADER_BYTES + frame.length);
    if (!w)
        return ERR_NOMEM;
    frame_encode(&frame, w->bytes);
    if (body)
        protobuf_c_message_pack(body, w->bytes + RPC_HEADER_BYTES);
    uv_buf_t buf = uv_buf_init((char *)w->bytes, RPC_HEADER_BYTES + frame.length);
    int status = uv_write(&w->req, &conn->stream, &buf, 1, write_done);
    if (status < 0) {
        free(w);
        rpc_conn_break(conn, uv_strerror(status));
        return rpc_err_from_uv(status);
    }
    conn->stats.frames_out++;
    conn->stats.bytes_out += buf.len;
    conn->n_writes++;
    if (a)
        rpc_account_answers(a, conn);
    rpc_conn_pause_if_due(conn);
    return OK;
}

/* ---- opening ---- */

void rpc_peer_of(int fd, struct rpc_peer *ret)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    *ret = (struct rpc_peer){.pid = -1, .uid = (uid_t)-1, .gid = (gid_t)-1};
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.pid > 0)
        *ret = (struct rpc_peer){.pid = cred.pid, .uid = cred.uid, .gid = cred.gid};
}

static int open_stream(struct rpc_conn *conn, int fd)
{
    int domain = 0;
    socklen_t len = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len))
        return -errno;
    bool is_unix = domain == AF_UNIX;
    int status = is_unix ? uv_pipe_init(conn->config.loop, &conn->pipe, 0) : uv_tcp_init(conn->config.loop, &conn->tcp);
    if (status < 0)
        return status;
    conn->open_handles++;
    conn->stream.data = conn;
    return is_unix ? uv_pipe_open(&conn->pipe, fd) : uv_tcp_open(&conn->tcp, fd);
}

static void aborted_handle_closed(uv_handle_t *handle)
{
    struct rpc_conn *conn = handle->data;
    if (!--conn->open_handles)
        free(conn);
}

static void check_config(const struct rpc_conn_config *config)
{
    assert(config->loop && config->n_methods >= 0);
    for (int i = 1; i < config->n_methods; i++)
        assert(config->methods[i - 1].id < config->methods[i].id);
}

err_t rpc_conn_open(const struct rpc_conn_config *config, int fd, uint32_t roles, struct rpc_conn **ret)
{
    check_config(config);
    struct rpc_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) {
        close(fd);
        return ERR_NOMEM;
    }
    conn->config = *config;
    conn->roles = roles | RPC_ROLE_ANY;
    conn->version = RPC_VERSION;
    conn->timer_due = UINT64_MAX;
    TAILQ_INIT(&conn->outs);
    TAILQ_INIT(&conn->calls);
    rpc_peer_of(fd, &conn->peer);
    uv_timer_init(config->loop, &conn->timer);
    conn->timer.data = conn;
    conn->open_handles = 1;
    int status = open_stream(conn, fd);
    if (status < 0)
        close(fd);
    else
        status = uv_read_start(&conn->stream, read_alloc, conn_read);
    if (status < 0) {
        log_warn("rpc connection not opened why=\"%s\"", uv_strerror(status));
        if (conn->open_handles > 1)
            uv_close((uv_handle_t *)&conn->stream, aborted_handle_closed);
        uv_close((uv_handle_t *)&conn->timer, aborted_handle_closed);
        return rpc_err_from_uv(status);
    }
    if (config->account)
        rpc_account_add(config->account, conn);
    rpc_conn_pause_if_due(conn);
    *ret = conn;
    return OK;
}

/* ---- accessors ---- */

int rpc_conn_max_calls(const struct rpc_conn *conn)
{
    return conn->config.max_calls ? conn->config.max_calls : RPC_MAX_CALLS;
}

const struct rpc_method *rpc_conn_method(const struct rpc_conn *conn, uint16_t id)
{
    int lo = 0, hi = conn->config.n_methods;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (conn->config.methods[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < conn->config.n_methods && conn->config.methods[lo].id == id ? &conn->config.methods[lo] : NULL;
}

void rpc_conn_set_roles(struct rpc_conn *conn, uint32_t roles)
{
    conn->roles = roles | RPC_ROLE_ANY;
}

void rpc_conn_set_rate(struct rpc_conn *conn, int per_second, int burst)
{
    assert(per_second > 0 && per_second <= 1000000);
    conn->request_us = 1000000u / (unsigned)per_second;
    conn->burst_us = conn->request_us * (uint64_t)burst;
}

/* The n-th request may come when n times request_us have passed, or earlier by burst_us. */
void rpc_conn_count_request(struct rpc_conn *conn)
{
    static _Thread_local struct log_limit lines;
    uint64_t now_us = uv_now(conn->config.loop) * 1000;
    if (!conn->request_us)
        return;
    conn->rate_due = (conn->rate_due > now_us ? conn->rate_due : now_us) + conn->request_us;
    if (conn->rate_due - now_us <= conn->burst_us)
        return;
    conn->rest_until = (conn->rate_due - conn->burst_us) / 1000 + 1;
    if (!conn->paused && log_limit_line(&lines, "rpc connections read slowly"))
        log_warn("rpc connection is read slowly pid=%d uid=%d why=\"more than %u requests a second\"",
                 (int)conn->peer.pid, (int)conn->peer.uid, (unsigned)(1000000u / conn->request_us));
    rpc_conn_pause_if_due(conn);
}

void rpc_conn_set_data(struct rpc_conn *conn, void *data)
{
    conn->data = data;
}

void *rpc_conn_data(struct rpc_conn *conn)
{
    return conn->data;
}

pid_t rpc_conn_peer_pid(const struct rpc_conn *conn)
{
    return conn->peer.pid;
}

uid_t rpc_conn_peer_uid(const struct rpc_conn *conn)
{
    return conn->peer.uid;
}

void rpc_conn_stats(const struct rpc_conn *conn, struct rpc_conn_stats *ret)
{
    *ret = conn->stats;
}
