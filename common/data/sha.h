/* Incremental SHA-256; the digest is 64 hex digits. Each struct belongs to one thread. */
#ifndef DTD_COMMON_DATA_SHA_H
#define DTD_COMMON_DATA_SHA_H

#include "common/base/err.h"

#include <stddef.h>

struct sha {
    void *ctx; /* EVP_MD_CTX; NULL: not initialised */
};

NODISCARD err_t sha_init(struct sha *s);
NODISCARD err_t sha_add(struct sha *s, const void *data, size_t len);
/* Finishes the hash; `s` must be initialised again before it is used again. */
NODISCARD err_t sha_hex(struct sha *s, char ret[65]);
/* May be called at any time, also on a zeroed struct. */
void sha_fini(struct sha *s);
NODISCARD err_t sha_of(const void *data, size_t len, char ret[65]);

#endif
