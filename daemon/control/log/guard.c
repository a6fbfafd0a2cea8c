/* The file `marks` is three sectors of 512 bytes, each {8 bytes of magic, u64 values, zeros, u32 log_crc of the first
 * 508}. A disk writes a sector whole or not at all.
 *
 *   0, 1  version, term, vote; a new one replaces the older of the two and is synced before libraft's own is written.
 *         So libraft's is never newer, and while both sectors are sound, the newer sector is right whatever libraft's
 *         files contain. If one is damaged, it may have been the newer one; then libraft's must not be newer than the
 *         other
 *   2     the index up to which entries were stored, with those in a snapshot. It is written after each append, without
 *         a sync: it survives the end of the process. After a power failure it may be too low, which is harmless
 *         unless the disk has damaged an entry at the same time */
#include "daemon/control/log/guard.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/control/log/internal.h"
#include "daemon/control/log/repair.h"
#include "daemon/control/log/segment.h"
#include "daemon/control/log/sum.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECTOR_BYTES 512 /* the smallest unit that disks write */
#define VALUES 3
#define STORED_SECTOR 2
#define MARKS_BYTES (3 * SECTOR_BYTES)
#define SEGMENT_MAX_BYTES (64u << 20) /* far above every configured segment */

static const char vote_magic[8] = {'d', 't', 'd', '-', 'v', 'o', 't', '1'};
static const char stored_magic[8] = {'d', 't', 'd', '-', 'i', 'd', 'x', '1'};

static struct log_guard *guard_of(struct raft_io *io)
{
    return &((struct log *)((char *)io - offsetof(struct log, io)))->guard;
}

/* ---- the file ---- */

static void encode_sector(const char magic[8], const uint64_t values[VALUES], uint8_t ret[SECTOR_BYTES])
{
    memset(ret, 0, SECTOR_BYTES);
    memcpy(ret, magic, 8);
    for (int i = 0; i < VALUES; i++) {
        uint64_t value = htole64(values[i]);
        memcpy(ret + 8 + 8 * i, &value, 8);
    }
    uint32_t crc = htole32(log_crc(0, ret, SECTOR_BYTES - 4));
    memcpy(ret + SECTOR_BYTES - 4, &crc, 4);
}

/* False: the sector is damaged. */
static bool decode_sector(const char magic[8], const uint8_t sector[SECTOR_BYTES], uint64_t ret[VALUES])
{
    uint8_t expected[SECTOR_BYTES];
    for (int i = 0; i < VALUES; i++) {
        memcpy(&ret[i], sector + 8 + 8 * i, 8);
        ret[i] = le64toh(ret[i]);
    }
    encode_sector(magic, ret, expected);
    return memcmp(sector, expected, SECTOR_BYTES) == 0;
}

static err_t write_sector(struct log_guard *g, int at, const char magic[8], const uint64_t values[VALUES])
{
    uint8_t sector[SECTOR_BYTES];
    encode_sector(magic, values, sector);
    return file_pwrite_all(g->fd, sector, sizeof(sector), (off_t)at * SECTOR_BYTES);
}

static err_t write_vote(struct log_guard *g, raft_term term, raft_id vote)
{
    uint64_t values[VALUES] = {g->version + 1, term, vote};
    err_t err = write_sector(g, (int)(values[0] % 2), vote_magic, values);
    if (!err && fdatasync(g->fd))
        err = err_from_errno(errno);
    if (!err) {
        g->version++;
        g->term = term;
        g->vote = vote;
    }
    g->has_failed |= err != OK;
    return err;
}

static void write_stored(struct log_guard *g, raft_index index)
{
    uint64_t values[VALUES] = {index};
    err_t err = write_sector(g, STORED_SECTOR, stored_magic, values);
    if (err)
        log_warn("the index of the last stored entry cannot be written why=\"%s\"", err_text(err));
    else
        g->stored = index;
}

static err_t make_marks(const char *path)
{
    uint8_t bytes[MARKS_BYTES];
    uint64_t values[VALUES] = {0};
    encode_sector(vote_magic, values, bytes);
    values[0] = 1;
    encode_sector(vote_magic, values, bytes + SECTOR_BYTES);
    values[0] = 0;
    encode_sector(stored_magic, values, bytes + STORED_SECTOR * SECTOR_BYTES);
    return file_replace(path, bytes, sizeof(bytes), 0600);
}

