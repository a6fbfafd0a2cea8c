/* The TCP side of a tunnel. The BIO pair is a ring of fixed size in each direction; bytes are received into it and sent
 * from it without another copy.
 *
 * Detection of a vanished host: keep-alive probes detect it while the connection is idle, TCP_USER_TIMEOUT while bytes
 * are unacknowledged. TCP_USER_TIMEOUT alone would also end a connection whose peer is alive but does not read: the
 * kernel counts from the first probe of the closed window, whether or not the probes are answered. Therefore the tunnel
 * checks the connection periodically while bytes are unacknowledged, and extends the timeout as long as the peer
 * answers probes. */
#include "common/tunnel/internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>

/* An idle connection is lost after IDLE_S + PROBES * PROBE_S = 9 s, within TUNNEL_LOST_MS. */
#define IDLE_S 3
#define PROBE_S 2
#define PROBES 3

/* In tenths of lost_ms. */
enum {
    WATCH = 1, /* interval of the checks */
    ALIVE = 3, /* a peer that has acknowledged something within this time is alive: its timeout is extended .. */
    MORE = 6,  /* .. by this time; the kernel probes at least as often */
    USER_TIMEOUT = 7,
    DEAD = 9, /* a peer that has acknowledged nothing for this time is lost */
};
_Static_assert(DEAD + WATCH <= 10, "a vanished host must be detected within lost_ms");

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
    /* Fails for the Unix sockets of tests, which have none of these options. */
    int r = setsockopt(fd, level, option, &value, sizeof(value));
    (void)r;
}

void wire_set_options(int fd, uint32_t lost_ms)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, PROBE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
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
    if (acked != t->wire_acked) /* the peer's window was open after the last check */
        t->waits_since = t->looked_at;
    t->wire_acked = acked;
    t->looked_at = now;
    if (!wire_is_busy(t)) {
        set_option(t->wire_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)tenths(t->lost_ms, USER_TIMEOUT));
        return WIRE_IDLE;
    }
    if (getsockopt(t->wire_fd, IPPROTO_TCP, TCP_INFO, &info, &len))
        return WIRE_WAITS; /* not a TCP socket (in tests) */
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

/* Before authentication, reads at most as many bytes as a handshake and a greeting can have. */
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
