/* Parser for the addresses "host:port" and "[v6]:port" in configurations, options and join tokens, and a check for
 * names of nodes. Pure. */
#ifndef DTD_COMMON_TUNNEL_ADDRESS_H
#define DTD_COMMON_TUNNEL_ADDRESS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define ADDRESS_HOST_MAX 253
#define ADDRESS_TEXT_MAX 263 /* "host:port" or "[v6]:port", or all addresses of a node */

struct address {
    char host[ADDRESS_HOST_MAX + 1]; /* a name or a numeric address, without brackets */
    bool v6;                         /* the host was in brackets */
    uint16_t port;
};

/* ERR_INVALID: the message quotes only printable bytes of the address. Port 0 is legal here. */
NODISCARD err_t address_parse(const char *text, struct address *ret, struct why *why);
/* The addresses of one node, "A,B,..", in the order in which others try them. */
#define ADDRESSES_MAX 4 /* two networks, each with IPv4 and IPv6 */
NODISCARD err_t addresses_parse(const char *text, struct address ret[ADDRESSES_MAX], int *ret_n, struct why *why);
/* Copies the first address of such a list, which fits into `size` bytes, and returns the rest of the list; NULL: the
 * list is at its end. */
const char *addresses_next(const char *list, char *ret, size_t size);
/* The socket address of a numeric host. ERR_NOTFOUND: the host is a name. */
NODISCARD err_t address_numeric(const struct address *a, struct sockaddr_storage *ret, socklen_t *ret_len);
/* A TCP socket, not blocking, to be bound to `at`. One for [::] takes IPv4, too, whatever the machine's default is
 * (net.ipv6.bindv6only); where the kernel has no IPv6 (ipv6.disable=1), [::] becomes 0.0.0.0. -1: errno is set. */
int address_socket(struct sockaddr_storage *at, socklen_t *len);
/* "1.2.3.4:5" or "[::1]:5"; "?" for other families. */
void address_print(const struct sockaddr_storage *from, char *ret, size_t size);
/* 1 to 253 letters, digits, points, dashes and underscores. */
bool node_name_valid(const char *name, size_t len);

#endif
