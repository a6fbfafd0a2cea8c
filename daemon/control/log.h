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

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct log;

#define LOG_DIR_MAX 900
#define LOG_MAX_PENDING 1024 /* proposals that wait at one time */

#define LOG_RESULT_BYTES 64

/* What the log drives: deterministic, never blocking. An error of apply means that the process cannot go on: it ends
 * there, the log is whole and a restart replays it. What was applied once is not applied again while the process lives,
 * also when the log had to be reopened. */
struct log_machine {
    void *arg;
    /* `result` is LOG_RESULT_BYTES of zeros, for what the proposer's callback gets. */
    err_t (*apply)(void *arg, const void *record, size_t len, uint64_t index, void *result);
    err_t (*snapshot)(void *arg, struct buf *ret);
    err_t (*restore)(void *arg, const void *data, size_t len);
};

struct log_config {
    uv_loop_t *loop;
    const char *dir;  /* its own folder, made (0700) when missing; at most LOG_DIR_MAX bytes; copied */
    const char *node; /* our logical name: in the log for ever, so never an address; copied */
    struct log_machine machine;
    void *owner;
    /* Once, when everything committed before has been applied and proposals are taken, or when it cannot start at all.
     */
    void (*on_ready)(void *owner, err_t err, const char *why);
    /* May be NULL: the text of log_warning has changed. */
    void (*on_warning)(void *owner, const char *warning);
    /* 0: defaults. Other values are for tests. */
    uint64_t reserve_bytes;
    uint32_t segment_bytes;
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
uint64_t log_index(const struct log *log); /* last applied */
/* False: its own timer, which should run, has not for 5 s. */
bool log_ticks(const struct log *log);
const char *log_warning(const struct log *log); /* NULL: all is well; "state directory full since ..." */

#endif
