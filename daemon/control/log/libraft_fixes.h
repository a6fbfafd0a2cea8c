/* What libraft 0.22.1 does wrong with several voters, mended at its raft_io, for the log alone. One loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_LIBRAFT_FIXES_H
#define DTD_DAEMON_CONTROL_LOG_LIBRAFT_FIXES_H

#include <raft.h>
#include <stdbool.h>

struct log_mend {
    raft_io_recv_cb receive;   /* libraft's */
    raft_index snapshot_index; /* of the snapshot that was loaded last */
    raft_term snapshot_term;
    raft_index replaced; /* last entry that what is received now has another for */
    raft_index removed;  /* the same of what was removed last, until that which came instead is stored; 0: it is */
    bool is_stale;       /* what is received now is of an older term */
    int (*load)(struct raft_io *io, raft_term *term, raft_id *vote, struct raft_snapshot **snapshot,
                raft_index *start_index, struct raft_entry *entries[], size_t *n_entries);
    int (*start)(struct raft_io *io, unsigned ms, raft_io_tick_cb tick, raft_io_recv_cb receive);
    int (*send)(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message, raft_io_send_cb cb);
    int (*append)(struct raft_io *io, struct raft_io_append *req, const struct raft_entry entries[], unsigned n,
                  raft_io_append_cb cb);
    int (*truncate)(struct raft_io *io, raft_index index);
    int (*snapshot_get)(struct raft_io *io, struct raft_io_snapshot_get *req, raft_io_snapshot_get_cb cb);
};

/* Puts itself before the methods of an io that raft_uv_init has made and raft_init has not seen. */
void log_mend(struct raft_io *io);
/* It leads; before a proposal. */
void log_mend_leads(struct raft *raft);
/* False while a snapshot would name members of before its index, or entries are being removed: none is taken then. */
bool log_mend_may_snapshot(const struct raft *raft);

#endif
