/* Connections of workers: a check of the peer's user (reported by the kernel), then a Hello with the ticket's token,
 * then requests. A request is deferred while it cannot be started: control has not sent its epoch yet, or the roll-back
 * of the epoch is in progress, or an earlier load still writes into the slot's arena. Deferred requests wait in one
 * list and are all tried again after each change. */
#include "daemon/io/io.h"

#include "common/base/log.h"
#include "common/base/log_limit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- requests ---- */

void io_request_free(struct io_request *r)
{
    for (int i = 0; i < r->n_pieces; i++)
        free((char *)(uintptr_t)r->pieces[i].fqn);
    for (int i = 0; i < r->n_scalars; i++) {
        free(r->scalars[i].fqn);
        free(r->scalars[i].s);
    }
    for (int i = 0; i < r->n_names; i++)
        free(r->names[i]);
    free(r->names);
    free(r->scalars);
    free(r->pieces);
    free(r->arena_offsets);
    free(r->path);
    free(r);
}

static void request_call_gone(void *arg)
{
    struct io_request *r = arg;
    r->call = NULL;
}

void io_defer(struct io *io, struct io_request *r)
{
    struct io_request **last = &io->deferred;
    while (*last)
        last = &(*last)->next;
    r->next = NULL;
    *last = r;
}

static bool must_wait(const struct io *io, const struct io_request *r)
{
    if (r->kind == IO_REQUEST_STAGE) /* with the epoch comes the job */
        return !io->epoch_known || r->epoch > io->epoch;
    return io->loading[r->slot] || (r->kind == IO_REQUEST_SAVE && (!io->epoch_known || r->epoch > io->epoch ||
                                                                   (r->epoch == io->epoch && !io->prepared)));
}

/* True: the directory cannot be used for this epoch. This has been reported to control, and the request fails. */
static bool is_refused(const struct io *io, struct io_request *r)
{
    const struct io_share *s = &io->share;
    if (r->kind != IO_REQUEST_SAVE || !io->epoch_known || r->epoch != io->epoch || !s->refusal)
        return false;
    rpc_fail(r->call, s->refusal, "%s", s->why.text);
    r->call = NULL;
    return true;
}

void io_take(struct io *io, struct io_request *r)
{
    if (r->call && io->quitting) {
        rpc_fail(r->call, ERR_CANCELED, "dtd-io is exiting");
        r->call = NULL;
    }
    if (!r->call) {
        io_request_free(r);
        return;
    }
    rpc_call_on_cancel(r->call, request_call_gone, r);
    if (is_refused(io, r))
        io_request_free(r);
    else if (must_wait(io, r))
        io_defer(io, r);
    else if (r->kind == IO_REQUEST_HELLO)
        io_server_hello(io, r);
    else if (r->kind == IO_REQUEST_SAVE)
        io_save_take(io, r);
    else if (r->kind == IO_REQUEST_STAGE)
        io_stage_take(io, r);
    else
        io_load_take(io, r);
}

void io_retry(struct io *io)
{
    struct io_request *list = io->deferred;
    io->deferred = NULL;
    while (list) {
        struct io_request *r = list;
        list = r->next;
        io_take(io, r);
    }
}

/* ---- connections ---- */

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct io *io = owner;
    for (struct io_conn **at = &io->conns; *at; at = &(*at)->next) {
        struct io_conn *c = *at;
        if (c->conn != conn)
            continue;
        if (c->slot >= 0)
            log_info("worker gone slot=%d", c->slot);
        *at = c->next;
        free(c);
        return;
    }
}

static void accepted(void *owner, int fd, const struct rpc_peer *peer)
{
    struct io *io = owner;
    if (peer->uid != getuid() || io->quitting) {
        static struct log_limit lines;
        if (log_limit_line(&lines, "connections refused"))
            log_warn("connection refused uid=%u pid=%d", (unsigned)peer->uid, (int)peer->pid);
        close(fd);
        return;
    }
    struct io_conn *c = calloc(1, sizeof(*c));
    if (!c) {
        close(fd);
        return;
    }
    const struct rpc_conn_config config = {
        .loop = &io->loop, .methods = io->methods, .n_methods = RPC_METHOD_COUNT, .owner = io, .on_close = conn_closed};
    c->slot = -1;
    err_t err = rpc_conn_open(&config, fd, RPC_ROLE_ANY, &c->conn);
    if (err) {
        log_error("connection not opened error=%s", err_name(err));
        free(c);
        return;
    }
    rpc_conn_set_data(c->conn, c);
    c->next = io->conns;
    io->conns = c;
}

void io_server_hello(struct io *io, struct io_request *r)
{
    struct rpc_conn *conn = rpc_call_conn(r->call);
    struct io_conn *c = conn ? rpc_conn_data(conn) : NULL;
    if (c) {
        c->slot = r->slot;
        rpc_conn_set_roles(conn, RPC_ROLE_ANY | RPC_ROLE_WORKER);
        log_info("worker slot=%d pid=%d", r->slot, (int)rpc_conn_peer_pid(conn));
    }
    rpc_worker_hello_done(r->call);
    r->call = NULL;
    io_request_free(r);
}

err_t io_server_start(struct io *io, int listen_fd)
{
    static const struct rpc_binding bindings[] = {{IO_HELLO, rpc_worker_hello},
                                                  {IO_SAVE, rpc_worker_save},
                                                  {IO_LOAD, rpc_worker_load},
                                                  {IO_STAGE, rpc_worker_stage}};
    rpc_methods_bind(bindings, (int)(sizeof(bindings) / sizeof(bindings[0])), io->methods);
    return rpc_listen(&io->loop, listen_fd, accepted, io, &io->listener);
}

void io_server_stop(struct io *io)
{
    if (io->listener)
        rpc_listener_close(io->listener);
    io->listener = NULL;
    for (struct io_conn *c = io->conns; c; c = c->next)
        rpc_conn_finish(c->conn);
}
