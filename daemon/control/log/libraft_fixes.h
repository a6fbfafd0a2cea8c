/* Workarounds for defects of libraft 0.22.1 with several voters. They are installed between libraft and its raft_io,
 * for the log alone. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_LIBRAFT_FIXES_H
#define DTD_DAEMON_CONTROL_LOG_LIBRAFT_FIXES_H

#include <raft.h>
#include <stdbool.h>

/* A snapshot that is on its way to a server. */
struct libraft_snapshot_sent {
    raft_id id; /* of the server; 0: none */
    raft_index index;
    raft_time since;
};
#define LIBRAFT_SNAPSHOTS_SENT 8 /* far more voters than can lack it while the leader leads */

struct libraft_fixes {
    raft_io_recv_cb receive;   /* callback of libraft */
    raft_index snapshot_index; /* index and term of the snapshot that was loaded last */
    raft_term snapshot_term;
    struct libraft_snapshot_sent sent[LIBRAFT_SNAPSHOTS_SENT];
    raft_index replaced; /* last of our entries that the message being received replaces; 0: none */
    raft_index removed;  /* last entry of the newest removal; 0: what replaces the removed entries is stored */
    bool is_stale;       /* the message being received is of an older term */
    /* the replaced methods of the raft_io */
    int (*load)(struct raft_io *io, raft_term *term, raft_id *vote, struct raft_snapshot **snapshot,
                raft_index *start_index, struct raft_entry *entries[], size_t *n_entries);
    int (*start)(struct raft_io *io, unsigned ms, raft_io_tick_cb tick, raft_io_recv_cb receive);
    int (*send)(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message, raft_io_send_cb cb);
    int (*append)(struct raft_io *io, struct raft_io_append *req, const struct raft_entry entries[], unsigned n,
                  raft_io_append_cb cb);
    int (*truncate)(struct raft_io *io, raft_index index);
    int (*snapshot_get)(struct raft_io *io, struct raft_io_snapshot_get *req, raft_io_snapshot_get_cb cb);
};

/* Replaces methods of `io` and keeps the originals. Called after raft_uv_init and before raft_init. */
void libraft_fixes_install(struct raft_io *io);
/* The connection to this server was made anew, so that a snapshot that was on its way may be lost. */
void libraft_fixes_note_connection(struct libraft_fixes *fixes, raft_id id);
/* Called when this voter is found to be the leader, before any proposal. */
void libraft_fixes_note_leader(struct raft *raft);
/* False while entries are being removed, and while a snapshot would contain a configuration older than its index. */
bool libraft_fixes_may_snapshot(const struct raft *raft);
/* Frees what a message that libraft does not get carries. */
void libraft_fixes_drop(struct raft_message *message);

#endif
