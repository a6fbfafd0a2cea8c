/* How the ranks of an epoch join the shared segment.
 *
 * A rank joins under a lock on the file. The kernel releases the lock when its holder exits, so a rank that is killed
 * while it joins leaves nothing locked. The first rank of a new epoch clears that epoch's control block and kills the
 * older ones; a rank with an older epoch number is refused. The last rank to join has the requested sizes of all ranks
 * and sets the size of the file. Files only grow, because a late rank of an old epoch may still have the old pages
 * mapped. File locks of fcntl exclude processes but not threads, hence the mutex: tests run ranks as threads. */
#include "worker/comm/shm/shm.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static err_t lock_file(int fd, struct why *why)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    pthread_mutex_lock(&process_lock);
    while (fcntl(fd, F_SETLKW, &l) < 0) {
        if (errno == EINTR)
            continue;
        pthread_mutex_unlock(&process_lock);
        return why_set(why, ERR_IO, "cannot lock the workers' shared segment: %s", strerror(errno));
    }
    return OK;
}

static void unlock_file(int fd)
{
    struct flock l = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    if (fcntl(fd, F_SETLK, &l) < 0)
        log_error("shm_unlock_failed error=\"%s\"", strerror(errno));
    pthread_mutex_unlock(&process_lock);
}

static err_t grow_file(int fd, size_t bytes, struct why *why)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return why_set(why, ERR_IO, "the workers' shared segment (descriptor %d) is gone: %s", fd, strerror(errno));
    if ((size_t)st.st_size < bytes && ftruncate(fd, (off_t)bytes) < 0)
        return why_set(why, ERR_NOMEM, "cannot make the shared segment %zu bytes large: %s", bytes, strerror(errno));
    return OK;
}

/* Size of a message chunk: 64 KiB, halved until the boxes of all lanes together take at most 1 GiB. */
static size_t box_bytes(size_t world)
{
    size_t bytes = (size_t)64 << 10;
    while (bytes > SHM_PAGE && world * world * SHM_SLOTS * bytes > (size_t)1 << 30)
        bytes /= 2;
    return bytes;
}

static size_t windows_offset(void)
{
    return round_up(sizeof(struct shm_head), SHM_PAGE);
}

static size_t lanes_offset(size_t world)
{
    return windows_offset() + world * sizeof(struct shm_window);
}

static size_t boxes_offset(size_t world)
{
    return lanes_offset(world) + round_up(world * world * sizeof(struct shm_lane), SHM_PAGE);
}

/* Offset of `rank`'s shared bytes; for rank == world, the size of the whole segment. */
static size_t shared_offset(const struct shm_ctl *ctl, int rank)
{
    size_t world = ctl->world, at = boxes_offset(world) + world * world * SHM_SLOTS * box_bytes(world);
    for (int r = 0; r < rank; r++)
        at += round_up(ctl->member[r].shared_bytes, SHM_PAGE);
    return at;
}

/* Returns the control block of config->epoch and clears it if this is the epoch's first rank. The caller holds the file
 * lock. */
static err_t claim_ctl(struct shm_head *head, const struct comm_config *config, struct shm_ctl **ret, struct why *why)
{
    struct shm_ctl *ctl = &head->ctl[config->epoch % SHM_EPOCHS];
    if (head->magic == SHM_MAGIC && head->latest > config->epoch)
        return why_set(why, ERR_STALE, "epoch %" PRIu64 " has ended: the segment serves epoch %" PRIu64, config->epoch,
                       head->latest);
    if (head->magic != SHM_MAGIC || head->latest < config->epoch) {
        for (int i = 0; head->magic == SHM_MAGIC && i < SHM_EPOCHS; i++)
            shm_ctl_kill(&head->ctl[i]);
        memset(ctl, 0, sizeof(*ctl));
        ctl->epoch = config->epoch;
        ctl->world = (uint32_t)config->world;
        head->latest = config->epoch;
        head->magic = SHM_MAGIC;
    }
    if (ctl->epoch != config->epoch || ctl->world != (uint32_t)config->world)
        return why_set(why, ERR_INVALID, "rank %d was started with %d ranks and others with %u, in epoch %" PRIu64,
                       config->rank, config->world, ctl->world, config->epoch);
    *ret = ctl;
    return OK;
}

static err_t join_epoch(struct shm_comm *s, const struct comm_config *config, struct why *why)
{
    err_t err = claim_ctl(s->head, config, &s->ctl, why);
    if (err)
        return err;
    struct shm_member *me = &s->ctl->member[config->rank];
    if (me->joined)
        return why_set(why, ERR_EXISTS, "rank %d of epoch %" PRIu64 " has joined already", config->rank, config->epoch);
    me->shared_bytes = config->shared_bytes;
    me->numa_node = config->numa_node;
    if ((atomic_load(&s->ctl->joined) & ~SHM_DEAD) + 1 == s->ctl->world) {
        err = grow_file(s->fd, shared_offset(s->ctl, config->world), why);
        if (err)
            return err;
    }
    me->joined = 1;
    atomic_fetch_add(&s->ctl->joined, 1);
    shm_futex_wake(&s->ctl->joined);
    return OK;
}

static err_t name_missing(const struct shm_comm *s, const struct comm_config *config, struct why *why)
{
    char text[256] = "";
    size_t at = 0;
    for (int r = 0; r < config->world && at < sizeof(text) - 16; r++)
        if (!s->ctl->member[r].joined)
            at += (size_t)snprintf(text + at, sizeof(text) - at, " %d", r);
    return why_set(why, ERR_TIMEOUT, "rank%s did not join epoch %" PRIu64 " within %" PRId64 " ms", text, config->epoch,
                   config->timeout_ms);
}

