/* A field of two bytes on the wire can need 40 bytes in protobuf-c's list of scanned members, and an empty submessage
 * needs the size of its struct. A body within its limit may therefore need much more memory than it has bytes. The
 * budget counts all allocations over the life of the message, and a free returns nothing to it, so that the blocks need
 * no headers. */
#include "common/rpc/alloc.h"

#include <stdlib.h>

#define PER_BYTE 40            /* enough for every valid message; test_alloc.c has the most expensive one */
#define BASE_BYTES (64u << 10) /* structs and lists that a message needs independently of its size */

static void *budget_alloc(void *data, size_t size)
{
    struct rpc_alloc *a = data;
    if (size > a->left) {
        a->exhausted = true;
        return NULL;
    }
    a->left -= size;
    void *p = malloc(size);
    a->no_memory = a->no_memory || !p;
    return p;
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

err_t rpc_alloc_error(const struct rpc_alloc *alloc)
{
    return alloc->no_memory ? ERR_NOMEM : ERR_CORRUPT;
}
