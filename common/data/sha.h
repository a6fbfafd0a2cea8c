/* SHA-256 as it goes along, in the caller's memory; the digest as 64 hex digits. One thread each. */
#ifndef DTD_COMMON_DATA_SHA_H
#define DTD_COMMON_DATA_SHA_H

#include "common/base/err.h"

#include <stddef.h>

struct sha {
    void *ctx; /* EVP_MD_CTX; NULL when there is none */
};

NODISCARD err_t sha_init(struct sha *s);
NODISCARD err_t sha_add(struct sha *s, const void *data, size_t len);
/* Ends it; `s` must be initialised again before the next byte. */
NODISCARD err_t sha_hex(struct sha *s, char ret[65]);
/* Legal at any time, on a zeroed one too. */
void sha_fini(struct sha *s);
NODISCARD err_t sha_of(const void *data, size_t len, char ret[65]);

#endif
