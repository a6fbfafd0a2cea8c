/* The record of a part as it travels between nodes: what is accepted encodes to the same bytes. */
#include "common/ckpt/ckpt.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ckpt_part *part;
    struct buf b = {0};
    if (ckpt_part_decode(data, size, &part))
        return 0;
    if (ckpt_part_encode(part, &b) || b.len != size || memcmp(b.data, data, size) != 0)
        abort();
    buf_fini(&b);
    ckpt_part_free(part);
    return 0;
}
