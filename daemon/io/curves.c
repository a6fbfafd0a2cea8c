/* The curves of run.tensorboard and run.wandb. A thread of their own writes them, because a folder of the user may be
 * on a file system that hangs: neither the loop, nor a save, nor the end of the job waits for it. After an error the
 * thread writes nothing more; `dtctl metrics --to` fills the gap from control's metrics. */
#include "daemon/io/io.h"

#include "common/base/log.h"
#include "common/metrics/tfevents.h"
#include "common/metrics/wandb.h"
#include "common/rpc/metric_line.h"

#include <stdlib.h>
#include <string.h>

#define WAITING_BYTES (8u << 20) /* of lines while a write hangs: some hours of steps */
#define END_MS 5000              /* for the last lines; a hung file system does not hold the job's end up longer */

/* What the thread has; nothing of it is shared. */
struct curves_job {
    struct io *io;
    char *job, *yaml, *tensorboard, *wandb;
    int64_t submitted_ms;
};

struct curves_files {
    const char *job;
    struct card card;
    struct tf_run tf;
    struct wandb_run wandb;
    bool with_tf, with_wandb;
    int64_t last_step, last_ms;
};

/* ---- the thread ---- */

/* The one line about a key whose files cannot be written. `kind`: of dtctl metrics --to. */
static bool works(const struct curves_files *f, err_t err, const char *kind, const struct why *why)
{
    if (err)
        log_warn("curves end here key=run.%s why=\"%s\" remedy=\"dtctl metrics %s --to %s adds the rest\"", kind,
                 why->text, f->job, kind);
    return !err;
}

static void files_open(struct curves_files *f, const struct curves_job *job)
{
    char dir[PATH_MAX];
    struct why why = {""};
    if (!works(f, card_make(job->job, job->submitted_ms, job->yaml, &f->card, &why), "tensorboard", &why))
        return;
    if (job->tensorboard[0]) {
        bool fits = snprintf(dir, sizeof(dir), "%s/job%s", job->tensorboard, job->job) < (int)sizeof(dir);
        err_t err = fits ? tf_run_open(&f->tf, dir, &why)
                         : why_set(&why, ERR_LIMIT, "%s: the path is too long", job->tensorboard);
        f->with_tf = works(f, err, "tensorboard", &why);
    }
    if (job->wandb[0])
        f->with_wandb = works(f, wandb_run_open(&f->wandb, job->wandb, &f->card, &why), "wandb", &why);
}

static void files_close(struct curves_files *f)
{
    tf_run_close(&f->tf);
    wandb_run_close(&f->wandb);
    card_fini(&f->card);
}

