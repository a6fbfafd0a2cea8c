/* dtd-io: options, inherited descriptors (ARCHITECTURE.md) and the loop. */
#include "daemon/io/io.h"

#include "common/base/log.h"
#include "common/base/output.h"
#include "common/rpc/link.h"

#include <argp.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TICKET_FD 3
#define LISTEN_FD 4
#define ARENA_FD 5
#define QUIT_MS 5000         /* for control to acknowledge the last reports */
#define WORD_WAIT_MS 10000   /* far more than preparing a directory takes, also on a network file system */
#define SAVE_WAIT_MS 600000  /* writing a large part to a slow file system takes minutes */
#define MAX_WAIT_MS 86400000 /* a day */

/* ---- ending ---- */

static void io_stop(struct io *io)
{
    if (io->stopped)
        return;
    io->stopped = true;
    io_server_stop(io);
    io_control_stop(io);
    io_share_stop(io);
    io_owner_stop(io);
    io_curves_stop(io);
    uv_close((uv_handle_t *)&io->quit_timer, NULL);
    uv_close((uv_handle_t *)&io->term, NULL);
}

void io_check_quit(struct io *io)
{
    bool waits = io->n_reports && uv_is_active((uv_handle_t *)&io->quit_timer);
    if (io->quitting && !io->n_work && !waits && !io_curves_busy(io))
        io_stop(io);
}

static void quit_timed_out(uv_timer_t *timer)
{
    io_check_quit(timer->data);
}

void io_quit(struct io *io)
{
    if (io->quitting)
        return;
    io->quitting = true;
    atomic_store(&io->stage.cancel, true);
    io_retry(io); /* refuses the deferred requests */
    io_owner_release(io);
    io_curves_end(io);
    uv_timer_start(&io->quit_timer, quit_timed_out, io->control_ready ? QUIT_MS : 0, 0);
    io_check_quit(io);
}

static void terminated(uv_signal_t *signal, int number)
{
    log_info("quit requested by=signal number=%d", number);
    io_quit(signal->data);
}

/* ---- starting ---- */

static err_t inherit(struct io *io, struct why *why)
{
    err_t err = ticket_read(TICKET_FD, &io->ticket, why);
    if (err)
        return why_prefix(why, err, "ticket on descriptor %d", TICKET_FD);
    size_t n = (size_t)io->ticket.slots;
    io->arenas = calloc(n, sizeof(*io->arenas));
    io->loading = calloc(n, sizeof(*io->loading));
    io->writing = calloc(n, sizeof(struct io_part *));
    if (!io->arenas || !io->loading || !io->writing || read_claims_init(&io->claims))
        return why_set(why, ERR_NOMEM, "out of memory for %zu slots", n);
    for (int k = 0; k < io->ticket.slots; k++) {
        io->arenas[k].fd = ARENA_FD + k;
        if (uv_mutex_init(&io->arenas[k].lock))
            return why_set(why, ERR_NOMEM, "a mutex cannot be created");
        if (fcntl(ARENA_FD + k, F_SETFD, FD_CLOEXEC) < 0)
            return why_set(why, ERR_INVALID, "descriptor %d, the arena of slot %d, is not open", ARENA_FD + k, k);
    }
    return OK;
}

/* The parts of all ranks are written at the same time, or read while their arenas are mapped. Meanwhile dirwork uses
 * another thread, the renewal of the lease one more, looking for files of other nodes a third, and the copy of the
 * data a fourth. libuv's default is 4. */
static void size_thread_pool(int slots)
{
    char n[16];
    snprintf(n, sizeof(n), "%d", 2 * slots + 4 < 64 ? 2 * slots + 4 : 64);
    setenv("UV_THREADPOOL_SIZE", n, 0);
}

static err_t io_start(struct io *io, struct why *why)
{
    err_t err = inherit(io, why);
    if (err)
        return err;
    size_thread_pool(io->ticket.slots);
    if (uv_loop_init(&io->loop))
        return why_set(why, ERR_NOMEM, "the event loop cannot be created");
    uv_timer_init(&io->loop, &io->quit_timer);
    uv_signal_init(&io->loop, &io->term);
    io->quit_timer.data = io->term.data = io;
    uv_signal_start(&io->term, terminated, SIGTERM);
    if (io_share_start(io))
        return why_set(why, ERR_IO, "getrandom failed");
    if (io_owner_start(io))
        return why_set(why, ERR_NOMEM, "a mutex cannot be created");
    if (io_curves_start(io))
        return why_set(why, ERR_NOMEM, "a mutex cannot be created");
    err = io_server_start(io, LISTEN_FD);
    if (err)
        return why_set(why, err, "descriptor %d is not a listening socket: %s", LISTEN_FD, err_text(err));
    err = io_control_start(io);
    return err ? why_set(why, err, "the link to control cannot be created: %s", err_text(err)) : OK;
}

static void io_fini(struct io *io)
{
    io_save_fini(io);
    io_stage_fini(io);
    io_spec_fini(&io->spec);
    io_share_fini(io);
    io_owner_fini(io);
    for (int k = 0; k < io->ticket.slots; k++)
        io_arena_slot_fini(&io->arenas[k]);
    read_claims_fini(&io->claims);
    free(io->arenas);
    free(io->loading);
    free(io->writing);
    while (io->reports) {
        struct io_queued_report *r = io->reports;
        io->reports = r->next;
        free(r->path);
        free(r->text);
        free(r);
    }
    uv_loop_close(&io->loop);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct io *io = state->input;
    int64_t *ms = key == 'w' ? &io->word_wait_ms : key == 'l' ? &io->owner.renew_ms : &io->save_wait_ms;
    char *end;
    if (key == 'j') {
        io->job = arg;
        return 0;
    }
    if (key != 'w' && key != 's' && key != 'l')
        return ARGP_ERR_UNKNOWN;
    *ms = strtoll(arg, &end, 10);
    if (end == arg || *end || *ms < 1 || *ms > MAX_WAIT_MS)
        argp_error(state, "%s is not a number of milliseconds from 1 to %d", arg, MAX_WAIT_MS);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"job", 'j', "ID", 0, "Number of the job", 0},
        {"word-wait-ms", 'w', "MS", 0, "Time for the committing node to prepare the checkpoint directory (10000)", 0},
        {"save-wait-ms", 's', "MS", 0, "How long a save waits for the parts of other nodes (600000)", 0},
        {"lease-ms", 'l', "MS", 0, "Time between renewals of the lease of the checkpoint directory (2000)", 0},
        {0}};
    static const struct argp argp = {
        options, parse_option, NULL, "Writes and reads the checkpoints of one job. Started by dtd.", NULL, NULL, NULL};
    static struct io io = {.word_wait_ms = WORD_WAIT_MS,
                           .save_wait_ms = SAVE_WAIT_MS,
                           .owner = {.renew_ms = CKPT_LEASE_RENEW_MS},
                           .stage = {.copy = {.fd = -1}}};
    struct why why = {{0}};
    log_init("dtd-io");
    output_check_at_exit("dtd-io");
    argp_parse(&argp, argc, argv, 0, NULL, &io);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit of file sizes then fails like one to a full disk */
    err_t err = io.job ? io_start(&io, &why) : why_set(&why, ERR_INVALID, "--job is missing");
    if (err) {
        log_error("not started why=\"%s\"", why.text);
        return 1;
    }
    log_info("started job=%s slots=%d", io.job, io.ticket.slots);
    uv_run(&io.loop, UV_RUN_DEFAULT);
    io_fini(&io);
    log_info("ended job=%s", io.job);
    return 0;
}
