/* Any bytes as a greeting: they are refused with a message, or encode to the same bytes. */
#include "common/tunnel/greeting.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct greeting g;
    struct why why = {""};
    uint8_t again[GREETING_MAX_BYTES];
    if (size >= GREETING_HEADER_BYTES && greeting_length(data) > GREETING_MAX_BYTES)
        abort();
    if (greeting_decode(data, size, &g, &why)) {
        if (!why.text[0])
            abort();
        return 0;
    }
    if (greeting_encode(&g, again) != size || memcmp(again, data, size) != 0)
        abort();
    return 0;
}
