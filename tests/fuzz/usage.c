/* A line of usage.jsonl, which lies in a folder of the user: an accepted line, written and read again, has the same
 * ranks, and a second time the same bytes. */
#include "common/rpc/usage.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct usage_sample s, again;
    struct buf first = {0}, second = {0};
    if (usage_line_parse((const char *)data, size, &s))
        return 0;
    if (usage_line_format(&s, &first) == OK && usage_line_parse((const char *)first.data, first.len, &again) == OK) {
        if (!usage_sample_fits(&s, &again) || usage_line_format(&again, &second) || first.len != second.len ||
            memcmp(first.data, second.data, first.len) != 0)
            abort();
        usage_sample_join(&s, &again);
        usage_sample_fini(&again);
    }
    usage_sample_fini(&s);
    buf_fini(&first);
    buf_fini(&second);
    return 0;
}
