/* The formats of data files (data.format), in the order in which they are recognised: those of `tables`, then the table
 * in formats.c. For common/data only. A new format is a row of that table, or of table_rows (tables.h) if it needs a
 * library that daemons and workers do not link. `tables` ends with a NULL name, or is NULL. */
#ifndef DTD_COMMON_DATA_FORMATS_H
#define DTD_COMMON_DATA_FORMATS_H

#include "common/data/stream.h"
#include "common/data/token_file.h"

enum input_kind {
    INPUT_TEXT,      /* files are joined: one stream of text */
    INPUT_DOCUMENTS, /* a doc_reader */
    INPUT_TOKENS,    /* ids that another program made, used where they are */
};

struct format_row {
    const char *name;
    enum input_kind kind;
    bool (*is)(const uint8_t *head, size_t len, const char *path);
    /* Documents: exactly one of the two is set; `docs` also instead of `is`. Its reader needs any byte at any time, so
     * the file must not be compressed. */
    err_t (*open_stream)(struct byte_stream *in, const struct doc_options *o, struct doc_reader **ret, struct why *why);
    const struct doc_format *docs;
    const struct token_format *tokens; /* for INPUT_TOKENS, also instead of `is` */
};

/* By the first bytes of the file's content. Never NULL: what no other format recognises is text. */
const struct format_row *format_recognise(const struct format_row *tables, const uint8_t *head, size_t len,
                                          const char *path);
/* NULL: there is none of this name. */
const struct format_row *format_find(const struct format_row *tables, const char *name);
#define FORMAT_NAMES_BYTES 256
/* "auto, parquet, jsonl, ..": for messages. */
void format_names(const struct format_row *tables, char ret[FORMAT_NAMES_BYTES]);

#endif
