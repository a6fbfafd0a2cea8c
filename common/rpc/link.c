/*   open -> (timer) attempt -> up -> lost -> (timer, longer) attempt -> ...          close: from anywhere, -> gone
 *
 * A link has one timer and at most one connection. The backoff doubles with each attempt and has up to 25 % of random
 * jitter, so that the workers of a restarted control process do not all reconnect at once. Only rpc_link_healthy resets
 * the backoff, because a connection may still fail in the owner's handshake. */
#include "common/rpc/link.h"

#include "common/base/log.h"
#include "common/rpc/conn.h"

#include <stdlib.h>
#include <string.h>

struct rpc_link {
    struct rpc_link_config config;
    char *path;
    uv_timer_t timer;
    struct rpc_conn *conn;
    uint32_t backoff_ms;
    unsigned seed;
    bool closing, logged_down;
    void (*closed)(void *owner);
};

static void attempt(uv_timer_t *timer);

/* ---- closing ---- */

static void timer_closed(uv_handle_t *handle)
{
    struct rpc_link *link = handle->data;
    void (*closed)(void *) = link->closed;
    void *owner = link->config.owner;
    free(link->path);
    free(link);
    if (closed)
        closed(owner);
}

void rpc_link_close(struct rpc_link *link, void (*cb)(void *owner), bool finish)
{
    if (link->closing)
        return;
    link->closing = true;
    link->closed = cb;
    uv_timer_stop(&link->timer);
    if (!link->conn)
        uv_close((uv_handle_t *)&link->timer, timer_closed);
    else if (finish)
        rpc_conn_finish(link->conn);
    else
        rpc_conn_close(link->conn);
}

/* ---- the connection ---- */

static void retry_later(struct rpc_link *link, err_t err)
{
    uint32_t wait = link->backoff_ms + (uint32_t)rand_r(&link->seed) % (link->backoff_ms / 4 + 1);
    link->backoff_ms *= 2;
    if (link->backoff_ms > link->config.backoff_max_ms)
        link->backoff_ms = link->config.backoff_max_ms;
    if (!link->logged_down)
        log_info("link down path=%s why=\"%s\"", link->path, err_text(err));
    link->logged_down = true; /* one line per loss, not one per attempt */
    uv_timer_start(&link->timer, attempt, wait, 0);
    if (link->config.on_down)
        link->config.on_down(link->config.owner, err);
}

static void conn_closed(void *arg, struct rpc_conn *conn)
{
    (void)conn;
    struct rpc_link *link = arg;
    link->conn = NULL;
    if (link->closing)
        uv_close((uv_handle_t *)&link->timer, timer_closed);
    else
        retry_later(link, ERR_CLOSED);
}

static err_t connect_now(struct rpc_link *link)
{
    int fd;
    err_t err = rpc_connect_unix_now(link->path, &fd);
    if (err)
        return err;
    const struct rpc_conn_config config = {
        .loop = link->config.loop,
        .methods = link->config.methods,
        .n_methods = link->config.n_methods,
        .owner = link->config.owner,
    };
    err = rpc_conn_open(&config, fd, link->config.roles, &link->conn);
    if (err)
        return err;
    link->conn->link_closed = conn_closed;
    link->conn->link = link;
    return OK;
}

static void attempt(uv_timer_t *timer)
{
    struct rpc_link *link = timer->data;
    err_t err = connect_now(link);
    if (err) {
        retry_later(link, err);
        return;
    }
    link->logged_down = false;
    log_debug("link up path=%s", link->path);
    link->config.on_up(link->config.owner, link->conn);
}

/* ---- public functions ---- */

err_t rpc_link_open(const struct rpc_link_config *config, struct rpc_link **ret)
{
    struct rpc_link *link = calloc(1, sizeof(*link));
    if (!link)
        return ERR_NOMEM;
    link->config = *config;
    link->path = strdup(config->path);
    if (!link->path) {
        free(link);
        return ERR_NOMEM;
    }
    if (!link->config.backoff_min_ms)
        link->config.backoff_min_ms = 20;
    if (!link->config.backoff_max_ms)
        link->config.backoff_max_ms = 1000;
    link->config.path = link->path;
    link->backoff_ms = link->config.backoff_min_ms;
    link->seed = (unsigned)uv_hrtime();
    uv_timer_init(config->loop, &link->timer);
    link->timer.data = link;
    uv_timer_start(&link->timer, attempt, 0, 0);
    *ret = link;
    return OK;
}

struct rpc_conn *rpc_link_conn(struct rpc_link *link)
{
    return link->conn;
}

void rpc_link_reset(struct rpc_link *link)
{
    if (link->conn)
        rpc_conn_close(link->conn);
}

void rpc_link_healthy(struct rpc_link *link)
{
    link->backoff_ms = link->config.backoff_min_ms;
}
