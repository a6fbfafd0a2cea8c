/* Checksums of the log's files. Pure; any thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_SUM_H
#define DTD_DAEMON_CONTROL_LOG_SUM_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CRC-32 as libraft computes it for its segments: polynomial 0x04c11db7, most significant bit first, initial value 0,
 * no final XOR. Start with crc 0; adding consecutive parts gives the same result as adding the whole. */
uint32_t log_crc(uint32_t crc, const void *data, size_t len);

/* A sum at the end of a file or of a snapshot: {8 bytes "dtd-sum1", u32 little-endian log_crc of all bytes before, u32
 * zero}. A reader that does not know it finds 16 bytes more than it uses. */
#define LOG_SUM_BYTES 16
void log_sum_make(const void *data, size_t len, uint8_t ret[LOG_SUM_BYTES]);
/* The same of bytes whose log_crc is known. */
void log_sum_encode(uint32_t crc, uint8_t ret[LOG_SUM_BYTES]);
/* Whether the last bytes of a file are a sum, right or wrong. */
bool log_sum_is_there(const uint8_t tail[LOG_SUM_BYTES]);
/* Stores the number of bytes in front of the sum. ERR_CORRUPT: the sum does not match. ERR_NOTFOUND: there is no sum,
 * as in what versions before 0.1.0 wrote; `ret_len` is then `len`. */
NODISCARD err_t log_sum_check(const void *data, size_t len, size_t *ret_len);

#endif
