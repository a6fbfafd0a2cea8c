/* Writes wait in a list. The device takes all waiting writes at once, and they are on the disk after its latency.
 * Copies are not freed within a run: they are small, and each run is a process of its own. */
#include "tests/sim/disk.h"

#include "common/base/hash.h"
#include "tests/sim/bugs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FREE_BYTES (UINT64_C(1) << 30) /* far more than a run writes, so the disk is full only by a fault */
#define USUAL_US 4000                  /* a write takes up to 4 ms: a disk with fsync */
#define RETRY_US (200 * US_PER_MS) /* interval for repeating a write while the disk is full, or one that must wait */

enum kind { APPEND, TRUNCATE, SNAPSHOT };

struct write {
    TAILQ_ENTRY(write) link;
    struct disk *disk;
    struct files *files;
    enum kind kind;
    uint64_t number;
    bool is_under_way;
    struct event *event; /* of a snapshot that the host itself took */
    struct stored *entries;
    size_t n;
    raft_index index; /* of a truncation: the first removed entry */
    struct stored_snapshot *snapshot;
    unsigned trailing;
    disk_fn done;
    void *arg;
};

struct disk disks[MAX_HOSTS + 1];

uint64_t disk_hash(const void *data, size_t len, raft_term term, enum raft_entry_type type)
{
    struct hash h;
    const uint64_t about[4] = {term, type, len, 0};
    hash_init(&h);
    hash_add(&h, about, sizeof(about));
    if (type != RAFT_BARRIER) /* libraft does not set a barrier's bytes */
        hash_add(&h, data, len);
    return hash_end(&h);
}

static void *copy_of(const void *data, size_t len)
{
    void *copy = malloc(len ? len : 1);
    assert(copy);
    return memcpy(copy, data, len);
}

/* ---- files ---- */

raft_index files_last(const struct files *files)
{
    return files->first ? files->first + files->n - 1 : 0;
}

const struct stored *files_entry(const struct files *files, raft_index index)
{
    return index >= files->first && index <= files_last(files) ? &files->entries[index - files->first] : NULL;
}

raft_term files_term(const struct files *files, raft_index index)
{
    const struct stored *e = files_entry(files, index);
    if (e)
        return e->term;
    return files->snapshot && files->snapshot->index == index ? files->snapshot->term : 0;
}

static void put_stored(struct files *files, const struct stored *entry)
{
    if (files->n == files->cap) {
        files->cap = files->cap ? 2 * files->cap : 64;
        files->entries = realloc(files->entries, files->cap * sizeof(struct stored));
        assert(files->entries);
    }
    files->entries[files->n++] = *entry;
}

void files_put(struct files *files, raft_term term, enum raft_entry_type type, const struct raft_buffer *data)
{
    const struct stored entry = {
        .term = term,
        .type = type,
        .len = data->len,
        .data = copy_of(data->base, data->len),
        .hash = disk_hash(data->base, data->len, term, type),
    };
    put_stored(files, &entry);
}

static void cut_tail(struct files *files, raft_index index)
{
    if (index <= files_last(files))
        files->n = index > files->first ? index - files->first : 0;
}

static void cut_head(struct files *files, raft_index first)
{
    if (first <= files->first)
        return;
    size_t gone = first - files->first < files->n ? first - files->first : files->n;
    files->n -= gone;
    memmove(files->entries, files->entries + gone, files->n * sizeof(struct stored));
    files->first += gone;
}

static void put_snapshot(struct files *files, struct stored_snapshot *s, unsigned trailing)
{
    if (files->snapshot && files->snapshot->index >= s->index && trailing)
        return;
    trace("snapshot at %llu, its members at %llu", s->index, s->configuration_index);
    if (!bug(BUG_SNAPSHOT_LOST))
        files->snapshot = s;
    if (!trailing) {
        files->n = 0;
        files->first = s->index + 1;
    } else if (s->index > trailing) {
        cut_head(files, s->index - trailing + 1);
    }
}

