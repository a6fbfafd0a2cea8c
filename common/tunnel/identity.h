/* The identity of a node: an Ed25519 key pair. The private key is made when a node enters a cluster and never leaves
 * it; the public key is listed with the node. At the start of each tunnel both ends sign a value that only this TLS
 * connection has (greeting.h), so a program that has the cluster's key and no listed identity opens nothing.
 *
 * The file of an identity has one line, "ed25519 " and the private key in 64 lower-case hexadecimal digits. Pure. */
#ifndef DTD_COMMON_TUNNEL_IDENTITY_H
#define DTD_COMMON_TUNNEL_IDENTITY_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IDENTITY_BYTES 32 /* of a private and of a public key */
#define IDENTITY_PROOF_BYTES 64
#define IDENTITY_FILE_BYTES 73
#define IDENTITY_FINGERPRINT_MAX 20

struct identity {
    uint8_t private_key[IDENTITY_BYTES], public_key[IDENTITY_BYTES];
};

NODISCARD err_t identity_make(struct identity *ret, struct why *why);
void identity_wipe(struct identity *identity);
NODISCARD err_t identity_sign(const struct identity *identity, const void *data, size_t len,
                              uint8_t ret[IDENTITY_PROOF_BYTES]);
bool identity_verify(const uint8_t public_key[IDENTITY_BYTES], const void *data, size_t len,
                     const uint8_t proof[IDENTITY_PROOF_BYTES]);

/* The whole file. ERR_CORRUPT: it is not the file of an identity. */
NODISCARD err_t identity_parse(const void *data, size_t len, struct identity *ret);
void identity_write(const struct identity *identity, char ret[IDENTITY_FILE_BYTES + 1]);

/* The first 8 bytes of the SHA-256 of a public key, as "0123:4567:89ab:cdef": for people to compare. */
void identity_fingerprint(const uint8_t public_key[IDENTITY_BYTES], char ret[IDENTITY_FINGERPRINT_MAX]);

#endif
