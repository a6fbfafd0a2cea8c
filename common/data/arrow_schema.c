/* A record batch lists the nodes and buffers of all columns in depth-first order, so the place of a column's buffers
 * follows from the types in front of it. A type that is not in the table makes the places behind it unknown, and the
 * file is refused. */
#include "common/data/arrow_priv.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32
#define MAX_FIELDS 100000

enum {
    T_INT = 2,
    T_BINARY = 4,
    T_UTF8 = 5,
    T_LIST = 12,
    T_UNION = 14,
    T_FIXED_LIST = 16,
    T_LARGE_BINARY = 19,
    T_LARGE_UTF8 = 20,
    T_LARGE_LIST = 21,
    T_BINARY_VIEW = 23,
    T_UTF8_VIEW = 24
};

/* Types of Schema.fbs by number: their names and the number of their own buffers. */
static const struct arrow_type {
    const char *name;
    int buffers;
} types[] = {
    {NULL, 0},
    {"null", 0},
    {"int", 2},
    {"float", 2},
    {"binary", 3},
    {"string", 3},
    {"bool", 2},
    {"decimal", 2},
    {"date", 2},
    {"time", 2},
    {"timestamp", 2},
    {"interval", 2},
    {"list", 2},
    {"struct", 1},
    {"union", 1},
    {"fixed_size_binary", 2},
    {"fixed_size_list", 1},
    {"map", 2},
    {"duration", 2},
    {"large_binary", 3},
    {"large_string", 3},
    {"large_list", 2},
    {"run_end_encoded", 0},
    {"binary_view", 2},
    {"string_view", 2},
    {"list_view", 3},
    {"large_list_view", 3},
};
#define N_TYPES ((int)(sizeof(types) / sizeof(types[0])))

/* Field of Schema.fbs: its slots. */
enum { FIELD_NAME = 0, FIELD_TYPE_TYPE = 2, FIELD_TYPE = 3, FIELD_DICTIONARY = 4, FIELD_CHILDREN = 5 };

static int field_type(struct flat *f, struct flat_ref field)
{
    int64_t type = flat_int(f, field, FIELD_TYPE_TYPE, 1, 0);
    return type > 0 && type < N_TYPES ? (int)type : 0;
}

static bool is_dictionary(struct flat *f, struct flat_ref field)
{
    return flat_table(f, field, FIELD_DICTIONARY).at != 0;
}

/* Counts the nodes and buffers of a field and all below it. */
static err_t count_field(struct flat *f, struct flat_ref field, struct arrow_schema *s, int depth)
{
    int type = field_type(f, field);
    if (depth > MAX_DEPTH || s->nodes > MAX_FIELDS || !field.at)
        return ERR_CORRUPT;
    s->nodes++;
    if (is_dictionary(f, field)) { /* only the indices are in the batch */
        s->buffers += 2;
        return OK;
    }
    if (!type)
        return ERR_UNSUPPORTED;
    s->buffers += (size_t)types[type].buffers;
    if (type == T_UNION && flat_int(f, flat_table(f, field, FIELD_TYPE), 0, 2, 0) == 1) /* dense: with offsets */
        s->buffers++;
    s->views += type == T_BINARY_VIEW || type == T_UTF8_VIEW;
    struct flat_ref children = flat_vector(f, field, FIELD_CHILDREN, 4);
    err_t err = OK;
    for (size_t i = 0; !err && i < children.n; i++)
        err = count_field(f, flat_table_at(f, children, i), s, depth + 1);
    return err;
}

static bool read_int(struct flat *f, struct flat_ref field, struct arrow_field *ret)
{
    struct flat_ref type = flat_table(f, field, FIELD_TYPE);
    int64_t bits = flat_int(f, type, 0, 4, 0);
    if (field_type(f, field) != T_INT || is_dictionary(f, field) ||
        (bits != 8 && bits != 16 && bits != 32 && bits != 64))
        return false;
    ret->int_bytes = (int)bits / 8;
    ret->is_signed = flat_int(f, type, 1, 1, 0) != 0;
    return true;
}

