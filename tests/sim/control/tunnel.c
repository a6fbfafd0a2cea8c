/* Replaces common/tunnel: a tunnel is a stream between two computers, open after a handshake of three delays. The keys
 * are compared, and each side asks its owner about the other's identity and lineage, but nothing is encrypted or
 * signed; tests/common/tunnel tests the real tunnel. A tunnel host ends with its process. */
#include "common/tunnel/tunnel.h"

#include "tests/sim/bugs.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/net.h"
#include "tests/sim/stream.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

/* glibc's queue.h lacks it. */
#define SLIST_FOREACH_SAFE(at, head, field, next) \
    for ((at) = SLIST_FIRST(head); (at) && ((next) = SLIST_NEXT(at, field), 1); (at) = (next))

struct tunnel_host {
    struct host *process;
    char name[TUNNEL_NAME_MAX + 1];
    struct tunnel_keys keys;
    struct tunnel_identity identity;
    struct tunnel_kin kin;
    tunnel_accept_cb accept; /* NULL: does not listen */
    void *owner;
    SLIST_HEAD(, tunnel_end) ends;
    bool is_closed;
    void (*closed)(void *owner);
    void *closed_owner;
};

struct tunnel_listener {
    struct tunnel_host *host;
};

struct tunnel_request {
    struct tunnel_host *from;
    struct host *to;
    unsigned from_life;
    struct tunnel_key_id key;
    struct tunnel_secret secret;
    char expected[TUNNEL_NAME_MAX + 1];
    enum tunnel_purpose purpose;
    char argument[TUNNEL_ARGUMENT_MAX + 1];
    tunnel_connect_cb cb;
    void *owner;
    struct tunnel_peer peer;     /* the node that answered */
    enum tunnel_kinship kinship; /* its verdict */
    err_t err;
    const char *why;
    int fd, other_fd;
    bool is_over;
};

/* One end of an open tunnel, for tunnel_host_recheck. Descriptors are never reused. */
struct tunnel_end {
    SLIST_ENTRY(tunnel_end) link;
    struct tunnel_peer peer;
    bool accepts;
    int fd;
};

static struct tunnel_host *listening[MAX_HOSTS + 1];

void tunnel_forget(struct host *process)
{
    if (process->id <= MAX_HOSTS)
        listening[process->id] = NULL;
}

/* ---- hosts ---- */

err_t tunnel_host_open(const struct tunnel_host_config *config, struct tunnel_host **ret, struct why *why)
{
    struct tunnel_host *h = calloc(1, sizeof(*h));
    (void)why;
    assert(h);
    h->process = world.current;
    h->keys = config->keys;
    h->identity = config->identity;
    h->kin = config->kin;
    snprintf(h->name, sizeof(h->name), "%s", config->name);
    *ret = h;
    return OK;
}

static void host_is_closed(void *arg)
{
    struct tunnel_host *h = arg;
    if (h->closed)
        h->closed(h->closed_owner);
}

void tunnel_host_close(struct tunnel_host *h, void (*cb)(void *owner), void *owner)
{
    h->is_closed = true;
    h->closed = cb;
    h->closed_owner = owner;
    if (listening[h->process->id] == h)
        listening[h->process->id] = NULL;
    world_after(h->process, 100, host_is_closed, h);
}

static enum tunnel_verdict verdict_of(const struct tunnel_host *h, const struct tunnel_peer *peer, bool accepts)
{
    bool asks = h->identity.admit && !bug(BUG_ANY_IDENTITY);
    return asks ? h->identity.admit(h->identity.owner, peer, accepts) : TUNNEL_ADMIT;
}

static bool is_admitted(const struct tunnel_host *h, const struct tunnel_peer *peer, bool accepts)
{
    return verdict_of(h, peer, accepts) == TUNNEL_ADMIT;
}

void tunnel_host_recheck(struct tunnel_host *h)
{
    struct tunnel_end *e, *next;
    SLIST_FOREACH_SAFE(e, &h->ends, link, next)
    {
        struct tunnel_secret secret;
        if (h->keys.find(h->keys.owner, e->peer.key, &secret) == OK && is_admitted(h, &e->peer, e->accepts))
            continue;
        trace("%s closes its tunnel with %s", h->name, e->peer.name);
        stream_reset(e->fd);
        SLIST_REMOVE(&h->ends, e, tunnel_end, link);
        free(e);
    }
}