/* Adds a row; rows of the same or a later step are of an earlier epoch. */
static err_t keep_row(struct metric **rows, size_t *n, const struct metric *row)
{
    while (*n && (*rows)[*n - 1].step >= row->step)
        --*n;
    if ((*n & (*n - 1)) == 0) { /* the room is the next power of two */
        struct metric *more = realloc(*rows, (*n ? 2 * *n : 1) * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        *rows = more;
    }
    (*rows)[(*n)++] = *row;
    return OK;
}

static err_t rows_of(const struct buf *lines, struct metric **ret, size_t *ret_n)
{
    const char *p = (const char *)lines->data, *end = p + lines->len, *nl;
    struct metric row;
    err_t err = OK;
    *ret = NULL;
    *ret_n = 0;
    for (; !err && p < end && (nl = memchr(p, '\n', (size_t)(end - p))); p = nl + 1)
        if (metric_line_parse(p, (size_t)(nl - p), &row) == OK)
            err = keep_row(ret, ret_n, &row);
    return err;
}

static void files_add(struct curves_files *f, const struct buf *lines)
{
    struct why why = {""};
    struct metric *rows;
    size_t n;
    err_t err = rows_of(lines, &rows, &n);
    if (err)
        why_set(&why, err, "%s", err_text(err));
    if (f->with_tf)
        f->with_tf = works(f, err ? err : tf_run_add(&f->tf, &f->card, rows, n, &why), "tensorboard", &why);
    if (f->with_wandb)
        f->with_wandb = works(f, err ? err : wandb_run_add(&f->wandb, &f->card, rows, n, &why), "wandb", &why);
    if (!err && n) {
        f->last_step = rows[n - 1].step;
        f->last_ms = rows[n - 1].wall_ms;
    }
    free(rows);
}

/* Only a job that has done all of its steps has ended for certain: this dtd-io cannot distinguish another end from a
 * move to another node. */
static void files_end(struct curves_files *f)
{
    struct why why = {""};
    if (!f->card.steps || f->last_step < f->card.steps)
        return;
    if (f->with_tf)
        works(f, tf_run_end(&f->tf, &f->card, true, f->last_ms, &why), "tensorboard", &why);
    if (f->with_wandb)
        works(f, wandb_run_end(&f->wandb, true, &why), "wandb", &why);
}

/* Waits for lines; false: there are no more. */
static bool next_lines(struct io_curves *c, struct buf *ret, bool *ret_lost)
{
    uv_mutex_lock(&c->lock);
    while (!c->lines.len && !c->ending)
        uv_cond_wait(&c->more, &c->lock);
    *ret = c->lines;
    *ret_lost = c->lost;
    c->lines = (struct buf){0};
    bool any = ret->len > 0;
    uv_mutex_unlock(&c->lock);
    return any;
}

static void curves_run(void *arg)
{
    struct curves_job *job = arg;
    struct io_curves *c = &job->io->curves;
    struct curves_files files = {.job = job->job};
    struct buf lines;
    bool lost = false;
    files_open(&files, job);
    while (next_lines(c, &lines, &lost)) {
        if (!lost)
            files_add(&files, &lines);
        buf_fini(&lines);
    }
    if (!lost)
        files_end(&files);
    files_close(&files);
    uv_mutex_lock(&c->lock);
    c->ended = true;
    if (!c->left)
        uv_async_send(&c->wake);
    uv_mutex_unlock(&c->lock);
    free(job->job);
    free(job->yaml);
    free(job->tensorboard);
    free(job->wandb);
    free(job);
}

/* ---- the loop ---- */

static void curves_ended(uv_async_t *wake)
{
    io_check_quit(wake->data);
}

static void curves_late(uv_timer_t *timer)
{
    struct io *io = timer->data;
    log_warn("curves are left unfinished why=\"a write to run.tensorboard or run.wandb takes longer than %d ms\"",
             END_MS);
    io->curves.late = true;
    io_check_quit(io);
}

err_t io_curves_start(struct io *io)
{
    struct io_curves *c = &io->curves;
    c->wake.data = c->timer.data = io;
    if (uv_mutex_init(&c->lock) || uv_cond_init(&c->more) || uv_async_init(&io->loop, &c->wake, curves_ended) ||
        uv_timer_init(&io->loop, &c->timer))
        return ERR_NOMEM;
    return OK;
}

static bool start_thread(struct io *io)
{
    struct curves_job *job = calloc(1, sizeof(*job));
    if (!job)
        return false;
    *job = (struct curves_job){.io = io,
                               .job = strdup(io->job),
                               .yaml = strdup(io->spec.yaml),
                               .tensorboard = strdup(io->spec.tensorboard),
                               .wandb = strdup(io->spec.wandb),
                               .submitted_ms = io->share.me.submitted_ms};
    if (job->job && job->yaml && job->tensorboard && job->wandb &&
        uv_thread_create(&io->curves.thread, curves_run, job) == 0)
        return true;
    free(job->job);
    free(job->yaml);
    free(job->tensorboard);
    free(job->wandb);
    free(job);
    return false;
}

void io_curves_take(struct io *io, const char *lines)
{
    struct io_curves *c = &io->curves;
    if (!io->spec.yaml || (!io->spec.tensorboard[0] && !io->spec.wandb[0]) || !lines[0] || io->quitting)
        return;
    if (!c->tried) {
        c->tried = true;
        c->running = start_thread(io);
        if (!c->running)
            log_warn("curves none why=\"no thread or no memory\"");
    }
    if (!c->running)
        return;
    uv_mutex_lock(&c->lock);
    bool lost = c->lines.len > WAITING_BYTES || buf_append(&c->lines, lines, strlen(lines));
    if (lost && !c->lost)
        log_warn("curves end here why=\"a write to run.tensorboard or run.wandb hangs\" "
                 "remedy=\"dtctl metrics %s --to tensorboard or wandb adds the rest\"",
                 io->job);
    c->lost = c->lost || lost;
    uv_cond_signal(&c->more);
    uv_mutex_unlock(&c->lock);
}

void io_curves_end(struct io *io)
{
    struct io_curves *c = &io->curves;
    if (!c->running)
        return;
    uv_timer_start(&c->timer, curves_late, END_MS, 0);
    uv_mutex_lock(&c->lock);
    c->ending = true;
    uv_cond_signal(&c->more);
    uv_mutex_unlock(&c->lock);
}

bool io_curves_busy(struct io *io)
{
    struct io_curves *c = &io->curves;
    uv_mutex_lock(&c->lock);
    bool busy = c->running && !c->ended && !c->late;
    uv_mutex_unlock(&c->lock);
    return busy;
}

/* A thread that still hangs is left to the end of the process, which may not free what the thread uses. */
void io_curves_stop(struct io *io)
{
    struct io_curves *c = &io->curves;
    uv_mutex_lock(&c->lock);
    c->left = true;
    bool ended = c->ended || !c->running;
    uv_mutex_unlock(&c->lock);
    if (c->running && ended)
        uv_thread_join(&c->thread);
    uv_close((uv_handle_t *)&c->wake, NULL);
    uv_close((uv_handle_t *)&c->timer, NULL);
    if (!ended)
        return;
    buf_fini(&c->lines);
    uv_cond_destroy(&c->more);
    uv_mutex_destroy(&c->lock);
}