/* ---- libraft's term and vote ---- */

struct metadata {
    uint64_t version, term, vote;
};

/* metadata1 and metadata2 are {u64 format, version, term, vote}; that with the higher version counts. libraft ignores a
 * file that is too short. */
static struct metadata read_metadata(const char *dir)
{
    struct metadata ret = {0};
    for (int i = 1; i <= 2; i++) {
        char path[PATH_MAX];
        struct buf bytes = {0};
        uint64_t values[4];
        snprintf(path, sizeof(path), "%s/log/metadata%d", dir, i);
        if (!file_read(path, 4096, &bytes) && bytes.len >= sizeof(values)) {
            memcpy(values, bytes.data, sizeof(values));
            if (le64toh(values[1]) > ret.version)
                ret = (struct metadata){le64toh(values[1]), le64toh(values[2]), le64toh(values[3])};
        }
        buf_fini(&bytes);
    }
    return ret;
}

static bool is_newer(const struct metadata *m, const struct log_guard *g)
{
    return m->term > g->term || (m->term == g->term && m->vote && m->vote != g->vote);
}

static err_t check_votes(struct log_guard *g, const char *dir, const uint8_t *bytes, struct why *why)
{
    uint64_t values[2][VALUES];
    bool is_sound[2];
    struct metadata m = read_metadata(dir);
    for (int i = 0; i < 2; i++)
        is_sound[i] = decode_sector(vote_magic, bytes + i * SECTOR_BYTES, values[i]);
    int newest = is_sound[1] && (!is_sound[0] || values[1][0] > values[0][0]);
    if (!is_sound[newest])
        return why_set(why, ERR_CORRUPT, "%s/log/marks is damaged in bytes 0 to %d", dir, 2 * SECTOR_BYTES);
    g->version = values[newest][0];
    g->term = values[newest][1];
    g->vote = values[newest][2];
    g->is_new = !g->term;
    if (g->is_new || !is_newer(&m, g))
        return OK;
    return why_set(why, ERR_CORRUPT,
                   "the term and the vote in %s/log/metadata1 and metadata2 (%" PRIu64 ", %" PRIu64
                   ") are newer than in %s/log/marks (%" PRIu64 ", %" PRIu64 "): one of the files is damaged, or was "
                   "written by an older dtd",
                   dir, m.term, m.vote, dir, (uint64_t)g->term, (uint64_t)g->vote);
}

/* ---- libraft's entries ---- */

static int compare_names(const struct dirent **a, const struct dirent **b)
{
    unsigned long long x = 0, y = 0;
    sscanf((*a)->d_name, "open-%llu", &x);
    sscanf((*b)->d_name, "open-%llu", &y);
    return (x > y) - (x < y);
}

static int is_open_segment(const struct dirent *e)
{
    return strncmp(e->d_name, "open-", 5) == 0;
}

/* The last index in closed segments and snapshots, which libraft checks itself. */
static uint64_t last_closed(const char *folder)
{
    uint64_t first, last, ret = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (sscanf(e->d_name, "snapshot-%" SCNu64 "-%" SCNu64, &first, &last) != 2 &&
            sscanf(e->d_name, "%16" SCNu64 "-%16" SCNu64, &first, &last) != 2)
            continue;
        if (last > ret)
            ret = last;
    }
    if (dir)
        closedir(dir);
    return ret;
}

/* What the open segments, read in their order, contain. */
struct segments {
    uint64_t last;       /* index of the last entry that libraft will find */
    char cut[PATH_MAX];  /* the first one that ends in bytes that are no whole batch; "": none */
    size_t cut_at;       /* where these bytes begin */
    bool has_late_batch; /* a whole batch follows them */
};

