/* Internals of hosts, tunnels and listeners, shared by the files of common/tunnel. Otherwise only tests and fuzzers
 * include it. */
#ifndef DTD_COMMON_TUNNEL_INTERNAL_H
#define DTD_COMMON_TUNNEL_INTERNAL_H

#include "common/base/log_limit.h"
#include "common/loop/acceptor.h"
#include "common/tunnel/address.h"
#include "common/tunnel/greeting.h"
#include "common/tunnel/tunnel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/queue.h>

#define WIRE_BYTES 33280u        /* in each direction: two full TLS records */
#define PLAIN_BYTES 16384u       /* in each direction: the payload of one TLS record */
#define REKEY_BYTES (1ull << 34) /* sent under one traffic key; the cipher's limit is about twenty times as much */
#define PSK_IDENTITY_MAX (TUNNEL_NAME_MAX + 16)
#define PSK_BYTES 32
#define HELLO_FIRST_BYTES 9 /* record header, type and length of the ClientHello */

enum tunnel_role { ROLE_ACCEPT, ROLE_CONNECT };

/* tunnel.c has a drawing of the states. */
enum tunnel_state { T_CONNECTING, T_HANDSHAKE, T_GREETING, T_OPEN, T_LINGER, T_CLOSING };

struct plain_buffer {
    uint8_t bytes[PLAIN_BYTES];
    size_t at, len; /* the remaining bytes: bytes[at..len) */
};

struct tunnel {
    TAILQ_ENTRY(tunnel) link;         /* in the host's list */
    TAILQ_ENTRY(tunnel) pending_link; /* in the listener's list, oldest first, until the peer is authenticated */
    struct tunnel_host *host;
    struct tunnel_listener *listener; /* accepting side, until the peer is authenticated; else NULL */
    struct tunnel_request *request;   /* connecting side, until its callback has been called; else NULL */
    enum tunnel_role role;
    enum tunnel_state state;
    uv_poll_t wire_poll, pair_poll;
    uv_timer_t timer; /* deadline of the handshake; while OPEN: checks for a lost host; deadline of LINGER */
    int open_handles, wire_fd, pair_fd;
    int wire_armed, pair_armed; /* polled events; 0: polling is stopped */

    /* the peer */
    struct sockaddr_storage from;
    struct tunnel_peer peer;
    char identity[PSK_IDENTITY_MAX + 1];
    const char *refusal; /* set by the PSK callbacks: why the handshake must fail */
    int psk_asked;       /* number of identities that the peer has offered */
    bool counted;        /* in stats.tunnels */

    /* handshake and greeting */
    size_t hello_bytes; /* received before the peer was authenticated */
    uint8_t first[HELLO_FIRST_BYTES];
    uint8_t greeting[GREETING_MAX_BYTES];
    size_t greeting_len;

    /* the TCP side: `ssl` and `wire` are the two ends of a BIO pair of fixed size */
    SSL *ssl;
    BIO *wire;
    bool wire_ended;                /* nothing more can be received */
    bool wire_lost;                 /* nothing more can be sent */
    bool wire_shut;                 /* FIN has been sent */
    uint64_t progress_at;           /* loop time at which the socket last accepted bytes */
    uint64_t wire_sent, wire_acked; /* bytes sent; bytes acknowledged at the last check */
    uint32_t lost_ms;
    bool one_way;
    uint64_t waits_since, looked_at;  /* loop times: since when no acknowledgement has arrived; of the last check */
    uint64_t sent_bytes, rekey_bytes; /* payload sent under the present traffic key; limit at which it is replaced */

    /* the owner's side */
    struct plain_buffer up, down; /* up: from the owner to the peer; down: from the peer to the owner */
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
    struct address addresses[ADDRESSES_MAX];
    int n_addresses, looked_up; /* looked_up: the number of those whose sockets are in `to`, or are being resolved */
    char address_text[TUNNEL_ADDRESS_MAX + 1];
    struct tunnel_key_id key;
    char expected[TUNNEL_NAME_MAX + 1]; /* "": any node */
    enum tunnel_purpose purpose;
    char argument[TUNNEL_ARGUMENT_MAX + 1];
    uv_timer_t timer; /* deadline of the whole request */
    uint64_t due;
    uint32_t lost_ms;
    bool one_way;
    struct resolve *resolves[ADDRESSES_MAX]; /* of each address; NULL: none is in progress */
    bool waits;                              /* for the newest of them, before the next address is tried */
    struct sockaddr_storage to[REQUEST_ADDRESSES_MAX];
    int n_to, at, n_silent; /* at: the next one */
    bool is_patient;        /* in the second round */
    struct tunnel *tunnel;
    bool finished;
    /* arguments of the callback */
    err_t err;
    struct why why;
    struct tunnel_peer peer;
    int fd;
};

struct tunnel_host {
    struct tunnel_host_config config;
    char name[TUNNEL_NAME_MAX + 1];
    SSL_CTX *accept_ctx, *connect_ctx;
    uv_timer_t timer; /* logs the number of refusals that were not logged individually */
    TAILQ_HEAD(, tunnel) tunnels;
    TAILQ_HEAD(, tunnel_listener) listeners;
    TAILQ_HEAD(, tunnel_request) requests;
    struct tunnel_stats stats;
    uint32_t all;              /* tunnels in any state, including CONNECTING */
    struct log_limit refusals; /* log lines about them */
    bool closing, timer_closed;
    void (*closed)(void *owner);
    void *closed_owner;
};

