/* Authenticated, encrypted byte streams between daemons: TLS 1.3 with an external key (PSK) and ECDHE over TCP, without
 * certificates and without clocks, and in it a signature of each node. docs/formats/wire.md, "Between nodes", specifies
 * every byte of the format.
 *
 * A tunnel gives its owner one end of a Unix socketpair (SOCK_STREAM, non-blocking, close-on-exec): an ordinary
 * descriptor for rpc_conn_open, uv_pipe_open or read and write. In the same loop the tunnel copies bytes between the
 * other end of the pair and the TCP connection. The tunnel exists as long as this descriptor:
 *
 * - When the owner closes it, the bytes that it wrote are flushed to the peer (for at most TUNNEL_LINGER_MS), and the
 *   connection ends.
 * - When the owner shuts down writing, the peer's owner reads the end of the stream and may continue to write.
 * - When the peer closes or is lost, the owner reads the bytes that were received before, and then the end of the
 *   stream. The end of the stream does not show whether the peer closed on purpose; the protocol inside must.
 *
 * The cluster's key proves that a program belongs to the cluster, and the signature of its identity (identity.h) which
 * node it is; the owner of the host decides which identities it admits (tunnel_identity). A program that has the secret
 * of a join token may open TUNNEL_JOIN and nothing else.
 *
 * Memory of a tunnel: TUNNEL_BYTES here, about 20 KiB inside OpenSSL while idle and about 35 KiB more while bytes flow,
 * and the kernel's socket buffers. Before authentication a peer may send TUNNEL_HELLO_BYTES, and OpenSSL parses only
 * input that looks like a ClientHello of at most TUNNEL_CLIENT_HELLO_BYTES.
 *
 * Everything runs on the thread of the host's loop. Callbacks never run inside the function that starts them. */
#ifndef DTD_COMMON_TUNNEL_TUNNEL_H
#define DTD_COMMON_TUNNEL_TUNNEL_H

#include "common/base/err.h"
#include "common/tunnel/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define TUNNEL_NAME_MAX 253     /* name of a node: letters, digits, points, dashes and underscores; as for host names */
#define TUNNEL_ARGUMENT_MAX 256 /* visible ASCII and spaces */
#define TUNNEL_ADDRESS_MAX 263  /* "host:port" or "[v6]:port", or a list with commas */
#define TUNNEL_SECRET_MAX 32

#define TUNNEL_HANDSHAKE_MS 5000       /* for TLS and greeting of an accepted connection; default of tunnel_connect */
#define TUNNEL_LINGER_MS 5000          /* for the peer to accept the bytes that the owner wrote before closing */
#define TUNNEL_LOST_MS 10000           /* a vanished host is detected within this time, also if nothing is sent */
#define TUNNEL_PENDING_MAX 64          /* unauthenticated connections per listener; then the oldest is dropped */
#define TUNNEL_PENDING_ADDRESS_MAX 16  /* ... per remote address; then the oldest of that address is dropped */
#define TUNNEL_TUNNELS_MAX 20480       /* per host: one for each node of the largest cluster, and some */
#define TUNNEL_BYTES (112u << 10)      /* upper limit of a tunnel's own memory */
#define TUNNEL_HELLO_BYTES 4096        /* a handshake and the longest greeting need less */
#define TUNNEL_CLIENT_HELLO_BYTES 2048 /* dtd's own ClientHello has a few hundred bytes */

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

/* Called in every handshake, so that keys can be added and removed while tunnels are open. `find` fills in the secret
 * of `id`, or returns ERR_NOTFOUND if the key does not exist or is no longer valid. It must not close anything. The
 * tunnel wipes its copy of the secret. */
struct tunnel_keys {
    void *owner;
    err_t (*find)(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret);
};

/* ---- which cluster ---- */

#define TUNNEL_BY_MAX 64
/* The cluster of a node and its generation: `dtctl cluster recover` makes a new one. */
struct tunnel_lineage {
    uint64_t id, generation;    /* id 0: none, or the node's version does not know it */
    int64_t at_ms;              /* when the generation began */
    char by[TUNNEL_BY_MAX + 1]; /* node on which it was made; "": unknown; a longer name is cut */
};

struct tunnel_peer;
enum tunnel_kinship {
    TUNNEL_OF_KIN,
    TUNNEL_FOREIGN,    /* of another cluster, or of another generation */
    TUNNEL_SUPERSEDED, /* its cluster was recovered without it */
    TUNNEL_FORGETFUL,  /* its log is an old copy */
};
/* Asked in every greeting, at both ends. All NULL: lineages are not compared. */
struct tunnel_kin {
    void (*own)(void *owner, struct tunnel_lineage *ret);
    /* `peer` is authenticated; its lineage, purpose and argument are set. `answers`: it has admitted us. */
    enum tunnel_kinship (*judge)(void *owner, const struct tunnel_peer *peer, bool answers);
    /* The node `name` has refused us with this verdict. */
    void (*refused)(void *owner, const char *name, enum tunnel_kinship verdict, const struct tunnel_lineage *its);
};

/* ---- identities ---- */

struct tunnel_peer;

enum tunnel_verdict {
    TUNNEL_ADMIT,
    TUNNEL_STRANGER,    /* no node of this name is known here */
    TUNNEL_OTHER,       /* the node of this name has another identity, or the peer has proved none */
    TUNNEL_REMOVED,     /* the cluster has no such node, and this node decides which it has */
    TUNNEL_NEEDS_TOKEN, /* the cluster's key is not enough to join */
};

