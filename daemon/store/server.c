/* Opening and closing a store. `open_handles` counts every open handle, and the close callback of the last one frees
 * the store. Therefore an opening that fails half way is undone by store_server_close, like a complete one. */
#include "daemon/store/server.h"

#include "common/base/log.h"
#include "daemon/store/server_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- closing ---- */

static void free_server(struct store_server *s)
{
    table_free(s->table);
    assert(s->budget.used == 0);
    void (*closed)(void *) = s->closed;
    void *arg = s->closed_arg;
    free(s);
    if (closed)
        closed(arg);
}

void store_server_handle_gone(struct store_server *s)
{
    if (!--s->open_handles)
        free_server(s);
}

void store_server_handle_closed(uv_handle_t *handle)
{
    store_server_handle_gone(handle->data);
}

void store_server_close(struct store_server *s, void (*cb)(void *arg), void *arg)
{
    assert(!s->closing);
    s->closing = true;
    s->closed = cb;
    s->closed_arg = arg;
    while (!LIST_EMPTY(&s->all))
        store_client_close(LIST_FIRST(&s->all));
    store_listener_close(&s->listener);
    uv_close((uv_handle_t *)&s->greet, store_server_handle_closed);
    uv_close((uv_handle_t *)&s->check, store_server_handle_closed);
    uv_close((uv_handle_t *)&s->idle, store_server_handle_closed);
}

/* ---- opening ---- */

static void start_handles(struct store_server *s)
{
    uv_timer_init(s->loop, &s->greet);
    uv_check_init(s->loop, &s->check);
    uv_idle_init(s->loop, &s->idle);
    s->greet.data = s->check.data = s->idle.data = s;
    s->open_handles = 4; /* these three and the listener */
}

static err_t server_new(uv_loop_t *loop, const struct store_server_config *config, struct store_server **ret)
{
    uint64_t seed[2];
    struct store_server *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->loop = loop;
    s->handshake_ms = config->handshake_ms ? config->handshake_ms : STORE_HANDSHAKE_MS;
    s->request_ms = config->request_ms ? config->request_ms : STORE_REQUEST_MS;
    s->budget.max = config->max_bytes ? config->max_bytes : STORE_MAX_BYTES;
    s->budget.parent = config->user_budget;
    LIST_INIT(&s->all);
    TAILQ_INIT(&s->news);
    TAILQ_INIT(&s->begun);
    TAILQ_INIT(&s->ready);
    err_t err = getrandom(seed, sizeof(seed), 0) == sizeof(seed) ? OK : ERR_IO;
    if (!err)
        err = table_new(&s->budget, seed, &s->table);
    if (err)
        free(s);
    else
        *ret = s;
    return err;
}

static void admit(void *owner, int fd)
{
    struct store_server *s = owner;
    err_t err = store_client_open(s, fd);
    if (err)
        store_listener_connection_failed(&s->listener);
    if (err)
        log_error("store connection closed store=%s why=\"%s\"", s->listener.name, err_text(err));
}

static void listener_closed(void *owner)
{
    store_server_handle_gone(owner);
}

err_t store_server_open(uv_loop_t *loop, const struct store_server_config *config, struct store_server **ret,
                        struct why *why)
{
    struct store_server *s;
    err_t err = server_new(loop, config, &s);
    if (err)
        return why_set(why, err, "store: %s", err_text(err));
    start_handles(s);
    const struct store_listener_config listen_config = {.loop = loop,
                                                        .name = config->name,
                                                        .uid = config->uid,
                                                        .port = config->port,
                                                        .max_connections = config->max_connections,
                                                        .shares = config->shares,
                                                        .max_user = config->max_user,
                                                        .admit = admit,
                                                        .closed = listener_closed,
                                                        .owner = s};
    err = store_listener_open(&s->listener, &listen_config, why);
    if (err) {
        budget_leave(&s->budget); /* the user's budget may be gone when the store is freed */
        store_server_close(s, NULL, NULL);
        return err;
    }
    log_info("store opened store=%s port=%d uid=%d ipv6=%s max_bytes=%zu max_connections=%d", s->listener.name,
             s->listener.port, (int)s->listener.uid, s->listener.fds[1] >= 0 ? "yes" : "no", s->budget.max,
             s->listener.max_connections);
    *ret = s;
    return OK;
}

/* ---- other functions ---- */

uint16_t store_server_port(const struct store_server *s)
{
    return s->listener.port;
}

err_t store_server_adopt(struct store_server *s, int fd)
{
    if (store_listener_is_full(&s->listener) || !store_listener_count(&s->listener)) {
        close(fd);
        return ERR_LIMIT;
    }
    store_socket_options(fd);
    err_t err = store_client_open(s, fd);
    if (err)
        store_listener_connection_failed(&s->listener);
    return err;
}

void store_server_stats(const struct store_server *s, struct store_server_stats *ret)
{
    *ret = s->stats;
    ret->connections = s->listener.connections;
    ret->refused = s->listener.refused;
    ret->keys = table_keys(s->table);
    ret->bytes = s->budget.used;
}
