/* Nobody opens a c10d store in the simulated cluster: its library, which accepts on real ports, is left out, and what
 * control would call of it says so. */
#include "daemon/store/relay.h"
#include "daemon/store/server.h"
#include "tests/sim/world.h"

err_t store_server_open(uv_loop_t *loop, const struct store_server_config *config, struct store_server **ret,
                        struct why *why)
{
    broken("a store is opened");
}

uint16_t store_server_port(const struct store_server *server)
{
    broken("a store is asked for its port");
}

err_t store_server_adopt(struct store_server *server, int fd)
{
    broken("a store takes a connection");
}

void store_server_close(struct store_server *server, void (*cb)(void *arg), void *arg)
{
    broken("a store is closed");
}

err_t relay_open(const struct relay_config *config, struct relay **ret, struct why *why)
{
    broken("a relay is opened");
}

uint16_t relay_port(const struct relay *r)
{
    broken("a relay is asked for its port");
}

void relay_connected(struct relay_call *call, int fd)
{
    broken("a relay is connected");
}

void relay_close(struct relay *r)
{
    broken("a relay is closed");
}
