/* Commands from control. Each access to the directory is one work item of dirwork, so that commands and commits are
 * applied in the order in which they arrived. Only the number of the epoch takes effect immediately. */
#include "daemon/io/io.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The files of lines beside the checkpoints. `block` is the most that is returned at once: it contains at least one
 * line, for usage of some 4000 ranks. */
struct line_file {
    const char *name;
    size_t block;
    enum io_report_kind history;
};
static const struct line_file metrics_file = {"metrics.jsonl", 32u << 10, IO_HISTORY},
                              usage_file = {"usage.jsonl", 512u << 10, IO_USAGE_HISTORY};

struct dir_command {
    struct io_work work;
    uint64_t epoch;
    int64_t step, at;
    char *root, *text;
    const struct line_file *file; /* of commands about lines */
    struct ckpt_writer_id me;
    struct io_owner *owner; /* of SCAN */
    uint64_t take_over;
    struct ckpt_info *infos;
    int n_infos;
};

static void op_free(struct dir_command *op)
{
    free(op->root);
    free(op->text);
    free(op->infos);
    free(op);
}

static bool is_usage(enum io_command_kind kind)
{
    return kind == IO_CMD_USAGE || kind == IO_CMD_USAGE_HISTORY;
}

static bool op_start(struct io *io, const struct io_command *c, void (*run)(struct io_work *),
                     void (*done)(struct io_work *))
{
    struct dir_command *op = io->spec.root ? calloc(1, sizeof(*op)) : NULL;
    if (op) {
        *op = (struct dir_command){.epoch = c->epoch,
                                   .step = c->step,
                                   .at = c->at,
                                   .root = strdup(io->spec.root),
                                   .text = strdup(c->text),
                                   .file = is_usage(c->kind) ? &usage_file : &metrics_file,
                                   .me = io->share.me,
                                   .owner = &io->owner,
                                   .take_over = io->spec.take_over};
        if (c->kind == IO_CMD_SCAN) { /* there may have been no EPOCH */
            snprintf(op->me.job, sizeof(op->me.job), "%s", io->job);
            op->me.submitted_ms = c->submitted_ms;
            op->me.generation = c->generation;
        }
        op->work.run = run;
        op->work.done = done;
    }
    if (!op || !op->root || !op->text) {
        log_error("command dropped kind=%d why=\"%s\"", (int)c->kind,
                  io->spec.root ? "out of memory" : "the job's spec has not been received");
        if (op)
            op_free(op);
        return false;
    }
    io_work_start_dir(io, &op->work);
    return true;
}

/* ---- SCAN ---- */

/* An error that does not concern another job, such as a full disk, does not fail the job: the scan itself writes
 * nothing, and EPOCH takes the lease before it does. */
static void scan_run(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    err_t err = OK;
    if (op->me.submitted_ms) /* else there is no identity to take it for */
        err = io_owner_take(op->owner, op->root, &op->me, op->take_over, true, &w->why);
    if (err == ERR_AGAIN || err == ERR_OWNED) {
        w->err = err;
        return;
    }
    if (err)
        log_warn("lease not taken why=\"%s\"", w->why.text);
    w->err = ckpt_scan(op->root, &op->infos, &op->n_infos, &w->why);
}

static void scan_done(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    char path[PATH_MAX];
    if (w->err == ERR_AGAIN && !w->io->quitting) {
        io_owner_wait(w->io, w);
        return;
    }
    if (w->err == ERR_AGAIN || w->err == ERR_CANCELED) {
        op_free(op); /* dtd-io exits, or control has sent SCAN again */
        return;
    }
    if (w->err)
        log_error("not scanned root=%s why=\"%s\"", op->root, w->why.text);
    else
        io_owner_keep(w->io);
    for (int i = 0; i < op->n_infos; i++)
        if (ckpt_step_dir(op->root, op->infos[i].step, path, sizeof(path)) == OK)
            io_report(w->io, IO_COMMITTED, 0, &op->infos[i], path, NULL);
    if (!w->err)
        log_info("scanned root=%s checkpoints=%d", op->root, op->n_infos);
    io_report(w->io, IO_SCANNED, 0, NULL, NULL, w->err ? w->why.text : "");
    op_free(op);
}

static void scan_start(struct io *io, const struct io_command *c)
{
    struct why why = {{0}};
    if (io_spec_parse(&io->spec, c->text, &why)) {
        log_error("job not understood why=\"%s\"", why.text);
        io_report(io, IO_SCANNED, 0, NULL, NULL, why.text);
        return;
    }
    io_owner_forget(io);
    op_start(io, c, scan_run, scan_done);
}

/* ---- EPOCH ---- */

static void epoch_start(struct io *io, const struct io_command *c)
{
    struct why why = {{0}};
    if (io_spec_parse(&io->spec, c->text, &why)) {
        log_error("job not understood why=\"%s\"", why.text);
        io_report(io, IO_SAVE_FAILED, c->epoch, NULL, NULL, why.text);
        return;
    }
    if (io->epoch_known && c->epoch <= io->epoch) {
        if (c->generation > io->share.me.generation)
            io->share.me.generation = c->generation; /* the epoch continues in a recovered cluster */
        return;                                      /* repeated */
    }
    err_t err = io_share_take(io, c);
    if (err) {
        log_error("epoch not understood epoch=%" PRIu64 " ranks=%zu error=%s", c->epoch, c->n_ranks, err_name(err));
        io_report(io, IO_SAVE_FAILED, c->epoch, NULL, NULL, "dtd-io cannot store the list of this node's ranks");
        return;
    }
    log_info("epoch epoch=%" PRIu64 " step=%" PRId64 " ios=%d ranks=%zu committer=%d", c->epoch, c->step, c->n_ios,
             c->n_ranks, (int)c->committer);
    io->epoch_known = true;
    io->epoch = c->epoch;
    io->resume_step = c->step;
    io_share_prepare(io);
    io_save_expire(io);
    io_retry(io); /* refuses deferred requests of older epochs */
}

