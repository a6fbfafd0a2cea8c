#include "daemon/control/cluster/text_sum.h"

#include "daemon/control/log/sum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void text_sum_print(const char *text, size_t len, char ret[TEXT_SUM_BYTES + 1])
{
    snprintf(ret, TEXT_SUM_BYTES + 1, "sum=%08" PRIx32 "\n", log_crc(0, text, len));
}

err_t text_sum_check(const char *path, const char *text, size_t len, size_t *ret_len, struct why *why)
{
    char sum[TEXT_SUM_BYTES + 1];
    size_t body = len < TEXT_SUM_BYTES ? 0 : len - TEXT_SUM_BYTES;
    *ret_len = len;
    if (len && text[len - 1] != '\n')
        return why_set(why, ERR_CORRUPT, "%s is damaged: its end is missing", path);
    if (len < TEXT_SUM_BYTES || memcmp(text + body, "sum=", 4) != 0)
        return OK;
    text_sum_print(text, body, sum);
    if (memcmp(text + body, sum, TEXT_SUM_BYTES) != 0)
        return why_set(why, ERR_CORRUPT, "%s is damaged: its checksum does not match", path);
    *ret_len = body;
    return OK;
}
