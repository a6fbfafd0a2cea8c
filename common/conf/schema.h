/* One table of keys per configuration file. A row holds a value's place in the file's struct, its type, range, default
 * and help text, and whether a resumed job may change it. Reading, --set, printing, comparing, --help-keys and the
 * manual all use the table and therefore agree. A schema_reader exists while one struct is filled; it belongs to one
 * thread. */
#ifndef DTD_COMMON_CONF_SCHEMA_H
#define DTD_COMMON_CONF_SCHEMA_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/conf/tree.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SCHEMA_MAX_ROWS 256
#define SCHEMA_MAX_ITEMS 65536 /* in a list or map */
#define SCHEMA_MAX_TEXT 65536  /* bytes of a string */

/* The C types, in this order: int64_t, uint64_t, double, bool, int, char *, char ** of strings, char ** of "KEY=VALUE".
 */
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

/* What a suffix means on an integer: 2k is 2000 of most things, but of tokens it may mean 2048. */
enum schema_unit {
    UNIT_NONE,    /* no suffix; k, M and G get a hint to write the digits */
    UNIT_COUNT,   /* k, M, G: thousands, millions, thousands of millions */
    UNIT_SECONDS, /* s, m, h, d: seconds, minutes, hours, days */
};

/* A word that other programs use for a key. */
struct schema_alias {
    const char *word;
    const char *meant; /* the key, or a sentence that begins with it */
};

struct schema_row {
    const char *key; /* "train.lr": section, dot, name; or only the name */
    enum schema_type type;
    bool resume;                     /* a resumed job may change it */
    size_t offset, count_offset;     /* count_offset: of the int that holds the length of a list or map */
    int64_t min, max;                /* SCHEMA_INT */
    double low, high;                /* SCHEMA_FLOAT */
    enum schema_unit unit;           /* SCHEMA_INT */
    const struct schema_name *names; /* SCHEMA_ENUM */
    const struct schema_name *also;  /* SCHEMA_ENUM: other spellings that are read, but not printed; may be NULL */
    bool whole;                      /* SCHEMA_BOOL: a file may write the name of the key for its whole section */
    bool single; /* SCHEMA_LIST: a file may write a list of one item as a string, and an empty one as "" */
    bool hidden; /* read for the sake of old files; not printed, and in no help or manual */
    /* The cluster version whose dtds have the key (daemon/control/state/features.h); 0: all have it. A key with this is
     * printed only if its value is not the default, so that older dtds read specs that do not use it. */
    uint32_t since;
    /* Checks a string, an item, or the key of a map: returns NULL if it is legal, else what is expected instead. May be
     * NULL. */
    const char *(*check)(const char *text);
    const char *def; /* as YAML; NULL: the key is required */
    const char *help;
};

struct schema_section {
    const char *name, *help;
};

struct schema {
    const char *title, *intro;             /* for the manual */
    const struct schema_section *sections; /* in the order of the rows; rows of a section are adjacent */
    int n_sections;
    const struct schema_alias *aliases; /* ends with a NULL word; may be NULL */
    const struct schema_row *rows;
    int n_rows;   /* at most SCHEMA_MAX_ROWS */
    size_t size;  /* of the struct */
    bool explain; /* a value that is refused is answered with the key's help, which names its unit */
};

/* Origin of a value: a line of the file, a --set, or (neither) the default. */
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

/* Zeroes the object and fills in the defaults. The object stays valid if this or a function below fails; free it with
 * schema_fini in any case. */
NODISCARD err_t schema_start(struct schema_reader *r, const struct schema *schema, const char *file, void *object,
                             struct why *why);
NODISCARD err_t schema_read(struct schema_reader *r, const char *text, size_t len, struct why *why);
/* Applies "train.lr=1e-4"; the string must outlive the reader. It may also set a whole section or one entry of a map.
 */
NODISCARD err_t schema_set(struct schema_reader *r, const char *set, struct why *why);
/* ERR_INVALID if a required key is missing. */
NODISCARD err_t schema_finish(const struct schema_reader *r, struct why *why);
bool schema_given(const struct schema_reader *r, const char *key);
bool schema_overridden(const struct schema_reader *r, const char *key); /* by a --set */
/* Writes "job.yaml:7: train.steps: <sentence>" and returns `err`. Rules over several keys report errors with it. */
err_t schema_complain(const struct schema_reader *r, const char *key, err_t err, struct why *why, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void schema_fini(const struct schema *schema, void *object);

/* ---- derived from the rows (schema_doc.c) ---- */

/* The cluster version that a dtd needs to read what schema_print writes: the highest `since` of the keys that are not
 * at their defaults, at least 1. *ret_key: such a key; NULL: none. */
NODISCARD err_t schema_since(const struct schema *schema, const void *object, uint32_t *ret, const char **ret_key);
/* Writes keys and values as YAML: all, but for keys of newer versions (`since`) at their defaults. ERR_INVALID if a
 * string is not UTF-8 or an enum has an unknown value. */
NODISCARD err_t schema_print(const struct schema *schema, const void *object, struct buf *ret);
/* Writes one value as schema_print does, on one line. */
NODISCARD err_t schema_value_print(const struct schema_row *row, const void *object, struct buf *ret);
/* Describes the values that a row accepts: "an integer from 1 to 8". */
NODISCARD err_t schema_needed_print(const struct schema_row *row, struct buf *ret);
/* ERR_INVALID if a key differs that a resumed job may not change. The sentence names the key and both values. */
NODISCARD err_t schema_resume_check(const struct schema *schema, const void *before, const void *after,
                                    struct why *why);
/* Prints help for a terminal. */
void schema_help(const struct schema *schema, FILE *out);
/* Writes the configuration file that is installed: every key's default, help and range, all in comments. */
NODISCARD err_t schema_example(const struct schema *schema, struct buf *ret);
/* Writes the manual page in Markdown. */
NODISCARD err_t schema_manual(const struct schema *schema, struct buf *ret);

#endif
