/* The virtual network for libraft's messages. A message between two hosts has a random delay; it may be lost, arrive
 * twice, after later ones, or much too late. A cut link loses all messages of one direction. Messages to a host that is
 * down are lost. */
#ifndef DTD_TESTS_SIM_NET_H
#define DTD_TESTS_SIM_NET_H

#include "tests/sim/world.h"

#include <raft.h>

struct net {
    bool is_cut[MAX_HOSTS + 1][MAX_HOSTS + 1]; /* from, to */
    int64_t delay_us;                          /* upper limit of the delay */
    double loss, twice, late;                  /* probabilities per message; late: by up to LATE_US */
};
extern struct net net;

void net_init(void);
void net_heal(void); /* restores all links and the default delays and probabilities */
void net_cut(int from, int to);
/* May a message of that host be delivered? NULL: always. */
extern bool (*net_admits)(int from, int to);
/* Copies the message of the voter `id` on one host to another host. Returns 0, or RAFT_NOCONNECTION if the link is cut.
 */
int net_send(int from, raft_id id, int to, const struct raft_message *message);
void net_message_free(struct raft_message *message); /* what libraft would free */
/* In libraft.c: delivers the message of a host to another; libraft frees its memory. */
void libraft_receive(struct host *from, struct host *to, struct raft_message *message);

#endif
