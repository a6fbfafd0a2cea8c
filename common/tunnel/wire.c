/* The TCP side. The BIO pair is a ring of fixed size each way; the socket reads into it and writes out of it, without a
 * copy between.
 *
 * A vanished host: keep-alive probes find it when the connection is idle, TCP_USER_TIMEOUT when something is
 * unacknowledged. That timeout would also end a connection whose peer is well but takes nothing (the kernel counts from
 * the first probe of a closed window, answered or not): so while anything is unacknowledged the tunnel looks now and
 * then, and moves the timeout on as long as the peer answers probes. */
#include "common/tunnel/internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>

#define IDLE_S 3
#define PROBE_S 2

/* In tenths of lost_ms. */
enum {
    WATCH = 1, /* between two looks */
    ALIVE = 3, /* acknowledged something so lately: may go on .. */
    MORE = 6,  /* .. for so long; the kernel probes at least as often */
    USER_TIMEOUT = 7,
    DEAD = 9,
};
_Static_assert(DEAD + WATCH <= 10, "given up within lost_ms");

static uint32_t tenths(uint32_t lost_ms, uint32_t n)
{
    return lost_ms / 10 * n;
}

uint32_t wire_watch_ms(const struct tunnel *t)
{
    return tenths(t->lost_ms, WATCH);
}

static void set_option(int fd, int level, int option, int value)
{
    /* A Unix socket (in tests) has none of these; nothing depends on the answer. */
    int r = setsockopt(fd, level, option, &value, sizeof(value));
    (void)r;
}

void wire_set_options(int fd, uint32_t lost_ms)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, PROBE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)tenths(lost_ms, USER_TIMEOUT));
}

bool wire_is_busy(const struct tunnel *t)
{
    return wire_pending(t) || t->wire_sent != t->wire_acked;
}

/* Bytes that the peer's kernel has acknowledged. */
static uint64_t acknowledged(const struct tunnel *t)
{
    int queued = 0;
    return ioctl(t->wire_fd, SIOCOUTQ, &queued) ? t->wire_sent : t->wire_sent - (uint64_t)queued;
}

enum wire_health wire_look(struct tunnel *t)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);
    uint64_t now = uv_now(t->host->config.loop), acked = acknowledged(t);
    if (acked != t->wire_acked) /* the window was open after the last look */
        t->waits_since = t->looked_at;
    t->wire_acked = acked;
    t->looked_at = now;
    if (!wire_is_busy(t)) {
        set_option(t->wire_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)tenths(t->lost_ms, USER_TIMEOUT));
        return WIRE_IDLE;
    }
    if (getsockopt(t->wire_fd, IPPROTO_TCP, TCP_INFO, &info, &len))
        return WIRE_WAITS; /* no TCP */
    if (info.tcpi_last_ack_recv < tenths(t->lost_ms, ALIVE))
        set_option(t->wire_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(now - t->waits_since + tenths(t->lost_ms, MORE)));
    return info.tcpi_last_ack_recv < tenths(t->lost_ms, DEAD) ? WIRE_WAITS : WIRE_DEAD;
}

void wire_mark_lost(struct tunnel *t)
{
    t->wire_ended = true;
    t->wire_lost = true;
}

size_t wire_pending(const struct tunnel *t)
{
    return t->wire_lost ? 0 : BIO_ctrl_pending(t->wire);
}

bool wire_has_room(const struct tunnel *t)
{
    return BIO_ctrl_get_write_guarantee(t->wire) > 0;
}

/* Before authentication no more is read than a handshake and a greeting can have. */
static size_t may_read(const struct tunnel *t, size_t room)
{
    bool known = t->state == T_OPEN;
    size_t left = TUNNEL_HELLO_BYTES - t->hello_bytes;
    return known || room < left ? room : left;
}

void wire_received(struct tunnel *t, const uint8_t *data, size_t len)
{
    if (t->state == T_OPEN)
        return;
    if (t->hello_bytes < HELLO_FIRST_BYTES) {
        size_t room = HELLO_FIRST_BYTES - t->hello_bytes;
        memcpy(t->first + t->hello_bytes, data, len < room ? len : room);
    }
    t->hello_bytes += len;
}

static void no_bytes(struct tunnel *t, ssize_t n)
{
    if (n == 0)
        t->wire_ended = true;
    else if (errno != EAGAIN)
        wire_mark_lost(t);
}

void wire_discard(struct tunnel *t)
{
    uint8_t waste[8192];
    ssize_t n;
    do
        n = recv(t->wire_fd, waste, sizeof(waste), 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        no_bytes(t, n);
}

void wire_read(struct tunnel *t)
{
    char *to;
    int room = BIO_nwrite0(t->wire, &to);
    size_t want = room > 0 ? may_read(t, (size_t)room) : 0;
    ssize_t n;
    if (!want)
        return;
    do
        n = recv(t->wire_fd, to, want, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        no_bytes(t, n);
        return;
    }
    BIO_nwrite(t->wire, &to, (int)n);
    wire_received(t, (const uint8_t *)to, (size_t)n);
}

bool wire_flush(struct tunnel *t)
{
    bool progress = false;
    while (wire_pending(t)) {
        char *from;
        int len = BIO_nread0(t->wire, &from);
        if (len <= 0)
            break;
        ssize_t n = send(t->wire_fd, from, (size_t)len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            if (errno != EAGAIN)
                wire_mark_lost(t);
            break;
        }
        BIO_nread(t->wire, &from, (int)n);
        t->wire_sent += (uint64_t)n;
        progress = true;
    }
    return progress;
}
