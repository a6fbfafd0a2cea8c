/* The parts of the Arrow reader: the schema, and the buffers of a record batch as streams. */
#ifndef DTD_COMMON_DATA_ARROW_PRIV_H
#define DTD_COMMON_DATA_ARROW_PRIV_H

#include "common/base/buf.h"
#include "common/data/flatbuffer.h"
#include "common/data/source.h"
#include "common/data/table.h"

/* ---- the schema (arrow_schema.c) ---- */

enum arrow_layout {
    ARROW_OTHER,
    ARROW_TEXT,       /* validity, offsets, bytes */
    ARROW_LIST,       /* validity, offsets; of the child: validity, integers */
    ARROW_FIXED_LIST, /* validity; of the child: validity, integers */
    ARROW_INT,        /* validity, integers */
};

/* A column that may be read. */
struct arrow_field {
    char *name;
    enum arrow_layout layout;
    int offset_bytes; /* 4 or 8 */
    int64_t fixed;    /* ARROW_FIXED_LIST: integers in each row; ARROW_INT: 1 */
    int int_bytes;    /* of an integer: 1, 2, 4 or 8 */
    bool is_signed;   /* the integer */
    size_t node;      /* index of its first node in a record batch; that of the child follows */
    size_t buffer;    /* index of its first buffer, without those of views */
    size_t views;     /* views in front of it, each with a number of buffers that differs from batch to batch */
};

struct arrow_schema {
    struct arrow_field *fields;
    struct table_column *columns; /* one for each field */
    int n;
    size_t nodes, buffers, views; /* of all fields */
};

/* The schema of a Schema table of Arrow. ERR_CORRUPT, ERR_NOMEM, ERR_UNSUPPORTED without a sentence. */
NODISCARD err_t arrow_schema_read(struct flat *f, struct flat_ref schema, struct arrow_schema *ret);
void arrow_schema_fini(struct arrow_schema *s);

/* ---- buffers (arrow_lane.c) ---- */

enum arrow_codec { ARROW_RAW, ARROW_LZ4, ARROW_ZSTD };

struct arrow_column;

/* A buffer of a record batch, read from its begin to its end. Zeroed: no buffer. It can be opened again. */
struct arrow_lane {
    const struct arrow_column *owner; /* for messages, and its file */
    int64_t at, end;                  /* bytes of the file that are not read yet */
    int64_t left;                     /* bytes that it still returns */
    enum arrow_codec codec;
    void *lz4, *zstd; /* contexts, kept */
    struct buf packed, plain;
    size_t packed_at, plain_at;
};

NODISCARD err_t arrow_lane_open(struct arrow_lane *l, const struct arrow_column *owner, int64_t at, int64_t len,
                                enum arrow_codec codec, struct why *why);
/* ERR_CORRUPT: the buffer has fewer bytes, or cannot be decompressed. */
NODISCARD err_t arrow_lane_read(struct arrow_lane *l, void *ret, size_t n, struct why *why);
NODISCARD err_t arrow_lane_skip(struct arrow_lane *l, int64_t n, struct why *why);
void arrow_lane_fini(struct arrow_lane *l);

/* Bits of a buffer; without a buffer all are 1. */
struct arrow_bits {
    struct arrow_lane lane;
    bool absent;
    uint8_t byte;
    int left;
};

NODISCARD err_t arrow_bits_next(struct arrow_bits *b, bool *ret, struct why *why);
NODISCARD err_t arrow_bits_skip(struct arrow_bits *b, int64_t n, struct why *why);

/* ---- a column (arrow_column.c) ---- */

struct arrow_column {
    struct byte_source *in;
    const struct arrow_field *field;
    int64_t row; /* for messages */
    struct arrow_bits valid, child_valid;
    struct arrow_lane offsets, data;
    int64_t offset; /* the end of the last value */
    struct buf bytes, ints;
};

/* A record batch: nodes and buffers, checked to be inside the file. */
struct arrow_batch {
    struct flat flat; /* its metadata */
    struct flat_ref nodes, buffers, variadic;
    int64_t length, body, body_len;
    enum arrow_codec codec;
};

NODISCARD err_t arrow_column_batch(struct arrow_column *c, struct arrow_batch *b, struct why *why);
NODISCARD err_t arrow_column_next(struct arrow_column *c, struct table_value *ret, struct why *why);
void arrow_column_fini(struct arrow_column *c);
/* Writes "FILE: column NAME, near row N: TEXT" and returns err. */
err_t arrow_column_fail(const struct arrow_column *c, err_t err, const char *text, struct why *why);

#endif
