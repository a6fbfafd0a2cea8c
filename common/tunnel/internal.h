/* What the files of common/tunnel share: the inside of a host, a tunnel, a listener. Nobody else includes this but
 * tests and fuzzers. */
#ifndef DTD_COMMON_TUNNEL_INTERNAL_H
#define DTD_COMMON_TUNNEL_INTERNAL_H

#include "common/loop/acceptor.h"
#include "common/tunnel/address.h"
#include "common/tunnel/greeting.h"
#include "common/tunnel/tunnel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/queue.h>

#define WIRE_BYTES 33280u        /* each way: two full TLS records */
#define PLAIN_BYTES 16384u       /* each way: one record */
#define REKEY_BYTES (1ull << 34) /* sent under one traffic key; the cipher's limit is some twenty times more */
#define IDENTITY_MAX (TUNNEL_NAME_MAX + 16)
#define PSK_BYTES 32
#define HELLO_FIRST_BYTES 9 /* record header, type and length of the ClientHello */

enum tunnel_role { ROLE_ACCEPT, ROLE_CONNECT };

/* See tunnel.c for the drawing. */
enum tunnel_state { T_CONNECTING, T_HANDSHAKE, T_GREETING, T_OPEN, T_LINGER, T_CLOSING };

struct plain_buffer {
    uint8_t bytes[PLAIN_BYTES];
    size_t at, len; /* what is left lies at bytes[at..len) */
};

struct tunnel {
    TAILQ_ENTRY(tunnel) link;         /* of the host's */
    TAILQ_ENTRY(tunnel) pending_link; /* of the listener's, oldest first, until it is authenticated */
    struct tunnel_host *host;
    struct tunnel_listener *listener; /* NULL once it is authenticated, and on the connecting side */
    struct tunnel_request *request;   /* of the connecting side, until it has had its answer */
    enum tunnel_role role;
    enum tunnel_state state;
    uv_poll_t wire_poll, pair_poll;
    uv_timer_t timer; /* handshake, then a stalled wire, then lingering */
    int open_handles, wire_fd, pair_fd;
    int wire_armed, pair_armed; /* what is polled for; 0: stopped */

    /* who */
    struct sockaddr_storage from;
    struct tunnel_peer peer;
    char identity[IDENTITY_MAX + 1];
    const char *refusal; /* what the key callback found */
    int psk_asked;
    bool counted; /* in stats.tunnels */

    /* handshake and greeting */
    size_t hello_bytes; /* that the peer has sent before it was authenticated */
    uint8_t first[HELLO_FIRST_BYTES];
    uint8_t greeting[GREETING_MAX_BYTES];
    size_t greeting_len;

    /* the wire: TLS between `ssl` and `wire`, the two ends of a BIO pair of fixed size */
    SSL *ssl;
    BIO *wire;
    bool wire_ended;                /* no more bytes come */
    bool wire_lost;                 /* no more can be sent */
    bool wire_shut;                 /* FIN was sent */
    uint64_t progress_at;           /* loop time when the socket took bytes last */
    uint64_t wire_sent, wire_acked; /* bytes; acknowledged: as of the last look */
    uint32_t lost_ms;
    bool one_way;
    uint64_t waits_since, looked_at;  /* loop times: no acknowledgement has come since; of the last look */
    uint64_t sent_bytes, rekey_bytes; /* plain bytes under the traffic key; when it is renewed */

    /* the owner's side */
    struct plain_buffer up, down; /* to the peer, to the owner */
    bool up_ended, close_sent, down_ended, down_shut, owner_gone;
};

struct tunnel_listener {
    TAILQ_ENTRY(tunnel_listener) link;
    struct tunnel_host *host;
    struct acceptor acceptor;
    int n_pending;
    bool closing;
    TAILQ_HEAD(tunnel_pending, tunnel) pending;
    tunnel_accept_cb cb;
    void *owner;
    void (*closed)(void *owner);
};

#define REQUEST_ADDRESSES_MAX 8

struct tunnel_request {
    TAILQ_ENTRY(tunnel_request) link;
    struct tunnel_host *host;
    tunnel_connect_cb cb;
    void *owner;
    struct address address;
    char address_text[TUNNEL_ADDRESS_MAX + 1];
    struct tunnel_key_id key;
    char expected[TUNNEL_NAME_MAX + 1]; /* "": anybody */
    enum tunnel_purpose purpose;
    char argument[TUNNEL_ARGUMENT_MAX + 1];
    uv_timer_t timer; /* of all of it */
    uint64_t due;
    uint32_t lost_ms;
    bool one_way;
    struct resolve *resolve; /* under way */
    struct sockaddr_storage to[REQUEST_ADDRESSES_MAX];
    int n_to, at;
    struct tunnel *tunnel;
    bool finished;
    /* what the callback will hear */
    err_t err;
    struct why why;
    struct tunnel_peer peer;
    int fd;
};

