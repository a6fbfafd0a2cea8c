/* Markers of dtd-io in a shared directory: a marker that decodes encodes to the same bytes. */
#include "common/ckpt/marker.h"
#include "common/ckpt/sums.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A fuzzer does not guess a checksum, so the input is tried a second time with a correct one. */
static void try(const uint8_t *data, size_t size)
{
    struct marker w;
    struct buf b = {0};
    if (marker_decode(data, size, &w))
        return;
    if (marker_encode(&w, &b) || b.len != size || memcmp(b.data, data, size) != 0)
        abort();
    buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try(data, size);
    uint8_t *copy = size >= 4 ? malloc(size) : NULL;
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    uint32_t crc = sums_crc32c(0, copy, size - 4);
    for (int i = 0; i < 4; i++)
        copy[size - 4 + (size_t)i] = (uint8_t)(crc >> (8 * i));
    try(copy, size);
    free(copy);
    return 0;
}
