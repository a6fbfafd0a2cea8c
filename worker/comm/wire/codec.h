/* Encoders and parsers of the data that wires exchange in addition to messages. The functions have no state; fuzzers
 * cover the parsers.
 *
 *   address   "ADDRESS PORT", which a rank publishes in the epoch's store
 *   identity  "dtd-comm/1 epoch=E from=R to=R lane=L world=W": the sender and the purpose of a connection. In TLS it is
 *             the identity of the pre-shared key, so the handshake authenticates it
 *   header    16 bytes before each message: magic u32, number on the lane u32, bytes of the message u64; little-endian
 */
#ifndef DTD_WORKER_COMM_WIRE_CODEC_H
#define DTD_WORKER_COMM_WIRE_CODEC_H

#include "common/base/err.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define WIRE_ADDRESS_MAX 64
#define WIRE_IDENTITY_MAX 128
#define WIRE_HEADER_BYTES 16
#define WIRE_MESSAGE_MAX ((uint64_t)1 << 48)

union wire_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* `text` is a numeric IPv4 or IPv6 address. */
NODISCARD err_t wire_address_make(const char *text, uint16_t port, union wire_address *ret);
/* The same, and also accepts a host name: of its addresses, the first that this machine has, else the first. May block
 * as long as the resolver does. */
NODISCARD err_t wire_address_find(const char *text, uint16_t port, union wire_address *ret);
NODISCARD err_t wire_address_parse(const char *value, size_t bytes, union wire_address *ret);
/* Writes "ADDRESS PORT" to ret[WIRE_ADDRESS_MAX]. */
void wire_address_print(const union wire_address *a, char *ret);
socklen_t wire_address_bytes(const union wire_address *a);

struct wire_identity {
    uint64_t epoch;
    int from, to, lane, world;
};
/* Writes the identity to ret[WIRE_IDENTITY_MAX]; returns its length. */
size_t wire_identity_print(const struct wire_identity *id, char *ret);
NODISCARD err_t wire_identity_parse(const void *value, size_t bytes, struct wire_identity *ret);

struct wire_header {
    uint32_t number;
    uint64_t bytes;
};
void wire_header_put(const struct wire_header *h, uint8_t *ret);
/* ERR_PROTO when the magic is wrong or the size exceeds WIRE_MESSAGE_MAX. */
NODISCARD err_t wire_header_get(const uint8_t *data, struct wire_header *ret);

#endif
