/* A command's c10d store of an epoch, and the relays to it, without sockets. The number of the epoch serves as the
 * port, from which a simulated process derives its epoch. Nothing connects to it. */
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
        broken("the name of a store is not JOB/EPOCH: %s", name);
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
    broken("a store accepts a connection, which the simulation never opens");
}

void store_server_close(struct store_server *server, void (*cb)(void *arg), void *arg)
{
    free(server);
    if (cb)
        world_after(world.current, 0, cb, arg);
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
    broken("a relay accepts a connection, which the simulation never opens");
}

void relay_close(struct relay *r)
{
    free(r);
}
