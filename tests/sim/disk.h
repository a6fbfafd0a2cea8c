/* The virtual disk of a host: libraft's data (term, vote, entries, the newest snapshot), in a folder `log` or, while it
 * is incomplete, `log.new`. Term and vote are on the disk when the call returns, as in raft_uv. Entries and snapshots
 * are written later, in order, and survive a crash only if they were written. A crash keeps a prefix, of any length, of
 * the writes under way. A batch may be torn; its checksum does not match then, so its entries count as absent.
 *
 * Space: `free_bytes` is what statvfs returns. While the disk is full, entries go to the rest of the open segment
 * (`room`) and then wait for a new one. */
#ifndef DTD_TESTS_SIM_DISK_H
#define DTD_TESTS_SIM_DISK_H

#include "tests/sim/world.h"

#include <raft.h>

struct stored {
    raft_term term;
    enum raft_entry_type type;
    size_t len;
    void *data;
    uint64_t hash;
};

struct stored_snapshot {
    raft_index index, configuration_index;
    raft_term term;
    struct raft_configuration configuration;
    void *data;
    size_t len;
};

struct files {
    bool exists;
    raft_term term;
    raft_id vote;
    struct stored_snapshot *snapshot; /* NULL: none */
    raft_index first;                 /* index of entries[0], or of the next entry */
    struct stored *entries;
    size_t n, cap;
};

typedef void (*disk_fn)(void *arg, int status);
struct write;

/* Faults that a disk may have at the same time. */
enum disk_fault {
    DISK_WRITES = 1 << 0,      /* an entry's write reports EIO; its bytes may be on the disk nevertheless */
    DISK_SEGMENTS = 1 << 1,    /* no new segment can be made, so writes wait, and the log's probe reports EIO */
    DISK_SNAPSHOTS = 1 << 2,   /* a snapshot cannot be stored */
    DISK_VOTES = 1 << 3,       /* term and vote report EIO and may be stored nevertheless */
    DISK_HANGS = 1 << 4,       /* nothing ends: the threads that would do it are blocked */
    DISK_DESCRIPTORS = 1 << 5, /* an append is refused, and no segment can be made: EMFILE */
    DISK_MEMORY = 1 << 6,      /* an append is refused: ENOMEM */
};

struct disk {
    struct host *host;
    unsigned faults;   /* of enum disk_fault */
    bool is_stuck;     /* libraft's write has failed, and nothing behind it is written until libraft is closed */
    bool has_failed;   /* an operation has failed or had to wait, in whatever process */
    int64_t failed_us; /* when the first operation failed or had to wait since libraft was opened; 0: none has */
    struct files log, fresh;
    TAILQ_HEAD(, write) writes;    /* not on the disk yet, in order; those with is_under_way are being written */
    TAILQ_HEAD(, write) snapshots; /* taken by the host itself; written independently of `writes` */
    struct event *event;           /* the end of the write under way */
    bool is_full, has_reserve;
    uint64_t free_bytes, room, segment_bytes;
    int64_t latency_us; /* upper limit of a write's latency */
    uint64_t next;      /* number of the next write */
};
extern struct disk disks[MAX_HOSTS + 1];

void disk_init(struct disk *disk, struct host *host);
void disk_crash(struct disk *disk);
void disk_fill(struct disk *disk);
void disk_empty(struct disk *disk);
/* An operation that needs one of `faults` happens now. Returns whether it fails. */
bool disk_fails(struct disk *disk, unsigned faults);

void disk_append(struct disk *disk, struct files *files, const struct raft_entry *entries, unsigned n, disk_fn done,
                 void *arg);
void disk_truncate(struct disk *disk, struct files *files, raft_index index, disk_fn done, void *arg);
/* `trailing` 0: the snapshot comes from the leader and replaces all entries. disk_append and
 * disk_snapshot copy their data. */
void disk_snapshot(struct disk *disk, struct files *files, const struct raft_snapshot *snapshot, unsigned trailing,
                   disk_fn done, void *arg);
/* Ends all writes under way with RAFT_CANCELED. As much of them is on the disk as after a crash. */
void disk_cancel(struct disk *disk);

/* In log_disk.c: the file with what this host knows of other voters is removed. */
void log_disk_forget_witness(const struct host *host);

raft_index files_last(const struct files *files);
/* Returns the term of an entry on the disk or in its snapshot; 0: not there. */
raft_term files_term(const struct files *files, raft_index index);
const struct stored *files_entry(const struct files *files, raft_index index);
/* The same, including all writes under way. */
const struct stored *disk_newest(const struct disk *disk, raft_index index);
void files_put(struct files *files, raft_term term, enum raft_entry_type type, const struct raft_buffer *data);
uint64_t disk_hash(const void *data, size_t len, raft_term term, enum raft_entry_type type);

#endif
