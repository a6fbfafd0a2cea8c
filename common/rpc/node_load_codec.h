/* Copies between struct node_load and its message (proto/field.proto). */
#ifndef DTD_COMMON_RPC_NODE_LOAD_CODEC_H
#define DTD_COMMON_RPC_NODE_LOAD_CODEC_H

#include "common/rpc/node_load.h"
#include "proto/field.pb-c.h"

struct node_load_message {
    Dtd__NodeLoad m;
    Dtd__NodeGpuLoad gpu[NODE_LOAD_GPUS], *refs[NODE_LOAD_GPUS];
};

/* Borrows the texts of `load`. node_load_encoded_fini frees the rest, also after an error (ERR_NOMEM). */
NODISCARD err_t node_load_encode(const struct node_load *load, struct node_load_message *ret);
void node_load_encoded_fini(struct node_load_message *m);
/* Texts are borrowed from the message. GPUs above NODE_LOAD_GPUS are left out. */
void node_load_decode(const Dtd__NodeLoad *m, struct node_load *ret);

#endif
