/* The replicated log. log_propose adds a record at the leader; the machine's apply gets every committed record, in the
 * same order on all voters. A log with one voter works in the same way. Only this folder includes libraft, so that it
 * can be replaced.
 *
 * A voter's id is permanent: a node that has lost its log must rejoin under a new id. Streams to other voters are
 * brought by the owner (log_peers). An acknowledged record is on the disks of a majority of the voters and survives
 * kill -9. A full disk does not stop the log at once: some MiB are prepared, and the reserve follows. When these are
 * used up, proposals fail with ERR_NOSPACE and log_warning gives the reason; the log resumes by itself when there is
 * space. A disk that hangs ends proposals with ERR_TIMEOUT until it answers. A disk that fails closes the log until the
 * process is started again: other voters take over, an only voter refuses proposals with ERR_IO. Everything runs on the
 * loop's thread; callbacks never run inside the call that starts them. The format is in docs/formats/replicated-log.md.
 */
#ifndef DTD_DAEMON_CONTROL_LOG_LOG_H
#define DTD_DAEMON_CONTROL_LOG_LOG_H

#include "common/base/err.h"
#include "common/base/pieces.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct log;

#define LOG_DIR_MAX 900
#define LOG_MAX_PENDING 1024 /* proposals under way at one time */

#define LOG_RECORD_MAX_BYTES (2u << 20)
#define LOG_RESULT_BYTES 64
#define LOG_FIRST_ID 1 /* id of the voter that created the log */
#define LOG_ELECTION_MS \
    300 /* election timeout: after 1 to 2 times this long (random) without a heartbeat, an election starts */

/* The state machine that the log drives. It is deterministic and never blocks. An error of apply aborts the process;
 * the log is intact, and a restart replays it. Within one process no record is applied twice, even if the log is
 * reopened. */
struct log_machine {
    void *arg;
    /* Fills `result`, LOG_RESULT_BYTES of zeros, which the proposer's callback gets. */
    err_t (*apply)(void *arg, const void *record, size_t len, uint64_t index, void *result);
    /* A snapshot of the state as it is now. `freeze` is quick. `write` runs in another thread, while records are
     * applied; it may run again after an error. Its pieces may point into `frozen`, which `thaw` frees. */
    err_t (*freeze)(void *arg, void **ret);
    err_t (*write)(const void *frozen, struct pieces *ret);
    void (*thaw)(void *frozen);
    /* Makes a state of a snapshot, in any thread. Then it either replaces the present one or is freed. */
    err_t (*read)(const void *data, size_t len, void **ret);
    void (*adopt)(void *arg, void *fresh);
    void (*drop)(void *fresh);
};

struct log_connect;
/* Connects to other voters. Streams are authenticated and opened by the owner, one per direction. */
struct log_peers {
    void *arg;
    /* Starts to open a stream to the voter `id`; the other end passes it to log_accept. After OK the owner calls
     * log_connected exactly once, later and within a few seconds. After an error it does not. NULL: there are no other
     * voters. */
    err_t (*connect)(void *arg, struct log_connect *request, uint64_t id);
};

struct log_config {
    uv_loop_t *loop;
    const char *dir; /* folder of the log alone, created (0700) if missing; at most LOG_DIR_MAX bytes; copied */
    uint64_t id;     /* of this voter; 0: LOG_FIRST_ID */
    bool joins;      /* a new log starts empty and waits to be added to another, instead of starting with one voter */
    bool recovers;   /* the majority is permanently lost: this voter becomes the log's only one */
    struct log_peers peers;
    struct log_machine machine;
    void *owner;
    /* Called once, when the log is open or has failed to open. An only voter is then the leader, has applied everything
     * committed and takes proposals. With several voters, on_role reports later when there is a leader. */
    void (*on_ready)(void *owner, err_t err, const char *why);
    /* The result of log_leads or log_leader has changed. When this voter has lost the leadership, the callbacks of all
     * its proposals have run before. May be NULL. */
    void (*on_role)(void *owner);
    /* The text of log_warning has changed. May be NULL. */
    void (*on_warning)(void *owner, const char *warning);
    /* 0: defaults. Other values are for tests. */
    uint64_t reserve_bytes;
    uint32_t segment_bytes;
    unsigned snapshot_threshold, snapshot_trailing;
    unsigned snapshot_part; /* a snapshot is taken when the log has at least this part of its bytes */
    unsigned election_ms;
};

NODISCARD err_t log_start(const struct log_config *config, struct log **ret);

/* OK: the record is committed and applied, and `result` is the machine's. ERR_NOSPACE, ERR_IO, ERR_TIMEOUT: the
 * disk is full, has failed, hangs; it is not recorded. ERR_CANCELED: the log was closed or reopened,
 * or another voter leads now. The record may or may not be committed: look into the state, or propose it again under
 * the same request id. */
