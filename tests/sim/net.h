/* The virtual network for libraft's messages. Between two hosts a message is late by a drawn time; it may be lost, come
 * twice, come after later ones or much too late; a cut link loses all of one direction. What a host that is down is
 * sent is lost. */
#ifndef DTD_TESTS_SIM_NET_H
#define DTD_TESTS_SIM_NET_H

#include "tests/sim/world.h"

#include <raft.h>

struct net {
    bool is_cut[MAX_HOSTS + 1][MAX_HOSTS + 1]; /* from, to */
    int64_t delay_us;                          /* up to this */
    double loss, twice, late;                  /* chances per message; late: by up to LATE_US */
};
extern struct net net;

void net_init(void);
void net_heal(void); /* all links whole, delays and chances the usual ones */
void net_cut(int from, int to);
/* Copies. 0, or RAFT_NOCONNECTION where the link is cut. */
int net_send(int from, const struct raft_message *message);
/* libraft.c's: the host gets it, with memory that libraft frees. */
void libraft_receive(struct host *host, struct raft_message *message);

#endif
