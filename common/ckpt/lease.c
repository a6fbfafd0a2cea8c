/* A lease is taken by creating the file of the next generation with O_EXCL, which every file system performs
 * atomically, NFS included. So of several processes that find generation G free, exactly one gets G + 1. A process that
 * has found this too late, when G + 1 had been taken, succeeded and removed, creates G + 1 again; it then lists the
 * directory, finds the higher generation and removes its own file.
 *
 * For this the highest generation must never disappear: an owner that ends does not remove its lease but marks it as
 * released, and only a successor removes older generations. An owner writes to its own file only, through a descriptor
 * that it opened when it created the file. If it continues after a long pause, its write reaches a file that no process
 * reads any more.
 *
 * A lease is a marker (marker.h). It is overwritten in place with the same number of bytes. A reader that meets the
 * middle of this write finds a wrong checksum, and a change, which is the only property that it needs. */
#include "common/ckpt/lease.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/ckpt/le_bytes.h"
#include "common/ckpt/marker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_BYTES 48
#define FLAG_RELEASED 1u
#define FLAG_GENERATION 2u /* the cluster was recovered: its generation is at the end */
/* Bounds of a renew_ms that is read from a file: a forged one must neither end a lease at once nor hold it for ever. */
#define LEAST_RENEW_MS 20
#define MOST_RENEW_MS 5000
/* The newest lease can be removed by its successor between the listing and the read. */
#define READ_TRIES 5
/* ckpt_lease_check meets a write in progress: it is over after this pause. */
#define TORN_PAUSE_US 20000

/* ---- bytes ---- */

err_t ckpt_lease_encode(const struct ckpt_lease_info *l, struct buf *ret)
{
    const uint64_t large[] = {l->renewals, (uint64_t)l->held_ms};
    uint32_t flags = (l->released ? FLAG_RELEASED : 0) | (l->by.generation > 1 ? FLAG_GENERATION : 0);
    const uint32_t small[] = {l->renew_ms, l->pid, flags, (uint32_t)strlen(l->host), (uint32_t)strlen(l->dtd_dir)};
    err_t err = OK;
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]) && !err; i++)
        err = le_put_u64(ret, large[i]);
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]) && !err; i++)
        err = le_put_u32(ret, small[i]);
    err = err ? err : buf_append(ret, l->host, strlen(l->host));
    err = err ? err : buf_append(ret, l->dtd_dir, strlen(l->dtd_dir));
    return err || l->by.generation <= 1 ? err : le_put_u64(ret, l->by.generation);
}

static bool text_take(struct le_reader *r, uint32_t len, char *ret, size_t size)
{
    const uint8_t *text = len < size ? le_bytes(r, len) : NULL;
    if (!text || memchr(text, 0, len))
        return false;
    memcpy(ret, text, len);
    ret[len] = '\0';
    return true;
}

err_t ckpt_lease_decode(const void *data, size_t len, struct ckpt_lease_info *ret)
{
    struct le_reader r = le_reader_of(data, len);
    struct ckpt_lease_info l = {.known = true};
    l.renewals = le_u64(&r);
    l.held_ms = (int64_t)le_u64(&r);
    l.renew_ms = le_u32(&r);
    l.pid = le_u32(&r);
    uint32_t flags = le_u32(&r), host = le_u32(&r), dir = le_u32(&r);
    if (r.bad || l.held_ms < 0 || flags > (FLAG_RELEASED | FLAG_GENERATION) ||
        !text_take(&r, host, l.host, sizeof(l.host)) || !text_take(&r, dir, l.dtd_dir, sizeof(l.dtd_dir)))
        return ERR_CORRUPT;
    if (flags & FLAG_GENERATION)
        l.by.generation = le_u64(&r);
    if (r.bad || le_left(&r))
        return ERR_CORRUPT;
    l.released = flags & FLAG_RELEASED;
    *ret = l;
    return OK;
}

/* ---- the newest lease ---- */

static void lease_name(uint64_t generation, char ret[NAME_BYTES])
{
    snprintf(ret, NAME_BYTES, CKPT_LEASE_PREFIX "%" PRIu64, generation);
}