static enum tunnel_kinship kinship_of(const struct tunnel_host *h, const struct tunnel_peer *peer, bool answers)
{
    bool asks = h->kin.judge && !bug(BUG_GENERATION_IGNORED);
    return asks ? h->kin.judge(h->keys.owner, peer, answers) : TUNNEL_OF_KIN;
}

static void add_end(struct tunnel_host *h, const struct tunnel_peer *peer, bool accepts, int fd)
{
    struct tunnel_end *e = calloc(1, sizeof(*e));
    assert(e);
    *e = (struct tunnel_end){.peer = *peer, .accepts = accepts, .fd = fd};
    SLIST_INSERT_HEAD(&h->ends, e, link);
}

/* How `to` sees `from`. */
static struct tunnel_peer peer_of(const struct tunnel_host *from, const struct tunnel_host *to,
                                  const struct tunnel_request *r)
{
    struct tunnel_peer peer = {.key = r->key, .purpose = r->purpose};
    snprintf(peer.name, sizeof(peer.name), "%s", from->name);
    snprintf(peer.argument, sizeof(peer.argument), "%s", r->argument);
    peer.is_proven = from->identity.own && to->identity.own;
    if (peer.is_proven)
        memcpy(peer.public_key, from->identity.own->public_key, IDENTITY_BYTES);
    if (from->kin.own)
        from->kin.own(from->keys.owner, &peer.lineage);
    return peer;
}

err_t tunnel_bind(const char *address, int *ret_fd, struct why *why)
{
    (void)address, (void)why;
    *ret_fd = stream_place();
    return OK;
}

err_t tunnel_listen(struct tunnel_host *h, int fd, tunnel_accept_cb cb, void *owner, struct tunnel_listener **ret)
{
    struct tunnel_listener *l = calloc(1, sizeof(*l));
    (void)fd;
    assert(l);
    l->host = h;
    h->accept = cb;
    h->owner = owner;
    listening[h->process->id] = h;
    *ret = l;
    return OK;
}

/* ---- connecting ---- */

static int64_t draw_delay(void)
{
    return world_between(FROM_NETWORK, 50, 3 * net.delay_us + 400);
}

/* Called by the result of the handshake or by the deadline, whichever comes first. */
static void finish_request(struct tunnel_request *r, err_t err, const char *why)
{
    if (r->is_over || r->from->is_closed)
        err = ERR_CANCELED;
    if (!err && !is_admitted(r->from, &r->peer, false))
        err = ERR_DENIED;
    if (!err && kinship_of(r->from, &r->peer, true) != TUNNEL_OF_KIN)
        err = ERR_DENIED;
    if (r->kinship && err != ERR_CANCELED && r->from->kin.refused && is_admitted(r->from, &r->peer, false))
        r->from->kin.refused(r->from->keys.owner, r->peer.name, r->kinship, &r->peer.lineage);
    /* A node that is not admitted itself cannot report that this one was removed. */
    if (err == ERR_STALE && !is_admitted(r->from, &r->peer, false))
        err = ERR_DENIED;
    if (err && r->fd >= 0)
        close(r->fd);
    if (r->is_over)
        return;
    r->is_over = true;
    if (!err)
        add_end(r->from, &r->peer, false, r->fd);
    r->cb(r->owner, err, why, err ? NULL : &r->peer, err ? -1 : r->fd);
}

static void handshake_answered(void *arg)
{
    struct tunnel_request *r = arg;
    finish_request(r, r->err, r->why);
}

static void expire(void *arg)
{
    struct tunnel_request *r = arg;
    if (!r->is_over && r->fd < 0)
        finish_request(r, ERR_TIMEOUT, "the handshake was not answered");
}

static bool is_alive(const struct tunnel_request *r)
{
    return r->from->process->is_up && r->from->process->life == r->from_life;
}

