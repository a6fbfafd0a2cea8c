/* A local port for a store on another node. The relay checks who may connect (listener.h) and copies the bytes of each
 * connection, both ways and uninterpreted, over a stream that the owner provides. Memory per connection: two buffers of
 * RELAY_BYTES. An end that does not read holds the other end back. Runs on the loop's thread. */
#ifndef DTD_DAEMON_STORE_RELAY_H
#define DTD_DAEMON_STORE_RELAY_H

#include "common/base/err.h"

#include <sys/types.h>
#include <uv.h>

#define RELAY_BYTES (16u << 10)

struct relay;
struct relay_call; /* an accepted connection */

struct relay_config {
    uv_loop_t *loop;
    const char *name; /* as in listener.h */
    uid_t uid;
    int max_connections;
    struct shares *shares; /* as in listener.h */
    int64_t max_user;
    /* Connects to the store and then calls relay_connected, exactly once, now or later. */
    void (*dial)(void *owner, struct relay_call *call);
    void *owner;
};

NODISCARD err_t relay_open(const struct relay_config *config, struct relay **ret, struct why *why);
uint16_t relay_port(const struct relay *r);
/* The relay takes over the descriptor. -1: the store cannot be reached; the relay closes the connection. */
void relay_connected(struct relay_call *call, int fd);
int relay_connections(const struct relay *r);
/* Closes every connection. The owner must still call relay_connected for each `dial` in progress. */
void relay_close(struct relay *r);

#endif
