/* See stores.h. A stream between nodes says "UID NAME" and is the store's connection from there on: the node that
 * brings it has asked its kernel who calls, and is believed, as it is for every other call of its users. */
#include "daemon/control/stores.h"

#include "common/base/log.h"
#include "daemon/control/cluster.h"
#include "daemon/control/node.h"
#include "daemon/store/relay.h"
#include "daemon/store/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

bool stores_name_is_legal(const char *name)
{
    size_t len = strlen(name);
    size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return len && len <= STORES_NAME_MAX && good == len;
}

struct stores_entry *stores_find(struct node *n, uint32_t uid, const char *name)
{
    struct stores_entry *e;
    LIST_FOREACH(e, &n->stores, link)
    if (e->uid == uid && strcmp(e->name, name) == 0)
        return e;
    return NULL;
}

/* ---- the way to another node ---- */

static void dialled(void *arg, int fd)
{
    relay_connected(arg, fd);
}

static void dial(void *owner, struct relay_call *call)
{
    const struct stores_entry *e = owner;
    char argument[STORES_NAME_MAX + 16];
    snprintf(argument, sizeof(argument), "%u %s", (unsigned)e->uid, e->name);
    err_t err = cluster_dial_store(e->node->cluster, e->holder, argument, dialled, call);
    if (!err)
        return;
    log_warn("store connection closed store=%s node=%s why=\"%s\"", e->name, e->holder, err_text(err));
    relay_connected(call, -1);
}

void stores_take(struct node *n, const char *argument, int fd)
{
    unsigned uid;
    char name[STORES_NAME_MAX + 1];
    bool read = sscanf(argument, "%u %64s", &uid, name) == 2;
    struct stores_entry *e = read ? stores_find(n, uid, name) : NULL;
    err_t err = e && e->server ? OK : ERR_NOTFOUND;
    if (err)
        close(fd);
    else
        err = store_server_adopt(e->server, fd);
    if (err)
        log_warn("store connection from another node closed store=\"%s\" why=\"%s\"", argument, err_text(err));
}

/* ---- life ---- */

/* An eighth of the descriptors that there are: users share them. */
static int connections_of_one(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > (1u << 20))
        return 1 << 17;
    return (int)limit.rlim_cur / 8;
}

static err_t open_here(struct stores_entry *e, struct why *why)
{
    const struct store_server_config config = {
        .name = e->name, .uid = e->uid, .max_bytes = STORES_MAX_BYTES, .max_connections = connections_of_one()};
    return store_server_open(&e->node->loop, &config, &e->server, why);
}

static err_t open_relay(struct stores_entry *e, struct why *why)
{
    const struct relay_config config = {.loop = &e->node->loop,
                                        .name = e->name,
                                        .uid = e->uid,
                                        .max_connections = connections_of_one(),
                                        .dial = dial,
                                        .owner = e};
    return relay_open(&config, &e->relay, why);
}

/* A relay may still be dialling for connections that it has closed; it asks its owner for nothing more. */
static void drop(struct stores_entry *e)
{
    LIST_REMOVE(e, link);
    if (e->server)
        store_server_close(e->server, NULL, NULL);
    if (e->relay)
        relay_close(e->relay);
    free(e);
}

static int count_of(const struct node *n, uint32_t uid)
{
    int count = 0;
    const struct stores_entry *e;
    LIST_FOREACH(e, &n->stores, link)
    count += e->uid == uid;
    return count;
}

static err_t make(struct node *n, uint32_t uid, const char *name, const char *holder, struct why *why)
{
    if (count_of(n, uid) >= STORES_PER_USER)
        return why_set(why, ERR_LIMIT, "%d stores are open here already; close one (dtctl store ls)", STORES_PER_USER);
    struct stores_entry *e = calloc(1, sizeof(*e));
    if (!e)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    e->node = n;
    e->uid = uid;
    snprintf(e->name, sizeof(e->name), "%s", name);
    snprintf(e->holder, sizeof(e->holder), "%s", holder);
    err_t err = holder[0] ? open_relay(e, why) : open_here(e, why);
    if (err)
        free(e);
    else
        LIST_INSERT_HEAD(&n->stores, e, link);
    return err;
}

err_t stores_open(struct node *n, uint32_t uid, const char *name, const char *holder, uint16_t *ret_port,
                  struct why *why)
{
    const char *at = holder ? holder : "";
    struct stores_entry *e = stores_find(n, uid, name);
    if (e && strcmp(e->holder, at) != 0) {
        drop(e);
        e = NULL;
    }
    err_t err = e ? OK : make(n, uid, name, at, why);
    if (err)
        return err;
    e = stores_find(n, uid, name);
    *ret_port = e->server ? store_server_port(e->server) : relay_port(e->relay);
    return OK;
}

void stores_close(struct node *n, uint32_t uid, const char *name)
{
    struct stores_entry *e = stores_find(n, uid, name);
    if (e)
        drop(e);
}
