/* Reading files of any format: bytes of a file -> documents.
 *
 * A byte_source is a file, or a file inside an image or an archive. A doc_format recognises one format by its first
 * bytes and opens a doc_reader, which returns the documents in the order of the file. Everything here is used by one
 * thread at a time; errors name file, row and remedy. */
#ifndef DTD_COMMON_DATA_SOURCE_H
#define DTD_COMMON_DATA_SOURCE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- bytes ---- */

struct byte_source;

struct byte_source_ops {
    /* Reads exactly len bytes from byte `at` on. ERR_CORRUPT: the file ends before. */
    err_t (*read)(struct byte_source *s, int64_t at, void *ret, size_t len, struct why *why);
    void (*close)(struct byte_source *s);
};

struct byte_source {
    const struct byte_source_ops *ops;
    const char *name; /* for messages: "a.parquet", "set.sqsh:/a.parquet" */
    int64_t size;
};

/* ---- documents ---- */

/* One message of a conversation. */
struct doc_turn {
    const char *role; /* "system", "user", "assistant", .. */
    const char *text; /* UTF-8, len bytes; may contain NUL */
    size_t len;
};

/* Exactly one of text, ids and turns is given. All of it is valid until the next call of next() or close(). */
struct document {
    int64_t row;         /* in the file, from 0: for messages */
    const uint8_t *text; /* UTF-8 is not checked here */
    size_t len;
    const int32_t *ids;     /* tokens that another program made */
    const uint8_t *weights; /* n_ids: 1 if the token's prediction counts in the loss, 0 if not; NULL: all count */
    int64_t n_ids;
    const struct doc_turn *turns;
    int n_turns;
    bool labelled; /* whether `label` is its class, from 0 on */
    int32_t label;
};

#define DOC_MAX_LABEL 65535

/* Sets the class of a document. False: it is no class. */
static inline bool document_label(struct document *d, int64_t value)
{
    d->labelled = value >= 0 && value <= DOC_MAX_LABEL;
    d->label = d->labelled ? (int32_t)value : 0;
    return d->labelled;
}

struct doc_options {
    const char *field; /* column or key of the text; NULL: the format's default ("text") */
    const char *label; /* column or key of the document's class, an integer, which every document has; NULL: not read */
};

struct doc_reader;

struct doc_reader_ops {
    /* *ret_end: no document is left, and *ret is undefined. ERR_CORRUPT, ERR_UNSUPPORTED, ERR_INVALID: with file, row
     * and cause in why; the reader can only be closed then. */
    err_t (*next)(struct doc_reader *r, struct document *ret, bool *ret_end, struct why *why);
    void (*close)(struct doc_reader *r); /* does not close the byte_source */
};

struct doc_reader {
    const struct doc_reader_ops *ops;
};

#define DOC_HEAD_BYTES 4096

struct doc_format {
    const char *name; /* data.format: "jsonl", "parquet", .. */
    /* Whether a file that begins with these bytes (up to DOC_HEAD_BYTES) has this format; `path` for names that
     * matter. */
    bool (*is)(const uint8_t *head, size_t len, const char *path);
    /* `in` must stay open until the reader is closed. */
    err_t (*open)(struct byte_source *in, const struct doc_options *o, struct doc_reader **ret, struct why *why);
};

#endif
