#include "common/rpc/node_load.h"

#define NODE_ROW(...) FIELD_ROW(struct node_load, __VA_ARGS__)
#define GPU_ROW(...) FIELD_ROW(struct gpu_load, __VA_ARGS__)

static const struct field node_rows[] = {NODE_LOAD_FIELDS(NODE_ROW)};
static const struct field gpu_rows[] = {GPU_LOAD_FIELDS(GPU_ROW)};

const struct field_table node_load_fields = {node_rows, sizeof(node_rows) / sizeof(node_rows[0]),
                                             sizeof(struct node_load), 0};
const struct field_table gpu_load_fields = {gpu_rows, sizeof(gpu_rows) / sizeof(gpu_rows[0]), sizeof(struct gpu_load),
                                            0};
const struct node_load node_load_none = {NODE_LOAD_FIELDS(FIELD_NONE)};
const struct gpu_load gpu_load_none = {GPU_LOAD_FIELDS(FIELD_NONE)};
