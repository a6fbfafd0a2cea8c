/* Failures of the disk under libraft, which retries for ever, ignores them, or follows a wrong pointer 50 ms after a
 * failed write. Installed between libraft and its files, outermost. After a failure, what libraft stores is kept aside:
 * nothing is acknowledged, and no vote is given that is not on the disk. The owner hands the leadership over and closes
 * libraft. A failed sync is never repeated: the kernel may have dropped the data and report success. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_FAULTS_H
#define DTD_DAEMON_CONTROL_LOG_FAULTS_H

#include "common/base/err.h"

#include <raft.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct log_store;
TAILQ_HEAD(log_stores, log_store);

struct log_faults {
    err_t err;      /* OK: no failure; ERR_NOSPACE, ERR_NOMEM, ERR_LIMIT, ERR_AGAIN: a shortage; else the disk */
    char text[256]; /* the failed operation and the reason */
    bool is_frozen; /* libraft gets no messages and no ticks */
    bool is_mute;   /* term or vote could not be stored: frozen for good, and nothing is sent */
    struct log_stores under_way; /* appends and snapshots, the oldest first */
    struct log_stores aside;     /* failed, or not passed on: they end when libraft is closed */
    raft_index cut_from;         /* first entry of a removal that no append has followed yet; 0: none */
    bool is_closing;
    struct raft_tracer tracer;
    _Atomic bool is_left_open; /* libraft's thread could not close a full segment: then the two below are valid */
    err_t left_open_err;
    char left_open[160];
    raft_io_tick_cb tick; /* callbacks of libraft */
    raft_io_recv_cb receive;
    /* the replaced methods of the raft_io */
    int (*start)(struct raft_io *io, unsigned ms, raft_io_tick_cb tick, raft_io_recv_cb receive);
    void (*close)(struct raft_io *io, raft_io_close_cb cb);
    int (*set_term)(struct raft_io *io, raft_term term);
    int (*set_vote)(struct raft_io *io, raft_id vote);
    int (*send)(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message, raft_io_send_cb cb);
    int (*append)(struct raft_io *io, struct raft_io_append *req, const struct raft_entry entries[], unsigned n,
                  raft_io_append_cb cb);
    int (*truncate)(struct raft_io *io, raft_index index);
    int (*snapshot_put)(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                        const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb);
};

/* Replaces methods of `io` and keeps the originals. Called after libraft_fixes_install and before raft_init. */
void log_faults_install(struct raft_io *io);
/* Called after each turn of the loop. Finds a write that libraft is about to retry, and stops the retry. */
void log_faults_look(struct raft_io *io);
/* Since when the oldest append, or the oldest snapshot, is under way, in ms of the monotonic clock; 0: none is. */
int64_t log_faults_append_since(const struct log_faults *f);
int64_t log_faults_snapshot_since(const struct log_faults *f);
/* Freezes libraft for a time: the disk does not answer. */
void log_faults_freeze(struct log_faults *f, bool is_frozen);
/* Records a failure that was found otherwise; the first one counts. */
void log_faults_note(struct log_faults *f, err_t err, const char *text);

#endif
