/* The stream wire: a TCP connection under TLS 1.3 for each lane of each pair of ranks on different nodes. There are no
 * certificates: both sides prove that they have the epoch's secret (an external pre-shared key, with an ephemeral
 * exchange, so that what is recorded stays closed when the secret gets out). The higher rank connects.
 *
 * The listening socket exists only while the wire is opened. Whoever comes to it without the key, with another epoch's,
 * or not at all to the end, is refused with one line in the log and costs a bounded table one place for a few seconds.
 */
#ifndef DTD_WORKER_COMM_WIRE_STREAM_INTERNAL_H
#define DTD_WORKER_COMM_WIRE_STREAM_INTERNAL_H

#include "worker/comm/wire/codec.h"
#include "worker/comm/wire/wire.h"

#include <openssl/ssl.h>

#define STREAM_FIRST 4096              /* a header and the message's first bytes go into one record */
#define STREAM_WRITE ((size_t)1 << 20) /* given to TLS at once */
#define STREAM_TURN ((size_t)4 << 20)  /* read from one connection before the others have their turn */
/* The cipher may seal 2^24.5 records with one key (RFC 8446, 5.5); a new key comes long before. */
#define STREAM_REKEY ((uint64_t)64 << 30)

struct conn {
    int rank, lane, fd;
    SSL *ssl;
    bool readable, writable; /* as far as is known: false after the kernel has said so */
    bool left;               /* the peer has closed in order */
    struct wire_op *out, **out_end, *in, **in_end;
    uint32_t sent, received; /* messages */
    uint64_t sealed;         /* bytes since the last key */
    uint8_t head[STREAM_FIRST];
    size_t head_at, head_bytes; /* head_bytes 0: the message in front has not begun */
    uint8_t header[WIRE_HEADER_BYTES];
    size_t header_at;
    uint64_t coming; /* bytes of the message whose header is there */
};

/* A connection that is not one yet. */
struct handshake {
    int fd;
    SSL *ssl; /* NULL while TCP connects */
    bool incoming;
    int rank, lane;        /* outgoing: whom to */
    int64_t begun_ms;      /* outgoing with fd < 0: when to try again */
    int refusals;          /* outgoing: by TLS */
    union wire_address at; /* of the other side */
    struct wire_identity id;
    bool known;      /* incoming: `id` is what it says, and has been found good */
    char wrong[128]; /* why not */
};

struct stream {
    struct wire base;
    int rank, world, node, n_conns, epoll, bell; /* bell: an eventfd that abort rings */
    uint64_t epoch, rekey;
    int *node_of;
    SSL_CTX *ctx;
    uint8_t key[WIRE_KEY_BYTES];
    struct conn **conns; /* [lane * world + rank]; NULL where there is none */
    struct conn *list;   /* all of them */
};

static inline struct conn *stream_conn(const struct stream *s, int rank, int lane)
{
    return s->conns[(size_t)lane * (size_t)s->world + (size_t)rank];
}
static inline bool stream_is_remote(const struct stream *s, int rank)
{
    return s->node_of[rank] != s->node;
}

/* ---- tls.c ---- */

NODISCARD err_t stream_tls_init(struct stream *s, const struct wire_config *config, struct why *why);
/* An SSL over the descriptor; `h` answers and asks for identities, as long as the handshake lasts. NULL: no memory. */
SSL *stream_tls_new(struct stream *s, struct handshake *h);
/* What the last failed call of this thread says, for a sentence. */
const char *stream_tls_error(char *ret, size_t room);

/* ---- connect.c ---- */

/* All connections, or the reason why not. */
NODISCARD err_t stream_meet(struct stream *s, const struct wire_config *config, struct why *why);

/* ---- conn.c ---- */

void conn_queue(struct wire_op ***end, struct wire_op *op);
/* Moves what can be moved; *moved is set when anything was. Not OK: the wire is dead. */
err_t conn_move(struct stream *s, struct conn *c, bool *moved);

#endif