/* The integers of a list. */
static bool read_child(struct flat *f, struct flat_ref field, struct arrow_field *ret)
{
    struct flat_ref children = flat_vector(f, field, FIELD_CHILDREN, 4);
    return children.n == 1 && read_int(f, flat_table_at(f, children, 0), ret);
}

static const char *read_type(struct flat *f, struct flat_ref field, struct arrow_field *ret)
{
    int type = field_type(f, field);
    bool large = type == T_LARGE_BINARY || type == T_LARGE_UTF8 || type == T_LARGE_LIST;
    if (is_dictionary(f, field))
        return "a dictionary (categorical)";
    ret->offset_bytes = large ? 8 : 4;
    if (type == T_BINARY || type == T_UTF8 || type == T_LARGE_BINARY || type == T_LARGE_UTF8)
        ret->layout = ARROW_TEXT;
    if (type == T_LIST || type == T_LARGE_LIST || type == T_FIXED_LIST) {
        if (!read_child(f, field, ret))
            return "a list of something else than integers";
        ret->layout = type == T_FIXED_LIST ? ARROW_FIXED_LIST : ARROW_LIST;
        ret->fixed = flat_int(f, flat_table(f, field, FIELD_TYPE), 0, 4, 0);
        if (type == T_FIXED_LIST && ret->fixed < 0)
            f->bad = true;
    }
    if (type == T_INT && read_int(f, field, ret)) {
        ret->layout = ARROW_INT;
        ret->fixed = 1;
    }
    return types[type].name ? types[type].name : "unknown";
}

static err_t add_field(struct flat *f, struct flat_ref field, struct arrow_schema *s)
{
    size_t len;
    const char *name = flat_string(f, field, FIELD_NAME, &len);
    struct arrow_field *x = &s->fields[s->n];
    *x = (struct arrow_field){.node = s->nodes, .buffer = s->buffers, .views = s->views};
    if (name && memchr(name, '\0', len))
        return ERR_CORRUPT;
    x->name = strndup(name ? name : "", len);
    if (!x->name)
        return ERR_NOMEM;
    table_clean_name(x->name);
    const char *type = read_type(f, field, x);
    static const enum table_kind kinds[] = {[ARROW_OTHER] = TABLE_OTHER,
                                            [ARROW_TEXT] = TABLE_BYTES,
                                            [ARROW_LIST] = TABLE_INTS,
                                            [ARROW_FIXED_LIST] = TABLE_INTS,
                                            [ARROW_INT] = TABLE_INT};
    s->columns[s->n++] = (struct table_column){.name = x->name, .kind = kinds[x->layout], .type = type};
    return count_field(f, field, s, 0);
}

err_t arrow_schema_read(struct flat *f, struct flat_ref schema, struct arrow_schema *ret)
{
    struct arrow_schema s = {0};
    struct flat_ref fields = flat_vector(f, schema, 1, 4);
    err_t err = fields.n > MAX_FIELDS ? ERR_CORRUPT : OK;
    if (!err && flat_int(f, schema, 0, 2, 0) != 0) /* big-endian */
        err = ERR_UNSUPPORTED;
    if (!err) {
        s.fields = calloc(fields.n + 1, sizeof(*s.fields));
        s.columns = calloc(fields.n + 1, sizeof(*s.columns));
        err = s.fields && s.columns ? OK : ERR_NOMEM;
    }
    for (size_t i = 0; !err && i < fields.n; i++)
        err = add_field(f, flat_table_at(f, fields, i), &s);
    err = err ? err : f->bad ? ERR_CORRUPT : OK;
    if (err)
        arrow_schema_fini(&s);
    else
        *ret = s;
    return err;
}

void arrow_schema_fini(struct arrow_schema *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->fields[i].name);
    free(s->fields);
    free(s->columns);
    *s = (struct arrow_schema){0};
}
