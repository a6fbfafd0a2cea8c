/* The c10d store of a command's epoch, and the ways to it, without their sockets: the port is the epoch, by which a
 * process of the simulation knows what it is in. Nobody connects. */
#include "daemon/store/relay.h"
#include "daemon/store/server.h"
#include "tests/sim/world.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct store_server {
    uint16_t port;
};

struct relay {
    uint16_t port;
};

/* NAME is JOB/EPOCH. */
static uint16_t port_of(const char *name)
{
    const char *epoch = strchr(name, '/');
    if (!epoch)
        broken("a store is opened that is of no epoch: %s", name);
    return (uint16_t)atoi(epoch + 1);
}

err_t store_server_open(uv_loop_t *loop, const struct store_server_config *config, struct store_server **ret,
                        struct why *why)
{
    (void)loop;
    (void)why;
    *ret = calloc(1, sizeof(**ret));
    assert(*ret);
    (*ret)->port = port_of(config->name);
    return OK;
}

uint16_t store_server_port(const struct store_server *server)
{
    return server->port;
}

err_t store_server_adopt(struct store_server *server, int fd)
{
    (void)server;
    (void)fd;
    broken("a store takes a connection");
}

void store_server_close(struct store_server *server, void (*cb)(void *arg), void *arg)
{
    assert(!cb);
    (void)arg;
    free(server);
}

err_t relay_open(const struct relay_config *config, struct relay **ret, struct why *why)
{
    (void)why;
    *ret = calloc(1, sizeof(**ret));
    assert(*ret);
    (*ret)->port = port_of(config->name);
    return OK;
}

uint16_t relay_port(const struct relay *r)
{
    return r->port;
}

void relay_connected(struct relay_call *call, int fd)
{
    (void)call;
    (void)fd;
    broken("a relay is connected");
}

void relay_close(struct relay *r)
{
    free(r);
}
