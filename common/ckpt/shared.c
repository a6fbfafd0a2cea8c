/* Taking a directory over has four steps. Their order is the fence against a committer of an older epoch that still
 * runs on a disconnected node:
 *
 *     marker PREPARING -> partial folders of older epochs renamed away -> steps after the roll-back moved aside ->
 * READY
 *
 * A committer checks the epoch marker right before its rename (ckpt_commit). If the old committer checked before
 * PREPARING, its partial folder existed before the new committer listed the directory. Then there are two cases. The
 * new committer renames the folder away first, and the old rename fails. Or the old rename comes first, and the new
 * committer sees the step when it lists the steps; it moves the step aside if the new epoch resumes from before it.
 *
 * One case remains: between those two renames, a writer of the old epoch creates a new folder under the old name.
 * ckpt_commit recognizes its own folder by the inode and renames any other folder to trash. Until then no reader takes
 * that folder for a checkpoint, because it has no manifest.
 *
 * This fence is between epochs of one job. Between jobs it is the lease (lease.h): ckpt_prepare and ckpt_held check it
 * first.
 *
 * Other dtd-io processes start to write at READY. Therefore the sweep removes none of their parts, and no step of an
 * abandoned branch counts as the commit of their saves. */
#include "common/ckpt/shared.h"

#include "common/base/file.h"
#include "common/ckpt/ckpt_priv.h"
#include "common/ckpt/lease.h"
#include "common/ckpt/marker.h"
#include "common/ckpt/part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAILED_NAME "failed"
#define NAME_BYTES CKPT_OPEN_NAME

static bool same_job(const struct ckpt_writer_id *a, const struct ckpt_writer_id *b)
{
    return a->submitted_ms == b->submitted_ms && strcmp(a->job, b->job) == 0;
}

/* ---- the epoch marker ---- */

static err_t epoch_marker_read(const char *root, struct marker *ret, struct why *why)
{
    struct buf b = {0};
    err_t err = marker_read(root, NULL, CKPT_EPOCH_FILE, &b, ret, why);
    if (!err && ret->kind != MARKER_PREPARING && ret->kind != MARKER_READY)
        err = why_set(why, ERR_CORRUPT, "%s/%s: dtd-io did not write this file; remove it", root, CKPT_EPOCH_FILE);
    ret->body = NULL;
    buf_fini(&b);
    return err;
}

static err_t epoch_marker_write(const char *root, const struct ckpt_writer_id *me, enum marker_kind kind,
                                struct why *why)
{
    const struct marker w = {.kind = kind, .by = *me};
    return marker_write(root, NULL, CKPT_EPOCH_FILE, &w, why);
}

static err_t stale_error(const char *root, const struct ckpt_writer_id *me, const struct marker *w, struct why *why)
{
    if (!same_job(&w->by, me))
        return why_set(why, ERR_STALE, "%s now belongs to job %s, not to job %s; give each job its own checkpoint.dir",
                       root, w->by.job, me->job);
    return why_set(why, ERR_STALE,
                   "epoch %" PRIu64 " has ended: %s belongs to epoch %" PRIu64
                   " (if the cluster of that epoch no longer "
                   "exists, remove %s/%s)",
                   me->epoch, root, w->by.epoch, root, CKPT_EPOCH_FILE);
}

/* The previous owner of the directory decides what may be removed: epoch numbers in the partial folders of another job
 * cannot be compared with this job's. */
enum owner_before { BEFORE_NOBODY, BEFORE_US, BEFORE_THIS_EPOCH, BEFORE_OTHERS };

static err_t owner_before_read(const char *root, const struct ckpt_writer_id *me, enum owner_before *ret,
                               struct why *why)
{
    struct marker w;
    err_t err = epoch_marker_read(root, &w, why);
    if (err == ERR_NOTFOUND)
        *ret = BEFORE_NOBODY;
    else if (err == ERR_CORRUPT || err == ERR_UNSUPPORTED || (!err && !same_job(&w.by, me)))
        *ret = BEFORE_OTHERS; /* replace an unreadable marker: it must not block the job */
    else if (err)
        return err;
    else if (w.by.epoch > me->epoch && me->submitted_ms)
        return stale_error(root, me, &w, why);
    else
        *ret = w.by.epoch == me->epoch && w.kind == MARKER_READY ? BEFORE_THIS_EPOCH : BEFORE_US;
    return OK;
}

