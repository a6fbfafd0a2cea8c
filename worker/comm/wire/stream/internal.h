/* The stream wire: a TCP connection with TLS 1.3 for each lane of each pair of ranks on different nodes. There are no
 * certificates: both sides prove that they have the epoch's secret. TLS uses it as an external pre-shared key together
 * with an ephemeral key exchange, so recorded traffic stays secret if the epoch's secret leaks. The higher rank
 * connects.
 *
 * The listening socket exists only while the wire is being opened. A connection without the key, with another epoch's
 * key, or with an unfinished handshake is refused with one line in the log. It occupies one place of a bounded table
 * for a few seconds. */
#ifndef DTD_WORKER_COMM_WIRE_STREAM_INTERNAL_H
#define DTD_WORKER_COMM_WIRE_STREAM_INTERNAL_H

#include "worker/comm/wire/codec.h"
#include "worker/comm/wire/wire.h"

#include <openssl/ssl.h>

#define STREAM_FIRST 4096              /* bytes of the record with the header and the beginning of a message */
#define STREAM_WRITE ((size_t)1 << 20) /* most bytes in one call of TLS */
#define STREAM_TURN ((size_t)4 << 20)  /* most bytes moved on one connection before the others have their turn */
/* Bytes after which the key is renewed. The cipher may encrypt 2^24.5 records of 16 KiB with one key (RFC 8446, 5.5);
 * this is well below. */
#define STREAM_REKEY ((uint64_t)64 << 30)

struct stream_connection {
    int rank, lane, fd;
    SSL *ssl;
    bool readable, writable; /* set by epoll, cleared when a read or write would block */
    bool left;               /* the peer has closed the connection in order */
    struct wire_op *out, **out_end, *in, **in_end;
    uint32_t sent, received; /* number of messages */
    uint64_t sealed;         /* bytes encrypted with the current key */
    uint8_t head[STREAM_FIRST];
    size_t head_at, head_bytes; /* head_bytes 0: the first message in `out` has not begun */
    uint8_t header[WIRE_HEADER_BYTES];
    size_t header_at;
    uint64_t coming; /* bytes of the message whose header has arrived */
};

/* A connection whose handshake is not finished. */
struct stream_handshake {
    int fd;
    SSL *ssl; /* NULL while TCP connects */
    bool incoming;
    int rank, lane;        /* outgoing: destination */
    int64_t begun_ms;      /* outgoing with fd < 0: time of the next attempt */
    int refusals;          /* outgoing: attempts that failed in TLS */
    union wire_address at; /* address of the peer */
    struct wire_identity id;
    bool known;      /* incoming: `id` is the peer's identity and is valid */
    char wrong[128]; /* incoming: why the identity was refused */
};

struct stream_wire {
    struct comm_wire base;
    int rank, world, node, n_conns, epoll, bell; /* bell: an eventfd to which abort writes */
    uint64_t epoch, rekey;
    int *node_of;
    SSL_CTX *ctx;
    uint8_t key[WIRE_KEY_BYTES];
    struct stream_connection **conns; /* [lane * world + rank]; NULL if there is no connection */
    struct stream_connection *list;   /* all of them */
};

static inline struct stream_connection *stream_conn(const struct stream_wire *s, int rank, int lane)
{
    return s->conns[(size_t)lane * (size_t)s->world + (size_t)rank];
}
static inline bool stream_is_remote(const struct stream_wire *s, int rank)
{
    return s->node_of[rank] != s->node;
}

/* ---- tls.c ---- */

NODISCARD err_t stream_tls_init(struct stream_wire *s, const struct wire_config *config, struct why *why);
/* Creates an SSL object over h->fd. The callbacks for keys and identities use `h` during the handshake. NULL: out of
 * memory. */
SSL *stream_tls_new(struct stream_wire *s, struct stream_handshake *h);
/* The reason of this thread's last failed call, for an error message. */
const char *stream_tls_error(char *ret, size_t room);

/* ---- connect.c ---- */

/* Establishes all connections, or fails. */
NODISCARD err_t stream_connect_all(struct stream_wire *s, const struct wire_config *config, struct why *why);

/* ---- conn.c ---- */

void conn_queue(struct wire_op ***end, struct wire_op *op);
/* Moves what can be moved; *moved is set when anything was. Not OK: the wire is dead. */
err_t conn_move(struct stream_wire *s, struct stream_connection *c, bool *moved);

#endif
