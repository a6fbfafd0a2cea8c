/* The inside of the log, for log.c (its life) and log_raft.c (libraft's side). */
#ifndef DTD_DAEMON_CONTROL_LOG_IN_H
#define DTD_DAEMON_CONTROL_LOG_IN_H

#include "common/base/fsm.h"
#include "daemon/control/log.h"
#include "daemon/control/log_disk.h"
#include "daemon/control/log_transport.h"

#include <raft.h>
#include <raft/uv.h>
#include <stdbool.h>
#include <sys/queue.h>

#define LOG_FIRST_ID 1 /* of the voter that bootstrapped; later ones get theirs from the leader */

struct proposal {
    TAILQ_ENTRY(proposal) link;
    struct raft_apply req;
    struct log *log;
    int64_t since_ms;
    log_callback cb;
    void *arg;
    char result[LOG_RESULT_BYTES] __attribute__((aligned(16)));
};

struct log {
    struct log_config config;
    char *dir, *node, *raft_dir;
    struct fsm fsm;
    struct log_disk disk;
    uv_timer_t timer;
    int64_t ticked_ms;                        /* when the timer last ran */
    int64_t state_since_ms, refused_since_ms; /* refused: libraft says no space, the file system says there is */
    bool was_ready, warned_slow;
    uint64_t applied; /* by the machine, over all reopenings */
    char warning[256];
    TAILQ_HEAD(, proposal) proposals; /* in the order of their indexes */
    int n_proposals;
    void (*closed)(void *owner);

    /* libraft, between raft_open and raft_gone */
    bool raft_is_open, raft_is_closing, raft_is_loading, barrier_waits;
    struct raft raft;
    struct raft_io io;
    struct raft_fsm raft_fsm;
    struct log_transport transport;
    struct raft_barrier barrier;
};

err_t log_err_from_raft(int status);
/* {u64 length, data, zeros to a multiple of 8}, in memory that libraft frees. */
err_t log_wrap(const void *data, size_t len, struct raft_buffer *ret);
/* Sets up libraft on DIR/name, not started. A raft status; on failure nothing is open and log->raft.errmsg says why. */
int log_raft_open(struct log *log, const char *name);
/* Idempotent. Cancels what is under way, here and now; log_raft_closed comes later. */
void log_raft_close(struct log *log);
void log_raft_closed(struct log *log); /* log.c's */

#endif
