/* Tables: the columns of Parquet, Arrow and HDF5 files, and what they mean as documents.
 *
 * A reader lists the columns of its file; table_choose picks those that are read: one column of text, or one of lists
 * of token ids with the columns beside it that give weights. Row by row, table_document turns their values into a
 * document. One owner, one thread. */
#ifndef DTD_COMMON_DATA_TABLE_H
#define DTD_COMMON_DATA_TABLE_H

#include "common/base/buf.h"
#include "common/data/source.h"

enum table_kind {
    TABLE_OTHER, /* cannot be read */
    TABLE_BYTES, /* one string, or bytes, in each row */
    TABLE_INTS,  /* one list of integers in each row */
    TABLE_INT,   /* one integer in each row; its value is a list of one */
};

struct table_column {
    const char *name;
    enum table_kind kind;
    const char *type; /* for messages, in the words of the format: "list of DOUBLE" */
};

/* The columns that make a document. The first two exclude each other; the masks and labels of tokens only come with
 * ids, and the label of the document with either. */
enum table_role {
    TABLE_TEXT,
    TABLE_IDS,
    TABLE_LABELS,         /* -100: the token does not count in the loss; else the token's id */
    TABLE_LOSS_MASK,      /* 0: the token does not count in the loss; else 1 */
    TABLE_ATTENTION_MASK, /* 0: padding, which is left out; else 1 */
    TABLE_LABEL,          /* the class of the document, of doc_options.label */
    TABLE_ROLES,
};

/* The most tokens in one row. Their 64-bit values take 512 MiB. */
#define TABLE_MAX_TOKENS ((int64_t)1 << 26)
/* The longest text of one row. */
#define TABLE_MAX_TEXT ((int64_t)1 << 30)

struct table {
    const char *file;        /* for messages */
    int column[TABLE_ROLES]; /* index of a column; -1: the file has none */
    struct buf ids, weights; /* of the last document */
};

/* A value of one row, owned by the reader. */
struct table_value {
    bool null;
    const uint8_t *bytes; /* never NULL in a column of bytes */
    size_t len;
    const int64_t *ints; /* never NULL in a column of lists */
    int64_t n;
};

/* Replaces what a message must not contain, control characters and bytes that are no UTF-8, by question marks. For
 * names that a file gives. */
void table_clean_name(char *name);
/* Sets `file` and `column` of a zeroed table. Without o->field the column is `text` or `input_ids`; a file with both is
 * refused. ERR_INVALID: no such column. ERR_UNSUPPORTED: its type cannot be read. */
NODISCARD err_t table_choose(struct table *t, const char *file, const struct table_column *columns, int n,
                             const struct doc_options *o, struct why *why);
/* Makes a document of the values of a row. *ret_none: the row has none, because its value is null. ERR_INVALID: an id
 * or a weight that makes no sense. */
NODISCARD err_t table_document(struct table *t, int64_t row, const struct table_value values[TABLE_ROLES],
                               struct document *ret, bool *ret_none, struct why *why);
void table_fini(struct table *t);

#endif