/* The generation of a lease's name; 0: another file. */
static uint64_t generation_of(const char *name)
{
    char again[NAME_BYTES];
    uint64_t generation;
    if (sscanf(name, CKPT_LEASE_PREFIX "%" SCNu64, &generation) != 1)
        return 0;
    lease_name(generation, again);
    return strcmp(again, name) == 0 ? generation : 0;
}

/* Lists the directory: *ret is its highest generation; 0: no lease, or no directory. Leases before `older` are removed;
 * a file that stays is removed by the next successor. */
static err_t generations_list(const char *root, uint64_t older, uint64_t *ret, struct why *why)
{
    int fd = marker_folder_open(root, NULL);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    uint64_t newest = 0;
    *ret = 0;
    if (!d) {
        err_t err = errno == ENOENT ? OK : err_from_errno(errno);
        if (fd >= 0)
            close(fd);
        return err ? why_set(why, err, "%s: %s", root, err_text(err)) : OK;
    }
    for (struct dirent *e; (e = readdir(d));) {
        uint64_t generation = generation_of(e->d_name);
        newest = generation > newest ? generation : newest;
        if (generation && generation < older)
            unlinkat(fd, e->d_name, 0);
    }
    closedir(d);
    *ret = newest;
    return OK;
}

/* Reads the newest lease, and appends its bytes to `bytes`. ret->generation 0: there is none. */
static err_t newest_read(const char *root, struct buf *bytes, struct ckpt_lease_info *ret, struct why *why)
{
    char name[NAME_BYTES];
    for (int tries = 0; tries < READ_TRIES; tries++) {
        uint64_t generation;
        struct marker m;
        *ret = (struct ckpt_lease_info){0};
        err_t err = generations_list(root, 0, &generation, why);
        if (err || !generation)
            return err;
        lease_name(generation, name);
        bytes->len = 0;
        err = marker_read(root, NULL, name, bytes, &m, why);
        if (err == ERR_NOTFOUND)
            continue;
        if (err && err != ERR_CORRUPT && err != ERR_UNSUPPORTED)
            return err;
        if (err || m.kind != MARKER_LEASE || ckpt_lease_decode(m.body, m.body_bytes, ret))
            *ret = (struct ckpt_lease_info){0};
        uint64_t of_cluster = ret->by.generation;
        if (ret->known)
            ret->by = m.by;
        ret->by.generation = of_cluster;
        ret->generation = generation;
        return OK;
    }
    return why_set(why, ERR_AGAIN, "%s/%s appears and disappears", root, name);
}

static bool of_job(const struct ckpt_lease_info *l, const struct ckpt_writer_id *me)
{
    return l->known && me && l->by.submitted_ms == me->submitted_ms && strcmp(l->by.job, me->job) == 0;
}

/* Of this job, which a recovered cluster continues: this process is of the cluster before. An epoch that continues in
 * the recovered cluster is the same one, and its processes learn of the recovery one after another. */
static bool of_later_cluster(const struct ckpt_lease_info *l, const struct ckpt_writer_id *me)
{
    return of_job(l, me) && l->by.generation > me->generation && l->by.epoch != me->epoch;
}

static void duration_print(int64_t ms, char *ret, size_t size)
{
    int64_t s = ms / 1000;
    if (s < 120)
        snprintf(ret, size, "%" PRId64 " s", s);
    else if (s < 7200)
        snprintf(ret, size, "%" PRId64 " min", s / 60);
    else
        snprintf(ret, size, "%" PRId64 " h", s / 3600);
}

void ckpt_lease_describe(const struct ckpt_lease_info *l, char *ret, size_t size)
{
    char age[32];
    duration_print(l->held_ms, age, sizeof(age));
    if (l->known)
        snprintf(ret, size, "job %s%s on host %s (pid %u%s%s), which has held it for %s", l->by.job,
                 l->by.generation > 1 ? " of the recovered cluster" : "", l->host, l->pid,
                 l->dtd_dir[0] ? ", DTD_DIR " : "", l->dtd_dir, age);
    else
        snprintf(ret, size, "a job whose file " CKPT_LEASE_PREFIX "%" PRIu64 " is incomplete", l->generation);
}

/* ---- observing ---- */

