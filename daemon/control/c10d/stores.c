/* A stream between nodes starts with "UID NAME" and is a connection of that store afterwards. The sending node has
 * determined the user from its kernel. This node trusts it, as for every other call of that node's users. */
#include "daemon/control/c10d/stores.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/shares.h"
#include "daemon/control/cluster/cluster.h"
#include "daemon/store/relay.h"
#include "daemon/store/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PARKED_MS 10000 /* a node that starts the epoch 10 s after the others is faulty, and the rank should fail */
#define PARKED_MAX 1024 /* each one holds a descriptor; a node opens a stream for each of its ranks */
#define PARKED_PER_USER (PARKED_MAX / 4)

bool c10d_name_is_legal(const char *name)
{
    size_t len = strlen(name);
    size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return len && len <= C10D_NAME_MAX && good == len;
}

struct c10d_endpoint *c10d_find(struct c10d_registry *s, uint32_t uid, const char *name)
{
    struct c10d_endpoint *e;
    LIST_FOREACH(e, &s->open, link)
    if (e->uid == uid && strcmp(e->name, name) == 0)
        return e;
    return NULL;
}

/* ---- connections to a store on another node ---- */

static void dialled(void *arg, int fd)
{
    relay_connected(arg, fd);
}

static void dial(void *owner, struct relay_call *call)
{
    const struct c10d_endpoint *e = owner;
    char argument[C10D_NAME_MAX + 16];
    snprintf(argument, sizeof(argument), "%u %s", (unsigned)e->uid, e->name);
    err_t err = cluster_dial_store(e->c10d->cluster, e->holder, argument, dialled, call);
    if (!err)
        return;
    if (log_limit_line(&e->c10d->lines, "store connections closed"))
        log_warn("store connection closed store=%s node=%s why=\"%s\"", e->name, e->holder, err_text(err));
    relay_connected(call, -1);
}

/* ---- streams from other nodes ---- */

/* True for the store of a job's epoch: nodes start an epoch independently, so the store's node may be the last one. */
static bool may_wait(const struct c10d_registry *s, uint32_t uid, const char *name)
{
    int his = 0;
    const struct c10d_parked *p;
    LIST_FOREACH(p, &s->parked, link)
    his += p->uid == uid;
    return strchr(name, '/') && s->n_parked < PARKED_MAX && (!s->system || his < PARKED_PER_USER);
}

static err_t park(struct c10d_registry *s, uint32_t uid, const char *argument, int fd)
{
    struct c10d_parked *p = calloc(1, sizeof(*p));
    if (!p)
        return ERR_NOMEM;
    snprintf(p->argument, sizeof(p->argument), "%s", argument);
    p->uid = uid;
    p->fd = fd;
    p->due_ms = clock_mono_ms() + PARKED_MS;
    LIST_INSERT_HEAD(&s->parked, p, link);
    s->n_parked++;
    return OK;
}

static err_t hand_over(struct c10d_registry *s, const char *argument, int fd, bool wait)
{
    unsigned uid;
    char name[C10D_NAME_MAX + 1];
    bool read = sscanf(argument, "%u %64s", &uid, name) == 2;
    struct c10d_endpoint *e = read ? c10d_find(s, uid, name) : NULL;
    if (e && e->server)
        return store_server_adopt(e->server, fd);
    if (read && wait && may_wait(s, uid, name) && park(s, uid, argument, fd) == OK)
        return OK;
    close(fd);
    return ERR_NOTFOUND;
}

void c10d_take(struct c10d_registry *s, const char *argument, int fd)
{
    err_t err = hand_over(s, argument, fd, true);
    if (err && log_limit_line(&s->lines, "store connections closed"))
        log_warn("store connection from another node closed store=\"%s\" why=\"%s\"", argument, err_text(err));
}

static void unpark(struct c10d_registry *s, struct c10d_parked *p)
{
    LIST_REMOVE(p, link);
    s->n_parked--;
    err_t err = hand_over(s, p->argument, p->fd, false);
    if (err && log_limit_line(&s->lines, "store connections closed"))
        log_warn("store connection from another node closed store=\"%s\" why=\"%s\"", p->argument, err_text(err));
    free(p);
}

void c10d_tick(struct c10d_registry *s)
{
    struct c10d_parked *p, *next;
    for (p = LIST_FIRST(&s->parked); p; p = next) {
        unsigned uid;
        char name[C10D_NAME_MAX + 1];
        next = LIST_NEXT(p, link);
        if (clock_mono_ms() >= p->due_ms ||
            (sscanf(p->argument, "%u %64s", &uid, name) == 2 && c10d_find(s, uid, name)))
            unpark(s, p);
    }
}

/* ---- opening and closing ---- */

/* The limit of connections of one store: an eighth of this process's descriptors, because several users share them. */
static int connections_of_one(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > (1u << 20))
        return 1 << 17;
    return (int)limit.rlim_cur / 8;
}

/* The user who may connect. In a private dtd, jobs run as dtd's own user, whose uid may differ from that on the
 * leader's node. */
static uid_t caller_of(const struct c10d_endpoint *e)
{
    return c10d_name_is_legal(e->name) || e->c10d->system ? e->uid : getuid();
}

/* ---- users ---- */

