/* The module dtd-hdf5.so. The datasets of one group are the columns of a table, so weights stand beside the ids as in
 * the other formats. data.field is the path of a dataset; without it the root group is looked at, and nothing is
 * guessed about splits. */
#include "common/data/hdf5_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hdf5_reader {
    struct doc_reader base;
    struct byte_source *in;
    struct why io;
    char *name; /* of file and group, for messages */
    hid_t file;
    struct hdf5_group group;
    struct table table;
    struct hdf5_rows rows[TABLE_ROLES];
    int64_t row, n;
};

static err_t hdf5_next(struct doc_reader *base, struct document *ret, bool *ret_end, struct why *why)
{
    struct hdf5_reader *r = (struct hdf5_reader *)base;
    struct table_value values[TABLE_ROLES] = {0};
    bool none;
    err_t err = OK;
    *ret_end = r->row == r->n;
    if (*ret_end)
        return OK;
    for (int role = 0; !err && role < TABLE_ROLES; role++)
        if (r->table.column[role] >= 0)
            err = hdf5_rows_at(&r->rows[role], r->row, &values[role], why);
    return err ? err : table_document(&r->table, r->row++, values, ret, &none, why); /* HDF5 has no nulls */
}

static void hdf5_close(struct doc_reader *base)
{
    struct hdf5_reader *r = (struct hdf5_reader *)base;
    for (int role = 0; role < TABLE_ROLES; role++)
        hdf5_rows_fini(&r->rows[role]);
    hdf5_group_fini(&r->group);
    if (r->file >= 0)
        H5Fclose(r->file);
    H5Eclear2(H5E_DEFAULT);
    table_fini(&r->table);
    free(r->name);
    free(r);
}

/* All columns must have as many rows. */
static err_t open_rows(struct hdf5_reader *r, struct why *why)
{
    err_t err = OK;
    r->n = -1;
    for (int role = 0; !err && role < TABLE_ROLES; role++) {
        struct hdf5_rows *rows = &r->rows[role];
        if (r->table.column[role] < 0)
            continue;
        rows->name = r->name;
        rows->io = &r->io;
        err = hdf5_rows_open(rows, &r->group, r->table.column[role], why);
        if (!err && r->n >= 0 && rows->rows != r->n)
            err = why_set(why, ERR_INVALID, "%s: dataset %s has %" PRId64 " rows, but the dataset before has %" PRId64,
                          r->name, rows->column, rows->rows, r->n);
        r->n = rows->rows;
    }
    return err;
}

/* Splits "train/text" into the group and the dataset. */
static err_t open_group(struct hdf5_reader *r, const char *field, const char **ret_name, struct why *why)
{
    const char *slash = field ? strrchr(field, '/') : NULL;
    char *path = slash ? strndup(field, (size_t)(slash - field)) : strdup("");
    *ret_name = slash ? slash + 1 : field;
    if (!path || asprintf(&r->name, path[0] ? "%s: group %s" : "%s", r->in->name, path) < 0) {
        r->name = NULL;
        free(path);
        return why_set(why, ERR_NOMEM, "%s: %s", r->in->name, err_text(ERR_NOMEM));
    }
    err_t err = hdf5_group_open(r->file, path, r->in->name, &r->group, why);
    free(path);
    return err;
}

static err_t open_all(struct hdf5_reader *r, const struct doc_options *o, struct why *why)
{
    struct doc_options inside = {.label = o ? o->label : NULL};
    err_t err = hdf5_driver_open(r->in, &r->io, &r->file, why);
    err = err ? err : open_group(r, o ? o->field : NULL, &inside.field, why);
    err = err ? err : table_choose(&r->table, r->name, r->group.columns, r->group.n, &inside, why);
    return err ? err : open_rows(r, why);
}

static err_t open_inside(struct byte_source *in, const struct doc_options *o, struct doc_reader **ret, struct why *why)
{
    static const struct doc_reader_ops ops = {.next = hdf5_next, .close = hdf5_close};
    struct hdf5_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return why_set(why, ERR_NOMEM, "%s: %s", in->name, err_text(ERR_NOMEM));
    r->base.ops = &ops;
    r->in = in;
    r->file = -1;
    err_t err = open_all(r, o, why);
    if (err)
        hdf5_close(&r->base);
    else
        *ret = &r->base;
    return err;
}

__attribute__((visibility("default")))
const struct hdf5_module dtd_hdf5_module = {HDF5_MODULE_ABI, {.name = "HDF5", .open = open_inside}};
