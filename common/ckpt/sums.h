/* The three checksums of a checkpoint: CRC-32C for extents in the manifest, CRC-32 for zip records, SHA-256 for the
 * manifest itself and for comparing tensors. Pure; any thread. */
#ifndef DTD_COMMON_CKPT_SUMS_H
#define DTD_COMMON_CKPT_SUMS_H

#include "common/base/buf.h"

#include <stddef.h>
#include <stdint.h>

#define SUMS_SHA256_BYTES 32

/* Start with crc 0. Adding consecutive parts gives the same result as adding the whole. */
uint32_t sums_crc32c(uint32_t crc, const void *data, size_t len);
uint32_t sums_crc32(uint32_t crc, const void *data, size_t len);
NODISCARD err_t sums_sha256(const void *data, size_t len, uint8_t ret[SUMS_SHA256_BYTES]);
void sums_hex(const uint8_t *data, size_t len, char *ret); /* ret: 2 len + 1 bytes */

/* CRC-32C of each CKPT_EXTENT_BYTES of a stream of bytes, the last extent short. */
struct sums_extents {
    uint64_t bytes;
    uint32_t crc;    /* of the current extent */
    struct buf crcs; /* a uint32_t per full extent; sums_extents_end adds the last, short one */
};
void sums_extents_fini(struct sums_extents *s);
NODISCARD err_t sums_extents_add(struct sums_extents *s, const void *data, size_t len);
NODISCARD err_t sums_extents_end(struct sums_extents *s);
/* Replaces the checksum of a complete extent. */
void sums_extents_replace(struct sums_extents *s, uint64_t extent, uint32_t crc);
static inline uint64_t sums_extents_count(uint64_t bytes, uint64_t extent_bytes)
{
    return bytes / extent_bytes + (bytes % extent_bytes != 0);
}

#endif
