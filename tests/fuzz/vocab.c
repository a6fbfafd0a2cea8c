/* A vocabulary file; its bytes are also the text to encode. */
#include "common/data/data.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t;
    struct buf ids = {0}, text = {0};
    enum tokenizer_kind kind = size & 2 ? TOKENIZER_SPLIT : TOKENIZER_WORDS;
    if (tokenizer_new_from(kind, data, size, size & 1, &t, NULL))
        return 0;
    if (tokenizer_encode(t, data, size, &ids) && kind == TOKENIZER_WORDS) /* split refuses long words */
        abort();
    const int32_t *id = (const int32_t *)(const void *)ids.data;
    for (size_t i = 0; i < ids.len / sizeof(*id); i++)
        if (tokenizer_decode(t, id[i], &text))
            abort();
    buf_fini(&ids);
    buf_fini(&text);
    tokenizer_free(t);
    return 0;
}