static void put_write(const struct write *w, size_t n_entries)
{
    switch (w->kind) {
    case APPEND:
        for (size_t i = 0; i < n_entries; i++)
            put_stored(w->files, &w->entries[i]);
        break;
    case TRUNCATE:
        if (!bug(BUG_TAIL_STAYS))
            cut_tail(w->files, w->index);
        break;
    case SNAPSHOT:
        put_snapshot(w->files, w->snapshot, w->trailing);
        break;
    }
}

/* ---- space ---- */

static size_t bytes_of(const struct write *w)
{
    size_t bytes = 0;
    for (size_t i = 0; i < w->n; i++)
        bytes += w->entries[i].len + 32;
    return w->snapshot ? w->snapshot->len + 256 : bytes;
}

static bool has_space(struct disk *disk, size_t bytes)
{
    if (!disk->is_full)
        return true;
    if (disk->room < bytes && disk->free_bytes >= disk->segment_bytes) {
        disk->free_bytes -= disk->segment_bytes;
        disk->room = disk->segment_bytes;
    }
    if (disk->room < bytes)
        return false;
    disk->room -= bytes;
    return true;
}

void disk_fill(struct disk *disk)
{
    if (disk->is_full)
        return;
    disk->is_full = true;
    disk->free_bytes = (uint64_t)world_between(FROM_DISK, 0, (int64_t)disk->segment_bytes / 2);
    disk->room = (uint64_t)world_between(FROM_DISK, 0, 8192);
}

void disk_empty(struct disk *disk)
{
    disk->is_full = false;
    disk->free_bytes = FREE_BYTES;
}

/* Whether the write has to wait. Operations other than appends may wait unnoticed. */
static bool must_wait(const struct write *w)
{
    struct disk *disk = w->disk;
    if (w->kind == APPEND)
        return disk_fails(disk, DISK_HANGS | DISK_SEGMENTS | DISK_DESCRIPTORS);
    return disk->faults & DISK_HANGS;
}

bool disk_fails(struct disk *disk, unsigned faults)
{
    bool fails = disk->faults & faults;
    disk->has_failed |= fails;
    if (fails && !disk->failed_us)
        disk->failed_us = world.now_us;
    return fails;
}

/* ---- the device ---- */

static void next_writes(struct disk *disk);

static void complete_write(struct write *w, int status)
{
    disk_fn done = w->done;
    void *arg = w->arg;
    free(w);
    if (done)
        done(arg, status);
}

/* libraft writes nothing behind it. The write stays the first of the list until libraft is closed. */
static void write_failed(struct write *w)
{
    disk_fn done = w->done;
    w->done = NULL;
    w->disk->is_stuck = true;
    done(w->arg, RAFT_IOERR);
}

static void written(void *arg)
{
    struct disk *disk = arg;
    unsigned life = disk->host->life;
    disk->event = NULL;
    for (struct write *w; disk->host->life == life && (w = TAILQ_FIRST(&disk->writes)) && w->is_under_way;) {
        if (must_wait(w) || !has_space(disk, bytes_of(w))) {
            disk->event = world_after(disk->host, RETRY_US, written, disk);
            return;
        }
        if (w->kind != TRUNCATE && disk_fails(disk, w->kind == APPEND ? DISK_WRITES : DISK_SNAPSHOTS)) {
            write_failed(w);
            return;
        }
        TAILQ_REMOVE(&disk->writes, w, link);
        put_write(w, w->n);
        complete_write(w, 0);
        if (!disk->faults)
            disk->failed_us = 0; /* it had only to wait */
    }
    if (disk->host->life == life)
        next_writes(disk);
}

static int64_t latency(struct disk *disk)
{
    int64_t us = world_between(FROM_DISK, 50, disk->latency_us);
    return world_chance(FROM_DISK, 0.01) ? us * 20 : us;
}