static err_t examine_segment(const char *path, struct segments *s, struct why *why)
{
    struct buf bytes = {0};
    struct log_segment segment;
    err_t err = file_read(path, SEGMENT_MAX_BYTES, &bytes);
    if (err)
        return why_set(why, err, "%s: %s", path, err_text(err));
    log_segment_examine(bytes.data ? bytes.data : (const uint8_t *)"", bytes.len, &segment);
    buf_fini(&bytes);
    if (segment.is_unreadable)
        return why_set(why, ERR_CORRUPT, "%s is damaged in bytes 0 to 8", path);
    s->has_late_batch |= segment.has_late_batch || (s->cut[0] && segment.entries);
    if (segment.has_rest && !s->cut[0]) {
        snprintf(s->cut, sizeof(s->cut), "%s", path);
        s->cut_at = segment.used_bytes;
    }
    s->last += segment.entries;
    return OK;
}

static err_t examine_segments(const char *dir, struct segments *s, struct why *why)
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct dirent **names = NULL;
    err_t err = OK;
    snprintf(folder, sizeof(folder), "%s/log", dir);
    s->last = last_closed(folder);
    int n = scandir(folder, &names, is_open_segment, compare_names);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/log/%s", dir, names[i]->d_name);
        if (!err)
            err = examine_segment(path, s, why);
        free(names[i]);
    }
    free(names);
    return err;
}

static err_t check_entries(struct log_guard *g, const char *dir, const uint8_t *bytes, struct why *why)
{
    uint64_t values[VALUES];
    struct segments s = {0};
    if (!decode_sector(stored_magic, bytes + STORED_SECTOR * SECTOR_BYTES, values))
        return why_set(why, ERR_CORRUPT, "%s/log/marks is damaged in bytes %d to %d", dir, STORED_SECTOR * SECTOR_BYTES,
                       MARKS_BYTES);
    g->stored = values[0];
    err_t err = log_repair_segments(dir, g->stored, why);
    err = err ? err : examine_segments(dir, &s, why);
    if (err)
        return err;
    if (s.cut[0] && (s.has_late_batch || s.last < g->stored))
        return why_set(why, ERR_CORRUPT,
                       "%s is damaged behind byte %zu: stored entries up to %" PRIu64 " were acknowledged, and %" PRIu64
                       " can be read",
                       s.cut, s.cut_at, (uint64_t)g->stored, s.last);
    if (s.last < g->stored)
        return why_set(why, ERR_CORRUPT,
                       "%s/log has entries up to %" PRIu64 ", and %" PRIu64 " were acknowledged: a file is missing",
                       dir, s.last, (uint64_t)g->stored);
    if (s.cut[0])
        log_info("the last write to the log was cut by a crash; nothing in it was acknowledged path=%s byte=%zu", s.cut,
                 s.cut_at);
    return OK;
}

/* ---- methods ---- */

static int status_of(struct raft_io *io, err_t err)
{
    if (!err)
        return 0;
    snprintf(io->errmsg, sizeof(io->errmsg), "the file of marks cannot be written: %s", err_text(err));
    return err == ERR_NOSPACE ? RAFT_NOSPACE : RAFT_IOERR;
}

/* Our term and vote are right. libraft's are older if a crash came between the two writes, or if they are damaged. */
static int take_vote(struct log_guard *g, struct raft_io *io, raft_term *term, raft_id *vote)
{
    if (g->is_new)
        return status_of(io, write_vote(g, *term, *vote));
    if (*term == g->term && *vote == g->vote)
        return 0;
    log_warn("libraft's files name an older term or vote and are written anew term=%" PRIu64 " vote=%" PRIu64
             " libraft_term=%" PRIu64 " libraft_vote=%" PRIu64,
             (uint64_t)g->term, (uint64_t)g->vote, (uint64_t)*term, (uint64_t)*vote);
    *term = g->term;
    *vote = g->vote;
    int status = g->set_term(io, g->term);
    return status || !g->vote ? status : g->set_vote(io, g->vote);
}

static int load(struct raft_io *io, raft_term *term, raft_id *vote, struct raft_snapshot **snapshot,
                raft_index *start_index, struct raft_entry *entries[], size_t *n_entries)
{
    struct log_guard *g = guard_of(io);
    int status = g->load(io, term, vote, snapshot, start_index, entries, n_entries);
    if (status)
        return status;
    g->next = *start_index + *n_entries;
    if (g->next - 1 != g->stored)
        write_stored(g, g->next - 1);
    return take_vote(g, io, term, vote);
}

