/* Decompresses a block in memory whose size is known. The input may be hostile. */
#ifndef DTD_COMMON_DATA_UNPACK_H
#define DTD_COMMON_DATA_UNPACK_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum unpack_codec { UNPACK_NONE, UNPACK_SNAPPY, UNPACK_GZIP, UNPACK_ZSTD, UNPACK_LZ4 };

/* Fills all of out, or returns ERR_CORRUPT. ERR_NOMEM. */
NODISCARD err_t unpack_block(enum unpack_codec codec, const uint8_t *in, size_t in_len, uint8_t *out, size_t out_len);

#endif
