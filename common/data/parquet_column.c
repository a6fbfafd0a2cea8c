/* Values of a column, row by row. A list may go on in the next page, so its end is only known when the next value has
 * repetition level 0, or the row group ends. */
#include "common/data/parquet_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

err_t parquet_fail(const struct parquet_column *c, err_t err, struct why *why, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return why_set(why, err, "%s: column %s, row group %d, near row %" PRId64 ": %s", c->in->name, c->leaf->name,
                   c->group, c->row, text);
}

static err_t fail_values(const struct parquet_column *c, struct why *why)
{
    return parquet_fail(c, ERR_CORRUPT, why, "the values of a page are damaged, or fewer than in its header");
}

void parquet_column_group(struct parquet_column *c, int group)
{
    c->group = group;
    c->at = c->chunks[group].at;
    c->end = c->at + c->chunks[group].bytes;
    c->chunk_left = c->chunks[group].values;
    c->page_left = 0;
    c->has_dictionary = c->pending = false;
}

static err_t next_level(const struct parquet_column *c, struct parquet_runs *runs, int max, uint32_t *ret,
                        struct why *why)
{
    *ret = 0;
    return max == 0 || (parquet_runs_next(runs, ret) && *ret <= (uint32_t)max) ? OK : fail_values(c, why);
}

/* Reads the levels of the next value into c. *ret_end: the row group has none. */
static err_t next_levels(struct parquet_column *c, bool *ret_end, struct why *why)
{
    err_t err = OK;
    *ret_end = c->page_left == 0 && c->chunk_left == 0;
    if (*ret_end)
        return OK;
    if (c->page_left == 0)
        err = parquet_page_next(c, why);
    err = err ? err : next_level(c, &c->reps, c->leaf->max_rep, &c->rep, why);
    err = err ? err : next_level(c, &c->defs, c->leaf->max_def, &c->def, why);
    c->page_left--;
    return err;
}

static err_t next_string(struct parquet_column *c, struct table_value *ret, struct why *why)
{
    ret->null = c->def < (uint32_t)c->leaf->max_def;
    if (ret->null)
        return OK;
    return parquet_values_bytes(&c->values, &ret->bytes, &ret->len) ? OK : fail_values(c, why);
}

static err_t next_int(struct parquet_column *c, struct table_value *ret, struct why *why)
{
    ret->null = c->def < (uint32_t)c->leaf->max_def;
    if (ret->null)
        return OK;
    if (buf_reserve(&c->ints, sizeof(int64_t)))
        return parquet_fail(c, ERR_NOMEM, why, "%s", err_text(ERR_NOMEM));
    ret->ints = (const int64_t *)(const void *)c->ints.data;
    ret->n = 1;
    return parquet_values_int(&c->values, (int64_t *)(void *)c->ints.data) ? OK : fail_values(c, why);
}

static err_t add_int(struct parquet_column *c, struct why *why)
{
    int64_t v;
    if (c->def < (uint32_t)c->leaf->max_def)
        return parquet_fail(c, ERR_INVALID, why, "the list contains a null, which is no token");
    if (!parquet_values_int(&c->values, &v))
        return fail_values(c, why);
    if (c->ints.len / sizeof(v) >= (size_t)TABLE_MAX_TOKENS)
        return parquet_fail(c, ERR_LIMIT, why, "a list has more than %" PRId64 " values", TABLE_MAX_TOKENS);
    err_t err = buf_append(&c->ints, &v, sizeof(v));
    return err ? parquet_fail(c, err, why, "%s", err_text(err)) : OK;
}

/* The elements of a list whose first levels have been read. */
static err_t next_list(struct parquet_column *c, struct table_value *ret, struct why *why)
{
    uint32_t element = (uint32_t)c->leaf->element_def;
    bool end = false, empty = c->def < element;
    err_t err = c->rep ? fail_values(c, why) : buf_reserve(&c->ints, sizeof(int64_t));
    c->ints.len = 0;
    ret->null = c->def + 1 < element;
    while (!err && !end) {
        if (!empty)
            err = add_int(c, why);
        err = err ? err : next_levels(c, &end, why);
        c->pending = !err && !end;
        if (c->pending && c->rep == 0)
            break;
        c->pending = false;
        if (!err && !end && (empty || c->def < element))
            err = fail_values(c, why);
    }
    ret->ints = (const int64_t *)(const void *)c->ints.data;
    ret->n = (int64_t)(c->ints.len / sizeof(int64_t));
    return err;
}

err_t parquet_column_next(struct parquet_column *c, struct table_value *ret, struct why *why)
{
    bool end = false;
    err_t err = c->pending ? OK : next_levels(c, &end, why);
    if (!err && end)
        err = parquet_fail(c, ERR_CORRUPT, why, "the column has fewer values than the row group has rows");
    c->pending = false;
    *ret = (struct table_value){0};
    if (err)
        return err;
    if (c->leaf->max_rep)
        return next_list(c, ret, why);
    return c->leaf->type == PQ_BYTE_ARRAY ? next_string(c, ret, why) : next_int(c, ret, why);
}

err_t parquet_column_end(struct parquet_column *c, struct why *why)
{
    return c->pending || c->page_left || c->chunk_left
               ? parquet_fail(c, ERR_CORRUPT, why, "the column has more values than the row group has rows")
               : OK;
}

void parquet_column_fini(struct parquet_column *c)
{
    free(c->chunks);
    buf_fini(&c->raw);
    buf_fini(&c->page);
    buf_fini(&c->dictionary.bytes);
    buf_fini(&c->dictionary.at);
    buf_fini(&c->ints);
}