struct tunnel_host {
    struct tunnel_host_config config;
    char name[TUNNEL_NAME_MAX + 1];
    SSL_CTX *accept_ctx, *connect_ctx;
    uv_timer_t timer; /* tells of refusals that were not logged */
    TAILQ_HEAD(, tunnel) tunnels;
    TAILQ_HEAD(, tunnel_listener) listeners;
    TAILQ_HEAD(, tunnel_request) requests;
    struct tunnel_stats stats;
    uint32_t all; /* tunnels in every state, and addresses being tried */
    uint64_t log_credit_ms, log_at, unlogged;
    bool closing, timer_closed;
    void (*closed)(void *owner);
    void *closed_owner;
};

/* ---- tls.c ---- */

NODISCARD err_t tls_contexts_make(struct tunnel_host *host, struct why *why);
void tls_contexts_free(struct tunnel_host *host);
/* t->ssl and t->wire; freeing the tunnel frees both. */
NODISCARD err_t tls_start(struct tunnel *t);
void tls_end(struct tunnel *t);
/* "k7:name" or "join:<16 hex digits>" */
void identity_print(struct tunnel_key_id key, const char *name, char ret[IDENTITY_MAX + 1]);
/* The name is "" in a join identity. */
bool identity_parse(const uint8_t *data, size_t len, struct tunnel_key_id *ret_key, char ret_name[TUNNEL_NAME_MAX + 1]);
void key_id_print(struct tunnel_key_id key, char *ret, size_t size);
/* What the last SSL call failed by; an alert of the peer's sets `ret_alert`, else it is -1. */
const char *tls_reason(int *ret_alert);

/* ---- wire.c: between the socket and the BIO ---- */

void wire_set_options(int fd, uint32_t lost_ms);
/* One read into the BIO. Marks the end or the loss. */
void wire_read(struct tunnel *t);
/* Throws away what there is. */
void wire_discard(struct tunnel *t);
/* Accounts for bytes that have come into the BIO. */
void wire_received(struct tunnel *t, const uint8_t *data, size_t len);
/* As much of the BIO as the socket takes. True when it took anything. */
bool wire_flush(struct tunnel *t);
size_t wire_pending(const struct tunnel *t); /* bytes to send */
bool wire_has_room(const struct tunnel *t);  /* for bytes received */
void wire_mark_lost(struct tunnel *t);
/* Bytes wait for the socket, or were unacknowledged when last looked. */
bool wire_is_busy(const struct tunnel *t);
/* A look at the other host, to be repeated every wire_watch_ms while it is WIRE_WAITS. */
enum wire_health { WIRE_IDLE, WIRE_WAITS, WIRE_DEAD };
enum wire_health wire_look(struct tunnel *t);
uint32_t wire_watch_ms(const struct tunnel *t);

/* ---- pump.c: between the owner and TLS ---- */

void pump_pair_ready(struct tunnel *t, int status, int events);
/* Moves what can be moved; then the tunnel is closed, or armed for what it waits for. */
void pump_run(struct tunnel *t);

/* ---- tunnel.c ---- */

/* Takes `fd` over, also on error. */
NODISCARD err_t tunnel_new(struct tunnel_host *host, int fd, const struct sockaddr_storage *from, enum tunnel_role role,
                           struct tunnel **ret);
/* The first events are waited for. */
void tunnel_begin(struct tunnel *t, enum tunnel_state state, uint64_t deadline_ms);
void tunnel_arm(struct tunnel *t);
void tunnel_move(struct tunnel *t, enum tunnel_state to);
/* At once; nothing is said to anybody. */
void tunnel_cut(struct tunnel *t);
/* Tells the log or the request, then closes. */
void tunnel_fail(struct tunnel *t, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void tunnel_linger(struct tunnel *t);
/* Bytes as they come from the socket: the fuzzer's way in. */
void tunnel_feed(struct tunnel *t, const uint8_t *data, size_t len);

/* ---- hello.c ---- */

/* Handshake and greetings with what has come; afterwards the state is a later one, or waits for more. */
void hello_run(struct tunnel *t);

/* ---- listen.c ---- */

/* A connection that was accepted; the fuzzer's way in. Takes `fd` over; NULL when it was refused. */
struct tunnel *listener_take(struct tunnel_listener *l, int fd, const struct sockaddr_storage *from);
void listener_forget(struct tunnel *t); /* it is pending no more */

/* ---- connect.c ---- */

/* One address failed before it had a connection: the next is tried. */
void request_dial_failed(struct tunnel_request *r, err_t err, const char *why);
/* The end: takes `fd` over. */
void request_finish(struct tunnel_request *r, err_t err, const char *why, const struct tunnel_peer *peer, int fd);

/* ---- host.c ---- */

/* One line for a refused connection, or none if there were too many. */
void host_log_refusal(struct tunnel_host *host, const char *address, const char *why);
/* The last of its tunnels, listeners and requests may have gone. */
void host_maybe_closed(struct tunnel_host *host);

#endif
