/* Reads the columns that make a document side by side. Row groups and their row counts come from the footer, and each
 * column must have exactly that many rows: a damaged file is refused and never read as a shorter one. */
#include "common/data/parquet.h"
#include "common/data/parquet_priv.h"

#include <stdlib.h>
#include <string.h>

struct parquet_reader {
    struct doc_reader base;
    struct byte_source *in;
    struct parquet_footer footer;
    struct table table;
    struct parquet_column columns[TABLE_ROLES]; /* used where table.column is not -1 */
    int group;                                  /* the next one */
    int64_t row, group_left;
};

static bool parquet_is(const uint8_t *head, size_t len, const char *path)
{
    return len >= 4 && memcmp(head, "PAR1", 4) == 0;
}

static void next_group(struct parquet_reader *r)
{
    for (int role = 0; role < TABLE_ROLES; role++)
        if (r->table.column[role] >= 0)
            parquet_column_group(&r->columns[role], r->group);
    r->group_left = r->footer.group_rows[r->group++];
}

static err_t end_group(struct parquet_reader *r, struct why *why)
{
    err_t err = OK;
    for (int role = 0; !err && role < TABLE_ROLES; role++)
        if (r->table.column[role] >= 0)
            err = parquet_column_end(&r->columns[role], why);
    return err;
}

/* The values of the next row, and the end of its row group behind the last one. */
static err_t read_row(struct parquet_reader *r, struct table_value values[TABLE_ROLES], struct why *why)
{
    err_t err = OK;
    for (int role = 0; !err && role < TABLE_ROLES; role++) {
        if (r->table.column[role] < 0)
            continue;
        r->columns[role].row = r->row;
        err = parquet_column_next(&r->columns[role], &values[role], why);
    }
    r->group_left--;
    return err ? err : r->group_left == 0 ? end_group(r, why) : OK;
}

static err_t parquet_next(struct doc_reader *base, struct document *ret, bool *ret_end, struct why *why)
{
    struct parquet_reader *r = (struct parquet_reader *)base;
    struct table_value values[TABLE_ROLES] = {0};
    bool none = true;
    err_t err = OK;
    *ret_end = false;
    while (!err && none) {
        while (!err && r->group_left == 0 && r->group < r->footer.n_groups) {
            next_group(r);
            err = r->group_left == 0 ? end_group(r, why) : OK;
        }
        if (err || r->group_left == 0) {
            *ret_end = !err;
            return err;
        }
        err = read_row(r, values, why);
        err = err ? err : table_document(&r->table, r->row, values, ret, &none, why);
        r->row++;
    }
    return err;
}

static void parquet_close(struct doc_reader *base)
{
    struct parquet_reader *r = (struct parquet_reader *)base;
    for (int role = 0; role < TABLE_ROLES; role++)
        parquet_column_fini(&r->columns[role]);
    parquet_footer_fini(&r->footer);
    table_fini(&r->table);
    free(r);
}

static const struct doc_reader_ops parquet_ops = {.next = parquet_next, .close = parquet_close};

static err_t open_columns(struct parquet_reader *r, struct why *why)
{
    err_t err = OK;
    for (int role = 0; !err && role < TABLE_ROLES; role++) {
        struct parquet_column *c = &r->columns[role];
        int i = r->table.column[role];
        if (i < 0)
            continue;
        c->in = r->in;
        c->leaf = &r->footer.leaves[i];
        err = parquet_chunks(&r->footer, i, r->in->name, &c->chunks, why);
    }
    return err;
}

static err_t parquet_open(struct byte_source *in, const struct doc_options *o, struct doc_reader **ret, struct why *why)
{
    struct parquet_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return why_set(why, ERR_NOMEM, "%s: %s", in->name, err_text(ERR_NOMEM));
    r->base.ops = &parquet_ops;
    r->in = in;
    err_t err = parquet_footer_read(in, &r->footer, why);
    err = err ? err : table_choose(&r->table, in->name, r->footer.columns, r->footer.n_leaves, o, why);
    err = err ? err : open_columns(r, why);
    buf_fini(&r->footer.bytes);
    if (err)
        parquet_close(&r->base);
    else
        *ret = &r->base;
    return err;
}

const struct doc_format parquet_format = {.name = "parquet", .is = parquet_is, .open = parquet_open};