/* Which peers a host admits. `admit` is called when a peer has named itself and its signature was verified, on the
 * accepting (`accepts`) and on the connecting side, and again by tunnel_host_recheck. It must not close anything. */
struct tunnel_identity {
    const struct identity *own; /* NULL: none. Such a host, as one of an older version, signs and verifies nothing */
    void *owner;
    enum tunnel_verdict (*admit)(void *owner, const struct tunnel_peer *peer, bool accepts); /* NULL: all */
};

/* ---- a host: this node ---- */

struct tunnel_host;

struct tunnel_host_config {
    uv_loop_t *loop;
    const char *name; /* of this node; copied */
    struct tunnel_keys keys;
    struct tunnel_kin kin;           /* its functions get keys.owner */
    struct tunnel_identity identity; /* `own` outlives the host */
};

NODISCARD err_t tunnel_host_open(const struct tunnel_host_config *config, struct tunnel_host **ret, struct why *why);
/* Closes listeners, cancels connection attempts (their callbacks receive ERR_CANCELED), closes all tunnels without
 * flushing, then calls `cb` (may be NULL) once. */
void tunnel_host_close(struct tunnel_host *host, void (*cb)(void *owner), void *owner);
/* Calls `find` for the key of each tunnel and `admit` for its peer, and closes the tunnels that are no longer valid. */
void tunnel_host_recheck(struct tunnel_host *host);

struct tunnel_stats {
    uint32_t tunnels, pending;         /* open now; not yet authenticated */
    uint64_t opened, refused, dropped; /* refused: invalid or missing input; dropped: a limit was reached */
    uint64_t bytes_in, bytes_out;      /* payload, received and sent */
};
void tunnel_host_stats(const struct tunnel_host *host, struct tunnel_stats *ret);

/* ---- tunnels ---- */

enum tunnel_purpose { TUNNEL_RPC = 1, TUNNEL_RAFT, TUNNEL_JOIN, TUNNEL_STORE };

struct tunnel_peer {
    char name[TUNNEL_NAME_MAX + 1];
    struct tunnel_key_id key; /* the key by which it has authenticated itself */
    enum tunnel_purpose purpose;
    char argument[TUNNEL_ARGUMENT_MAX + 1]; /* chosen by the connecting side */
    char address[TUNNEL_ADDRESS_MAX + 1];   /* remote address of the connection */
    struct tunnel_lineage lineage;
    bool is_proven; /* it has signed with `public_key`; else it is of an older version */
    uint8_t public_key[IDENTITY_BYTES];
};

/* The callback owns `fd`. `peer` is valid during the call. */
typedef void (*tunnel_accept_cb)(void *owner, const struct tunnel_peer *peer, int fd);

struct tunnel_listener;

/* `fd` already listens (from tunnel_bind, or inherited), is set non-blocking and remains the caller's. */
NODISCARD err_t tunnel_listen(struct tunnel_host *host, int fd, tunnel_accept_cb cb, void *owner,
                              struct tunnel_listener **ret);
/* Drops unauthenticated connections; open tunnels are not affected. The accept callback is not called any more. `cb`
 * (may be NULL) is called once, later. */
void tunnel_listener_close(struct tunnel_listener *listener, void (*cb)(void *owner));
/* Opens a listening TCP socket on a numeric address; port 0: any free port. The caller closes it. */
NODISCARD err_t tunnel_bind(const char *address, int *ret_fd, struct why *why);

struct tunnel_connect_config {
    /* "host:port" or "[v6]:port", or a list of them with commas. They are tried in turn; a name is resolved in a
     * thread, and all its addresses are tried. */
    const char *address;
    struct tunnel_key_id key;
    const char *expected; /* required name of the peer node; NULL: any node with the key */
    enum tunnel_purpose purpose;
    const char *argument; /* NULL: "" */
    uint32_t deadline_ms; /* for resolving, connecting and greeting together; 0: TUNNEL_HANDSHAKE_MS */
    /* A host that acknowledges nothing is declared lost within this time; 0: TUNNEL_LOST_MS. With
     * TUNNEL_LOST_MS or more, a host that is alive is never declared lost, however long its owner reads nothing. With
     * less, it is declared lost, too, when its owner reads nothing for this time or longer. */
    uint32_t lost_ms;
    /* The peer's owner never writes. When the peer ends its stream, it no longer reads either: the tunnel closes, and
     * the next write of our owner fails. So our owner learns of the end without reading. */
    bool one_way;
};

/* Called exactly once. OK: the callback owns `fd`, and `peer` describes the node that answered (with our argument). On
 * an error `why` is the message, fd is -1 and peer NULL. ERR_DENIED: the keys differ, or it is another node. ERR_STALE:
 * a node that `admit` admits has answered TUNNEL_REMOVED. */
typedef void (*tunnel_connect_cb)(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd);

struct tunnel_request; /* valid until its callback */

NODISCARD err_t tunnel_connect(struct tunnel_host *host, const struct tunnel_connect_config *config,
                               tunnel_connect_cb cb, void *owner, struct tunnel_request **ret, struct why *why);
/* The callback is called later, with ERR_CANCELED. */
void tunnel_connect_cancel(struct tunnel_request *request);

#endif
