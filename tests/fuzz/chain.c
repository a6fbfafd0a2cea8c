/* The input is a tokenizer file, a NUL, and a text, which is encoded whole and as a stream that is cut wherever it may
 * be. The ids must be the same, in the vocabulary, and the bytes that they cover in the text. */
#include "common/data/chain.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool true_)
{
    if (!true_)
        abort();
}

static void check_tokens(const struct chain *c, const struct buf *ids, const struct buf *spans, size_t size)
{
    const int32_t *id = (const int32_t *)(const void *)ids->data;
    const struct chain_span *span = (const struct chain_span *)(const void *)spans->data;
    size_t n = ids->len / sizeof(*id);
    struct buf text = {0};
    require(spans->len / sizeof(*span) == n);
    for (size_t i = 0; i < n; i++) {
        require(id[i] >= 0 && id[i] < chain_vocab(c) && span[i].from <= span[i].to && span[i].to <= size);
        require(chain_decode(c, id[i], &text) == OK);
    }
    buf_fini(&text);
}

static err_t encode_stream(const struct chain *c, const uint8_t *text, size_t size, struct buf *ids)
{
    struct chain_encoder *e;
    err_t err = chain_encoder_new(c, &e);
    require(!err);
    chain_encoder_cut(e, 1);
    for (size_t at = 0, n; !err && at < size; at += n) {
        n = 1 + at % 13;
        n = n < size - at ? n : size - at;
        err = chain_encoder_feed(e, text + at, n, false, ids);
    }
    err = err ? err : chain_encoder_feed(e, NULL, 0, true, ids);
    chain_encoder_free(e);
    return err;
}

static void encode(const struct chain *c, const uint8_t *text, size_t size)
{
    struct chain_encoder *e;
    struct buf ids = {0}, spans = {0}, cut = {0};
    require(chain_encoder_new(c, &e) == OK);
    err_t err = chain_encode(e, text, size, &ids, &spans), again = encode_stream(c, text, size, &cut);
    require(!err || err == ERR_LIMIT || err == ERR_UNSUPPORTED);
    if (!err) {
        check_tokens(c, &ids, &spans, size);
        require(!again && cut.len == ids.len && (!ids.len || memcmp(cut.data, ids.data, ids.len) == 0));
    }
    buf_fini(&ids);
    buf_fini(&spans);
    buf_fini(&cut);
    chain_encoder_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, '\0', size);
    const struct bpe_text file = {"tokenizer.json", data, end ? (size_t)(end - data) : size};
    struct chain *c;
    if (chain_new(&file, &c, NULL))
        return 0;
    if (end)
        encode(c, end + 1, size - file.len - 1);
    chain_free(c);
    return 0;
}
