/* A file of JSON lines. What jansson reads as objects with one text, the reader returns as these texts; anything else
 * it may refuse. The same bytes, cut into pieces of other sizes, give the same documents. */
#include "common/data/jsonl.h"
#include "tests/lib/memory_source.h"

#include <jansson.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool true_)
{
    if (!true_)
        abort();
}

/* A stream that returns pieces of 1 to 7 bytes. */
struct drops {
    struct byte_stream base;
    struct byte_stream *in;
    size_t n;
};

static err_t drops_read(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why)
{
    struct drops *d = (struct drops *)s;
    size_t n = 1 + d->n++ % 7;
    return d->in->ops->read(d->in, ret, n < cap ? n : cap, ret_n, why);
}

static uint64_t mix(uint64_t sum, const void *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return (sum ^ len) * 0x100000001b3u;
}

static uint64_t add(uint64_t sum, const struct document *d)
{
    require((d->len != 0) + (d->n_ids != 0) + (d->n_turns != 0) == 1);
    require(d->label >= 0 && d->label <= DOC_MAX_LABEL && (d->labelled || !d->label));
    sum = mix(sum, &d->label, sizeof(d->label));
    sum = mix(sum, &d->row, sizeof(d->row));
    sum = mix(sum, d->text, d->len);
    sum = mix(sum, d->ids, (size_t)d->n_ids * sizeof(*d->ids));
    if (d->weights)
        sum = mix(sum, d->weights, (size_t)d->n_ids);
    for (int i = 0; i < d->n_turns; i++) {
        sum = mix(sum, d->turns[i].role, strlen(d->turns[i].role));
        sum = mix(sum, d->turns[i].text, d->turns[i].len);
    }
    return sum;
}

/* Sums up all documents before the end or the first error. */
static uint64_t sum_all(const uint8_t *data, size_t size, struct doc_options o, bool drop, int *ret_n, err_t *ret_err)
{
    static const struct byte_stream_ops drop_ops = {drops_read, NULL};
    struct memory_source source = memory_source(data, size);
    struct byte_stream *stream;
    struct doc_reader *r;
    struct why why = {""};
    uint64_t sum = 1;
    bool end = false;
    require(stream_of_source(&source.base, 0, (int64_t)size, &stream, NULL) == OK);
    struct drops drops = {{&drop_ops, "memory"}, stream, 0};
    require(jsonl_open(drop ? &drops.base : stream, &o, &r, NULL) == OK);
    for (*ret_n = 0;; ++*ret_n) {
        struct document d;
        *ret_err = r->ops->next(r, &d, &end, &why);
        if (*ret_err || end)
            break;
        sum = add(sum, &d);
    }
    require(!*ret_err || why.text[0]);
    r->ops->close(r);
    stream->ops->close(stream);
    return sum;
}

/* The number of documents with text until a line that is none; *ret_all: every line is one, or blank. */
static int count_texts(const uint8_t *data, size_t size, bool *ret_all)
{
    int n = 0;
    *ret_all = true;
    while (size && *ret_all) {
        const uint8_t *stop = memchr(data, '\n', size);
        size_t len = stop ? (size_t)(stop - data) : size;
        size_t blank = 0;
        while (blank < len && strchr(" \t\r", data[blank]) && data[blank])
            blank++;
        json_t *line = json_loadb((const char *)data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(line, "text");
        *ret_all = blank == len || (json_is_string(text) && json_object_size(line) == 1);
        n += json_string_length(text) > 0;
        json_decref(line);
        data += len + (stop != NULL);
        size -= len + (stop != NULL);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct doc_options options[] = {
        {.label = NULL}, {.field = "text"}, {.field = "x"}, {.label = "label"}, {.field = "text", .label = "x"}};
    bool all;
    int texts = count_texts(data, size, &all);
    jsonl_is(data, size < DOC_HEAD_BYTES ? size : DOC_HEAD_BYTES, "x.jsonl");
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        int n, n_drops;
        err_t err, err_drops;
        uint64_t whole = sum_all(data, size, options[i], false, &n, &err);
        uint64_t pieces = sum_all(data, size, options[i], true, &n_drops, &err_drops);
        require(whole == pieces && n == n_drops && err == err_drops);
        if (all && i < 2)
            require(!err && n == texts);
    }
    return 0;
}
