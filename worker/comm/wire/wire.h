/* Messages between this rank and ranks of other nodes: what the hierarchical backend (worker/comm/hier) needs of a
 * network, and nothing more. Two fill it in: stream (TCP under TLS 1.3, keyed from the epoch's secret) and ucx (for
 * fabrics that are trusted; a module).
 *
 * Between two ranks run lanes, so that what one holds up does not hold up the other. On a lane messages arrive in the
 * order of their sends; a receive has the size of its message. There is no thread: messages move inside progress. As
 * the comm's, calls come one at a time, of whatever thread, except abort, which any thread may call at any time.
 *
 * A peer that is lost, or breaks the protocol, makes the whole wire dead: progress says so with a sentence that names
 * the rank, and goes on saying so. Nothing waits without a limit of time. */
#ifndef DTD_WORKER_COMM_WIRE_WIRE_H
#define DTD_WORKER_COMM_WIRE_WIRE_H

#include "worker/comm/comm.h"

#include <stdatomic.h>

enum wire_lane { WIRE_COLLECTIVES, WIRE_MESSAGES, WIRE_LANES };

/* A message under way, in the caller's memory, which stays where it is, with its buffer, until `done` or until progress
 * has failed. */
struct wire_op {
    uint8_t *buffer;
    size_t bytes;
    bool done; /* a send: the buffer is the caller's again; a receive: it holds the message */
    /* the wire's own */
    size_t at;
    struct wire_op *next;
    void *request, *peer;
};

struct wire_config {
    int rank, world;
    const int *node_of; /* of every rank; used during open */
    uint64_t epoch;
    const void *secret; /* of the epoch: who does not have it is refused */
    size_t secret_bytes;
    const char *address; /* of this node, a number or a name: where this rank listens, and what others connect to */
    const struct comm_store *store;
    int64_t timeout_ms; /* for all connections to be there */
    const _Atomic int *cancel;
};

struct wire;

struct wire_ops {
    const char *name;
    /* Connects to every rank of another node. */
    err_t (*open)(const struct wire_config *config, struct wire **ret, struct why *why);
    /* Tells the peers that this rank leaves in order, unless the wire is dead. */
    void (*close)(struct wire *w);
    void (*abort)(struct wire *w);
    void (*send)(struct wire *w, int rank, enum wire_lane lane, struct wire_op *op);
    void (*recv)(struct wire *w, int rank, enum wire_lane lane, struct wire_op *op);
    /* Moves what can be moved; if that is nothing, waits for at most wait_ms until something can be. ERR_CANCELED after
     * abort; ERR_CLOSED, ERR_PROTO, ERR_INVALID (a size differs) when it is dead: w->why has the sentence. */
    err_t (*progress)(struct wire *w, int wait_ms);
    /* Whether what is done has left this process; until then progress is to be called. */
    bool (*flushed)(struct wire *w);
};

/* Begins each wire's own struct. */
struct wire {
    const struct wire_ops *ops;
    _Atomic int aborted;
    err_t dead; /* not OK once it is; `why` has the sentence */
    struct why why;
    char note[128];
};

/* Marks it dead with the first sentence that comes; gives back the error. */
err_t wire_die(struct wire *w, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
err_t wire_sizes_differ(struct wire *w, int from, uint64_t sent, int to, size_t wanted);

/* 32 bytes from the epoch's secret (HKDF-SHA256, "dtd comm"). ERR_INVALID for a secret that is none. */
#define WIRE_KEY_BYTES 32
NODISCARD err_t wire_key(const struct wire_config *config, uint8_t *ret, struct why *why);

/* Ranks leave their addresses in the store under "comm/KIND/RANK". To ask waits until the deadline, or the epoch's end.
 */
union wire_address;
NODISCARD err_t wire_leave_address(const struct wire_config *config, const char *kind, const union wire_address *at,
                                   struct why *why);
NODISCARD err_t wire_ask_address(const struct wire_config *config, const char *kind, int rank, int64_t deadline_ms,
                                 union wire_address *ret, struct why *why);
/* ERR_CANCELED, with its sentence, when the epoch has ended. */
NODISCARD err_t wire_is_over(const struct wire_config *config, struct why *why);

extern const struct wire_ops wire_stream;

/* What the module dtd-ucx.so exports: `struct wire_module dtd_ucx_module`. */
#define WIRE_MODULE_ABI 1
struct wire_module {
    int abi;
    const struct wire_ops *ops;
};

#endif