err_t ckpt_prepare(const char *root, const struct ckpt_writer_id *me, int64_t resume_step, struct why *why)
{
    enum owner_before before = BEFORE_NOBODY;
    err_t err = file_make_dirs(root, 0777);
    if (err)
        return why_set(why, err, "cannot create checkpoint.dir %s: %s", root, err_text(err));
    err = ckpt_lease_check(root, me, why);
    err = err ? err : owner_before_read(root, me, &before, why);
    if (!err && before != BEFORE_THIS_EPOCH) /* others may already rely on READY */
        err = epoch_marker_write(root, me, MARKER_PREPARING, why);
    if (!err)
        err = ckpt_collect(root, before == BEFORE_OTHERS ? UINT64_MAX : me->epoch, ckpt_incarnation(me), why);
    if (!err) /* epochs of another job are not compared either: its steps would be taken for saves of this epoch */
        err = ckpt_abandon_after(root, resume_step, before == BEFORE_OTHERS ? UINT64_MAX : me->epoch, why);
    return err ? err : epoch_marker_write(root, me, MARKER_READY, why);
}

err_t ckpt_prepared(const char *root, const struct ckpt_writer_id *me, struct why *why)
{
    struct marker w;
    err_t err = epoch_marker_read(root, &w, why);
    if (err == ERR_NOTFOUND)
        return why_set(why, ERR_AGAIN, "%s is not prepared yet", root);
    if (err)
        return err;
    if (!same_job(&w.by, me) || w.by.epoch < me->epoch)
        return why_set(why, ERR_AGAIN, "%s belongs to epoch %" PRIu64 " of job %s", root, w.by.epoch, w.by.job);
    if (w.by.epoch > me->epoch)
        return stale_error(root, me, &w, why);
    return w.kind == MARKER_READY ? OK : why_set(why, ERR_AGAIN, "%s is being prepared", root);
}

err_t ckpt_held(const char *root, const struct ckpt_writer_id *me, struct why *why)
{
    struct marker w;
    err_t err = ckpt_lease_check(root, me, why);
    if (err)
        return err;
    err = epoch_marker_read(root, &w, why);
    if (err == ERR_NOTFOUND)
        return OK; /* a user removed it; a process that takes the directory over writes it again */
    if (err)
        return err;
    if (same_job(&w.by, me) && w.by.epoch == me->epoch && w.by.writer != me->writer)
        return why_set(why, ERR_STALE, "another dtd-io now commits the saves of epoch %" PRIu64, me->epoch);
    return same_job(&w.by, me) && w.by.epoch == me->epoch ? OK : stale_error(root, me, &w, why);
}

/* ---- names ---- */

struct names {
    char partial[NAME_BYTES], file[NAME_BYTES]; /* partial folder, the rank's file in it */
    char index[NAME_BYTES], part[NAME_BYTES];   /* index folder, marker in it */
};

/* rank -1: the marker of the whole save. */
static void names_make(const struct ckpt_shared_save *s, int rank, struct names *ret)
{
    ckpt_open_name(s->step, &s->me, "partial", ret->partial);
    ckpt_open_name(s->step, &s->me, "index", ret->index);
    snprintf(ret->part, sizeof(ret->part), "__%d_0.part", rank);
    snprintf(ret->file, sizeof(ret->file), "__%d_0.distcp", rank);
    if (rank < 0)
        snprintf(ret->part, sizeof(ret->part), FAILED_NAME);
}

