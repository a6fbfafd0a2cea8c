/* ISA-L's CRC functions use signed lengths or an inverted register; these wrappers hide both. */
#include "common/ckpt/sums.h"

#include "common/ckpt/ckpt.h"

#include <isa-l/crc.h>
#include <openssl/evp.h>
#include <string.h>

#define PIECE (1u << 30) /* crc32_iscsi takes the length as int */

uint32_t sums_crc32c(uint32_t crc, const void *data, size_t len)
{
    unsigned char *p = (unsigned char *)(uintptr_t)data; /* the library's parameter lacks a const */
    while (len) {
        size_t n = len < PIECE ? len : PIECE;
        crc = ~crc32_iscsi(p, (int)n, ~crc);
        p += n;
        len -= n;
    }
    return crc;
}

uint32_t sums_crc32(uint32_t crc, const void *data, size_t len)
{
    return len ? crc32_gzip_refl(crc, data, len) : crc;
}

err_t sums_sha256(const void *data, size_t len, uint8_t ret[SUMS_SHA256_BYTES])
{
    return EVP_Digest(data, len, ret, NULL, EVP_sha256(), NULL) ? OK : ERR_NOMEM;
}

void sums_hex(const uint8_t *data, size_t len, char *ret)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        ret[2 * i] = digits[data[i] >> 4];
        ret[2 * i + 1] = digits[data[i] & 15];
    }
    ret[2 * len] = '\0';
}

void sums_extents_fini(struct sums_extents *s)
{
    buf_fini(&s->crcs);
    *s = (struct sums_extents){0};
}

static err_t extent_close(struct sums_extents *s)
{
    uint32_t crc = s->crc;
    s->crc = 0;
    return buf_append(&s->crcs, &crc, sizeof(crc));
}

err_t sums_extents_add(struct sums_extents *s, const void *data, size_t len)
{
    const uint8_t *p = data;
    err_t err = OK;
    while (len && !err) {
        size_t n = CKPT_EXTENT_BYTES - s->bytes % CKPT_EXTENT_BYTES;
        n = n < len ? n : len;
        s->crc = sums_crc32c(s->crc, p, n);
        s->bytes += n;
        p += n;
        len -= n;
        if (s->bytes % CKPT_EXTENT_BYTES == 0)
            err = extent_close(s);
    }
    return err;
}

err_t sums_extents_end(struct sums_extents *s)
{
    return s->bytes % CKPT_EXTENT_BYTES ? extent_close(s) : OK;
}

void sums_extents_replace(struct sums_extents *s, uint64_t extent, uint32_t crc)
{
    memcpy(s->crcs.data + extent * sizeof(crc), &crc, sizeof(crc));
}
