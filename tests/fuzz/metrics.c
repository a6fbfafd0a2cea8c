/* A line of metrics.jsonl: an accepted line, written and read again, gives the same values. */
#include "common/rpc/metric_line.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct metric row, again;
    struct buf line = {0};
    if (metric_line_parse((const char *)data, size, &row) || metric_line_format(&row, &line))
        return 0;
    if (metric_line_parse((const char *)line.data, line.len, &again) || again.step != row.step ||
        again.epoch != row.epoch || again.workers != row.workers)
        abort();
    buf_fini(&line);
    return 0;
}
