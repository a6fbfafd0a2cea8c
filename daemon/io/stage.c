/* The copy of the job's data (data.stage) is a file without a name (O_TMPFILE) that dtd-io holds open. Workers open it
 * through /proc, as processes of the same user. So the kernel frees it as soon as dtd-io and the workers have exited,
 * however they did; no name can collide with another job's, and no other user can open or replace it.
 *
 * One work copies all sets; requests that come meanwhile wait for it. A copy serves all later epochs. If dtd-io exits,
 * workers keep what they have mapped, and the next epoch has a new copy made. Data that was read in place is looked at
 * again in the next epoch. */
#include "daemon/io/io.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/meminfo.h"
#include "common/base/paths.h"
#include "common/conf/job.h"
#include "common/data/stage.h"
#include "common/data/stage_choose.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define SHM "/dev/shm"
#define NODE_VARIABLE "SLURM_TMPDIR"
#define OVERFLOW_UID 65534 /* in a container: a user that has no number there, which root of the host may be */

struct stage_work {
    struct io_work work;
    char *yaml;
    int64_t need_bytes;
    atomic_bool *cancel;
    struct io_copy copy;
    struct why note; /* for the job's log */
    /* while it runs */
    struct data_set **opened;
};

/* ---- folders ---- */

static const char *folder_unfit(const char *path, const struct stat *st)
{
    if (S_ISLNK(st->st_mode))
        return "it is a symbolic link; name the folder itself";
    if (!S_ISDIR(st->st_mode))
        return "it is not a folder";
    if (st->st_uid != geteuid() && st->st_uid != 0 && st->st_uid != OVERFLOW_UID)
        return "it belongs to another user";
    return faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) ? strerror(errno) : NULL;
}

static struct stage_folder folder_look(const char *path)
{
    struct stage_folder s = {.path = path};
    struct stat st;
    struct statfs fs;
    if (!path)
        return s;
    if (lstat(path, &st) || statfs(path, &fs)) {
        s.unfit = strerror(errno);
        return s;
    }
    s.unfit = folder_unfit(path, &st);
    s.memory = fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
    s.free_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_bsize;
    return s;
}

/* $SLURM_TMPDIR, unless the site has it on a file system of all nodes. */
static struct stage_folder node_folder(void)
{
    const char *path = getenv(NODE_VARIABLE);
    struct stage_folder s = folder_look(path && path[0] ? path : NULL);
    if (s.path && !s.unfit && path_shared_fs(s.path))
        s.unfit = "it is on a file system that nodes share";
    return s;
}

static const struct stage_folder *choose(struct stage_work *s, const char *mode, struct stage_facts *f)
{
    struct why why;
    *f = (struct stage_facts){.mode = mode,
                              .bytes = s->copy.bytes,
                              .need_bytes = s->need_bytes,
                              .folder = {[STAGE_NODE] = node_folder(),
                                         [STAGE_TMPFS] = folder_look(SHM),
                                         [STAGE_GIVEN] = folder_look(mode[0] == '/' ? mode : NULL)}};
    if (meminfo_available(&f->memory_bytes, &why))
        log_warn("memory unknown why=\"%s\"", why.text); /* it counts as none */
    return stage_choose(f, &s->note);
}

/* ---- copying, in a thread ---- */

static err_t set_open(struct stage_work *s, const struct job_data *d, const char *hash, struct why *why)
{
    for (int i = 0; i < s->copy.n; i++)
        if (strcmp(s->copy.sets[i].hash, hash) == 0)
            return OK;
    err_t err = data_open(d->cache, hash, &s->opened[s->copy.n], why);
    if (err)
        return err;
    struct io_staged_set *set = &s->copy.sets[s->copy.n];
    snprintf(set->hash, sizeof(set->hash), "%s", hash);
    set->offset = s->copy.bytes;
    s->copy.bytes += stage_bytes(s->opened[s->copy.n++]);
    return OK;
}

/* Opens the sets that workers read. */
static err_t sets_open(struct stage_work *s, const struct job_spec *job, struct why *why)
{
    const struct job_data *d = &job->data;
    size_t n = (size_t)d->n_more_hashes + 3;
    s->copy.sets = calloc(n, sizeof(*s->copy.sets));
    s->opened = calloc(n + 1, sizeof(struct data_set *)); /* ends with NULL */
    if (!s->copy.sets || !s->opened)
        return why_set(why, ERR_NOMEM, "out of memory for %zu sets", n);
    err_t err = set_open(s, d, d->train_hash, why);
    for (int i = 0; !err && i < d->n_more_hashes; i++)
        err = set_open(s, d, d->more_hashes[i], why);
    if (!err && job->train.eval_every > 0 && d->valid_hash[0])
        err = set_open(s, d, d->valid_hash, why);
    if (!err && d->test_hash[0])
        err = set_open(s, d, d->test_hash, why);
    return err;
}

static void copy_drop(struct io_copy *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->sets);
    *c = (struct io_copy){.fd = -1};
}

/* `folder` NULL: the reason names folders. */
static void read_in_place(struct stage_work *s, const char *folder, const char *reason)
{
    struct why note;
    why_set(&note, OK, "data.stage: the data is read in place: %.200s%s%.700s", folder ? folder : "",
            folder ? ": " : "", reason);
    s->note = note;
    copy_drop(&s->copy);
}

