/* The user at the other end of a TCP connection within this machine. The kernel's socket diagnosis (sock_diag over
 * netlink) finds the peer's socket by its addresses in the kernel's own hash table and returns its owner. The cost does
 * not depend on the number of sockets.
 *
 * A Unix socket has SO_PEERCRED for this; TCP has no equivalent. One netlink socket serves any number of queries, one
 * after another, and never blocks. One thread. */
#ifndef DTD_DAEMON_STORE_PEER_UID_H
#define DTD_DAEMON_STORE_PEER_UID_H

#include "common/base/err.h"

#include <sys/types.h>

/* Opens the netlink socket. ERR_UNSUPPORTED: the kernel has no sock_diag for TCP; `why` names the remedy. */
NODISCARD err_t peer_uid_open(int *ret_netlink, struct why *why);
/* The user who owns the socket to which the accepted connection `fd` is connected. ERR_CLOSED: the peer or its process
 * has closed that socket, so that it has no owner. ERR_DENIED: the peer's socket is not in this machine's network
 * namespace. */
NODISCARD err_t peer_uid_get(int netlink, int fd, uid_t *ret);

#endif
