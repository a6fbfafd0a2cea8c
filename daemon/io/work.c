/* uv's thread pool runs work in any order and in parallel. dirwork is a queue in front of it that lets one item run at
 * a time. */
#include "daemon/io/io.h"

#include "common/base/log.h"

#include <stdlib.h>

static void work_run(uv_work_t *uv)
{
    struct io_work *w = uv->data;
    w->run(w);
}

static void work_finished(uv_work_t *uv, int status)
{
    (void)status; /* work is never canceled */
    struct io_work *w = uv->data;
    struct io *io = w->io;
    io->n_work--;
    w->done(w);
    io_check_quit(io);
}

void io_work_start(struct io *io, struct io_work *w)
{
    w->io = io;
    w->uv.data = w;
    io->n_work++;
    int status = uv_queue_work(&io->loop, &w->uv, work_run, work_finished);
    if (status < 0) { /* uv_queue_work fails only without a callback */
        log_error("work not queued why=\"%s\"", uv_strerror(status));
        abort();
    }
}

static void dir_finished(uv_work_t *uv, int status);

static void dir_next(struct io *io)
{
    struct io_work *w = io->dir_first;
    if (io->dir_busy || !w)
        return;
    io->dir_first = w->next;
    if (!io->dir_first)
        io->dir_last = NULL;
    io->dir_busy = true;
    int status = uv_queue_work(&io->loop, &w->uv, work_run, dir_finished);
    if (status < 0) {
        log_error("work not queued why=\"%s\"", uv_strerror(status));
        abort();
    }
}

static void dir_finished(uv_work_t *uv, int status)
{
    (void)status;
    struct io_work *w = uv->data;
    struct io *io = w->io;
    io->n_work--;
    io->dir_busy = false;
    w->done(w);
    dir_next(io);
    io_check_quit(io);
}

void io_work_start_dir(struct io *io, struct io_work *w)
{
    w->io = io;
    w->uv.data = w;
    w->next = NULL;
    io->n_work++;
    if (io->dir_last)
        io->dir_last->next = w;
    else
        io->dir_first = w;
    io->dir_last = w;
    dir_next(io);
}