static void end_request(struct tunnel_request *r, err_t err, const char *why)
{
    r->err = err;
    r->why = why;
    if (is_alive(r))
        world_after(r->from->process, draw_delay(), handshake_answered, r);
}

/* Runs at the listening process. */
static void arrived(void *arg)
{
    struct tunnel_request *r = arg;
    struct tunnel_host *h = listening[world.current->id];
    struct tunnel_secret secret = {.len = 0};
    if (!h || h->is_closed)
        return end_request(r, ERR_IO, "connection refused");
    if (stream_has_no_descriptor && stream_has_no_descriptor())
        return end_request(r, ERR_DENIED, "too many open files");
    r->peer = peer_of(h, r->from, r);
    bool is_known = h->keys.find(h->keys.owner, r->key, &secret) == OK && secret.len == r->secret.len &&
                    memcmp(secret.bytes, r->secret.bytes, secret.len) == 0;
    if (!is_known || (r->expected[0] && strcmp(r->expected, h->name) != 0) || strcmp(r->from->name, h->name) == 0)
        return end_request(r, ERR_DENIED, "the keys do not fit, or it is another node");
    if (!is_alive(r) || r->is_over)
        return;
    const struct tunnel_peer caller = peer_of(r->from, h, r);
    enum tunnel_verdict verdict = verdict_of(h, &caller, true);
    /* A node that was lost in a recovery gets the reason, too, although it is no node any more. */
    if (verdict == TUNNEL_ADMIT || verdict == TUNNEL_STRANGER || verdict == TUNNEL_REMOVED)
        r->kinship = kinship_of(h, &caller, false);
    if (r->kinship)
        return end_request(r, ERR_DENIED, "it is of another generation, or its log is an old copy");
    if (verdict != TUNNEL_ADMIT)
        return end_request(r, verdict == TUNNEL_REMOVED ? ERR_STALE : ERR_DENIED, "its identity is not admitted");
    stream_pair(r->from->process, world.current, &r->fd, &r->other_fd);
    add_end(h, &caller, true, r->other_fd);
    h->accept(h->owner, &caller, r->other_fd);
    end_request(r, OK, "");
}

static void on_the_way(void *arg)
{
    struct tunnel_request *r = arg;
    const struct host *from = r->from->process->on;
    if (!is_alive(r) || r->is_over)
        return;
    if (net.is_cut[from->id][r->to->id] || net.is_cut[r->to->id][from->id] || !machine_has_power(r->to->id))
        world_after(&world.hosts[0], 20 * US_PER_MS, on_the_way, r);
    else if (!r->to->is_up)
        end_request(r, ERR_IO, "connection refused");
    else
        world_after(r->to, draw_delay(), arrived, r);
}

err_t tunnel_connect(struct tunnel_host *h, const struct tunnel_connect_config *config, tunnel_connect_cb cb,
                     void *owner, struct tunnel_request **ret, struct why *why)
{
    struct host *to = machine_at(config->address);
    if (stream_has_no_descriptor && stream_has_no_descriptor())
        return why_set(why, ERR_LIMIT, "too many open files");
    struct tunnel_request *r = calloc(1, sizeof(*r));
    assert(r);
    if (!to) {
        free(r);
        return why_set(why, ERR_INVALID, "%s: not an address", config->address);
    }
    *r = (struct tunnel_request){.from = h,
                                 .to = to,
                                 .from_life = h->process->life,
                                 .key = config->key,
                                 .purpose = config->purpose,
                                 .cb = cb,
                                 .owner = owner,
                                 .fd = -1};
    uint32_t ms = config->deadline_ms ? config->deadline_ms : TUNNEL_HANDSHAKE_MS;
    snprintf(r->expected, sizeof(r->expected), "%s", config->expected ? config->expected : "");
    snprintf(r->argument, sizeof(r->argument), "%s", config->argument ? config->argument : "");
    err_t err = h->keys.find(h->keys.owner, config->key, &r->secret);
    if (err) {
        free(r);
        return why_set(why, err, "no key");
    }
    world_after(&world.hosts[0], draw_delay(), on_the_way, r);
    world_after(h->process, (int64_t)ms * US_PER_MS, expire, r);
    *ret = r;
    return OK;
}
