/* The table of functions that a transport implements to be a comm backend. comm.c checks arguments and calls through
 * the table. A backend embeds `struct comm` and `struct comm_group` at the start of its own structs. comm.h describes
 * the calls; here are only the differences. */
#ifndef DTD_WORKER_COMM_BACKEND_H
#define DTD_WORKER_COMM_BACKEND_H

#include "worker/comm/comm.h"

struct comm_backend {
    const char *name;
    err_t (*open)(const struct comm_config *config, struct comm **ret, struct why *why);
    void (*close)(struct comm *c);
    void (*abort)(struct comm *c);
    void *(*shared)(struct comm *c);
    /* `me` is this rank's index in `ranks`; -1 when it is not a member (the group still gets its number). */
    err_t (*group_new)(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret);
    void (*group_free)(struct comm_group *g);
    err_t (*all_reduce)(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                        enum reduce_op op);
    err_t (*all_gather)(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                        enum dtype dtype);
    err_t (*reduce_scatter)(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                            const int64_t *counts, enum dtype dtype, enum reduce_op op);
    err_t (*unit_gather)(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                         const struct comm_part *parts, int n, enum dtype dtype);
    err_t (*unit_scatter)(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                          const struct comm_part *parts, int n, enum dtype dtype, bool add);
    err_t (*broadcast)(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root);
    err_t (*barrier)(struct comm_group *g);
    err_t (*agree)(struct comm_group *g, int64_t *x, enum reduce_op op);
    err_t (*tree_reduce)(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves,
                         void *out, int64_t n, enum dtype dtype);
    /* Messages and all-to-all: NULL if the backend does not support them; comm.c then returns ERR_UNSUPPORTED. */
    err_t (*all_to_all)(struct comm_group *g, struct kern_stream *s, const void *src, const int64_t *send_counts,
                        void *dst, const int64_t *recv_counts, enum dtype dtype);
    /* `slot` is below COMM_SLOTS, free, and belongs to this message until its wait. The peer is another rank. */
    err_t (*send_post)(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to, int slot);
    err_t (*recv_post)(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from, int slot);
    err_t (*push)(struct comm *c);
    err_t (*wait)(struct comm_group *g, int slot);
    /* For a backend that others build on; else NULL. Moves what can be moved without waiting, and returns whether the
     * slot's message is done; if so, the slot is free again. Slot -1: only checks whether the comm is alive. */
    err_t (*move)(struct comm_group *g, int slot, bool *ret_done);
    /* A message from the rank to itself. */
    err_t (*copy)(struct comm_group *g, struct kern_stream *s, void *dst, const void *src, int64_t bytes);
};

/* The messages in flight; used by comm.c only. A slot in use has the serial number of its post; 0 means free. There are
 * two slots more than a caller may hold, so that send, recv and sendrecv always find free ones. */
#define COMM_SLOTS (COMM_POSTS + 2)
struct comm_slots {
    uint32_t serial[COMM_SLOTS], last;
    int64_t received[COMM_SLOTS]; /* bytes to count when the slot's message is done: 0 for a send */
    int n;
};

struct comm {
    const struct comm_backend *backend;
    int rank, world;
    int64_t bytes_moved; /* comm_bytes_moved; changed by comm.c only */
    struct why why;      /* of the first call that failed: see comm_why */
    char note[256];      /* see comm_note */
    struct comm_slots slots;
};

struct comm_group {
    struct comm *comm;
    int n, me;
    int *ranks;
    int64_t bytes; /* comm_group_bytes; changed by comm.c only */
};

extern const struct comm_backend comm_backend_shm, comm_backend_staged, comm_backend_stream, comm_backend_ucx;

/* The module of a backend ("dtd-nccl.so") exports one symbol: `struct comm_module dtd_nccl_module`. The number changes
 * whenever a struct of this header or comm.h changes. */
#define COMM_MODULE_ABI 5
struct comm_module {
    int abi;
    const struct comm_backend *backend;
};

#endif