static int64_t renew_ms_of(const struct ckpt_lease_info *l)
{
    int64_t ms = l->known ? l->renew_ms : CKPT_LEASE_RENEW_MS;
    return ms < LEAST_RENEW_MS ? LEAST_RENEW_MS : ms > MOST_RENEW_MS ? MOST_RENEW_MS : ms;
}

/* A look that comes late counts as one renewal at most: the observer itself, or the file server, may have paused, and
 * the owner with it. */
static enum ckpt_lease_state watch_compare(struct ckpt_lease_watch *w, const struct ckpt_lease_info *l,
                                           const struct buf *bytes)
{
    size_t n = bytes->len < sizeof(w->bytes) ? bytes->len : sizeof(w->bytes);
    int64_t now = clock_mono_ms(), renew = renew_ms_of(l), passed = now - w->looked_ms;
    bool first = w->generation != l->generation;
    bool same = !first && n == w->n_bytes && (!n || memcmp(w->bytes, bytes->data, n) == 0);
    bool taken_meanwhile = first && w->generation;
    w->quiet_ms = same ? w->quiet_ms + (passed < renew ? passed : renew) : 0;
    w->looked_ms = now;
    w->generation = l->generation;
    w->n_bytes = n;
    if (n)
        memcpy(w->bytes, bytes->data, n);
    if (taken_meanwhile || (!first && !same))
        return CKPT_LEASE_LIVING;
    return w->quiet_ms >= renew * CKPT_LEASE_MISSED ? CKPT_LEASE_FREE : CKPT_LEASE_WAIT;
}

err_t ckpt_lease_look(const char *root, const struct ckpt_writer_id *me, uint64_t take_over,
                      struct ckpt_lease_watch *watch, enum ckpt_lease_state *ret, struct ckpt_lease_info *ret_info,
                      struct why *why)
{
    struct ckpt_lease_info l;
    struct buf bytes = {0};
    err_t err = newest_read(root, &bytes, &l, why);
    if (!err) {
        enum ckpt_lease_state compared = watch_compare(watch, &l, &bytes);
        bool named = l.known && take_over && ckpt_incarnation(&l.by) == take_over;
        *ret = of_later_cluster(&l, me)               ? CKPT_LEASE_LIVING
               : !l.generation || l.released || named ? CKPT_LEASE_FREE
               : of_job(&l, me)                       ? CKPT_LEASE_OWN_JOB
                                                      : compared;
        *ret_info = l;
    }
    buf_fini(&bytes);
    return err;
}

err_t ckpt_lease_refuse(const char *root, const struct ckpt_lease_info *l, bool of_job, struct why *why)
{
    char owner[400];
    ckpt_lease_describe(l, owner, sizeof(owner));
    return why_set(why, ERR_OWNED,
                   "%.300s is in use by %s. Wait until that job has ended, or cancel it, or choose another "
                   "checkpoint.dir%s",
                   root, owner, of_job ? ", or take the folder over: dtctl submit or resume with --take-over" : "");
}

/* ---- owning ---- */

static err_t lease_write(struct ckpt_lease *l)
{
    struct buf body = {0}, all = {0};
    l->info.held_ms = clock_mono_ms() - l->since_ms;
    err_t err = ckpt_lease_encode(&l->info, &body);
    const struct marker m = {.kind = MARKER_LEASE, .by = l->info.by, .body = body.data, .body_bytes = body.len};
    if (!err)
        err = marker_encode(&m, &all);
    ssize_t n = err ? 0 : pwrite(l->fd, all.data, all.len, 0);
    if (!err && n != (ssize_t)all.len)
        err = n < 0 ? err_from_errno(errno) : ERR_IO;
    if (!err && fdatasync(l->fd))
        err = err_from_errno(errno);
    buf_fini(&body);
    buf_fini(&all);
    return err;
}

/* Creates the file of l->info.generation. */
static err_t lease_create(const char *root, struct ckpt_lease *l)
{
    char name[NAME_BYTES];
    lease_name(l->info.generation, name);
    l->fd = -1;
    int dir = marker_folder_open(root, NULL);
    if (dir < 0)
        return err_from_errno(errno);
    l->fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    err_t err = l->fd < 0 ? err_from_errno(errno) : lease_write(l);
    if (!err && fsync(dir))
        err = err_from_errno(errno);
    if (err && l->fd >= 0) {
        close(l->fd);
        unlinkat(dir, name, 0);
        l->fd = -1;
    }
    close(dir);
    return err;
}