static void next_writes(struct disk *disk)
{
    struct write *w;
    if (disk->event || disk->is_stuck || TAILQ_EMPTY(&disk->writes))
        return;
    TAILQ_FOREACH(w, &disk->writes, link)
    w->is_under_way = true;
    disk->event = world_after(disk->host, latency(disk), written, disk);
}

static struct write *new_write(struct disk *disk, struct files *files, enum kind kind, disk_fn done, void *arg)
{
    struct write *w = calloc(1, sizeof(*w));
    assert(w);
    w->disk = disk;
    w->files = files;
    w->kind = kind;
    w->number = disk->next++;
    w->done = done;
    w->arg = arg;
    return w;
}

static void queue_write(struct write *w)
{
    TAILQ_INSERT_TAIL(&w->disk->writes, w, link);
    next_writes(w->disk);
}

struct early {
    disk_fn done;
    void *arg;
};

static void answer_early(void *arg)
{
    struct early e = *(struct early *)arg;
    free(arg);
    e.done(e.arg, 0);
}

void disk_append(struct disk *disk, struct files *files, const struct raft_entry *entries, unsigned n, disk_fn done,
                 void *arg)
{
    if (bug(BUG_ACK_BEFORE_DURABLE)) {
        struct early *e = malloc(sizeof(*e));
        assert(e);
        *e = (struct early){done, arg};
        world_after(disk->host, 1, answer_early, e);
        done = NULL;
    }
    struct write *w = new_write(disk, files, APPEND, done, arg);
    w->entries = calloc(n, sizeof(struct stored));
    assert(w->entries);
    w->n = n;
    for (unsigned i = 0; i < n; i++)
        w->entries[i] = (struct stored){
            .term = entries[i].term,
            .type = entries[i].type,
            .len = entries[i].buf.len,
            .data = copy_of(entries[i].buf.base, entries[i].buf.len),
            .hash = disk_hash(entries[i].buf.base, entries[i].buf.len, entries[i].term, entries[i].type),
        };
    queue_write(w);
}

void disk_truncate(struct disk *disk, struct files *files, raft_index index, disk_fn done, void *arg)
{
    struct write *w = new_write(disk, files, TRUNCATE, done, arg);
    w->index = index;
    queue_write(w);
}

/* ---- snapshots ---- */

static struct stored_snapshot *snapshot_copy(const struct raft_snapshot *from)
{
    struct stored_snapshot *s = calloc(1, sizeof(*s));
    assert(s);
    s->index = from->index;
    s->term = from->term;
    s->configuration_index = from->configuration_index;
    raft_configuration_init(&s->configuration);
    for (unsigned i = 0; i < from->configuration.n; i++) {
        const struct raft_server *server = &from->configuration.servers[i];
        int status = raft_configuration_add(&s->configuration, server->id, server->address, server->role);
        assert(!status);
    }
    for (unsigned i = 0; i < from->n_bufs; i++)
        s->len += from->bufs[i].len;
    char *to = s->data = malloc(s->len);
    assert(to);
    for (unsigned i = 0; i < from->n_bufs; to += from->bufs[i++].len)
        memcpy(to, from->bufs[i].base, from->bufs[i].len);
    return s;
}

/* Returns true if the write follows the entries that the snapshot covers. */
static bool is_behind(const struct write *w)
{
    const struct write *first = TAILQ_FIRST(&w->disk->writes);
    return !first || first->number > w->number;
}

static void snapshot_written(void *arg)
{
    struct write *w = arg;
    if (!is_behind(w) || must_wait(w) || !has_space(w->disk, bytes_of(w))) {
        w->event = world_after(w->disk->host, is_behind(w) ? RETRY_US : US_PER_MS, snapshot_written, w);
        return;
    }
    TAILQ_REMOVE(&w->disk->snapshots, w, link);
    if (disk_fails(w->disk, DISK_SNAPSHOTS)) {
        complete_write(w, RAFT_IOERR);
        return;
    }
    put_write(w, 0);
    complete_write(w, 0);
}

