#include "common/rpc/metric.h"

#define ROW(...) FIELD_ROW(struct metric, __VA_ARGS__)

static const struct field rows[] = {METRIC_FIELDS(ROW)};

const struct field_table metric_fields = {rows, sizeof(rows) / sizeof(rows[0]), sizeof(struct metric), 0};
const struct metric metric_none = {METRIC_FIELDS(FIELD_NONE)};
