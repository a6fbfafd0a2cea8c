/* A join token: one word that a person copies from a node of the cluster to a new one. Text is "dtd1." and base64url
 * without padding of: id (8 bytes, big-endian), secret (16), number of addresses (1), each as length (1) and text, and
 * the first 4 bytes of SHA-256 of all before it. It is a secret: wipe it. */
#ifndef DTD_COMMON_TUNNEL_TOKEN_H
#define DTD_COMMON_TUNNEL_TOKEN_H

#include "common/tunnel/tunnel.h"

#define TOKEN_SECRET_BYTES 16
#define TOKEN_ADDRESSES_MAX 5
#define TOKEN_ADDRESS_MAX 127
#define TOKEN_BYTES_MAX (8 + TOKEN_SECRET_BYTES + 1 + TOKEN_ADDRESSES_MAX * (1 + TOKEN_ADDRESS_MAX) + 4)
#define TOKEN_TEXT_MAX (5 + (TOKEN_BYTES_MAX * 4 + 2) / 3 + 1) /* with the 0 behind it */

struct token {
    uint64_t id;
    uint8_t secret[TOKEN_SECRET_BYTES];
    int n_addresses; /* of nodes that may be joined by it, at least one */
    char addresses[TOKEN_ADDRESSES_MAX][TOKEN_ADDRESS_MAX + 1];
};

/* A new id and secret; the addresses are the caller's to fill in. */
NODISCARD err_t token_make(struct token *ret, struct why *why);
/* ERR_INVALID for an address that is none. */
NODISCARD err_t token_encode(const struct token *t, char ret[TOKEN_TEXT_MAX], struct why *why);
/* ERR_INVALID with a sentence that says what is wrong with the word, and never quotes it. */
NODISCARD err_t token_decode(const char *text, size_t len, struct token *ret, struct why *why);
/* The same id and secret, in constant time. */
bool token_equal(const struct token *a, const struct token *b);
struct tunnel_key_id token_key_id(const struct token *t);
void token_secret(const struct token *t, struct tunnel_secret *ret);
void token_wipe(struct token *t);

#endif
