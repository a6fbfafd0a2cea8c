/* Reads a table from memory with every choice of its column, as the fuzzers of readers do. */
#ifndef DTD_TESTS_FUZZ_TABLE_H
#define DTD_TESTS_FUZZ_TABLE_H

#include "tests/common/data/source_file.h"

#include <stdlib.h>

/* Rows of null cost a few bits each, so a small file may have billions of documents; this many are read. */
#define FUZZ_DOCUMENTS 100000

static uint64_t fuzz_sum; /* of every byte of a document, so that reading beyond it is seen */

static inline void fuzz_touch(const struct document *d)
{
    if (!d->text == !d->ids || d->n_ids < 0 || d->row < 0 || d->turns)
        abort();
    for (size_t i = 0; i < d->len; i++)
        fuzz_sum += d->text[i];
    for (int64_t i = 0; i < d->n_ids; i++) {
        if (d->ids[i] < 0 || (d->weights && d->weights[i] > 1))
            abort();
        fuzz_sum += (uint64_t)d->ids[i];
    }
}

static inline void fuzz_read(const struct doc_format *f, const uint8_t *data, size_t size, const char *field)
{
    struct memory_source in = memory_source_of(data, size, "input");
    const struct doc_options o = {.field = field};
    struct doc_reader *r;
    struct document d;
    struct why why = {0};
    bool end = false;
    err_t err = f->open(&in.base, &o, &r, &why);
    if (err && !why.text[0])
        abort();
    if (err)
        return;
    for (int i = 0; i < FUZZ_DOCUMENTS && !err && !end; i++) {
        err = r->ops->next(r, &d, &end, &why);
        if (err && !why.text[0])
            abort();
        if (!err && !end)
            fuzz_touch(&d);
    }
    r->ops->close(r);
}

#endif
