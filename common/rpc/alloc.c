/* A field of two bytes on the wire can cost 40 in protobuf-c's list of scanned members, and an empty submessage the
 * size of its struct: a body within its limit may still ask for far more memory than it has bytes. The budget counts
 * what is handed out over the life of the message and is not given back, so it needs no headers in front of the blocks.
 */
#include "common/rpc/alloc.h"

#include <stdlib.h>

#define PER_BYTE 40
#define BASE_BYTES (64u << 10)

static void *budget_alloc(void *data, size_t size)
{
    struct rpc_alloc *a = data;
    if (size > a->left) {
        a->exhausted = true;
        return NULL;
    }
    a->left -= size;
    return malloc(size);
}

static void budget_free(void *data, void *p)
{
    (void)data;
    free(p);
}

void rpc_alloc_init(struct rpc_alloc *alloc, size_t wire_bytes)
{
    *alloc = (struct rpc_alloc){
        .base = {.alloc = budget_alloc, .free = budget_free, .allocator_data = alloc},
        .left = BASE_BYTES + PER_BYTE * wire_bytes,
    };
}