/* A file without a name in the folder. False, with the reason: there is none. */
static bool copy_open(struct io_copy *c, const char *folder, const char **ret_reason)
{
    struct stat st;
    c->fd = open(folder, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
    *ret_reason = errno == EOPNOTSUPP || errno == EISDIR ? "its file system has no files without a name (O_TMPFILE)"
                                                         : strerror(errno);
    if (c->fd < 0 || fstat(c->fd, &st))
        return false;
    snprintf(c->path, sizeof(c->path), "/proc/%d/fd/%d", (int)getpid(), c->fd);
    c->device = st.st_dev;
    c->inode = st.st_ino;
    return true;
}

static err_t sets_copy(struct stage_work *s, const char *folder, struct why *why)
{
    const int64_t began = clock_mono_ms();
    const char *reason = "";
    bool target = false;
    err_t err = OK;
    if (!copy_open(&s->copy, folder, &reason)) {
        read_in_place(s, folder, reason);
        return OK;
    }
    for (int i = 0; !err && i < s->copy.n; i++)
        err = stage_copy(s->opened[i], s->copy.fd, s->copy.sets[i].offset, s->cancel, &target, why);
    if (err && target) {
        read_in_place(s, folder, why->text);
        return OK;
    }
    why_set(&s->note, OK, "data.stage: the data is in %s: %.1f MiB, copied in %.1f s", folder,
            (double)s->copy.bytes / (1 << 20), (double)(clock_mono_ms() - began) * 1e-3);
    return err;
}

static err_t stage_job(struct stage_work *s, const struct job_spec *job, struct why *why)
{
    struct stage_facts facts;
    if (strcmp(job->data.stage, STAGE_NONE) == 0)
        return OK;
    err_t err = sets_open(s, job, why);
    if (err)
        return err;
    const struct stage_folder *folder = choose(s, job->data.stage, &facts);
    if (folder)
        return sets_copy(s, folder->path, why);
    read_in_place(s, NULL, s->note.text[0] ? s->note.text : "there is neither $" NODE_VARIABLE " nor " SHM);
    return OK;
}

static void stage_run(struct io_work *w)
{
    struct stage_work *s = (struct stage_work *)w;
    struct job_spec job;
    w->err = job_parse("job", s->yaml, strlen(s->yaml), NULL, 0, &job, &w->why);
    if (w->err)
        return;
    w->err = stage_job(s, &job, &w->why);
    job_fini(&job);
    for (int i = 0; s->opened && s->opened[i]; i++)
        data_close(s->opened[i]);
    free(s->opened);
}

/* ---- requests, on the loop ---- */

static void request_end(struct io_request *r)
{
    r->call = NULL;
    io_request_free(r);
}

/* Answers all that wait. One caller gets the note, so that the job's log has it once. */
static void answer(struct io_stage *g, err_t err, const struct why *why, const char *note)
{
    while (g->waiting) {
        struct io_request *r = g->waiting;
        g->waiting = r->next;
        if (r->call && err)
            rpc_fail(r->call, err, "%s", why->text);
        else if (r->call)
            rpc_worker_stage_done(r->call, &g->copy, note);
        note = r->call ? "" : note;
        request_end(r);
    }
}

static void stage_done(struct io_work *w)
{
    struct stage_work *s = (struct stage_work *)w;
    struct io_stage *g = &w->io->stage;
    g->running = false;
    g->known = !w->err;
    if (w->err)
        log_error("not staged error=%s why=\"%s\"", err_name(w->err), w->why.text);
    else if (s->note.text[0])
        log_at(s->copy.fd >= 0 ? LOG_INFO : LOG_WARN, "%s", s->note.text);
    if (w->err)
        copy_drop(&s->copy);
    else
        g->copy = s->copy;
    answer(g, w->err, &w->why, s->note.text);
    free(s->yaml);
    free(s);
}

static void stage_start(struct io *io, const struct io_request *r)
{
    struct io_stage *g = &io->stage;
    struct stage_work *s = calloc(1, sizeof(*s));
    const struct why why = {"out of memory"};
    if (!s || !(s->yaml = strdup(io->spec.yaml))) {
        free(s);
        answer(g, ERR_NOMEM, &why, "");
        return;
    }
    /* The other workers of the node have about as much to do. */
    s->need_bytes = r->need_bytes * io_share_count(&io->share, r->world);
    s->cancel = &g->cancel;
    s->copy.fd = -1;
    s->work.run = stage_run;
    s->work.done = stage_done;
    copy_drop(&g->copy);
    g->running = true;
    g->epoch = io->epoch;
    io_work_start(io, &s->work);
}

void io_stage_take(struct io *io, struct io_request *r)
{
    struct io_stage *g = &io->stage;
    r->next = g->waiting;
    g->waiting = r;
    if (g->running)
        return;
    if (g->known && (g->copy.fd >= 0 || g->epoch == io->epoch))
        answer(g, OK, NULL, "");
    else
        stage_start(io, r);
}

void io_stage_fini(struct io *io)
{
    copy_drop(&io->stage.copy);
}
