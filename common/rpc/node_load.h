/* How busy a node is: its processors, memory, network and GPUs. Each node measures itself every few seconds
 * (daemon/control/local/load.c) and reports to the leader, which forgets it when the node is away; nothing is logged.
 *
 * A new number is a row here and the code that measures it; `dtctl node -o json`, `dtctl cluster status -o json` and
 * the web page have it without further changes. */
#ifndef DTD_COMMON_RPC_NODE_LOAD_H
#define DTD_COMMON_RPC_NODE_LOAD_H

#include "common/rpc/fields.h"

#define NODE_LOAD_GPUS 64

// clang-format off
#define NODE_LOAD_FIELDS(X) \
    X(INT, cores, FIELD_OPTIONAL) /* hardware threads that are online */ \
    X(REAL, cores_used, FIELD_OPTIONAL) /* 1.0: one of them, all the time since the measurement before */ \
    X(REAL, load, FIELD_OPTIONAL) /* threads that run or wait for a processor or a disk, about the last minute */ \
    X(INT, memory_bytes, FIELD_OPTIONAL) \
    X(INT, memory_used_bytes, FIELD_OPTIONAL) /* what is not available to a new process */ \
    X(REAL, received_bytes_per_s, FIELD_OPTIONAL) /* by the kernel's interfaces; RDMA passes them by */ \
    X(REAL, sent_bytes_per_s, FIELD_OPTIONAL) \
    X(REAL, temperature_c, FIELD_OPTIONAL) /* of the hottest processor */
#define GPU_LOAD_FIELDS(X) \
    X(INT, gpu, FIELD_REQUIRED) /* its index */ \
    X(REAL, busy, FIELD_OPTIONAL) /* 0 to 1 */ \
    X(INT, memory_bytes, FIELD_OPTIONAL) \
    X(INT, memory_used_bytes, FIELD_OPTIONAL) \
    X(REAL, temperature_c, FIELD_OPTIONAL) \
    X(REAL, power_w, FIELD_OPTIONAL) \
    X(REAL, power_limit_w, FIELD_OPTIONAL) \
    X(TEXT, sick, FIELD_OPTIONAL) /* why its results cannot be trusted; completes "GPU 0 .." */
// clang-format on

struct gpu_load {
    GPU_LOAD_FIELDS(FIELD_MEMBER)
};

struct node_load {
    NODE_LOAD_FIELDS(FIELD_MEMBER)
    struct gpu_load gpu[NODE_LOAD_GPUS];
    int n_gpu;
};

extern const struct field_table node_load_fields, gpu_load_fields;
extern const struct node_load node_load_none; /* nothing was measured */
extern const struct gpu_load gpu_load_none;

#endif
