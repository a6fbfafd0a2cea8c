/* Open segments of the log: the counters stay inside the file, and a change after the complete batches does not change
 * them. */
#include "daemon/control/log/segment.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct log_segment a, b;
    log_segment_examine(data, size, &a);
    if (a.used_bytes > size || a.entries > size / 16 || (a.has_late_batch && !a.has_rest))
        abort();
    log_segment_examine(data, a.used_bytes, &b);
    if (b.entries != a.entries || b.used_bytes != a.used_bytes || b.has_rest)
        abort();
    return 0;
}
