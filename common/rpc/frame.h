/* The 24-byte header of every frame, and the checks that need only the header. Pure. The format is in
 * docs/formats/wire.md. */
#ifndef DTD_COMMON_RPC_FRAME_H
#define DTD_COMMON_RPC_FRAME_H

#include "common/rpc/rpc.h"

struct frame {
    uint8_t version;
    uint8_t kind; /* enum rpc_kind */
    uint16_t method;
    uint64_t call;        /* chosen by the caller: never 0, ascending on a connection */
    uint32_t deadline_ms; /* of a request: the time left, 0: no deadline; of other frames 0 */
    uint32_t length;      /* of the body that follows */
};

void frame_encode(const struct frame *frame, uint8_t ret[RPC_HEADER_BYTES]);

/* ERR_PROTO: *ret_reason is a constant string that names the error: magic, version, kind, call 0, a body in a kind
 * without one, a deadline outside a request, a length above RPC_MAX_BODY_BYTES. */
NODISCARD err_t frame_decode(const uint8_t bytes[RPC_HEADER_BYTES], struct frame *ret, const char **ret_reason);

#endif
