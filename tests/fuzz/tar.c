/* An archive. It ends with an error or gives documents; a checksum that does not match would hide the code behind it,
 * so the headers at multiples of 512 that look like ones get theirs. */
#include "common/data/tar.h"
#include "tests/lib/memory_source.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool true_)
{
    if (!true_)
        abort();
}

static void read_all(const uint8_t *data, size_t size)
{
    struct memory_source source = memory_source(data, size);
    struct byte_stream *stream;
    struct doc_reader *r;
    const struct doc_options o = {.label = size % 2 ? "label" : NULL};
    struct why why = {""};
    bool end = false;
    int64_t rows = 0;
    err_t err = OK;
    require(stream_of_source(&source.base, 0, (int64_t)size, &stream, NULL) == OK);
    require(tar_open(stream, &o, &r, NULL) == OK);
    while (!err && !end) {
        struct document d;
        err = r->ops->next(r, &d, &end, &why);
        require(err || end || d.row == rows++);
    }
    require(!err || why.text[0]);
    r->ops->close(r);
    stream->ops->close(stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = calloc(1, size + 1);
    require(copy != NULL);
    if (size)
        memcpy(copy, data, size);
    read_all(copy, size);
    for (size_t at = 0; at + 512 <= size; at += 512) {
        unsigned sum = 8 * ' ';
        char text[8];
        for (int i = 0; i < 512; i++)
            sum += i >= 148 && i < 156 ? 0 : copy[at + (size_t)i];
        snprintf(text, sizeof(text), "%06o", sum);
        if (memcmp(copy + at + 257, "ustar", 5) == 0)
            memcpy(copy + at + 148, text, 8);
    }
    read_all(copy, size);
    free(copy);
    return 0;
}