static int set_term(struct raft_io *io, raft_term term)
{
    struct log_guard *g = guard_of(io);
    int status = status_of(io, write_vote(g, term, 0));
    return status ? status : g->set_term(io, term);
}

static int set_vote(struct raft_io *io, raft_id vote)
{
    struct log_guard *g = guard_of(io);
    int status = status_of(io, write_vote(g, g->term, vote));
    return status ? status : g->set_vote(io, vote);
}

/* Request to the raft_io on behalf of a request of libraft. The callback gets only the former, so this holds both. */
struct guarded_append {
    struct raft_io_append req;
    struct raft_io_append *libraft;
    raft_io_append_cb cb;
    struct log_guard *guard;
    unsigned n;
    raft_index last;
};

/* Entries that a removal has overtaken are not counted as stored. */
static void entries_stored(struct raft_io_append *req, int status)
{
    struct guarded_append a = *(struct guarded_append *)req->data;
    raft_free(req->data);
    if (status)
        a.guard->next -= a.n; /* as libraft does */
    else if (a.last > a.guard->stored && a.last < a.guard->next)
        write_stored(a.guard, a.last);
    a.cb(a.libraft, status);
}

static int append(struct raft_io *io, struct raft_io_append *req, const struct raft_entry entries[], unsigned n,
                  raft_io_append_cb cb)
{
    struct log_guard *g = guard_of(io);
    struct guarded_append *a = raft_malloc(sizeof(*a));
    if (!a)
        return RAFT_NOMEM;
    *a = (struct guarded_append){
        .req = {.data = a}, .libraft = req, .cb = cb, .guard = g, .n = n, .last = g->next + n - 1};
    int status = g->append(io, &a->req, entries, n, entries_stored);
    if (status)
        raft_free(a);
    else
        g->next += n;
    return status;
}

/* Entries from `index` on are about to be removed. */
static void forget_entries(struct log_guard *g, raft_index index)
{
    g->next = index;
    if (g->stored >= index)
        write_stored(g, index - 1);
}

static int truncate_entries(struct raft_io *io, raft_index index)
{
    struct log_guard *g = guard_of(io);
    forget_entries(g, index);
    return g->truncate(io, index);
}

/* Without trailing entries the snapshot is the leader's and replaces the whole log. */
static int snapshot_put(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                        const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb)
{
    struct log_guard *g = guard_of(io);
    if (!trailing)
        forget_entries(g, snapshot->index + 1);
    return g->snapshot_put(io, trailing, req, snapshot, cb);
}

/* ---- opening and closing ---- */

err_t log_guard_open(struct log_guard *guard, const char *dir, struct why *why)
{
    char path[PATH_MAX];
    uint8_t bytes[MARKS_BYTES];
    *guard = (struct log_guard){.fd = -1};
    snprintf(path, sizeof(path), "%s/log/marks", dir);
    err_t err = access(path, F_OK) == 0 ? OK : make_marks(path);
    if (!err) {
        guard->fd = open(path, O_RDWR | O_CLOEXEC);
        err = guard->fd < 0 ? err_from_errno(errno) : file_pread_all(guard->fd, bytes, sizeof(bytes), 0);
    }
    if (err)
        return why_set(why, err, "%s: %s", path, err_text(err));
    err = check_votes(guard, dir, bytes, why);
    if (!err)
        err = check_entries(guard, dir, bytes, why);
    if (err)
        log_guard_close(guard);
    return err;
}

void log_guard_install(struct log_guard *guard, struct raft_io *io)
{
    guard->load = io->load;
    guard->set_term = io->set_term;
    guard->set_vote = io->set_vote;
    guard->append = io->append;
    guard->truncate = io->truncate;
    guard->snapshot_put = io->snapshot_put;
    io->load = load;
    io->set_term = set_term;
    io->set_vote = set_vote;
    io->append = append;
    io->truncate = truncate_entries;
    io->snapshot_put = snapshot_put;
}

void log_guard_close(struct log_guard *guard)
{
    if (guard->fd < 0)
        return;
    if (!guard->has_failed && fdatasync(guard->fd))
        log_warn("the marks of the log cannot be synced why=\"%s\"", strerror(errno));
    close(guard->fd);
    guard->fd = -1;
}
