/* The parts of the Parquet reader: the footer, the pages of a column, and the values of a page. */
#ifndef DTD_COMMON_DATA_PARQUET_PRIV_H
#define DTD_COMMON_DATA_PARQUET_PRIV_H

#include "common/base/buf.h"
#include "common/data/source.h"
#include "common/data/table.h"
#include "common/data/unpack.h"

/* ---- the footer (parquet_footer.c) ---- */

enum parquet_type { PQ_BOOLEAN, PQ_INT32, PQ_INT64, PQ_INT96, PQ_FLOAT, PQ_DOUBLE, PQ_BYTE_ARRAY, PQ_FIXED, PQ_TYPES };

/* A column, as the schema describes it. */
struct parquet_leaf {
    char *name;      /* path with dots, without the groups inside lists */
    int type;        /* enum parquet_type */
    int max_def;     /* definition level of a value that is there */
    int max_rep;     /* number of repeated groups around it */
    int element_def; /* max_rep = 1: definition level from which a list has elements; one less: it is empty */
};

/* The pages of a column in one row group. */
struct parquet_chunk {
    int64_t at, bytes, values;
    enum unpack_codec codec;
};

struct parquet_footer {
    struct buf bytes; /* FileMetaData; parquet_chunks needs it */
    int64_t data_end; /* where the pages end */
    int64_t rows;
    struct parquet_leaf *leaves;
    struct table_column *columns; /* one for each leaf */
    int n_leaves;
    int64_t *group_rows;
    int n_groups;
};

NODISCARD err_t parquet_footer_read(struct byte_source *in, struct parquet_footer *ret, struct why *why);
/* The chunks of leaf `i`, one in each row group. The caller frees *ret. */
NODISCARD err_t parquet_chunks(const struct parquet_footer *f, int i, const char *file, struct parquet_chunk **ret,
                               struct why *why);
void parquet_footer_fini(struct parquet_footer *f);

/* ---- values (parquet_values.c) ---- */

/* All readers return false if the bytes end too early or make no sense. */

/* Levels and indices of a dictionary: runs of one value, and of packed values. */
struct parquet_runs {
    const uint8_t *p, *end;
    int width; /* bits, at most 32 */
    uint64_t left;
    bool packed;
    uint32_t value; /* of a run of one value */
    uint64_t bit;   /* of a run of packed values: the next bit from p on */
};

bool parquet_runs_next(struct parquet_runs *r, uint32_t *ret);

/* DELTA_BINARY_PACKED. */
struct parquet_deltas {
    const uint8_t *p, *end, *widths;
    uint64_t block, minis, per_mini,
        left;                      /* values of a block, miniblocks of it, values of one, values still to come */
    uint64_t mini, in_mini, value; /* the miniblock, how many of its values are taken, the last value */
    int64_t min;
    bool first;
};

bool parquet_deltas_init(struct parquet_deltas *d, const uint8_t *p, const uint8_t *end);
bool parquet_deltas_next(struct parquet_deltas *d, int64_t *ret);
/* Skips all values, without looking at them; d->p is then where they end. */
bool parquet_deltas_skip(struct parquet_deltas *d);

enum parquet_encoding {
    PQ_PLAIN = 0,
    PQ_PLAIN_DICTIONARY = 2,
    PQ_DELTA_BINARY = 5,
    PQ_DELTA_LENGTH = 6,
    PQ_RLE_DICTIONARY = 8
};

struct parquet_dictionary {
    struct buf bytes;
    struct buf at; /* BYTE_ARRAY: a uint32_t for each entry: where its length stands in `bytes` */
    uint32_t n;
};

/* The values of a page. */
struct parquet_values {
    int encoding, type;
    const uint8_t *p, *end;
    struct parquet_runs runs;
    struct parquet_deltas deltas;
    const struct parquet_dictionary *dictionary;
};

/* False: damaged. The caller has checked that encoding and type go together. */
bool parquet_values_init(struct parquet_values *v, int encoding, int type, const uint8_t *p, const uint8_t *end,
                         const struct parquet_dictionary *dictionary);
bool parquet_values_bytes(struct parquet_values *v, const uint8_t **ret, size_t *ret_len);
bool parquet_values_int(struct parquet_values *v, int64_t *ret);
/* Finds the entries of a dictionary of n entries, whose bytes are in d->bytes. ERR_CORRUPT, ERR_NOMEM. */
NODISCARD err_t parquet_dictionary_index(struct parquet_dictionary *d, int type, int64_t n);

/* ---- a column (parquet_column.c) ---- */

struct parquet_column {
    struct byte_source *in;
    const struct parquet_leaf *leaf;
    struct parquet_chunk *chunks;
    int group;
    int64_t row;                 /* for messages */
    int64_t at, end, chunk_left; /* the next page, the end of the chunk, values that are not loaded yet */
    struct buf raw, page;        /* a page as it is in the file, and decompressed */
    struct parquet_dictionary dictionary;
    bool has_dictionary;
    int64_t page_left; /* values of the page, with nulls */
    struct parquet_runs reps, defs;
    struct parquet_values values;
    bool pending; /* the levels of the next value are read already */
    uint32_t rep, def;
    struct buf ints;
};

/* Goes to a row group. */
void parquet_column_group(struct parquet_column *c, int group);
/* The value of the next row of the group. ERR_CORRUPT: there is none. */
NODISCARD err_t parquet_column_next(struct parquet_column *c, struct table_value *ret, struct why *why);
/* ERR_CORRUPT: the group has more values than rows. */
NODISCARD err_t parquet_column_end(struct parquet_column *c, struct why *why);
void parquet_column_fini(struct parquet_column *c);

/* A page's payload (parquet_page.c): reads the next page with values into c. */
NODISCARD err_t parquet_page_next(struct parquet_column *c, struct why *why);
/* Writes "FILE: column NAME, row group G, near row N: .." and returns err. */
err_t parquet_fail(const struct parquet_column *c, err_t err, struct why *why, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
