/* Authenticated, encrypted byte streams between daemons: TLS 1.3 with an external key (PSK) and ECDHE over TCP, no
 * certificates, no clocks. docs/wire.md, "Between nodes", is the byte-exact format.
 *
 * A tunnel gives its owner one end of a Unix socketpair (SOCK_STREAM, non-blocking, close-on-exec): an ordinary
 * descriptor for rpc_conn_open, uv_pipe_open or read and write. The tunnel pumps between the other end and the TCP
 * connection, in the same loop. The descriptor is the tunnel's life: when the owner closes it, what it wrote is flushed
 * to the peer (for at most TUNNEL_LINGER_MS) and the connection ends; when it shuts down writing, the peer's owner sees
 * the end of the stream and may go on writing. When the peer ends or is lost, the owner reads what came before and then
 * the end of the stream: the end of the stream alone does not say that the peer meant it, the bytes inside must.
 *
 * Who has the cluster's key is a node, and may call itself by any name; a name is a claim among equals. Who has a join
 * token's secret may open TUNNEL_JOIN and nothing else.
 *
 * Memory of a tunnel: TUNNEL_BYTES here, about 20 KiB inside OpenSSL when idle and about 35 KiB more while bytes flow,
 * and the kernel's socket buffers. Before authentication a peer may send TUNNEL_HELLO_BYTES and OpenSSL parses nothing
 * that does not look like a ClientHello of at most TUNNEL_CLIENT_HELLO_BYTES.
 *
 * Everything here lives on the thread of the host's loop. Callbacks never run inside the call that starts them. */
#ifndef DTD_COMMON_TUNNEL_TUNNEL_H
#define DTD_COMMON_TUNNEL_TUNNEL_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define TUNNEL_NAME_MAX 253     /* of a node: letters, digits, points, dashes and underscores */
#define TUNNEL_ARGUMENT_MAX 256 /* visible ASCII and spaces */
#define TUNNEL_ADDRESS_MAX 263  /* "host:port" or "[v6]:port" */
#define TUNNEL_SECRET_MAX 32

#define TUNNEL_HANDSHAKE_MS 5000 /* of a peer that connected: TLS and greeting; and the default of tunnel_connect */
#define TUNNEL_LINGER_MS 5000    /* what the owner left behind has this long to be taken */
#define TUNNEL_LOST_MS 10000     /* a vanished host is noticed within this, also when nothing is sent */
#define TUNNEL_PENDING_MAX 64    /* unauthenticated connections of a listener; the oldest is dropped */
#define TUNNEL_PENDING_ADDRESS_MAX 16 /* of one remote address; the oldest of that address is dropped */
#define TUNNEL_TUNNELS_MAX 4096       /* of a host */
#define TUNNEL_BYTES (112u << 10)     /* at most, of a tunnel's own memory */
#define TUNNEL_HELLO_BYTES 4096
#define TUNNEL_CLIENT_HELLO_BYTES 2048

/* ---- keys ---- */

enum tunnel_key_kind {
    TUNNEL_KEY_CLUSTER = 1, /* number: the key's version; on the wire "k<version>:<node name>" */
    TUNNEL_KEY_JOIN,        /* number: the token's id; on the wire "join:<16 hex digits>" */
};

struct tunnel_key_id {
    enum tunnel_key_kind kind;
    uint64_t number;
};

struct tunnel_secret {
    uint8_t bytes[TUNNEL_SECRET_MAX];
    size_t len;
};

/* Asked in every handshake, so that keys may come and go while tunnels are up. `find` fills the secret of `id`, or says
 * ERR_NOTFOUND when there is none or it holds no more. It must not close anything. The tunnel wipes its copy. */
struct tunnel_keys {
    void *owner;
    err_t (*find)(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret);
};

/* ---- a host: this node among the others ---- */

struct tunnel_host;

struct tunnel_host_config {
    uv_loop_t *loop;
    const char *name; /* this node's; copied */
    struct tunnel_keys keys;
};

