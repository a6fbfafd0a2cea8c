/* Tables of fields: one row describes one member of a plain struct. All code that copies, encodes, stores or prints the
 * struct loops over the table, so that a new field is a new row and the code that sets it.
 *
 * A list of rows is an X-macro: X(kind, name, presence, further members of struct field). See common/rpc/incident.h and
 * common/rpc/metric.h. FIELD_MEMBER makes the members of the struct from it, FIELD_NONE an initializer in which every
 * field is absent, and FIELD_ROW the rows of the table.
 *
 * Names are part of the wire format, of the log and of all JSON output: a name is never changed or reused.
 * common/rpc/field_codec.h copies to and from protobuf messages. */
#ifndef DTD_COMMON_RPC_FIELDS_H
#define DTD_COMMON_RPC_FIELDS_H

#include "common/base/err.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Type of the member, and the value that means "absent". */
enum field_kind {
    FIELD_TEXT, /* const char *; NULL */
    FIELD_INT,  /* int64_t; below 0 */
    FIELD_UINT, /* uint64_t; 0 */
    FIELD_REAL, /* double; NAN */
    FIELD_BOOL, /* bool; false */
};

enum field_presence {
    FIELD_OPTIONAL, /* not sent and not printed when it is absent */
    FIELD_REQUIRED, /* always sent; in JSON, a real that is not finite is null */
    FIELD_INTERNAL, /* optional, and never sent to clients */
};

/* How a text is printed for people; of numbers only reals have a choice. */
enum field_look {
    LOOK_SIGNIFICANT, /* `digits` significant digits */
    LOOK_FIXED,       /* `digits` digits after the point */
    LOOK_COUNT,       /* 3.4k */
    LOOK_LINES,       /* a text of several lines */
};

struct field {
    const char *name; /* of the struct's member, of the protobuf field and of the JSON key */
    size_t offset;    /* of the member */
    enum field_kind kind;
    enum field_presence presence;
    enum field_look look;
    int digits;
    const char *unit;   /* printed after the value; NULL: none */
    const char *label;  /* of its own line in `dtctl why` and `dtctl status`; NULL: it has none */
    const char *column; /* title in `dtctl metrics`; NULL: no column */
    int width;          /* of the column */
    bool rare;          /* the column is shown only if the first row has a value */
    int late;           /* columns with higher numbers are left out first where a terminal is narrow; 0: never */
    const char *line;   /* word before the value in the progress line, may be ""; NULL: not in the line */
};

struct field_table {
    const struct field *field;
    int n;
    size_t bytes; /* sizeof the struct */
    size_t rest;  /* offset of its struct field_rest; 0: it has none */
};

/* Named values of a newer version, which this one stores and passes on without using them. Only field_codec.c reads
 * them. They are borrowed from a decoded message or, after fields_copy, belong to the struct. */
struct field_rest {
    void **value;
    size_t n;
};

/* A value without its kind: `text` for FIELD_TEXT, `real` for FIELD_REAL, `whole` for all others. A FIELD_UINT above
 * INT64_MAX is negative here and is converted back without loss. */
struct field_value {
    const char *text;
    int64_t whole;
    double real;
};

struct field_value field_get(const struct field *f, const void *object);
void field_set(const struct field *f, void *object, struct field_value value);
/* Sets the value that means "absent". */
void field_clear(const struct field *f, void *object);
bool field_absent(const struct field *f, const void *object);
const struct field *field_find(const struct field_table *t, const char *name); /* NULL: no such row */
/* A copy that owns its texts and its rest. On an error (ERR_NOMEM) nothing is to be freed. Defined in field_codec.c. */
NODISCARD err_t fields_copy(const struct field_table *t, const void *from, void *ret);
/* Frees the texts and the rest of a struct that fields_copy made; every field is absent afterwards. */
void fields_fini(const struct field_table *t, void *object);

#define FIELD_TYPE_TEXT const char *
#define FIELD_TYPE_INT int64_t
#define FIELD_TYPE_UINT uint64_t
#define FIELD_TYPE_REAL double
#define FIELD_TYPE_BOOL bool
#define FIELD_ABSENT_TEXT NULL
#define FIELD_ABSENT_INT -1
#define FIELD_ABSENT_UINT 0
#define FIELD_ABSENT_REAL NAN
#define FIELD_ABSENT_BOOL false

#define FIELD_MEMBER(kind_, name_, ...) FIELD_TYPE_##kind_ name_;
#define FIELD_NONE(kind_, name_, ...) .name_ = FIELD_ABSENT_##kind_,
#define FIELD_ROW(struct_, kind_, name_, ...) \
    {.name = #name_, .offset = offsetof(struct_, name_), .kind = FIELD_##kind_, .presence = __VA_ARGS__},

#endif
