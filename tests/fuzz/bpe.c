/* The input is both a vocabulary of byte-pair encoding (tokenizer.json, or vocab.json and merges.txt in one) and the
 * text to encode, whole and in two pieces. Decoding must return the same bytes. */
#include "common/data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool true_)
{
    if (!true_)
        abort();
}

static void check_decodes(const struct tokenizer *t, const struct buf *ids, const uint8_t *data, size_t size)
{
    struct buf text = {0};
    const int32_t *id = (const int32_t *)(const void *)ids->data;
    for (size_t i = 0; i < ids->len / sizeof(*id); i++)
        require(tokenizer_decode(t, id[i], &text) == OK);
    require(text.len == size && (!size || memcmp(text.data, data, size) == 0));
    buf_fini(&text);
}

/* Encoding may fail with ERR_LIMIT when the pattern exceeds its bounds, whole or in pieces. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t;
    struct encoder e;
    struct buf ids = {0}, pieces = {0};
    size_t cut = size / 3;
    if (tokenizer_bpe_new(data, size, &t, NULL))
        return 0;
    err_t err = tokenizer_encode(t, data, size, &ids);
    require(!err || err == ERR_LIMIT || err == ERR_UNSUPPORTED);
    if (!err) {
        if (tokenizer_plain(t)) /* a normalizer changes the text */
            check_decodes(t, &ids, data, size);
        encoder_init(&e, t, &pieces);
        err = encoder_feed(&e, data, cut);
        err = err ? err : encoder_feed(&e, data + cut, size - cut);
        err = err ? err : encoder_finish(&e);
        require(!err || err == ERR_LIMIT);
        require(err || (pieces.len == ids.len && (!ids.len || memcmp(pieces.data, ids.data, ids.len) == 0)));
        encoder_fini(&e);
    }
    buf_fini(&ids);
    buf_fini(&pieces);
    tokenizer_free(t);
    return 0;
}
