/* A safetensors file in memory: length, header and data. The tensors of an accepted header cover the data without gaps
 * or overlaps. */
#include "common/ckpt/safetensors.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors s;
    uint64_t n, sum = 0;
    if (size < sizeof(n))
        return 0;
    memcpy(&n, data, sizeof(n));
    n = le64toh(n);
    if (n > size - sizeof(n))
        return 0;
    if (safetensors_parse(data + sizeof(n), (size_t)n, size - sizeof(n) - n, &s, NULL))
        return 0;
    for (int i = 0; i < s.n; i++) {
        const struct safetensor *t = &s.list[i];
        if (t->end < t->begin || t->end > size - sizeof(n) - n || safetensors_find(&s, t->name) != t)
            abort();
        if (t->dtype != DT_NONE && (uint64_t)safetensor_elements(t) * dtype_bytes(t->dtype) != t->end - t->begin)
            abort();
        sum += t->end - t->begin;
    }
    if (sum != size - sizeof(n) - n)
        abort();
    safetensors_close(&s);
    return 0;
}
