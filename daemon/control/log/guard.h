/* Checks that libraft does not make. They are installed between libraft and its files, for the log alone. Loop thread.
 *
 * libraft's term and vote carry no checksum, and a damaged batch in an open segment ends the log without an error. So
 * the file DIR/log/marks, among the files of libraft, which ignores it, holds the term and the vote once more, and the
 * index up to which entries were stored; all with checksums. Before libraft reads its folder, the two are compared:
 * entries that were stored and cannot be read any more stop the start, and nothing in the folder is changed. */
#ifndef DTD_DAEMON_CONTROL_LOG_GUARD_H
#define DTD_DAEMON_CONTROL_LOG_GUARD_H

#include "common/base/err.h"

#include <raft.h>

struct log_guard {
    int fd;           /* of DIR/log/marks; -1: closed */
    uint64_t version; /* counts the changes of term and vote */
    raft_term term;
    raft_id vote;
    raft_index stored; /* last entry that was stored and not removed since */
    raft_index next;   /* index of the entry that is appended next */
    bool has_failed;   /* a sync of the file: it is not synced again */
    bool is_new;       /* the file did not exist: term and vote are taken from libraft */
    /* the replaced methods of the raft_io */
    int (*load)(struct raft_io *io, raft_term *term, raft_id *vote, struct raft_snapshot **snapshot,
                raft_index *start_index, struct raft_entry *entries[], size_t *n_entries);
    int (*set_term)(struct raft_io *io, raft_term term);
    int (*set_vote)(struct raft_io *io, raft_id vote);
    int (*append)(struct raft_io *io, struct raft_io_append *req, const struct raft_entry entries[], unsigned n,
                  raft_io_append_cb cb);
    int (*truncate)(struct raft_io *io, raft_index index);
    int (*snapshot_put)(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                        const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb);
};

/* Opens `dir`/log/marks, or makes it, and compares it with the other files of `dir`/log. ERR_CORRUPT: `why` names the
 * file and the place. After an error the guard is closed. */
NODISCARD err_t log_guard_open(struct log_guard *guard, const char *dir, struct why *why);
/* Replaces methods of `io` and keeps the originals. Called after raft_uv_init and before libraft_fixes_install. */
void log_guard_install(struct log_guard *guard, struct raft_io *io);
void log_guard_close(struct log_guard *guard); /* idempotent */

#endif
