/* A vocabulary of byte-pair encoding (tokenizer.json, or vocab.json and merges.txt in one), and its own bytes as text
 * for it, whole and in two pieces: decoding gives them back, whatever they are. */
#include "common/data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool true_)
{
    if (!true_)
        abort();
}

static void check_decodes(const struct tokenizer *t, const struct buf *ids, const uint8_t *data, size_t size)
{
    struct buf text = {0};
    const int32_t *id = (const int32_t *)(const void *)ids->data;
    for (size_t i = 0; i < ids->len / sizeof(*id); i++)
        must(tokenizer_decode(t, id[i], &text) == OK);
    must(text.len == size && (!size || memcmp(text.data, data, size) == 0));
    buf_fini(&text);
}

/* A pattern may give up within its bounds; then it does so in either way. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t;
    struct encoder e;
    struct buf ids = {0}, pieces = {0};
    size_t cut = size / 3;
    if (tokenizer_bpe_new(data, size, &t, NULL))
        return 0;
    err_t err = tokenizer_encode(t, data, size, &ids);
    must(!err || err == ERR_LIMIT);
    if (!err) {
        check_decodes(t, &ids, data, size);
        encoder_init(&e, t, &pieces);
        err = encoder_feed(&e, data, cut);
        err = err ? err : encoder_feed(&e, data + cut, size - cut);
        err = err ? err : encoder_finish(&e);
        must(!err || err == ERR_LIMIT);
        must(err || (pieces.len == ids.len && (!ids.len || memcmp(pieces.data, ids.data, ids.len) == 0)));
        encoder_fini(&e);
    }
    buf_fini(&ids);
    buf_fini(&pieces);
    tokenizer_free(t);
    return 0;
}
