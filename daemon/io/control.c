/* The link to control:   up -> Hello -> Commands (a stream; each item is a command) and reports, oldest first.
 *
 * A report stays in the list until control has acknowledged it, so that no report is lost when control restarts. dtd-io
 * exits when control has been unreachable for run.orphan_seconds, because no other program would learn of its
 * checkpoints. */
#include "daemon/io/io.h"

#include "common/base/log.h"
#include "common/rpc/link.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORPHAN_DEFAULT_MS 60000
#define MAX_REPORTS 4096 /* bounds memory while control is unreachable; a scan alone reports every checkpoint */

/* ---- reports ---- */

static void report_drop(struct io *io, struct io_queued_report *r)
{
    for (struct io_queued_report **at = &io->reports; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            io->n_reports--;
            break;
        }
    free(r->path);
    free(r->text);
    free(r);
}

static void reports_send(struct io *io);

static void report_answered(void *arg, const struct rpc_result *result)
{
    struct io_queued_report *r = arg;
    struct io *io = r->io;
    r->sent = false;
    if (result->err == ERR_CLOSED)
        return; /* the report is sent again when the link is up */
    if (result->err)
        log_warn("report refused kind=%d error=%s text=\"%s\"", (int)r->kind, err_name(result->err), result->text);
    report_drop(io, r);
    reports_send(io);
    io_check_quit(io);
}

/* Sends one report at a time: this keeps their order, and after a lost connection at most one is sent twice. */
static void reports_send(struct io *io)
{
    struct rpc_conn *conn = rpc_link_conn(io->control);
    struct io_queued_report *r = io->reports;
    if (!conn || !io->control_ready || !r || r->sent)
        return;
    err_t err = rpc_control_report(io, conn, r, report_answered);
    if (err)
        log_warn("report not sent error=%s", err_name(err));
    r->sent = !err;
}

void io_report(struct io *io, enum io_report_kind kind, uint64_t epoch, const struct ckpt_info *info, const char *path,
               const char *text)
{
    struct io_queued_report *r = io->n_reports < MAX_REPORTS ? calloc(1, sizeof(*r)) : NULL, **last = &io->reports;
    if (r) {
        *r = (struct io_queued_report){.kind = kind, .epoch = epoch, .io = io, .has_checkpoint = info && path};
        r->path = strdup(path ? path : "");
        r->text = strdup(text ? text : "");
    }
    if (!r || !r->path || !r->text) {
        log_error("report dropped kind=%d why=\"%d are waiting\"", (int)kind, io->n_reports);
        if (r) {
            free(r->path);
            free(r->text);
        }
        free(r);
        return;
    }
    if (info)
        r->checkpoint = *info;
    while (*last)
        last = &(*last)->next;
    *last = r;
    io->n_reports++;
    reports_send(io);
}

/* ---- the link ---- */

static void command_received(void *arg, const struct rpc_result *result)
{
    struct io *io = arg;
    struct io_command c;
    if (result->reply && rpc_control_command(result->reply, &c))
        io_command(io, &c);
    if (!result->last || io->stopped)
        return;
    if (result->err && result->err != ERR_CLOSED)
        log_warn("command stream ended error=%s text=\"%s\"", err_name(result->err), result->text);
    if (result->err != ERR_CLOSED)
        rpc_link_reset(io->control);
}

static void hello_answered(void *arg, const struct rpc_result *result)
{
    struct io *io = arg;
    struct rpc_conn *conn = io->stopped ? NULL : rpc_link_conn(io->control);
    if (!conn || result->err) {
        if (result->err != ERR_CLOSED)
            log_warn("hello refused error=%s text=\"%s\"", err_name(result->err), result->text);
        if (!io->stopped && result->err != ERR_CLOSED)
            rpc_link_reset(io->control);
        return;
    }
    rpc_link_healthy(io->control);
    uv_timer_stop(&io->orphan);
    io->control_ready = true;
    log_info("connected to control");
    if (rpc_control_commands(io, conn, command_received))
        rpc_link_reset(io->control);
    reports_send(io);
}

static void link_up(void *owner, struct rpc_conn *conn)
{
    if (rpc_control_hello(owner, conn, hello_answered))
        rpc_link_reset(((struct io *)owner)->control);
}

static void orphaned(uv_timer_t *timer)
{
    struct io *io = timer->data;
    log_error("orphaned why=\"control has been unreachable for %" PRId64 " s\"",
              (io->spec.yaml ? io->spec.orphan_ms : ORPHAN_DEFAULT_MS) / 1000);
    io_quit(io);
}

static void orphan_start(struct io *io)
{
    if (!uv_is_active((uv_handle_t *)&io->orphan) && !io->stopped)
        uv_timer_start(&io->orphan, orphaned, (uint64_t)(io->spec.yaml ? io->spec.orphan_ms : ORPHAN_DEFAULT_MS), 0);
}

static void link_down(void *owner, err_t err)
{
    struct io *io = owner;
    if (io->control_ready)
        log_warn("control lost error=%s", err_name(err));
    io->control_ready = false;
    orphan_start(io);
}

err_t io_control_start(struct io *io)
{
    const struct rpc_link_config config = {.loop = &io->loop,
                                           .path = io->ticket.control,
                                           .methods = io->methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .roles = RPC_ROLE_ANY,
                                           .owner = io,
                                           .on_up = link_up,
                                           .on_down = link_down};
    uv_timer_init(&io->loop, &io->orphan);
    io->orphan.data = io;
    orphan_start(io);
    return rpc_link_open(&config, &io->control);
}

void io_control_stop(struct io *io)
{
    uv_close((uv_handle_t *)&io->orphan, NULL);
    if (io->control)
        rpc_link_close(io->control, NULL, true);
    io->control_ready = false;
}