typedef void (*log_callback)(void *arg, err_t err, uint64_t index, const void *result);
/* Copies the record. After an error `cb` is not called: ERR_NOSPACE, ERR_IO, ERR_TIMEOUT (as above), ERR_AGAIN (not
 * ready, or another voter leads), ERR_LIMIT (record too large, or too many under way), ERR_NOMEM. */
NODISCARD err_t log_propose(struct log *log, const void *record, size_t len, log_callback cb, void *arg);

/* Ends outstanding proposals with ERR_CANCELED, closes the files and frees the log. Then calls `cb`, which may be
 * NULL. */
void log_close(struct log *log, void (*cb)(void *owner));

/* ---- voters ---- */

bool log_leads(const struct log *log); /* true only after all entries of earlier terms have been applied */
/* Leads no more, and log_leads turns false when the last proposal has ended. Until then the state may already have
 * records of the next leader, on which this node must not act. */
bool log_is_superseded(const struct log *log);
uint64_t log_leader(const struct log *log); /* id of the leader; 0: none is known */
/* Ends a connect request with its stream; takes over `fd`. Negative: the voter cannot be reached. */
void log_connected(struct log_connect *request, int fd);
/* Takes an incoming stream from voter `from` to voter `to`; takes over `fd` on success. ERR_STALE: `to` is not, or no
 * longer, the id of this voter; ERR_AGAIN: the log is not open. */
NODISCARD err_t log_accept(struct log *log, uint64_t from, uint64_t to, int fd);

/* A spare gets no entries; a standby gets the log and has no vote. */
enum log_role { LOG_SPARE, LOG_STANDBY, LOG_VOTER };
struct log_member {
    uint64_t id;
    enum log_role role;
    uint64_t match; /* last index on its disk, as known to the leader; 0 on other voters */
};
#define LOG_MAX_MEMBERS 64
/* Stores the newest configuration of this voter; returns the number of members. */
int log_members(const struct log *log, struct log_member ret[LOG_MAX_MEMBERS]);

/* Changes of the configuration: at the leader, one at a time. After OK the callback runs once and later.
 * ERR_CANCELED: the change may or may not be committed (log_members will show). ERR_TIMEOUT: the new voter did not
 * catch up and keeps its role. Returned without a callback: ERR_AGAIN (not the leader), ERR_BUSY (another change is
 * under way), ERR_LIMIT (LOG_MAX_MEMBERS), ERR_EXISTS, ERR_NOTFOUND, ERR_INVALID (it has that role already). */
typedef void (*log_change_callback)(void *arg, err_t err);
NODISCARD err_t log_add(struct log *log, uint64_t id, log_change_callback cb, void *arg); /* as a spare */
NODISCARD err_t log_assign(struct log *log, uint64_t id, enum log_role role, log_change_callback cb, void *arg);
NODISCARD err_t log_remove(struct log *log, uint64_t id, log_change_callback cb, void *arg);
/* Hands the leadership over to voter `id`; 0: to any. ERR_TIMEOUT: that voter has not become the leader. */
NODISCARD err_t log_transfer(struct log *log, uint64_t id, log_change_callback cb, void *arg);

/* ---- old copies of a voter (witness.h) ---- */

/* A voter's process, by a random number, and what it has on its disk: its term, and its last index. */
struct log_mark {
    uint64_t id, process, term, stored;
};
/* What this process had when its log was opened; process 0: it is not open. */
struct log_mark log_opened(const struct log *log);
/* What another one shows that opens a stream to this voter. False: it has acknowledged more before; its folder is an
 * old copy, and it must get no stream. */
bool log_judge(struct log *log, const struct log_mark *shown);
/* Whether that voter has shown an old copy. */
bool log_is_old_copy(const struct log *log, uint64_t id);
/* Leader: what is known of all voters, this one among them; returns the number. */
int log_marks(const struct log *log, struct log_mark ret[LOG_MAX_MEMBERS]);
/* Follower: what the leader knows. */
void log_learn(struct log *log, const struct log_mark *marks, int n);

const char *log_state(const struct log *log); /* "leader", "follower", "candidate", "unavailable" */
uint64_t log_term(const struct log *log);
uint64_t log_index(const struct log *log); /* of the last applied entry */
/* False: the timer of the log is due and has not run for 5 s. */
bool log_ticks(const struct log *log);
/* The disk has failed: this voter takes no part any more until the process is started again. */
bool log_has_failed(const struct log *log);
const char *
log_warning(const struct log *log); /* NULL: none; else a sentence such as "state directory full since ..." */

#endif
