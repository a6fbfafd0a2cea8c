/* Any bytes as a file of routing: they are refused with a message; otherwise writing what was read gives the same. */
#include "worker/step/routing_file.h"

#include "common/base/hash.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_again(struct routing_file f, const uint8_t *data, size_t size)
{
    struct buf b = {0};
    struct routing_block block;
    err_t err = routing_file_begin(&b, &f.head);
    while (!err && routing_file_next(&f, &block)) {
        const int64_t n = block.tokens * f.head.k;
        uint16_t *ids = calloc((size_t)n + 1, sizeof(*ids));
        if (!ids)
            abort();
        for (int64_t i = 0; i < n; i++)
            ids[i] = routing_id(&block, i);
        err = routing_file_add(&b, &f.head, &block, ids);
        free(ids);
    }
    err = err ? err : routing_file_end(&b);
    if (err || b.len != size || memcmp(b.data, data, size) != 0)
        abort();
    buf_fini(&b);
}

/* The input has no checksum: it is appended, since no fuzzer finds it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct routing_file f;
    struct why why = {""};
    struct buf b = {0};
    if (buf_append(&b, data, size) || routing_file_end(&b))
        abort();
    if (routing_file_open(b.data, b.len, "x", &f, &why) == OK)
        write_again(f, b.data, b.len);
    else if (!why.text[0])
        abort();
    buf_fini(&b);
    return 0;
}
