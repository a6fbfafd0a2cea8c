/* One table of keys per configuration file. A row says where a value lives in the file's struct, its type, range,
 * default, help, and whether a resumed job may change it; reading, --set, printing, comparing, --help and the manual
 * are all made from it, so that they cannot disagree. A reader lives while one struct is filled, on one thread. */
#ifndef DTD_COMMON_CONF_SCHEMA_H
#define DTD_COMMON_CONF_SCHEMA_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/conf/tree.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SCHEMA_MAX_ROWS 128
#define SCHEMA_MAX_ITEMS 65536 /* of a list or map */
#define SCHEMA_MAX_TEXT 65536

/* The C type behind each: int64_t, uint64_t, double, bool, int, char *, char ** of texts, char ** of "KEY=VALUE". */
enum schema_type {
    SCHEMA_INT,
    SCHEMA_UINT,
    SCHEMA_FLOAT,
    SCHEMA_BOOL,
    SCHEMA_ENUM,
    SCHEMA_TEXT,
    SCHEMA_LIST,
    SCHEMA_MAP,
};

struct schema_name {
    const char *name; /* NULL ends the list */
    int value;
};

struct schema_row {
    const char *key; /* "train.lr": the section, a point, the name; or only the name */
    enum schema_type type;
    bool resume;                     /* a resumed job may change it */
    size_t offset, count_offset;     /* count_offset: the int that counts a list or a map */
    int64_t min, max;                /* SCHEMA_INT */
    double low, high;                /* SCHEMA_FLOAT */
    const struct schema_name *names; /* SCHEMA_ENUM */
    /* For a text, an item, or the key of a map: what is needed when this one is not legal, else NULL. May be NULL. */
    const char *(*check)(const char *text);
    const char *def; /* as YAML; NULL: the key must be given */
    const char *help;
};

struct schema_section {
    const char *name, *help;
};

struct schema {
    const char *title, *intro;             /* of the manual */
    const struct schema_section *sections; /* in the order of the rows; a section's rows stand together */
    int n_sections;
    const struct schema_row *rows;
    int n_rows;  /* at most SCHEMA_MAX_ROWS */
    size_t size; /* of the struct */
};

/* Where a value came from: a line of the file, a --set, or (neither) the default. */
struct schema_origin {
    int line;
    const char *set;
};

struct schema_reader {
    const struct schema *schema;
    void *object;
    const char *file;
    struct schema_origin origin[SCHEMA_MAX_ROWS];
};

/* Zeroes the object and fills in the defaults. After any failure below the object is still whole: schema_fini it. */
NODISCARD err_t schema_start(struct schema_reader *r, const struct schema *schema, const char *file, void *object,
                             struct why *why);
NODISCARD err_t schema_read(struct schema_reader *r, const char *text, size_t len, struct why *why);
/* "train.lr=1e-4"; the text must outlive the reader. A whole section and one entry of a map can be set too. */
NODISCARD err_t schema_set(struct schema_reader *r, const char *set, struct why *why);
/* ERR_INVALID when a key without a default was not given. */
NODISCARD err_t schema_finish(const struct schema_reader *r, struct why *why);
bool schema_given(const struct schema_reader *r, const char *key);
/* Writes "job.yaml:7: train.steps: <sentence>" and returns `err`: how rules over several keys complain. */
err_t schema_complain(const struct schema_reader *r, const char *key, err_t err, struct why *why, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void schema_fini(const struct schema *schema, void *object);

/* ---- made from the rows (schema_doc.c) ---- */

/* Every key and value as YAML. ERR_INVALID when a text is not UTF-8, or an enum holds no known value. */
NODISCARD err_t schema_print(const struct schema *schema, const void *object, struct buf *ret);
/* One value as it stands in such a file, on one line. */
NODISCARD err_t schema_value_print(const struct schema_row *row, const void *object, struct buf *ret);
/* "an integer from 1 to 8": what a row takes. */
NODISCARD err_t schema_needed_print(const struct schema_row *row, struct buf *ret);
/* ERR_INVALID when a row that a resumed job may not change differs; names the key and both values. */
NODISCARD err_t schema_resume_check(const struct schema *schema, const void *before, const void *after,
                                    struct why *why);
/* For a terminal. */
void schema_help(const struct schema *schema, FILE *out);
/* A file that says every key's default, help and range, all of it in comments: what is installed. */
NODISCARD err_t schema_example(const struct schema *schema, struct buf *ret);
/* The manual page, in Markdown. */
NODISCARD err_t schema_manual(const struct schema *schema, struct buf *ret);

#endif