/* ---- REMOVE ---- */

static void remove_run(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    w->err = ckpt_lease_check(op->root, &op->me, &w->why);
    if (!w->err)
        w->err = ckpt_remove(op->root, op->step, &w->why);
}

static void remove_done(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    const struct ckpt_info gone = {.step = op->step};
    char path[PATH_MAX];
    if (w->err && w->err != ERR_NOTFOUND)
        log_error("checkpoint not removed step=%" PRId64 " why=\"%s\"", op->step, w->why.text);
    else if (ckpt_step_dir(op->root, op->step, path, sizeof(path)) == OK)
        io_report(w->io, IO_REMOVED, op->epoch, &gone, path, NULL);
    op_free(op);
}

/* ---- METRICS, USAGE ---- */

/* Appends whole lines to a regular file. If the disk is full, an incomplete line is cut off again. */
static err_t lines_append(int fd, const char *text)
{
    struct stat st;
    if (fstat(fd, &st))
        return err_from_errno(errno);
    if (!S_ISREG(st.st_mode))
        return ERR_DENIED;
    err_t err = file_write_all(fd, text, strlen(text));
    if (err && ftruncate(fd, st.st_size))
        return err_from_errno(errno);
    return err;
}

static void metrics_run(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", op->root, op->file->name) >= sizeof(path)) {
        w->err = ERR_LIMIT;
        return;
    }
    w->err = ckpt_lease_check(op->root, &op->me, &w->why);
    if (!w->err)
        w->err = file_make_dirs(op->root, 0777);
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int fd = w->err ? -1 : open(path, flags, 0666);
    if (!w->err)
        w->err = fd >= 0 ? lines_append(fd, op->text) : errno == ELOOP ? ERR_DENIED : err_from_errno(errno);
    if (fd >= 0)
        close(fd);
}

static void metrics_done(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    if (w->err)
        log_warn("lines not appended file=%s/%s error=%s why=\"%s\"", op->root, op->file->name, err_name(w->err),
                 w->why.text);
    op_free(op);
}

/* ---- HISTORY, USAGE_HISTORY ---- */

/* Returns whole lines. A file that cannot be read has none. */
static void history_run(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    char path[PATH_MAX], *block = calloc(1, op->file->block + 1);
    struct stat st;
    bool fits = (size_t)snprintf(path, sizeof(path), "%s/%s", op->root, op->file->name) < sizeof(path);
    int fd = block && fits ? open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    ssize_t n = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) ? pread(fd, block, op->file->block, op->at) : 0;
    if (fd >= 0)
        close(fd);
    char *end = n > 0 ? memrchr(block, '\n', (size_t)n) : NULL;
    if (n == (ssize_t)op->file->block && !end)
        log_warn("lines not read back file=%s/%s at=%" PRId64 " why=\"a line is longer than %zu bytes\"", op->root,
                 op->file->name, op->at, op->file->block);
    if (end) {
        end[1] = '\0';
        free(op->text);
        op->text = block;
    } else {
        free(block);
    }
}

static void history_done(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    io_report(w->io, op->file->history, 0, NULL, NULL, op->text);
    op_free(op);
}

/* ---- QUIT ---- */

/* Removes partial folders, which no process will complete. If another job has taken over the directory, its folders
 * remain. */
static void tidy_run(struct io_work *w)
{
    struct dir_command *op = (struct dir_command *)w;
    w->err = ckpt_held(op->root, &op->me, &w->why);
    if (!w->err)
        w->err = ckpt_collect(op->root, op->epoch + 1, ckpt_incarnation(&op->me), &w->why);
}

static void tidy_done(struct io_work *w)
{
    op_free((struct dir_command *)w);
}

void io_command(struct io *io, const struct io_command *c)
{
    const struct io_command tidy = {.kind = IO_CMD_QUIT, .epoch = io->epoch, .text = ""};
    switch (c->kind) {
    case IO_CMD_SCAN:
        scan_start(io, c);
        break;
    case IO_CMD_EPOCH:
        epoch_start(io, c);
        break;
    case IO_CMD_REMOVE:
        op_start(io, c, remove_run, remove_done);
        break;
    case IO_CMD_METRICS:
        io_curves_take(io, c->text);
        op_start(io, c, metrics_run, metrics_done);
        break;
    case IO_CMD_USAGE:
        op_start(io, c, metrics_run, metrics_done);
        break;
    case IO_CMD_HISTORY:
    case IO_CMD_USAGE_HISTORY:
        if (!op_start(io, c, history_run, history_done))
            io_report(io, is_usage(c->kind) ? IO_USAGE_HISTORY : IO_HISTORY, 0, NULL, NULL, "");
        break;
    case IO_CMD_QUIT:
        log_info("quit requested by=control");
        if (io->epoch_known && io->share.committer && !io->quitting)
            op_start(io, &tidy, tidy_run, tidy_done);
        if (io->epoch_known && io->share.committer && !io->quitting)
            io_job_report_start(io);
        io_quit(io);
        break;
    }
}
