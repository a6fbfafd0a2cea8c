/* bpe_tool FILE [FILE] <texts >ids: reads texts as a u32 length and bytes; writes ids as a u32 count and a u32 each, in
 * the machine's byte order. It decodes the ids and fails if the result differs from the text. */
#include "common/data/data.h"

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

static int encode(const struct tokenizer *t)
{
    struct buf text = {0}, ids = {0}, again = {0};
    uint32_t n, n_ids;
    int rc = 0;
    while (!rc && fread(&n, sizeof(n), 1, stdin) == 1) {
        text.len = ids.len = 0;
        if (buf_reserve(&text, n + 1) || fread(text.data, 1, n, stdin) != n)
            rc = fail("the input is cut short");
        else if (tokenizer_encode(t, text.data, n, &ids) || text_again(t, &ids, &again))
            rc = fail("cannot encode");
        else if (again.len != n || (n && memcmp(again.data, text.data, n) != 0))
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
    if (argc < 2)
        return fail("usage: bpe_tool FILE [FILE] <texts >ids");
    if (tokenizer_bpe_files(argv + 1, argc - 1, &t, &why))
        return fail(why.text);
    int rc = encode(t);
    tokenizer_free(t);
    return rc;
}