static err_t index_make(const struct ckpt_shared_save *s, const struct names *n, struct why *why)
{
    int dir = marker_folder_open(s->root, NULL);
    err_t err = dir < 0 || (mkdirat(dir, n->index, 0777) && errno != EEXIST) ? err_from_errno(errno) : OK;
    if (dir >= 0)
        close(dir);
    return err ? why_set(why, err, "%s/%s: %s", s->root, n->index, err_text(err)) : OK;
}

static err_t save_marker_write(const struct ckpt_shared_save *s, const struct marker *w, struct why *why)
{
    struct names n;
    names_make(s, w->rank, &n);
    err_t err = index_make(s, &n, why);
    return err ? err : marker_write(s->root, n.index, n.part, w, why);
}

/* ERR_NOTFOUND also if the marker belongs to another job: the folder's name has the epoch and step, but not the job. */
static err_t save_marker_read(const struct ckpt_shared_save *s, int rank, struct buf *b, struct marker *ret,
                              struct why *why)
{
    struct names n;
    names_make(s, rank, &n);
    err_t err = marker_read(s->root, n.index, n.part, b, ret, why);
    if (err)
        return err;
    if (!same_job(&ret->by, &s->me))
        return ERR_NOTFOUND;
    bool fits = ret->by.epoch == s->me.epoch && ret->step == s->step && ret->rank == rank &&
                (ret->kind == MARKER_FAILED || (ret->kind == MARKER_PART && rank >= 0));
    if (!fits)
        return why_set(why, ERR_CORRUPT, "%s/%s/%s belongs to another save; remove it", s->root, n.index, n.part);
    if (ret->world != s->world)
        return why_set(why, ERR_INVALID, "step-%" PRId64 " has %d ranks on this node and %d on another node", s->step,
                       s->world, ret->world);
    return OK;
}

static err_t failure_report(const struct marker *w, struct why *why)
{
    return why_set(why, w->code, "%.*s", (int)(w->body_bytes < 900 ? w->body_bytes : 900), (const char *)w->body);
}

/* ---- parts ---- */

err_t ckpt_index_put(const struct ckpt_shared_save *s, const struct ckpt_part *part, struct why *why)
{
    struct buf b = {0};
    err_t err = ckpt_part_encode(part, &b);
    const struct marker w = {.kind = MARKER_PART,
                             .by = s->me,
                             .step = s->step,
                             .rank = part->rank,
                             .world = s->world,
                             .body = b.data,
                             .body_bytes = b.len};
    err = err ? why_set(why, err, "index of rank %d: %s", part->rank, err_text(err)) : save_marker_write(s, &w, why);
    buf_fini(&b);
    return err;
}

/* Checks that the part's file is a regular file of the size in its index. ERR_AGAIN: the partial folder is gone, so the
 * save is decided. */
static err_t file_check(const char *root, const struct names *n, const struct ckpt_part *part, struct why *why)
{
    struct stat st;
    int dir = marker_folder_open(root, n->partial);
    if (dir < 0)
        return why_set(why, errno == ENOENT ? ERR_AGAIN : err_from_errno(errno), "%s/%s: %s", root, n->partial,
                       strerror(errno));
    int fd = openat(dir, n->file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    bool bad = fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode);
    err_t err = OK;
    if (bad)
        err = why_set(why, ERR_CORRUPT, "%s/%s/%s is missing or not a regular file, but its index exists", root,
                      n->partial, n->file);
    else if ((uint64_t)st.st_size != part->size)
        err = why_set(why, ERR_CORRUPT, "%s/%s/%s has %lld bytes, but %llu in its index", root, n->partial, n->file,
                      (long long)st.st_size, (unsigned long long)part->size);
    if (fd >= 0)
        close(fd);
    close(dir);
    return err;
}