/* ---- tls.c ---- */

NODISCARD err_t tls_contexts_make(struct tunnel_host *host, struct why *why);
void tls_contexts_free(struct tunnel_host *host);
/* Creates t->ssl and t->wire; tls_end frees both. */
NODISCARD err_t tls_start(struct tunnel *t);
void tls_end(struct tunnel *t);
/* "k7:name" or "join:<16 hex digits>" */
void psk_identity_print(struct tunnel_key_id key, const char *name, char ret[PSK_IDENTITY_MAX + 1]);
/* The name is "" in a join identity. */
bool psk_identity_parse(const uint8_t *data, size_t len, struct tunnel_key_id *ret_key,
                        char ret_name[TUNNEL_NAME_MAX + 1]);
void key_id_print(struct tunnel_key_id key, char *ret, size_t size);
/* The version of the greetings, which the handshake has negotiated. */
uint8_t tls_greeting_version(const struct tunnel *t);
/* What an end of this connection signs. */
#define TLS_PROOF_INPUT (sizeof(GREETING_PROVES) + 32)
NODISCARD err_t tls_proof_input(const struct tunnel *t, enum tunnel_role signer, uint8_t ret[TLS_PROOF_INPUT]);
/* Why the last SSL call failed. *ret_alert is the number of an alert sent by the peer, or -1. */
const char *tls_reason(int *ret_alert);

/* ---- wire.c: between the socket and the BIO ---- */

void wire_set_options(int fd, uint32_t lost_ms);
/* Reads once from the socket into the BIO. Sets wire_ended or wire_lost. */
void wire_read(struct tunnel *t);
/* Reads once from the socket and drops the bytes. */
void wire_discard(struct tunnel *t);
/* Counts bytes that have been written into the BIO. */
void wire_received(struct tunnel *t, const uint8_t *data, size_t len);
/* Sends as much of the BIO as the socket accepts. Returns true if it accepted anything. */
bool wire_flush(struct tunnel *t);
size_t wire_pending(const struct tunnel *t); /* bytes to send */
bool wire_has_room(const struct tunnel *t);  /* for bytes received */
void wire_mark_lost(struct tunnel *t);
/* True if bytes wait for the socket, or were unacknowledged at the last check. */
bool wire_is_busy(const struct tunnel *t);
/* Checks whether the peer's host is alive; to be repeated every wire_watch_ms while the result is WIRE_WAITS. */
enum wire_health { WIRE_IDLE, WIRE_WAITS, WIRE_DEAD };
enum wire_health wire_look(struct tunnel *t);
uint32_t wire_watch_ms(const struct tunnel *t);

/* ---- pump.c: between the owner and TLS ---- */

void pump_pair_ready(struct tunnel *t, int status, int events);
/* Copies as many bytes as possible in both directions, then closes the tunnel or arms its polls. */
void pump_run(struct tunnel *t);

/* ---- tunnel.c ---- */

/* Takes `fd` over, also on error. */
NODISCARD err_t tunnel_new(struct tunnel_host *host, int fd, const struct sockaddr_storage *from, enum tunnel_role role,
                           struct tunnel **ret);
/* Sets the first state and its deadline, and starts to poll. */
void tunnel_begin(struct tunnel *t, enum tunnel_state state, uint64_t deadline_ms);
void tunnel_arm(struct tunnel *t);
void tunnel_move(struct tunnel *t, enum tunnel_state to);
/* Closes immediately, without a log line or a callback. */
void tunnel_cut(struct tunnel *t);
/* Reports the error to the log or to the request, then closes. */
void tunnel_fail(struct tunnel *t, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void tunnel_linger(struct tunnel *t);
/* Processes bytes as if they had been read from the socket; the fuzzer calls it. */
void tunnel_feed(struct tunnel *t, const uint8_t *data, size_t len);

/* ---- hello.c ---- */

/* Handshake and greetings with what has come; afterwards the state is a later one, or waits for more. */
void hello_run(struct tunnel *t);

/* ---- listen.c ---- */

/* Processes an accepted connection; the fuzzer calls it. Takes `fd` over; NULL: the connection was refused. */
struct tunnel *listener_take(struct tunnel_listener *l, int fd, const struct sockaddr_storage *from);
void listener_forget(struct tunnel *t); /* removes the tunnel from the pending ones */

/* ---- connect.c ---- */

/* One address failed before a connection was established: tries the next one. */
void request_dial_failed(struct tunnel_request *r, err_t err, const char *why);
/* Ends the request. Takes `fd` over. */
void request_finish(struct tunnel_request *r, err_t err, const char *why, const struct tunnel_peer *peer, int fd);

/* ---- host.c ---- */

/* Logs a refused connection, or only counts it if there were too many. */
void host_log_refusal(struct tunnel_host *host, const char *address, const char *why);
/* Frees a closing host if its last tunnel, listener and request have closed. */
void host_maybe_closed(struct tunnel_host *host);

#endif
