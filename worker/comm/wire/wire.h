/* A wire carries messages between this rank and ranks of other nodes. Its interface has only what the hierarchical
 * backend (worker/comm/hier) needs of a network. There are two implementations: stream (TCP with TLS 1.3, with a key
 * derived from the epoch's secret) and ucx (for trusted fabrics; a module).
 *
 * Two ranks are connected by several lanes; a blocked lane does not delay the other. On a lane messages arrive in the
 * order of their sends, and a receive must have the size of its message. There is no background thread: messages move
 * inside progress. As for a comm, one call is made at a time, from any thread; only abort may be called from any thread
 * at any time.
 *
 * When a peer is lost or violates the protocol, the whole wire is dead: progress returns an error with a message that
 * names the rank, and keeps returning it. Every wait has a deadline. */
#ifndef DTD_WORKER_COMM_WIRE_WIRE_H
#define DTD_WORKER_COMM_WIRE_WIRE_H

#include "worker/comm/comm.h"

#include <stdatomic.h>

enum wire_lane { WIRE_COLLECTIVES, WIRE_MESSAGES, WIRE_LANES };

/* A message in flight. The struct and its buffer belong to the caller, who must not move or free them until `done` is
 * set or progress has failed. */
struct wire_op {
    uint8_t *buffer;
    size_t bytes;
    bool done; /* send: the caller may change the buffer again; receive: the buffer holds the message */
    /* The rest is private to the wire. */
    size_t at;
    struct wire_op *next;
    void *request, *peer;
};

struct wire_config {
    int rank, world;
    const int *node_of; /* node number of every rank; used during open */
    uint64_t epoch;
    const void *secret; /* the epoch's secret; a peer without it is refused */
    size_t secret_bytes;
    const char *address; /* of this node, an IP address or a name: this rank listens there, and others connect to it */
    const char *ports;   /* on which this rank listens (common/base/ports.h); NULL: any */
    const struct comm_store *store;
    int64_t timeout_ms; /* limit for all connections to be established */
    const _Atomic int *cancel;
};

struct comm_wire;

struct wire_ops {
    const char *name;
    /* Connects to every rank of another node. */
    err_t (*open)(const struct wire_config *config, struct comm_wire **ret, struct why *why);
    /* Notifies the peers of an orderly close, unless the wire is dead. */
    void (*close)(struct comm_wire *w);
    void (*abort)(struct comm_wire *w);
    void (*send)(struct comm_wire *w, int rank, enum wire_lane lane, struct wire_op *op);
    void (*recv)(struct comm_wire *w, int rank, enum wire_lane lane, struct wire_op *op);
    /* Moves what can be moved; if nothing can, waits at most wait_ms until something can. ERR_CANCELED after abort.
     * When the wire is dead: ERR_CLOSED, ERR_PROTO or ERR_INVALID (a size differs), and w->why has the message. */
    err_t (*progress)(struct comm_wire *w, int wait_ms);
    /* Whether the data of all sends that are done has left this process; until then progress must be called. */
    bool (*flushed)(struct comm_wire *w);
};

/* The first member of each wire's own struct. */
struct comm_wire {
    const struct wire_ops *ops;
    _Atomic int aborted;
    err_t dead; /* OK while the wire works, else why it is dead; `why` has the message */
    struct why why;
    char note[128];
};

/* Marks the wire dead, unless it is already; the first message is kept. Returns the error of the first call. */
err_t wire_fail(struct comm_wire *w, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
err_t wire_sizes_differ(struct comm_wire *w, int from, uint64_t sent, int to, size_t wanted);

/* Derives 32 bytes from the epoch's secret (HKDF-SHA256, info "dtd comm"). ERR_INVALID when the secret is missing or
 * too short. */
#define WIRE_KEY_BYTES 32
NODISCARD err_t wire_key(const struct wire_config *config, uint8_t *ret, struct why *why);

/* Ranks publish their addresses in the store under "comm/KIND/RANK". A lookup waits until the address is there, until
 * the deadline, or until the epoch ends. */
union wire_address;
NODISCARD err_t wire_publish_address(const struct wire_config *config, const char *kind, const union wire_address *at,
                                     struct why *why);
NODISCARD err_t wire_lookup_address(const struct wire_config *config, const char *kind, int rank, int64_t deadline_ms,
                                    union wire_address *ret, struct why *why);
/* Calls `listens` with this rank's address at one port of config->ports after another, or at port 0, until it does not
 * return ERR_EXISTS, which means that the port is in use. ERR_LIMIT: all are. */
typedef err_t (*wire_listen_fn)(void *arg, const union wire_address *at, struct why *why);
NODISCARD err_t wire_listen(const struct wire_config *config, wire_listen_fn listens, void *arg, struct why *why);
/* ERR_CANCELED, with a message, when the epoch has ended. */
NODISCARD err_t wire_check_canceled(const struct wire_config *config, struct why *why);

#define WIRE_ADDRESS_REMEDY \
    "correct cluster.fabric, or else cluster.advertise, in the configuration of dtd on this node"

extern const struct wire_ops wire_stream;

/* The module dtd-ucx.so exports one symbol: `struct wire_module dtd_ucx_module`. */
#define WIRE_MODULE_ABI 1
struct wire_module {
    int abi;
    const struct wire_ops *ops;
};

#endif
