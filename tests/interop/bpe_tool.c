/* bpe_tool [--respelled] [--whole] FILE [FILE] <texts >ids: reads texts as a u32 length and bytes; writes ids as a u32
 * count and a u32 each, in the machine's byte order. It fails if a text that is fed in small chunks gets other ids, or
 * if decoding gives another text; with --respelled the second check is left out, because a token decodes to another
 * spelling. --whole leaves out the first check. */
#include "common/data/data.h"
#include "common/data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "bpe_tool: %s\n", what);
    return 1;
}

static err_t text_again(const struct tokenizer *t, const struct buf *ids, struct buf *ret)
{
    err_t err = OK;
    ret->len = 0;
    for (size_t i = 0; !err && i < ids->len / sizeof(int32_t); i++)
        err = tokenizer_decode(t, ((const int32_t *)(const void *)ids->data)[i], ret);
    return err;
}

/* Encodes in chunks of 1 to 7 bytes; a chain of steps cuts the text wherever it may. */
static err_t encode_chunks(const struct tokenizer *t, const struct buf *text, struct buf *ret)
{
    struct encoder e;
    err_t err = OK;
    ret->len = 0;
    encoder_init(&e, t, ret);
    for (size_t at = 0, n; !err && at < text->len; at += n) {
        n = 1 + at % 7;
        n = n < text->len - at ? n : text->len - at;
        err = encoder_feed(&e, text->data + at, n);
        if (e.chain)
            chain_encoder_cut(e.chain, 1);
    }
    err = err ? err : encoder_finish(&e);
    encoder_fini(&e);
    return err;
}

static bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
}

static int encode(const struct tokenizer *t, bool respelled, bool whole)
{
    struct buf text = {0}, ids = {0}, again = {0};
    uint32_t n, n_ids;
    int rc = 0;
    while (!rc && fread(&n, sizeof(n), 1, stdin) == 1) {
        text.len = ids.len = 0;
        if (buf_reserve(&text, n + 1) || fread(text.data, 1, n, stdin) != n)
            rc = fail("the input is cut short");
        text.len = rc ? 0 : n;
        if (!rc && (tokenizer_encode(t, text.data, n, &ids) || (!whole && encode_chunks(t, &text, &again))))
            rc = fail("cannot encode");
        if (!rc && !whole && !same(&ids, &again))
            rc = fail("in small chunks the text gets other ids");
        if (!rc && !respelled && (text_again(t, &ids, &again) || !same(&text, &again)))
            rc = fail("decoding gives another text");
        n_ids = (uint32_t)(ids.len / sizeof(int32_t));
        if (!rc && (fwrite(&n_ids, sizeof(n_ids), 1, stdout) != 1 || fwrite(ids.data, 4, n_ids, stdout) != n_ids))
            rc = fail("cannot write");
    }
    buf_fini(&text);
    buf_fini(&ids);
    buf_fini(&again);
    return rc;
}

int main(int argc, char **argv)
{
    struct tokenizer *t;
    struct why why = {0};
    bool respelled = argc > 1 && strcmp(argv[1], "--respelled") == 0;
    bool whole = argc > 1 + respelled && strcmp(argv[1 + respelled], "--whole") == 0;
    int options = respelled + whole;
    if (argc - options < 2)
        return fail("usage: bpe_tool [--respelled] [--whole] FILE [FILE] <texts >ids");
    if (tokenizer_bpe_files(argv + 1 + options, argc - 1 - options, &t, &why))
        return fail(why.text);
    int rc = encode(t, respelled, whole);
    tokenizer_free(t);
    return rc;
}
