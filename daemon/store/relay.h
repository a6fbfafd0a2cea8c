/* A port that leads to a store elsewhere: who may come in is asked here (gate.h), and every connection is carried over
 * a stream that the owner brings, byte for byte, both ways. It knows nothing of what is said. Memory of a connection:
 * two buffers of RELAY_BYTES; who does not take holds the other back. One loop's thread. */
#ifndef DTD_DAEMON_STORE_RELAY_H
#define DTD_DAEMON_STORE_RELAY_H

#include "common/base/err.h"

#include <sys/types.h>
#include <uv.h>

#define RELAY_BYTES (16u << 10)

struct relay;
struct relay_call; /* a connection that has come in and has no stream yet */

struct relay_config {
    uv_loop_t *loop;
    const char *name; /* as in gate.h */
    uid_t uid;
    int max_connections;
    /* Brings a stream socket to the store, by relay_connected, once, now or later. */
    void (*dial)(void *owner, struct relay_call *call);
    void *owner;
};

NODISCARD err_t relay_open(const struct relay_config *config, struct relay **ret, struct why *why);
uint16_t relay_port(const struct relay *r);
/* The descriptor is the relay's from here. -1: the store cannot be reached, and the connection is closed. */
void relay_connected(struct relay_call *call, int fd);
int relay_connections(const struct relay *r);
/* Closes every connection. What is being dialled is still to be answered. */
void relay_close(struct relay *r);

#endif
