/* Any bytes as the file of an identity: they are refused, or written again as they were. */
#include "common/tunnel/identity.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct identity x;
    char again[IDENTITY_FILE_BYTES + 1];
    if (identity_parse(data, size, &x))
        return 0;
    identity_write(&x, again);
    if (size != IDENTITY_FILE_BYTES || memcmp(again, data, size) != 0)
        abort();
    return 0;
}