void disk_snapshot(struct disk *disk, struct files *files, const struct raft_snapshot *snapshot, unsigned trailing,
                   disk_fn done, void *arg)
{
    struct write *w = new_write(disk, files, SNAPSHOT, done, arg);
    w->snapshot = snapshot_copy(snapshot);
    w->trailing = trailing;
    if (!trailing) {
        queue_write(w);
        return;
    }
    TAILQ_INSERT_TAIL(&disk->snapshots, w, link);
    w->event = world_after(disk->host, 2 * latency(disk), snapshot_written, w);
}

/* ---- ends ---- */

/* Keeps a prefix of the writes under way. The last of them may be torn between entries; the log reads that as its end.
 */
static void keep_prefix(struct disk *disk)
{
    struct write *w = TAILQ_FIRST(&disk->writes);
    size_t n = 0;
    if (disk->is_stuck) { /* any part of the failed write may be on the disk */
        if (w->kind == APPEND)
            put_write(w, (size_t)world_between(FROM_DISK, 0, (int64_t)w->n));
        return;
    }
    TAILQ_FOREACH(w, &disk->writes, link)
    n++;
    size_t keep = (size_t)world_between(FROM_DISK, 0, (int64_t)n);
    TAILQ_FOREACH(w, &disk->writes, link)
    {
        if (keep-- == 0) {
            if (w->kind == APPEND)
                put_write(w, (size_t)world_between(FROM_DISK, 0, (int64_t)w->n - 1));
            return;
        }
        put_write(w, w->n);
    }
    TAILQ_FOREACH(w, &disk->snapshots, link)
    if (world_chance(FROM_DISK, 0.5))
        put_write(w, 0);
}

void disk_crash(struct disk *disk)
{
    keep_prefix(disk);
    TAILQ_INIT(&disk->writes);
    TAILQ_INIT(&disk->snapshots);
    disk->event = NULL;
    disk->fresh = (struct files){0};
    disk->is_stuck = false;
    disk->failed_us = 0;
    if (bug(BUG_DISK_WIPED) && world_chance(FROM_DISK, 0.1))
        disk->log = (struct files){0};
}

void disk_cancel(struct disk *disk)
{
    keep_prefix(disk);
    disk->is_stuck = false;
    disk->failed_us = 0;
    if (disk->event)
        world_cancel(disk->event);
    disk->event = NULL;
    for (struct write *w; (w = TAILQ_FIRST(&disk->writes));) {
        TAILQ_REMOVE(&disk->writes, w, link);
        complete_write(w, RAFT_CANCELED);
    }
    for (struct write *w; (w = TAILQ_FIRST(&disk->snapshots));) {
        TAILQ_REMOVE(&disk->snapshots, w, link);
        world_cancel(w->event);
        complete_write(w, RAFT_CANCELED);
    }
}

void disk_init(struct disk *disk, struct host *host)
{
    *disk = (struct disk){.host = host, .free_bytes = FREE_BYTES, .latency_us = USUAL_US, .segment_bytes = 4u << 20};
    TAILQ_INIT(&disk->writes);
    TAILQ_INIT(&disk->snapshots);
}

/* ---- queries ---- */

const struct stored *disk_newest(const struct disk *disk, raft_index index)
{
    const struct write *w;
    const struct stored *found = files_entry(&disk->log, index);
    raft_index next = files_last(&disk->log) + 1;
    TAILQ_FOREACH(w, &disk->writes, link)
    {
        if (w->kind == TRUNCATE && w->index < next) {
            next = w->index;
            if (index >= next)
                found = NULL;
        } else if (w->kind == SNAPSHOT) {
            next = w->snapshot->index + 1;
            found = NULL;
        } else if (w->kind == APPEND) {
            if (index >= next && index < next + w->n)
                found = &w->entries[index - next];
            next += w->n;
        }
    }
    return found;
}
