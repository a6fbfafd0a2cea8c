/* The checksum at the end of the text files in STATE/cluster: a last line "sum=" with log_crc (log/sum.h) of all lines
 * before, in 8 hexadecimal digits. Files of older versions have none. Pure. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_TEXT_SUM_H
#define DTD_DAEMON_CONTROL_CLUSTER_TEXT_SUM_H

#include "common/base/err.h"

#include <stddef.h>

#define TEXT_SUM_BYTES (sizeof("sum=00000000\n") - 1)

/* Prints the line and a zero byte to `ret`, which may follow the text. */
void text_sum_print(const char *text, size_t len, char ret[TEXT_SUM_BYTES + 1]);
/* Stores the length of the text in front of the line. Without the line nothing is checked; a damaged line is none, and
 * the reader refuses it as an unknown key. ERR_CORRUPT: the sum does not match, or the last line has no end. `path` is
 * for the message. */
NODISCARD err_t text_sum_check(const char *path, const char *text, size_t len, size_t *ret_len, struct why *why);

#endif
