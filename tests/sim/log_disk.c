/* Implements daemon/control/log/disk.h on the virtual disk of the calling host. The virtual disk changes no bits, so
 * guard.h has nothing to check. Snapshots are read by the simulation's raft_io. */
#include "daemon/control/log/disk.h"
#include "daemon/control/log/guard.h"
#include "daemon/control/log/snapshot_file.h"
#include "daemon/control/log/witness.h"

#include "tests/sim/disk.h"

static struct disk *here(void)
{
    return &disks[world.current->id];
}

uint64_t log_disk_free(const struct log_disk *disk)
{
    (void)disk;
    return here()->free_bytes;
}

uint64_t log_disk_low_mark(const struct log_disk *disk)
{
    return disk->segment_bytes;
}

uint64_t log_disk_reopen_mark(const struct log_disk *disk)
{
    return 6 * disk->segment_bytes + disk->reserve_bytes;
}

bool log_disk_reserve(const struct log_disk *disk)
{
    if (!here()->has_reserve && here()->free_bytes >= log_disk_reopen_mark(disk)) {
        here()->has_reserve = true;
        here()->free_bytes -= disk->reserve_bytes;
    }
    return here()->has_reserve;
}

void log_disk_release(const struct log_disk *disk)
{
    if (here()->has_reserve)
        here()->free_bytes += disk->reserve_bytes;
    here()->has_reserve = false;
}

bool log_disk_has_entries(const struct log_disk *disk, uint64_t from)
{
    (void)disk, (void)from;
    return false;
}

err_t log_disk_probe(const struct log_disk *disk, struct why *why)
{
    (void)disk;
    here()->has_failed |= here()->faults & DISK_SEGMENTS;
    if (here()->faults & DISK_SEGMENTS)
        return why_set(why, ERR_IO, "syncing a file: Input/output error");
    if (here()->faults & DISK_DESCRIPTORS)
        return why_set(why, ERR_LIMIT, "creating a file: Too many open files");
    return OK;
}

uint64_t log_disk_snapshot(const struct log_disk *disk)
{
    (void)disk;
    return here()->log.snapshot ? here()->log.snapshot->index : 0;
}

bool log_disk_is_new(const struct log_disk *disk)
{
    (void)disk;
    return !here()->log.exists;
}

err_t log_disk_make_new(const struct log_disk *disk)
{
    (void)disk;
    here()->fresh = (struct files){.exists = true, .first = 1};
    return OK;
}

err_t log_disk_commit_new(const struct log_disk *disk)
{
    (void)disk;
    if (host_acts(world.current))
        here()->log = here()->fresh;
    return OK;
}

err_t log_guard_open(struct log_guard *guard, const char *dir, struct why *why)
{
    (void)dir;
    (void)why;
    *guard = (struct log_guard){.fd = -1};
    return OK;
}

void log_guard_install(struct log_guard *guard, struct raft_io *io)
{
    (void)guard;
    (void)io;
}

void log_guard_close(struct log_guard *guard)
{
    (void)guard;
}

void log_snapshot_file_install(struct raft_io *io)
{
    (void)io;
}

void log_snapshot_file_trim(uint64_t now_ms)
{
    (void)now_ms;
}

/* The file is written when the log ticks, and stays in a crash. */
static struct log_witness witnesses[MAX_HOSTS + 1];

void witness_load(struct log_witness *w, const char *dir)
{
    (void)dir;
    *w = witnesses[world.current->id];
}

void witness_save(struct log_witness *w, const char *dir)
{
    (void)dir;
    if (host_acts(world.current))
        witnesses[world.current->id] = *w;
    w->is_dirty = false;
}

void log_disk_forget_witness(const struct host *host)
{
    witnesses[host->id] = (struct log_witness){.n = 0};
}
