/* The messages of a connection. A small message is sent with its header as one record. A large message is sent directly
 * from the caller's buffer and received directly into it. A header is read as soon as it arrives, even if no receive is
 * posted; so the rank also detects when its peer closes the connection. */
#include "worker/comm/wire/stream/internal.h"

#include <errno.h>
#include <openssl/err.h>
#include <string.h>

void conn_queue(struct wire_op ***end, struct wire_op *op)
{
    op->at = 0;
    op->next = NULL;
    op->done = false;
    **end = op;
    *end = &op->next;
}

static void finish_front(struct wire_op **first, struct wire_op ***end)
{
    struct wire_op *op = *first;
    *first = op->next;
    if (!*first)
        *end = first;
    op->done = true;
}

static err_t connection_lost(struct stream_wire *s, const struct stream_connection *c)
{
    char text[128];
    if (atomic_load(&s->base.aborted))
        return wire_fail(&s->base, ERR_CANCELED, "%s", "");
    return wire_fail(&s->base, ERR_CLOSED, "lost rank %d on node %d: %s", c->rank, s->node_of[c->rank],
                     stream_tls_error(text, sizeof(text)));
}

/* Handles a TLS call that moved nothing: the connection would block, was closed in order, or is lost. */
static err_t check_blocked(struct stream_wire *s, struct stream_connection *c, int rc)
{
    switch (SSL_get_error(c->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
        c->readable = false;
        return OK;
    case SSL_ERROR_WANT_WRITE:
        c->writable = false;
        return OK;
    case SSL_ERROR_ZERO_RETURN:
        c->left = true;
        c->readable = false;
        return OK;
    default:
        return connection_lost(s, c);
    }
}

/* ---- out ---- */

static void begin_message(struct stream_connection *c, struct wire_op *op)
{
    const struct wire_header header = {c->sent, op->bytes};
    size_t room = sizeof(c->head) - WIRE_HEADER_BYTES, first = op->bytes < room ? op->bytes : room;
    wire_header_put(&header, c->head);
    if (first > 0)
        memcpy(c->head + WIRE_HEADER_BYTES, op->buffer, first);
    op->at = first;
    c->head_at = 0;
    c->head_bytes = WIRE_HEADER_BYTES + first;
}

/* Called before a message begins: renews the key when it has encrypted s->rekey bytes. */
static err_t renew_key(struct stream_wire *s, struct stream_connection *c)
{
    if (c->sealed < s->rekey)
        return OK;
    c->sealed = 0;
    return SSL_key_update(c->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 ? OK : connection_lost(s, c);
}

/* *ret: number of bytes that TLS accepted. */
static err_t write_some(struct stream_wire *s, struct stream_connection *c, const uint8_t *data, size_t bytes,
                        size_t *ret)
{
    *ret = 0;
    ERR_clear_error();
    errno = 0;
    int rc = SSL_write_ex(c->ssl, data, bytes < STREAM_WRITE ? bytes : STREAM_WRITE, ret);
    c->sealed += *ret;
    return rc == 1 ? OK : check_blocked(s, c, rc);
}

static err_t push_front(struct stream_wire *s, struct stream_connection *c, bool *moved)
{
    struct wire_op *op = c->out;
    size_t n;
    err_t err = c->head_bytes ? OK : renew_key(s, c);
    if (!c->head_bytes)
        begin_message(c, op);
    if (!err && c->head_at < c->head_bytes) {
        err = write_some(s, c, c->head + c->head_at, c->head_bytes - c->head_at, &n);
        c->head_at += n;
    } else if (!err) {
        err = write_some(s, c, op->buffer + op->at, op->bytes - op->at, &n);
        op->at += n;
    }
    if (err || n == 0)
        return err;
    *moved = true;
    if (c->head_at == c->head_bytes && op->at == op->bytes) {
        c->head_bytes = 0;
        c->sent++;
        finish_front(&c->out, &c->out_end);
    }
    return OK;
}

/* ---- in ---- */

static err_t read_some(struct stream_wire *s, struct stream_connection *c, void *to, size_t bytes, size_t *ret)
{
    *ret = 0;
    ERR_clear_error();
    errno = 0;
    int rc = SSL_read_ex(c->ssl, to, bytes, ret);
    return rc == 1 ? OK : check_blocked(s, c, rc);
}

static err_t parse_header(struct stream_wire *s, struct stream_connection *c)
{
    struct wire_header h;
    if (wire_header_get(c->header, &h) || h.number != c->received)
        return wire_fail(&s->base, ERR_PROTO, "rank %d on node %d sent an invalid message header", c->rank,
                         s->node_of[c->rank]);
    c->coming = h.bytes;
    return OK;
}

static err_t pull_header(struct stream_wire *s, struct stream_connection *c)
{
    size_t n;
    err_t err = read_some(s, c, c->header + c->header_at, WIRE_HEADER_BYTES - c->header_at, &n);
    c->header_at += n;
    return !err && n > 0 && c->header_at == WIRE_HEADER_BYTES ? parse_header(s, c) : err;
}

static err_t pull_body(struct stream_wire *s, struct stream_connection *c, size_t *ret)
{
    struct wire_op *op = c->in;
    err_t err = OK;
    *ret = 0;
    if (op->bytes != c->coming)
        return wire_sizes_differ(&s->base, c->rank, c->coming, s->rank, op->bytes);
    if (op->at < op->bytes)
        err = read_some(s, c, op->buffer + op->at, op->bytes - op->at, ret);
    op->at += *ret;
    if (err || op->at < op->bytes)
        return err;
    c->header_at = 0;
    c->received++;
    finish_front(&c->in, &c->in_end);
    return OK;
}

/* Sets *moved when bytes arrived or a message was finished; an empty message finishes without bytes. */
static err_t pull(struct stream_wire *s, struct stream_connection *c, bool *moved)
{
    size_t turn = 0, n = 0;
    err_t err = OK;
    while (!err && c->readable && turn < STREAM_TURN) {
        const struct wire_op *op = c->in;
        if (c->header_at < WIRE_HEADER_BYTES) {
            err = pull_header(s, c);
        } else if (op) {
            err = pull_body(s, c, &n);
            *moved |= n > 0 || op->done;
            turn += n;
        } else {
            break;
        }
    }
    return err;
}

/* ---- both ---- */

/* A peer that is done first may close its connections. It is an error only if messages are outstanding. */
static err_t check_left(struct stream_wire *s, const struct stream_connection *c)
{
    if (!c->left || (!c->in && !c->out && c->header_at == 0))
        return OK;
    return wire_fail(&s->base, ERR_CLOSED, "rank %d on node %d has left the epoch", c->rank, s->node_of[c->rank]);
}

err_t conn_move(struct stream_wire *s, struct stream_connection *c, bool *moved)
{
    size_t turn = 0;
    err_t err = pull(s, c, moved);
    for (bool more = true; !err && more && c->out && c->writable && turn < STREAM_TURN; turn += STREAM_WRITE) {
        more = false;
        err = push_front(s, c, &more);
        *moved |= more;
    }
    return err ? err : check_left(s, c);
}
