/* A host owns listeners, requests and tunnels. It is freed after the last of them has closed. */
#include "common/base/log.h"
#include "common/tunnel/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The number of refusals that were not logged (log_limit.h) is logged every UNLOGGED_MS. */
#define UNLOGGED_MS 60000

/* ---- refusals ---- */

static void log_unlogged(uv_timer_t *timer)
{
    struct tunnel_host *host = timer->data;
    const uint64_t count = log_limit_left_out(&host->refusals);
    if (count)
        log_warn("tunnels refused and not logged count=%" PRIu64, count);
}

void host_log_refusal(struct tunnel_host *host, const char *address, const char *why)
{
    if (log_limit_take(&host->refusals, (int64_t)uv_now(host->config.loop)))
        log_warn("tunnel refused from=%s why=\"%s\"", address, why);
    else if (!host->timer_closed && !uv_is_active((uv_handle_t *)&host->timer))
        uv_timer_start(&host->timer, log_unlogged, UNLOGGED_MS, 0);
}

/* ---- open and close ---- */

static void host_closed(uv_handle_t *handle)
{
    struct tunnel_host *host = handle->data;
    void (*closed)(void *) = host->closed;
    void *owner = host->closed_owner;
    tls_contexts_free(host);
    free(host);
    if (closed)
        closed(owner);
}

void host_maybe_closed(struct tunnel_host *host)
{
    bool gone = TAILQ_EMPTY(&host->tunnels) && TAILQ_EMPTY(&host->listeners) && TAILQ_EMPTY(&host->requests);
    if (!host->closing || !gone || host->timer_closed)
        return;
    log_unlogged(&host->timer);
    host->timer_closed = true;
    uv_close((uv_handle_t *)&host->timer, host_closed);
}

void tunnel_host_close(struct tunnel_host *host, void (*cb)(void *owner), void *owner)
{
    struct tunnel_request *r;
    struct tunnel_listener *l;
    struct tunnel *t;
    if (host->closing)
        return;
    host->closing = true;
    host->closed = cb;
    host->closed_owner = owner;
    TAILQ_FOREACH(r, &host->requests, link)
    tunnel_connect_cancel(r);
    TAILQ_FOREACH(l, &host->listeners, link)
    tunnel_listener_close(l, NULL);
    TAILQ_FOREACH(t, &host->tunnels, link)
    tunnel_cut(t);
    host_maybe_closed(host);
}

/* NULL: the tunnel may stay open. */
static const char *reason_to_cut(const struct tunnel *t)
{
    const struct tunnel_keys *keys = &t->host->config.keys;
    const struct tunnel_identity *identity = &t->host->config.identity;
    struct tunnel_secret secret;
    bool is_valid = keys->find(keys->owner, t->peer.key, &secret) == OK;
    OPENSSL_cleanse(&secret, sizeof(secret));
    if (!is_valid)
        return "its key is no longer valid";
    /* One that lingers was refused, or its owner has closed it: only its last bytes are sent. */
    bool is_admitted = t->state == T_LINGER || !identity->admit ||
                       identity->admit(identity->owner, &t->peer, t->role == ROLE_ACCEPT) == TUNNEL_ADMIT;
    return is_admitted ? NULL : "its node is no longer admitted";
}

void tunnel_host_recheck(struct tunnel_host *host)
{
    struct tunnel *t;
    TAILQ_FOREACH(t, &host->tunnels, link)
    {
        const char *why = t->state == T_OPEN || t->state == T_LINGER ? reason_to_cut(t) : NULL;
        if (!why)
            continue;
        log_info("tunnel cut peer=%s address=%s why=\"%s\"", t->peer.name, t->peer.address, why);
        tunnel_cut(t);
    }
}

void tunnel_host_stats(const struct tunnel_host *host, struct tunnel_stats *ret)
{
    *ret = host->stats;
}

err_t tunnel_host_open(const struct tunnel_host_config *config, struct tunnel_host **ret, struct why *why)
{
    if (!node_name_valid(config->name, strlen(config->name)))
        return why_set(why, ERR_INVALID, "a node's name has 1 to %d letters, digits, points, dashes and underscores",
                       TUNNEL_NAME_MAX);
    struct tunnel_host *host = calloc(1, sizeof(*host));
    if (!host)
        return why_set(why, ERR_NOMEM, "out of memory");
    host->config = *config;
    strcpy(host->name, config->name);
    host->config.name = host->name;
    err_t err = tls_contexts_make(host, why);
    if (err) {
        free(host);
        return err;
    }
    TAILQ_INIT(&host->tunnels);
    TAILQ_INIT(&host->listeners);
    TAILQ_INIT(&host->requests);
    uv_timer_init(config->loop, &host->timer);
    uv_unref((uv_handle_t *)&host->timer);
    host->timer.data = host;
    *ret = host;
    return OK;
}
