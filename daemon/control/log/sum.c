#include "daemon/control/log/sum.h"

#include <endian.h>
#include <string.h>

static const char magic[8] = {'d', 't', 'd', '-', 's', 'u', 'm', '1'};

/* Four bits at a time: the table has 16 entries instead of 256, and a segment of 4 MiB still takes some 20 ms. */
uint32_t log_crc(uint32_t crc, const void *data, size_t len)
{
    static const uint32_t table[16] = {
        0x00000000, 0x04c11db7, 0x09823b6e, 0x0d4326d9, 0x130476dc, 0x17c56b6b, 0x1a864db2, 0x1e475005,
        0x2608edb8, 0x22c9f00f, 0x2f8ad6d6, 0x2b4bcb61, 0x350c9b64, 0x31cd86d3, 0x3c8ea00a, 0x384fbdbd,
    };
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++) {
        crc ^= (uint32_t)p[i] << 24;
        crc = crc << 4 ^ table[crc >> 28];
        crc = crc << 4 ^ table[crc >> 28];
    }
    return crc;
}

void log_sum_make(const void *data, size_t len, uint8_t ret[LOG_SUM_BYTES])
{
    uint32_t crc = htole32(log_crc(0, data, len));
    memset(ret, 0, LOG_SUM_BYTES);
    memcpy(ret, magic, sizeof(magic));
    memcpy(ret + sizeof(magic), &crc, sizeof(crc));
}

err_t log_sum_check(const void *data, size_t len, size_t *ret_len)
{
    uint8_t expected[LOG_SUM_BYTES];
    const uint8_t *sum = (const uint8_t *)data + len - LOG_SUM_BYTES;
    *ret_len = len;
    if (len < LOG_SUM_BYTES || memcmp(sum, magic, sizeof(magic)) != 0)
        return ERR_NOTFOUND;
    log_sum_make(data, len - LOG_SUM_BYTES, expected);
    if (memcmp(sum, expected, LOG_SUM_BYTES) != 0)
        return ERR_CORRUPT;
    *ret_len = len - LOG_SUM_BYTES;
    return OK;
}
