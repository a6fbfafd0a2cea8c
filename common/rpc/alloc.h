/* A ProtobufCAllocator with a budget: it bounds the memory for unpacking a peer's message. One per message. */
#ifndef DTD_COMMON_RPC_ALLOC_H
#define DTD_COMMON_RPC_ALLOC_H

#include "common/base/err.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

struct rpc_alloc {
    ProtobufCAllocator base; /* give &base to protobuf_c_message_unpack and protobuf_c_message_free_unpacked */
    size_t left;
    bool exhausted; /* an allocation exceeded the budget: unpacking failed because of the message, not of malloc */
    bool no_memory; /* malloc failed */
};

/* Sets the budget for a body of `wire_bytes` to the most that any well-formed message of this size needs. */
void rpc_alloc_init(struct rpc_alloc *alloc, size_t wire_bytes);

/* Why unpacking has failed: ERR_NOMEM, or ERR_CORRUPT for the message itself. */
err_t rpc_alloc_error(const struct rpc_alloc *alloc);

#endif
