/* What ranks say to each other before and between messages, and its parsers: pure, and fuzzed.
 *
 *   address   "ADDRESS PORT", what a rank leaves in the epoch's store
 *   identity  "dtd-comm/1 epoch=E from=R to=R lane=L world=W", whom a connection comes from and what it is for; in TLS
 *             the identity of the key, so that its proof covers it
 *   header    16 bytes before each message: magic u32, its number on the lane u32, its bytes u64; little-endian */
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
/* A name too: its first address. May take as long as the resolver does. */
NODISCARD err_t wire_address_find(const char *text, uint16_t port, union wire_address *ret);
NODISCARD err_t wire_address_parse(const char *word, size_t bytes, union wire_address *ret);
/* "ADDRESS PORT" into ret[WIRE_ADDRESS_MAX]. */
void wire_address_print(const union wire_address *a, char *ret);
socklen_t wire_address_bytes(const union wire_address *a);

struct wire_identity {
    uint64_t epoch;
    int from, to, lane, world;
};
/* Into ret[WIRE_IDENTITY_MAX]; its length. */
size_t wire_identity_print(const struct wire_identity *id, char *ret);
NODISCARD err_t wire_identity_parse(const void *word, size_t bytes, struct wire_identity *ret);

/* What a header says. */
struct wire_header {
    uint32_t number;
    uint64_t bytes;
};
void wire_header_put(const struct wire_header *h, uint8_t *ret);
/* ERR_PROTO for what is none. */
NODISCARD err_t wire_header_get(const uint8_t *data, struct wire_header *ret);

#endif
