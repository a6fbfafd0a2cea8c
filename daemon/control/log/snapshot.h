/* Snapshots of the log: when one is taken, and the work that grows with their size, which runs in libuv's pool: the
 * bytes of a state and their sum, and the state of one that was received. What is sent to another voter is in
 * snapshot_file.h. Owned by the log, loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_SNAPSHOT_H
#define DTD_DAEMON_CONTROL_LOG_SNAPSHOT_H

#include "common/base/err.h"
#include "common/base/pieces.h"

#include <raft.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct log;

#define LOG_INSTALL_MS 3000  /* after so long without a result a small snapshot is sent again */
#define LOG_CATCH_UP_MS 5000 /* so long a new voter has to get a small log before it is given up for now */

/* A snapshot that is about to be stored. At most one is under way, as libraft takes or receives one at a time. */
struct log_snapshot_put {
    uv_work_t work;
    struct log *log;
    err_t err; /* of the work */
    unsigned trailing;
    struct raft_io_snapshot_put *req;
    raft_io_snapshot_put_cb cb;
    const struct raft_snapshot *libraft; /* as libraft passed it */
    struct raft_snapshot stored;         /* ... with the bytes */
    /* of our own */
    void *frozen; /* NULL: none is being taken */
    struct pieces pieces;
    struct raft_buffer *bufs;
    uint64_t length; /* the head */
    uint8_t *tail;   /* zeros and the sum */
    /* received */
    const void *bytes;
    void *fresh; /* the state that they make; NULL: none */
    struct raft_io_snapshot_put store;
    bool is_stored, is_read;
    int status; /* of the store */
};

struct log_snapshots {
    uint64_t log_bytes;   /* of the entries applied since the last snapshot */
    uint64_t state_bytes; /* size of the last snapshot; 0: none yet */
    struct log_snapshot_put put;
    int n_works;       /* in the pool */
    bool io_is_closed; /* libraft's io has been closed; this is reported when no work is left */
    raft_io_close_cb closed;
    /* the replaced methods of the raft_io */
    int (*snapshot_put)(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                        const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb);
    void (*close)(struct raft_io *io, raft_io_close_cb cb);
};

/* Replaces methods of the log's raft_io and keeps the originals. Called last, before raft_init. */
void log_snapshot_install(struct log *log);
/* Whether the log has grown so much since the last snapshot that libraft should take one. */
bool log_snapshot_is_due(struct log *log);
/* The state of the snapshot that libraft takes now. It is thawed when the snapshot is stored, or was given up. */
NODISCARD err_t log_snapshot_freeze(struct log *log);
void log_snapshot_thaw(struct log *log);
/* Restores the machine from a snapshot, which may have been read already; `is_old`: checks it only. */
NODISCARD err_t log_snapshot_restore(struct log *log, const struct raft_buffer *buf, bool is_old);

/* Work in the pool that uses the log: libraft is not freed before its end. `done` calls log_snapshot_work_end last. */
void log_snapshot_work_begin(struct log *log, uv_work_t *work, uv_work_cb run, uv_after_work_cb done);
void log_snapshot_work_end(struct log *log);

#endif
