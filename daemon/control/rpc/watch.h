/* Calls that send what a job has recorded, and then what is new: Metrics and Watch (metrics.c), Usage (usage.c).
 *
 *   request -> a thread of the pool `parses` reads the job's file -> watch_pump: in turns -> follow -> end
 *
 * What arrives while the thread reads is kept by the kind. When the connection's output queue is full, watch_pump
 * stops, and is called again when the queue has drained. Loop thread, except `load`. */
#ifndef DTD_DAEMON_CONTROL_RPC_WATCH_H
#define DTD_DAEMON_CONTROL_RPC_WATCH_H

#include "daemon/control/rpc/server.h"

#include <stdatomic.h>

struct watch;

struct watch_kind {
    const char *name;                 /* for messages */
    int loads_per_user;               /* calls of one user that have the content of a file in memory, or will have */
    err_t (*load)(struct watch *w);   /* on the thread: reads w->path and w->more; ends early when w->stop is set */
    err_t (*loaded)(struct watch *w); /* takes what was read, and adds what has arrived meanwhile */
    err_t (*send)(struct watch *w);   /* ERR_LIMIT: the turn is over, or the queue is full */
    void (*release)(struct watch *w); /* frees what was read: it has been sent, or will not be */
    void (*fini)(struct watch *w);    /* frees the other fields of the kind */
};

/* The first field of the kind's own struct, which is on the heap. */
struct watch {
    const struct watch_kind *kind;
    struct watch *next; /* of the job */
    struct rpc_server *server;
    struct job *job;       /* NULL: it may be gone */
    struct rpc_call *call; /* NULL: the client has gone */
    bool follow, loading;
    uint32_t uid; /* the caller */
    bool held;    /* in the server's watch_loads */
    LIST_ENTRY(watch) held_link;
    /* used by the thread while `loading` */
    struct pool_task task;
    atomic_bool stop; /* what is read is not needed any more */
    char *path;
    struct buf more; /* what will be behind the end of the file */
    err_t err;
};

/* Makes the kind's struct of `bytes` bytes, zeroed but for `watch`, and adds it to the watches of the job. NULL: no
 * memory, and the call has failed. */
struct watch *watch_new(const struct watch_kind *kind, size_t bytes, struct rpc_server *server, struct job *j,
                        struct rpc_call *call);
/* Begins to read the file, of which w->more is the end. If this fails, or `err` is an error of the caller, the call
 * fails and the watch is freed. */
void watch_load(struct watch *w, const char *path, err_t err);
/* What was read has been sent: frees it, and no longer counts the call as one with a file in memory. */
void watch_release(struct watch *w);
/* Sends what there is. It may end the call and free the watch. */
void watch_pump(struct watch *w);

#endif
