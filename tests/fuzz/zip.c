/* A blob: the archive by its directory and by its local headers, and the tensor or value in its data.pkl. All ranges
 * that the parser returns must be inside the archive. */
#include "common/ckpt/blob.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct memory {
    const uint8_t *data;
    size_t size;
};

static err_t memory_read(void *arg, uint64_t offset, void *dst, size_t len, struct why *why)
{
    const struct memory *m = arg;
    if (offset > m->size || len > m->size - offset)
        abort();
    memcpy(dst, m->data + offset, len);
    return OK;
}

static void check_inside(const struct blob_tensor *t, size_t size)
{
    uint64_t last = (uint64_t)t->first;
    if (t->payload > size || t->payload_bytes > size - t->payload)
        abort();
    for (int d = 0; d < t->ndim; d++) {
        if (!t->size[d])
            return;
        last += (uint64_t)(t->size[d] - 1) * (uint64_t)t->stride[d];
    }
    if ((last + 1) * dtype_bytes(t->dtype) > t->payload_bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct memory m = {data, size};
    const struct zip_source src = {memory_read, &m, size};
    struct blob_tensor t;
    struct why why;
    for (int scan = 0; scan < 2; scan++) {
        struct ckpt_scalar s = {0};
        if (blob_tensor_read(&src, scan, &t, &why) == OK)
            check_inside(&t, size);
        if (blob_scalar_read(&src, scan, &s, &why) == OK)
            free(s.s);
    }
    if (blob_tensor_parse(data, size, &t, &why) == OK && t.ndim > BOX_MAX_DIMS)
        abort();
    return 0;
}
