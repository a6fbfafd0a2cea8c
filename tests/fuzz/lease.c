/* The body of a lease in a checkpoint directory: one that decodes encodes to the same bytes. */
#include "common/ckpt/lease.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ckpt_lease_info l;
    struct buf b = {0};
    char text[400];
    if (ckpt_lease_decode(data, size, &l))
        return 0;
    ckpt_lease_describe(&l, text, sizeof(text));
    if (ckpt_lease_encode(&l, &b) || b.len != size || memcmp(b.data, data, size) != 0)
        abort();
    buf_fini(&b);
    return 0;
}