static err_t part_of(const struct ckpt_shared_save *s, int rank, const struct marker *w, struct ckpt_part **ret,
                     struct why *why)
{
    struct names n;
    struct ckpt_part *part = NULL;
    names_make(s, rank, &n);
    err_t err = ckpt_part_decode(w->body, w->body_bytes, &part);
    if (err || part->rank != rank)
        err = why_set(why, ERR_CORRUPT, "%s/%s/%s does not contain the index of rank %d; remove it", s->root, n.index,
                      n.part, rank);
    else
        err = file_check(s->root, &n, part, why);
    if (err)
        ckpt_part_free(part);
    else
        *ret = part;
    return err;
}

err_t ckpt_index_get(const struct ckpt_shared_save *s, int rank, struct ckpt_part **ret, struct why *why)
{
    struct buf b = {0};
    struct marker w;
    err_t err = save_marker_read(s, rank, &b, &w, why);
    if (err == ERR_NOTFOUND)
        err = why_set(why, ERR_AGAIN, "rank %d has not reported yet", rank);
    else if (!err)
        err = w.kind == MARKER_FAILED ? failure_report(&w, why) : part_of(s, rank, &w, ret, why);
    buf_fini(&b);
    return err;
}

err_t ckpt_index_remove(const struct ckpt_shared_save *s, struct why *why)
{
    struct names n;
    char path[PATH_MAX + NAME_BYTES];
    names_make(s, -1, &n);
    snprintf(path, sizeof(path), "%s/%s", s->root, n.index);
    return ckpt_partial_remove(path, why);
}

/* ---- the outcome of a save ---- */

err_t ckpt_failed_put(const struct ckpt_shared_save *s, int rank, err_t code, const char *text, struct why *why)
{
    struct names n;
    const struct marker w = {.kind = MARKER_FAILED,
                             .by = s->me,
                             .step = s->step,
                             .rank = rank,
                             .world = s->world,
                             .code = code,
                             .body = text,
                             .body_bytes = strlen(text)};
    names_make(s, rank, &n);
    int dir = rank < 0 ? -1 : marker_folder_open(s->root, n.partial);
    if (dir >= 0) {
        unlinkat(dir, n.file, 0);
        close(dir);
    }
    return save_marker_write(s, &w, why);
}

err_t ckpt_failed_get(const struct ckpt_shared_save *s, struct why *why)
{
    struct buf b = {0};
    struct marker w;
    err_t err = save_marker_read(s, -1, &b, &w, why);
    err = err == ERR_NOTFOUND ? OK : err ? err : failure_report(&w, why);
    buf_fini(&b);
    return err;
}

static bool folder_exists(const char *root, const char *sub)
{
    int fd = marker_folder_open(root, sub);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Retention may have removed the step before this process looked. It removes a step only after a newer one of the same
 * epoch has been committed. */
static bool newer_is_committed(const struct ckpt_shared_save *s)
{
    struct ckpt_info *infos;
    bool found = false;
    int n;
    if (ckpt_scan(s->root, &infos, &n, NULL))
        return false;
    for (int i = 0; i < n; i++)
        found = found || (infos[i].step > s->step && infos[i].epoch == s->me.epoch);
    free(infos);
    return found;
}

/* The partial folder is checked first: once it is gone, step-N either exists or will never exist. */
err_t ckpt_outcome(const struct ckpt_shared_save *s, struct why *why)
{
    struct names n;
    char path[PATH_MAX];
    struct ckpt_info info;
    names_make(s, -1, &n);
    if (ckpt_step_dir(s->root, s->step, path, sizeof(path)))
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", s->root);
    bool open = folder_exists(s->root, n.partial);
    if (ckpt_info(path, &info, NULL) == OK && info.epoch <= s->me.epoch)
        return OK;
    err_t err = ckpt_failed_get(s, why);
    if (!err)
        err = ckpt_prepared(s->root, &s->me, why);
    if (err == ERR_AGAIN)
        return why_set(why, ERR_STALE, "another job has taken %s over", s->root);
    if (err || open)
        return err ? err : why_set(why, ERR_AGAIN, "the save is not decided yet");
    if (newer_is_committed(s))
        return OK;
    return why_set(why, ERR_CANCELED, "%s/%s was removed without a commit", s->root, n.partial);
}