NODISCARD err_t tunnel_host_open(const struct tunnel_host_config *config, struct tunnel_host **ret, struct why *why);
/* Closes listeners, gives up what is being connected (ERR_CANCELED to their callbacks), cuts all tunnels without
 * flushing, then calls `cb` (may be NULL) once. */
void tunnel_host_close(struct tunnel_host *host, void (*cb)(void *owner), void *owner);
/* Asks `find` for the key of each tunnel, and cuts those whose key holds no more. */
void tunnel_host_recheck(struct tunnel_host *host);

struct tunnel_stats {
    uint32_t tunnels, pending;         /* open now; not authenticated yet */
    uint64_t opened, refused, dropped; /* refused: for what they sent or failed to send; dropped: by the limits */
    uint64_t bytes_in, bytes_out;      /* of owners, through tunnels */
};
void tunnel_host_stats(const struct tunnel_host *host, struct tunnel_stats *ret);

/* ---- tunnels ---- */

enum tunnel_purpose { TUNNEL_RPC = 1, TUNNEL_RAFT, TUNNEL_JOIN, TUNNEL_STORE };

struct tunnel_peer {
    char name[TUNNEL_NAME_MAX + 1];
    struct tunnel_key_id key; /* that it proved to have */
    enum tunnel_purpose purpose;
    char argument[TUNNEL_ARGUMENT_MAX + 1]; /* as the connecting side gave it */
    char address[TUNNEL_ADDRESS_MAX + 1];   /* where its connection comes from, or goes to */
};

/* The callback owns `fd`: it takes or closes it. `peer` is valid during the call. */
typedef void (*tunnel_accept_cb)(void *owner, const struct tunnel_peer *peer, int fd);

struct tunnel_listener;

/* `fd` listens already (tunnel_bind, or inherited), is set non-blocking and stays the caller's. */
NODISCARD err_t tunnel_listen(struct tunnel_host *host, int fd, tunnel_accept_cb cb, void *owner,
                              struct tunnel_listener **ret);
/* Drops what is not authenticated; tunnels live on. No accept comes any more; `cb` (may be NULL) is called once, later.
 */
void tunnel_listener_close(struct tunnel_listener *listener, void (*cb)(void *owner));
/* A listening TCP socket for a numeric address; port 0 takes a free one. The caller closes it. */
NODISCARD err_t tunnel_bind(const char *address, int *ret_fd, struct why *why);

struct tunnel_connect_config {
    const char *address; /* "host:port" or "[v6]:port"; a name is resolved off the loop, its addresses tried in turn */
    struct tunnel_key_id key;
    const char *expected; /* the node that it must be; NULL: whoever has the key */
    enum tunnel_purpose purpose;
    const char *argument; /* NULL: "" */
    uint32_t deadline_ms; /* for all of it; 0: TUNNEL_HANDSHAKE_MS */
    /* A host that acknowledges nothing of what is sent is given up within this; 0: TUNNEL_LOST_MS. In less than that
     * also one that is there, whose owner takes nothing for as long and longer. */
    uint32_t lost_ms;
    /* The peer's owner says nothing. When it ends, nobody takes any more what ours says, who need not read to learn
     * this: the tunnel ends, and a write fails. */
    bool one_way;
};

/* Exactly once. OK: `fd` is the callback's, `peer` is who answered (its argument is ours). Else `why` is a sentence,
 * fd -1 and peer NULL. ERR_DENIED: the keys do not fit, or it is another node. */
typedef void (*tunnel_connect_cb)(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd);

struct tunnel_request; /* valid until its callback */

NODISCARD err_t tunnel_connect(struct tunnel_host *host, const struct tunnel_connect_config *config,
                               tunnel_connect_cb cb, void *owner, struct tunnel_request **ret, struct why *why);
/* The callback comes later, with ERR_CANCELED. */
void tunnel_connect_cancel(struct tunnel_request *request);

#endif
