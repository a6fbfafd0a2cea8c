/* The inside of the log, for log.c (its life), log_raft.c (libraft's side) and log_members.c (who votes). */
#ifndef DTD_DAEMON_CONTROL_LOG_INTERNAL_H
#define DTD_DAEMON_CONTROL_LOG_INTERNAL_H

#include "common/base/fsm.h"
#include "daemon/control/log/log.h"
#include "daemon/control/log/disk.h"
#include "daemon/control/log/libraft_fixes.h"
#include "daemon/control/log/transport.h"

#include <raft.h>
#include <raft/uv.h>
#include <stdbool.h>
#include <sys/queue.h>

#define LOG_ADDRESS_MAX 32

struct proposal {
    TAILQ_ENTRY(proposal) link;
    struct raft_apply req;
    struct log *log;
    int64_t since_ms;
    log_callback cb;
    void *arg;
    char result[LOG_RESULT_BYTES] __attribute__((aligned(16)));
};

/* What changes the configuration, or who leads; one at a time. */
struct log_change {
    bool is_under_way, is_transfer;
    struct raft_change change;
    struct raft_transfer transfer;
    log_change_callback cb;
    void *arg;
    uint64_t to; /* of a transfer */
};

struct log {
    struct log_config config;
    char *dir, *raft_dir;
    struct fsm fsm;
    struct log_disk disk;
    uv_timer_t timer;
    int64_t ticked_ms; /* when the timer last ran */
    uv_check_t look;   /* after each turn of the loop: has libraft changed its mind? */
    int handles;
    int64_t state_since_ms, refused_since_ms; /* refused: libraft says no space, the file system says there is */
    bool was_ready, warned_slow;
    uint64_t applied;  /* by the machine, over all reopenings */
    uint64_t snapshot; /* index of the newest snapshot in the folder when it was opened */
    uint64_t led_term; /* our term that everything older has been applied in */
    uint64_t barrier_term;
    bool is_alone; /* the only voter, as far as we know: nobody else can lead */
    bool leads;    /* what the owner was told last */
    uint64_t leader;
    struct log_change change;
    char warning[256];
    TAILQ_HEAD(, proposal) proposals; /* in the order of their indexes */
    int n_proposals;
    void (*closed)(void *owner);

    /* libraft, between raft_open and raft_gone */
    bool raft_is_open, raft_is_closing, raft_is_loading, barrier_waits;
    struct raft raft;
    struct raft_io io;
    struct log_mend mend;
    struct raft_fsm raft_fsm;
    struct log_transport transport;
    struct raft_barrier barrier;
};

err_t log_err_from_raft(int status);
/* How the voter is called in libraft's messages. */
const char *log_address(const struct log *log, uint64_t id, char ret[LOG_ADDRESS_MAX]);
/* Ends the change under way, if it is there. */
void log_change_end(struct log *log, err_t err);
bool log_has_raft(const struct log *log); /* open and not closing: libraft may be asked */
/* {u64 length, data, zeros to a multiple of 8}, in memory that libraft frees. */
err_t log_wrap(const void *data, size_t len, struct raft_buffer *ret);
/* Sets up libraft on DIR/name, not started. A raft status; on failure nothing is open and log->raft.errmsg says why. */
int log_raft_open(struct log *log, const char *name);
/* Idempotent. Cancels what is under way, here and now; log_raft_closed comes later. */
void log_raft_close(struct log *log);
void log_raft_closed(struct log *log); /* log.c's */

#endif