static void lease_undo(const char *root, struct ckpt_lease *l)
{
    char name[NAME_BYTES];
    int dir = marker_folder_open(root, NULL);
    lease_name(l->info.generation, name);
    close(l->fd);
    if (dir < 0)
        return;
    unlinkat(dir, name, 0);
    close(dir);
}

err_t ckpt_lease_take(const char *root, const struct ckpt_lease_info *mine, uint64_t after, struct ckpt_lease *ret,
                      struct why *why)
{
    struct ckpt_lease l = {.info = *mine, .since_ms = clock_mono_ms()};
    uint64_t newest;
    l.info.generation = after + 1;
    l.info.known = true;
    l.info.released = false;
    l.info.renewals = 0;
    err_t err = lease_create(root, &l);
    if (err == ERR_EXISTS)
        return why_set(why, ERR_AGAIN, "another job has just taken %s", root);
    if (err)
        return why_set(why, err, "%s/" CKPT_LEASE_PREFIX "%" PRIu64 ": %s", root, l.info.generation, err_text(err));
    err = generations_list(root, 0, &newest, why);
    if (!err && newest != l.info.generation)
        err = why_set(why, ERR_AGAIN, "another job has just taken %s", root);
    if (!err)
        err = generations_list(root, l.info.generation, &newest, why);
    if (err)
        lease_undo(root, &l);
    else
        *ret = l;
    return err;
}

/* Another process has taken the lease over. */
static err_t lost(const char *root, const struct ckpt_writer_id *me, const struct ckpt_lease_info *by, struct why *why)
{
    char owner[400];
    if (of_job(by, me) && !of_later_cluster(by, me))
        return why_set(why, ERR_STALE, "epoch %" PRIu64 " of this job now writes into %.300s", by->by.epoch, root);
    ckpt_lease_describe(by, owner, sizeof(owner));
    return why_set(why, ERR_OWNED,
                   "%.300s was taken over by %s. This job can save nothing there any more; give each job its own "
                   "checkpoint.dir",
                   root, owner);
}

err_t ckpt_lease_renew(const char *root, struct ckpt_lease *l, struct why *why)
{
    struct ckpt_lease_info newest;
    struct buf bytes = {0};
    l->info.renewals++;
    err_t written = lease_write(l);
    err_t err = newest_read(root, &bytes, &newest, why);
    buf_fini(&bytes);
    if (err)
        return err;
    if (newest.generation > l->info.generation)
        return newest.known ? lost(root, &l->info.by, &newest, why)
                            : why_set(why, ERR_AGAIN, "another job is taking %s over", root);
    if (newest.generation < l->info.generation) { /* a user removed the file */
        if (l->fd >= 0)
            close(l->fd);
        written = lease_create(root, l);
    }
    return written ? why_set(why, written, "the lease of %s is not renewed: %s", root, err_text(written)) : OK;
}

void ckpt_lease_drop(struct ckpt_lease *l)
{
    if (l->info.generation && l->fd >= 0)
        close(l->fd);
    *l = (struct ckpt_lease){.fd = -1};
}

err_t ckpt_lease_release(struct ckpt_lease *l, struct why *why)
{
    l->info.released = true;
    err_t err = l->info.generation ? lease_write(l) : OK;
    if (err)
        why_set(why, err, "the lease " CKPT_LEASE_PREFIX "%" PRIu64 " is not released: %s", l->info.generation,
                err_text(err));
    ckpt_lease_drop(l);
    return err;
}

err_t ckpt_lease_check(const char *root, const struct ckpt_writer_id *me, struct why *why)
{
    for (int tries = 0; tries < READ_TRIES; tries++) {
        struct ckpt_lease_info newest;
        struct buf bytes = {0};
        err_t err = newest_read(root, &bytes, &newest, why);
        buf_fini(&bytes);
        if (err || !newest.generation || (of_job(&newest, me) && !of_later_cluster(&newest, me)))
            return err;
        if (newest.known)
            return lost(root, me, &newest, why);
        usleep(TORN_PAUSE_US);
    }
    return why_set(why, ERR_CORRUPT, "%s: the newest file " CKPT_LEASE_PREFIX "N is damaged; remove it", root);
}