static err_t wait_for_all(struct shm_comm *s, const struct comm_config *config, struct why *why)
{
    int64_t deadline = clock_mono_ms() + config->timeout_ms;
    for (;;) {
        uint32_t n = atomic_load(&s->ctl->joined);
        if (n & SHM_DEAD || (config->cancel && atomic_load(config->cancel)))
            return why_set(why, ERR_CANCELED, "epoch %" PRIu64 " ended before all ranks had joined", config->epoch);
        if (n == s->ctl->world)
            return OK;
        if (clock_mono_ms() >= deadline)
            return name_missing(s, config, why);
        shm_futex_wait(&s->ctl->joined, n, 20);
    }
}

/* Sets the addresses of the segment's parts. A rank clears its outgoing lanes, which may hold data of an earlier epoch.
 */
static void place_parts(struct shm_comm *s, uint8_t *map)
{
    const size_t world = (size_t)s->base.world;
    s->windows = (struct shm_window *)(map + windows_offset());
    s->lanes = (struct shm_lane *)(map + lanes_offset(world));
    s->boxes = map + boxes_offset(world);
    s->box_bytes = box_bytes(world);
    for (int r = 0; r < s->base.world; r++)
        s->shared[r] = map + shared_offset(s->ctl, r);
    memset(s->lanes + (size_t)s->base.rank * world, 0, world * sizeof(struct shm_lane));
}

/* Whether no page of the range was ever allocated: it then reads as zeros. */
static bool is_hole(int fd, size_t at, size_t bytes)
{
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);
    return data < 0 ? errno == ENXIO : (size_t)data >= at + bytes;
}

/* Maps the whole segment in place of the head, and allocates this rank's shared bytes. They are cleared only if an
 * earlier epoch used them: the operating system's kernel clears new pages when they are first touched. */
static err_t map_all(struct shm_comm *s, struct why *why)
{
    const struct comm *c = &s->base;
    size_t slot = (size_t)(s->ctl - s->head->ctl), bytes = shared_offset(s->ctl, c->world);
    size_t mine = shared_offset(s->ctl, c->rank);
    s->shared_bytes = shared_offset(s->ctl, c->rank + 1) - mine;
    const bool is_new = is_hole(s->fd, mine, s->shared_bytes);
    if (s->shared_bytes && fallocate(s->fd, 0, (off_t)mine, (off_t)s->shared_bytes) < 0 && errno != EOPNOTSUPP)
        return why_set(why, ERR_NOMEM,
                       "no memory for %zu bytes of gradients in the shared segment: %s; use fewer "
                       "workers or a smaller model",
                       s->shared_bytes, strerror(errno));
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (map == MAP_FAILED)
        return why_set(why, ERR_NOMEM, "cannot map %zu bytes of shared segment: %s", bytes, strerror(errno));
    munmap(s->head, s->map_bytes);
    s->head = map;
    s->map_bytes = bytes;
    s->ctl = &s->head->ctl[slot];
    place_parts(s, map);
    madvise(s->shared[c->rank], s->shared_bytes, MADV_HUGEPAGE); /* a hint; if it fails, small pages are used */
    if (!is_new)
        memset(s->shared[c->rank], 0, s->shared_bytes);
    return OK;
}

static err_t join_segment(struct shm_comm *s, const struct comm_config *config, struct why *why)
{
    s->map_bytes = windows_offset();
    err_t err = lock_file(s->fd, why);
    if (err)
        return err;
    err = grow_file(s->fd, s->map_bytes, why);
    if (!err) {
        void *map = mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
        if (map == MAP_FAILED)
            err = why_set(why, ERR_NOMEM, "cannot map the shared segment: %s", strerror(errno));
        else
            s->head = map;
    }
    if (!err)
        err = join_epoch(s, config, why);
    unlock_file(s->fd);
    return err;
}

err_t shm_open_comm(const struct comm_config *config, struct comm **ret, struct why *why)
{
    if (config->world > SHM_MAX_WORLD)
        return why_set(why, ERR_LIMIT, "%d workers on one node; at most %d", config->world, SHM_MAX_WORLD);
    struct shm_comm *s = calloc(1, sizeof(*s));
    if (!s)
        return why_set(why, ERR_NOMEM, "out of memory");
    s->base = (struct comm){.backend = &comm_backend_shm, .rank = config->rank, .world = config->world};
    s->fd = config->fd;
    s->spins = sysconf(_SC_NPROCESSORS_ONLN) >= config->world ? 2000 : 0;
    err_t err = join_segment(s, config, why);
    if (err)
        goto fail_unmap;
    err = wait_for_all(s, config, why);
    if (!err)
        err = map_all(s, why);
    int ranks[SHM_MAX_WORLD];
    for (int r = 0; r < config->world; r++)
        ranks[r] = r;
    if (!err)
        err = shm_group_new(&s->base, ranks, config->world, config->rank, &s->all);
    if (!err && (err = shm_barrier(s->all)))
        why_set(why, err, "epoch %" PRIu64 " ended while its ranks were joining", config->epoch);
    if (err)
        goto fail_kill;
    *ret = &s->base;
    return OK;

fail_kill: /* this rank has joined: the others must not wait for it */
    shm_ctl_kill(s->ctl);
fail_unmap:
    shm_close_comm(&s->base);
    return err;
}

void shm_close_comm(struct comm *c)
{
    struct shm_comm *s = (struct shm_comm *)c;
    shm_group_free(s->all);
    free(s->tree_stack);
    free(s->tree_nodes);
    if (s->head)
        munmap(s->head, s->map_bytes);
    free(s);
}
