/* A join token: a string that an administrator copies from a node of the cluster to a new node. Its text is "dtd1." and
 * base64url without padding of: id (8 bytes, big-endian), secret (16), number of addresses (1), each as length (1) and
 * text, and the first 4 bytes of SHA-256 of everything before. An address is a node's list with commas, as far as it
 * fits. A token is a secret: wipe it. */
#ifndef DTD_COMMON_TUNNEL_TOKEN_H
#define DTD_COMMON_TUNNEL_TOKEN_H

#include "common/tunnel/tunnel.h"

#define TOKEN_SECRET_BYTES 16
#define TOKEN_ADDRESSES_MAX 5
#define TOKEN_ADDRESS_MAX 127
#define TOKEN_BYTES_MAX (8 + TOKEN_SECRET_BYTES + 1 + TOKEN_ADDRESSES_MAX * (1 + TOKEN_ADDRESS_MAX) + 4)
#define TOKEN_TEXT_MAX (5 + (TOKEN_BYTES_MAX * 4 + 2) / 3 + 1) /* including the terminating 0 */

struct token {
    uint64_t id;
    uint8_t secret[TOKEN_SECRET_BYTES];
    int n_addresses; /* at least one: nodes of the cluster that the new node may contact */
    char addresses[TOKEN_ADDRESSES_MAX][TOKEN_ADDRESS_MAX + 1];
};

/* Makes a new id and secret; the caller fills in the addresses. */
NODISCARD err_t token_make(struct token *ret, struct why *why);
/* ERR_INVALID: an address is invalid. */
NODISCARD err_t token_encode(const struct token *t, char ret[TOKEN_TEXT_MAX], struct why *why);
/* ERR_INVALID: the message describes the error and never quotes the token. */
NODISCARD err_t token_decode(const char *text, size_t len, struct token *ret, struct why *why);
/* Compares id and secret; the secret in constant time. */
bool token_equal(const struct token *a, const struct token *b);
struct tunnel_key_id token_key_id(const struct token *t);
void token_secret(const struct token *t, struct tunnel_secret *ret);
void token_wipe(struct token *t);

#endif
