/* Private parts of the log, shared by log.c (states, proposals), raft.c (setup and callbacks of libraft) and members.c
 * (the configuration: voters and other members). */
#ifndef DTD_DAEMON_CONTROL_LOG_INTERNAL_H
#define DTD_DAEMON_CONTROL_LOG_INTERNAL_H

#include "common/base/fsm.h"
#include "daemon/control/log/disk.h"
#include "daemon/control/log/faults.h"
#include "daemon/control/log/guard.h"
#include "daemon/control/log/libraft_fixes.h"
#include "daemon/control/log/log.h"
#include "daemon/control/log/snapshot.h"
#include "daemon/control/log/snapshot_file.h"
#include "daemon/control/log/transport.h"
#include "daemon/control/log/witness.h"

#include <raft.h>
#include <raft/uv.h>
#include <stdbool.h>
#include <sys/queue.h>

#define LOG_ADDRESS_MAX 32

struct log_proposal {
    TAILQ_ENTRY(log_proposal) link;
    struct raft_apply req;
    struct raft_buffer buf;
    struct log *log;
    int64_t since_ms;
    log_callback cb; /* NULL: it has been called */
    void *arg;
    char result[LOG_RESULT_BYTES] __attribute__((aligned(16)));
};

/* A change of the configuration or a transfer of the leadership. At most one is under way. */
struct log_change {
    bool is_under_way, is_transfer;
    struct raft_change change;
    struct raft_transfer transfer;
    log_change_callback cb;
    void *arg;
    uint64_t to; /* transfer: the voter that is to lead; 0: any */
};

struct log {
    struct log_config config;
    char *dir, *raft_dir;
    struct fsm fsm;
    struct log_disk disk;
    uv_timer_t timer;
    int64_t ticked_ms;     /* when the timer last ran */
    uv_check_t after_turn; /* compares libraft's state after each turn of the loop */
    int handles;
    int64_t state_since_ms;
    int64_t low_since_ms; /* since when the disk is low, and the reserve is the same; 0: it is not */
    uint64_t low_bytes;   /* appended since then */
    bool has_reserve;
    bool was_ready, warned_slow;
    uint64_t applied;  /* index of the last entry that the machine has applied; kept when the log is reopened */
    uint64_t snapshot; /* index of the newest snapshot in the folder when the log was opened */
    uint64_t led_term; /* term of our own whose barrier is committed, so all older entries have been applied */
    uint64_t barrier_term;
    bool is_alone;   /* according to our newest configuration this is the only voter, so no other can lead */
    bool leads;      /* as last reported to the owner */
    uint64_t leader; /* the same; 0: none */
    struct log_change change;
    struct log_witness witness;
    struct log_mark opened;
    char warning[512];
    err_t refusal;   /* of proposals while libraft is closed for a time; OK: it is not */
    bool is_probing; /* the disk is asked whether it works */
    uv_work_t probe;
    struct log_answer {
        err_t err;
        struct why why;
    } probed, answer; /* what the thread of the probe writes, and the newest that is complete */
    int64_t probe_due_ms;
    int64_t thawed_ms;  /* in the state `hung`: since when the disk answers again; 0: it does not */
    struct why failure; /* why libraft could not be opened, if that was found here; else raft.errmsg has it */
    TAILQ_HEAD(, log_proposal) proposals; /* in ascending order of their indexes */
    TAILQ_HEAD(, log_proposal) waiting;   /* libraft has refused them for lack of a prepared segment: tried again */
    int n_proposals, n_waiting;
    void (*closed)(void *owner);

    /* libraft, between log_raft_open and log_raft_closed */
    bool raft_is_open, raft_is_closing, raft_is_loading, barrier_waits;
    struct raft raft;
    struct raft_io io;
    struct log_guard guard;
    struct libraft_fixes fixes;
    struct log_snapshots snapshots;
    struct log_faults faults;
    struct raft_fsm raft_fsm;
    struct log_transport transport;
    struct raft_barrier barrier;
};

err_t log_err_from_raft(int status);
/* The name of this voter in libraft: "node-1" or "voter-N". */
const char *log_address(const struct log *log, uint64_t id, char ret[LOG_ADDRESS_MAX]);
/* Ends the change under way, if there is one, and calls its callback. */
void log_change_end(struct log *log, err_t err);
/* Ends the change under way if libraft has lost it. */
void log_change_check(struct log *log);
bool log_has_raft(const struct log *log); /* open and not closing: libraft may be called */
/* Stores {u64 length, data, zeros to a multiple of 8} in memory that libraft frees. */
err_t log_wrap(const void *data, size_t len, struct raft_buffer *ret);
err_t log_unwrap(const struct raft_buffer *buf, const void **ret, size_t *ret_len);
/* Sets up libraft on DIR/name without starting it. Returns a status of libraft; after a failure nothing is open and
 * log_raft_failure the reason. */
int log_raft_open(struct log *log, const char *name);
const char *log_raft_failure(const struct log *log);
/* Idempotent. Cancels proposals and changes during the call; log_raft_closed is called later. */
void log_raft_close(struct log *log);
void log_raft_closed(struct log *log); /* in log.c */

#endif
