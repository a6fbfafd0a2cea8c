/* The replicated log: records go in by log_propose at the voter that leads and come out, committed and in one order, by
 * the machine's apply at all of them. One voter alone is the same thing. The interface is narrow on purpose: libraft
 * behind it can be replaced, and nobody else includes it.
 *
 * A voter is a number, for ever: one that forgets its log must come back under another (docs/formats/replicated-log.md). How a number is
 * reached is the business of log_peers. A record that was acknowledged survives kill -9, at a majority of the voters.
 * While the disk is full proposals fail with ERR_NOSPACE, log_warning says so, and the log takes up again by itself
 * when there is space. Everything here lives on the loop's thread; callbacks never run inside the call that starts
 * them. docs/formats/replicated-log.md. */
#ifndef DTD_DAEMON_CONTROL_LOG_LOG_H
#define DTD_DAEMON_CONTROL_LOG_LOG_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct log;

#define LOG_DIR_MAX 900
#define LOG_MAX_PENDING 1024 /* proposals that wait at one time */

#define LOG_RESULT_BYTES 64
#define LOG_FIRST_ID 1      /* of the voter that began the log */
#define LOG_ELECTION_MS 300 /* a leader that is not heard for once to twice this long is replaced */

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

struct log_connect;
/* How other voters are reached: by authenticated streams that somebody else brings, one per direction. */
struct log_peers {
    void *arg;
    /* Begins to bring a stream to that voter, where it is given to log_accept; ends by one log_connected, later and
     * within some seconds. On an error nothing was begun. NULL: there are no other voters. */
    err_t (*connect)(void *arg, struct log_connect *request, uint64_t id);
};

struct log_config {
    uv_loop_t *loop;
    const char *dir; /* its own folder, made (0700) when missing; at most LOG_DIR_MAX bytes; copied */
    uint64_t id;     /* our number among the voters; 0: LOG_FIRST_ID */
    bool joins;      /* a log that is not there yet begins empty and waits to be added, instead of with one voter */
    bool recovers;   /* the majority is lost for ever: our log's only voter from now on is us */
    struct log_peers peers;
    struct log_machine machine;
    void *owner;
    /* Once: the log is open, or cannot be at all. The only voter is then the leader, everything committed has been
     * applied, and proposals are taken; a voter among others hears the rest by on_role. */
    void (*on_ready)(void *owner, err_t err, const char *why);
    /* May be NULL: what log_leads or log_leader say has changed. Who does not lead any more has heard the ends of all
     * its proposals before. */
    void (*on_role)(void *owner);
    /* May be NULL: the text of log_warning has changed. */
    void (*on_warning)(void *owner, const char *warning);
    /* 0: defaults. Other values are for tests. */
    uint64_t reserve_bytes;
    uint32_t segment_bytes;
    unsigned snapshot_threshold, snapshot_trailing;
    unsigned election_ms;
};

NODISCARD err_t log_start(const struct log_config *config, struct log **ret);

/* OK: committed, applied, `result` is the machine's. ERR_CANCELED: the log was closed or reopened meanwhile, or another
 * voter leads now, and nobody can say whether the record counts: ask the state, or propose again under the same request
 * id. */
typedef void (*log_callback)(void *arg, err_t err, uint64_t index, const void *result);
/* Copies the record. ERR_NOSPACE, ERR_AGAIN (not ready, or log_leader leads) and ERR_LIMIT (too large, too many) are
 * said here, without a callback. */
NODISCARD err_t log_propose(struct log *log, const void *record, size_t len, log_callback cb, void *arg);

/* Fails what is outstanding with ERR_CANCELED, closes the files, then calls `cb` and frees. */
void log_close(struct log *log, void (*cb)(void *owner));

/* ---- voters ---- */

bool log_leads(const struct log *log);      /* everything committed before our term has been applied */
uint64_t log_leader(const struct log *log); /* 0: nobody, as far as we know */
/* The stream that a connect has brought; takes over `fd`. Negative: there is none. */
void log_connected(struct log_connect *request, int fd);
/* A stream from voter `from`, meant for the voter `to`; takes over `fd` on success. ERR_STALE: that is not us (any
 * more); ERR_AGAIN: not open. */
NODISCARD err_t log_accept(struct log *log, uint64_t from, uint64_t to, int fd);

enum log_role { LOG_SPARE, LOG_STANDBY, LOG_VOTER }; /* a spare gets nothing, a standby gets the log and has no vote */
struct log_member {
    uint64_t id;
    enum log_role role;
    uint64_t match; /* the last index that it has on disk, for as much as the leader knows; 0 elsewhere */
};
#define LOG_MAX_MEMBERS 64
/* The newest configuration that we have; returns how many. */
int log_members(const struct log *log, struct log_member ret[LOG_MAX_MEMBERS]);

/* Changes of the configuration, at the leader, one at a time. The callback comes once and later. ERR_CANCELED: nobody
 * can say whether it counts (log_members will). ERR_TIMEOUT: it did not catch up and is what it was. Said here:
 * ERR_AGAIN not the leader, ERR_BUSY another change is under way, ERR_EXISTS, ERR_NOTFOUND, ERR_INVALID (has that role
 * already). */
typedef void (*log_change_callback)(void *arg, err_t err);
NODISCARD err_t log_add(struct log *log, uint64_t id, log_change_callback cb, void *arg); /* a spare */
NODISCARD err_t log_assign(struct log *log, uint64_t id, enum log_role role, log_change_callback cb, void *arg);
NODISCARD err_t log_remove(struct log *log, uint64_t id, log_change_callback cb, void *arg);
/* Another voter is to lead; 0: any. ERR_TIMEOUT: it does not. */
NODISCARD err_t log_transfer(struct log *log, uint64_t id, log_change_callback cb, void *arg);

const char *log_state(const struct log *log); /* "leader", "follower", "candidate", "unavailable" */
uint64_t log_term(const struct log *log);
uint64_t log_index(const struct log *log); /* last applied */
/* False: its own timer, which should run, has not for 5 s. */
bool log_ticks(const struct log *log);
const char *log_warning(const struct log *log); /* NULL: all is well; "state directory full since ..." */

#endif
