/* Reads all documents of a file in memory, as one string of lines: "ROW text", "ROW 1 2 3" or, with weights,
 * "ROW 1*1 2*0". */
#ifndef DTD_TESTS_COMMON_DATA_READ_ALL_H
#define DTD_TESTS_COMMON_DATA_READ_ALL_H

#include "tests/common/data/source_file.h"
#include "tests/lib/test.h"

#include <inttypes.h>

static inline void read_all_line(const struct document *d, struct buf *ret)
{
    assert_ok(buf_printf(ret, "%" PRId64, d->row));
    if (d->text)
        assert_ok(buf_printf(ret, " %.*s", (int)d->len, (const char *)d->text));
    for (int64_t i = 0; i < d->n_ids; i++)
        assert_ok(d->weights ? buf_printf(ret, " %d*%d", d->ids[i], d->weights[i]) : buf_printf(ret, " %d", d->ids[i]));
    assert_ok(buf_append(ret, "\n", 1));
}

/* The caller calls buf_fini. */
static inline err_t read_all(const struct doc_format *f, const void *data, size_t size, const char *field,
                             struct buf *ret, struct why *why)
{
    /* A copy of its own: the address sanitizer then sees a read beyond the end. */
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    struct memory_source in = memory_source_of(copy, size, "t");
    struct doc_options o = {.field = field};
    struct doc_reader *r;
    struct document d;
    bool end = false;
    ret->len = 0;
    err_t err = f->open(&in.base, &o, &r, why);
    if (!err) {
        while (!err && !end) {
            err = r->ops->next(r, &d, &end, why);
            if (!err && !end)
                read_all_line(&d, ret);
        }
        r->ops->close(r);
    }
    assert_ok(buf_append(ret, "", 1));
    free(copy);
    return err;
}

static inline void assert_reads(const struct doc_format *f, const void *data, size_t size, const char *field,
                                const char *want)
{
    struct buf got = {0};
    struct why why = {0};
    err_t err = read_all(f, data, size, field, &got, &why);
    if (err)
        fail_msg("%s", why.text);
    assert_string_equal((char *)got.data, want);
    buf_fini(&got);
}

/* The file is refused, and the sentence contains `part`. */
static inline void assert_refuses(const struct doc_format *f, const void *data, size_t size, const char *field,
                                  err_t want, const char *part)
{
    struct buf got = {0};
    struct why why = {0};
    err_t err = read_all(f, data, size, field, &got, &why);
    if (err != want || !strstr(why.text, part))
        fail_msg("%s: '%s', and not %s: '%s'", err_name(err), why.text, err_name(want), part);
    buf_fini(&got);
}

#endif
