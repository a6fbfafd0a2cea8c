/* Lines of a worker's log: one that is read as a mark begins as a mark does, and has the number at its end. */
#include "common/base/log_mark.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char number[40];
    char *text = malloc(size ? size : 1); /* exactly this size, so that the sanitizer detects a read after the end */
    if (!text)
        return 0;
    memcpy(text, data, size);
    int attempt = log_mark_attempt(text, size);
    snprintf(number, sizeof(number), "%d", attempt);
    if (attempt >= 0 && (size < strlen(LOG_MARK) - 1 || memcmp(text, LOG_MARK + 1, strlen(LOG_MARK) - 1) != 0 ||
                         !memmem(text, size, number, strlen(number))))
        abort();
    free(text);
    return 0;
}