static struct c10d_user *user_get(struct c10d_registry *s, uint32_t uid)
{
    struct c10d_user *u;
    LIST_FOREACH(u, &s->users, link)
    if (u->uid == uid)
        return u;
    u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    *u = (struct c10d_user){.uid = uid, .budget.max = s->system ? s->limits.bytes : SIZE_MAX};
    LIST_INSERT_HEAD(&s->users, u, link);
    return u;
}

/* One of his stores has closed; its budget is used until then. */
static void user_left(void *arg)
{
    struct c10d_user *u = arg;
    if (--u->n_open)
        return;
    LIST_REMOVE(u, link);
    free(u);
}

static struct shares *shares_for(const struct c10d_endpoint *e)
{
    return e->c10d->system ? e->c10d->descriptors : NULL;
}

/* ---- stores and relays ---- */

static err_t open_here(struct c10d_endpoint *e, struct why *why)
{
    const struct store_server_config config = {.name = e->name,
                                               .uid = caller_of(e),
                                               .max_bytes = C10D_MAX_BYTES,
                                               .max_connections = connections_of_one(),
                                               .shares = shares_for(e),
                                               .max_user = e->c10d->limits.connections,
                                               .user_budget = &e->user->budget};
    return store_server_open(e->c10d->loop, &config, &e->server, why);
}

static err_t open_relay(struct c10d_endpoint *e, struct why *why)
{
    const struct relay_config config = {.loop = e->c10d->loop,
                                        .name = e->name,
                                        .uid = caller_of(e),
                                        .max_connections = connections_of_one(),
                                        .shares = shares_for(e),
                                        .max_user = e->c10d->limits.connections,
                                        .dial = dial,
                                        .owner = e};
    return relay_open(&config, &e->relay, why);
}

/* A relay may still be connecting to the other node after relay_close; it does not call its owner any more. */
static void endpoint_close(struct c10d_endpoint *e)
{
    LIST_REMOVE(e, link);
    if (e->server)
        store_server_close(e->server, user_left, e->user);
    if (e->relay) {
        relay_close(e->relay);
        user_left(e->user);
    }
    free(e);
}

static int count_of(const struct c10d_registry *s, uint32_t uid)
{
    int count = 0;
    const struct c10d_endpoint *e;
    LIST_FOREACH(e, &s->open, link)
    count += e->uid == uid && c10d_name_is_legal(e->name);
    return count;
}

static err_t endpoint_open(struct c10d_registry *s, uint32_t uid, const char *name, const char *holder, struct why *why)
{
    if (c10d_name_is_legal(name) && count_of(s, uid) >= s->limits.stores)
        return why_set(why, ERR_LIMIT,
                       "you have the maximum of %" PRId64
                       " stores on this node (users.stores); close one (`dtctl store ls` lists them)",
                       s->limits.stores);
    struct c10d_endpoint *e = calloc(1, sizeof(*e));
    struct c10d_user *user = e ? user_get(s, uid) : NULL;
    if (!user)
        free(e);
    if (!user)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    user->n_open++;
    e->c10d = s;
    e->user = user;
    e->uid = uid;
    snprintf(e->name, sizeof(e->name), "%s", name);
    snprintf(e->holder, sizeof(e->holder), "%s", holder);
    err_t err = holder[0] ? open_relay(e, why) : open_here(e, why);
    if (err)
        user_left(user);
    if (err)
        free(e);
    else
        LIST_INSERT_HEAD(&s->open, e, link);
    return err;
}

err_t c10d_open(struct c10d_registry *s, uint32_t uid, const char *name, const char *holder, uint16_t *ret_port,
                struct why *why)
{
    const char *at = holder ? holder : "";
    struct c10d_endpoint *e = c10d_find(s, uid, name);
    if (e && strcmp(e->holder, at) != 0) {
        endpoint_close(e);
        e = NULL;
    }
    err_t err = e ? OK : endpoint_open(s, uid, name, at, why);
    if (err)
        return err;
    e = c10d_find(s, uid, name);
    *ret_port = e->server ? store_server_port(e->server) : relay_port(e->relay);
    return OK;
}

void c10d_close(struct c10d_registry *s, uint32_t uid, const char *name)
{
    struct c10d_endpoint *e = c10d_find(s, uid, name);
    if (e)
        endpoint_close(e);
}

void c10d_close_job(struct c10d_registry *s, uint64_t job, const char *except)
{
    struct c10d_endpoint *e, *next;
    char prefix[32];
    size_t len = (size_t)snprintf(prefix, sizeof(prefix), "%" PRIu64 "/", job);
    for (e = LIST_FIRST(&s->open); e; e = next) {
        next = LIST_NEXT(e, link);
        if (strncmp(e->name, prefix, len) == 0 && !(except && strcmp(e->name, except) == 0))
            endpoint_close(e);
    }
}

err_t c10d_open_epoch(struct c10d_registry *s, uint32_t uid, uint64_t job, uint64_t epoch, const char *holder,
                      uint16_t *ret_port)
{
    struct why why = {""};
    char name[C10D_NAME_MAX + 1];
    snprintf(name, sizeof(name), "%" PRIu64 "/%" PRIu64, job, epoch);
    c10d_close_job(s, job, name);
    err_t err = c10d_open(s, uid, name, holder, ret_port, &why);
    if (err)
        log_error("c10d store of a command not opened job=%" PRIu64 " why=\"%s\"", job, why.text);
    return err;
}
