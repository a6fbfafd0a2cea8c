/* The replicated log: records go in by log_propose and come out, committed and in one order, by the machine's apply.
 * The interface is narrow on purpose: libraft behind it can be replaced, and nobody else includes it.
 *
 * A record that was acknowledged survives kill -9. While the disk is full proposals fail with ERR_NOSPACE, log_warning
 * says so, and the log takes up again by itself when there is space. Everything here lives on the loop's thread;
 * callbacks never run inside the call that starts them. docs/log.md. */
#ifndef DTD_DAEMON_CONTROL_LOG_H
#define DTD_DAEMON_CONTROL_LOG_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdint.h>
#include <uv.h>

struct log;

/* What the log drives. apply, snapshot and restore must be deterministic; an error of apply means that the process
 * cannot go on (it aborts; the log is whole, a restart replays it). */
struct log_machine {
    void *arg;
    /* `result` goes to the proposer's callback; it may point into the machine and is used at once. */
    err_t (*apply)(void *arg, const void *record, size_t len, uint64_t index, const void **ret_result);
    err_t (*snapshot)(void *arg, struct buf *ret);
    err_t (*restore)(void *arg, const void *data, size_t len);
};

struct log_config {
    uv_loop_t *loop;
    const char *dir;  /* its own folder, 0700; made when missing */
    const char *node; /* our logical name: in the log for ever, so never an address */
    struct log_machine machine;
    void *owner;
    /* Once, when everything committed before has been applied and proposals are taken, or when it cannot start at all.
     */
    void (*on_ready)(void *owner, err_t err, const char *why);
    /* May be NULL: the text of log_warning has changed. */
    void (*on_warning)(void *owner, const char *warning);
    /* 0: defaults. Small values are for tests. */
    uint64_t reserve_bytes, segment_bytes;
    unsigned snapshot_threshold, snapshot_trailing;
};

NODISCARD err_t log_start(const struct log_config *config, struct log **ret);

/* OK: committed, applied, `result` is the machine's. ERR_CANCELED: the log was closed or reopened meanwhile and nobody
 * can say whether the record counts: ask the state, or propose again under the same request id. */
typedef void (*log_callback)(void *arg, err_t err, uint64_t index, const void *result);
/* Copies the record. ERR_NOSPACE, ERR_AGAIN (not ready) and ERR_LIMIT (too large, too many) are said here, without a
 * callback. */
NODISCARD err_t log_propose(struct log *log, const void *record, size_t len, log_callback cb, void *arg);

/* Fails what is outstanding with ERR_CANCELED, closes the files, then calls `cb` and frees. */
void log_close(struct log *log, void (*cb)(void *owner));

const char *log_state(const struct log *log); /* "leader", "follower", "candidate", "unavailable" */
uint64_t log_term(const struct log *log);
uint64_t log_index(const struct log *log);      /* last applied */
const char *log_warning(const struct log *log); /* NULL: all is well; "state directory full since ..." */

#endif
