/* The metrics of a step as a line of JSON: in metrics/ID.jsonl, in metrics.jsonl beside the checkpoints, and on the way
 * from control to dtd-io. Pure; any thread. */
#ifndef DTD_COMMON_RPC_METRIC_LINE_H
#define DTD_COMMON_RPC_METRIC_LINE_H

#include "common/base/buf.h"
#include "common/rpc/metric.h"

/* A line has at most about 900 bytes today, 420 of them for traffic. The rest is space for more metrics. */
#define METRIC_LINE_BYTES 4096

/* A line with its newline, appended to ret. NaN and infinities become null, which is read back as NaN. */
NODISCARD err_t metric_line_format(const struct metric *row, struct buf *ret);
NODISCARD err_t metric_line_parse(const char *line, size_t len, struct metric *ret);

#endif
