/* Who is at the other end of a TCP connection of this machine: the kernel's socket diagnosis (sock_diag over netlink)
 * finds the one socket by its addresses in its own hash table, whatever their number, and names its owner.
 *
 * A Unix socket's peer would say so itself; TCP has no such word. One netlink socket serves any number of questions,
 * one after another; it never blocks. One thread. */
#ifndef DTD_DAEMON_STORE_PEER_UID_H
#define DTD_DAEMON_STORE_PEER_UID_H

#include "common/base/err.h"

#include <sys/types.h>

/* ERR_UNSUPPORTED: the kernel has no sock_diag for TCP; the sentence names the remedy. */
NODISCARD err_t peer_uid_open(int *ret_netlink, struct why *why);
/* The user who owns the socket that the accepted connection `fd` is connected to. ERR_CLOSED: it has gone, or has been
 * left by its process, and belongs to nobody. ERR_DENIED: it is not a socket of this machine (or its network
 * namespace).
 */
NODISCARD err_t peer_uid_get(int netlink, int fd, uid_t *ret);

#endif
