/* A ProtobufCAllocator with a budget: what a peer's bytes may cost when they are unpacked. One message, one allocator.
 */
#ifndef DTD_COMMON_RPC_ALLOC_H
#define DTD_COMMON_RPC_ALLOC_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

struct rpc_alloc {
    ProtobufCAllocator base; /* give &base to protobuf_c_message_unpack and protobuf_c_message_free_unpacked */
    size_t left;
    bool exhausted; /* an allocation was refused: the message, not the machine, was too big */
};

/* The budget for a body of `wire_bytes`: the worst that a well-formed message of ours costs, and nothing beyond. */
void rpc_alloc_init(struct rpc_alloc *alloc, size_t wire_bytes);

#endif
