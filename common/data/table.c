/* Nothing is chosen silently. A file with text and ids could be meant either way, and labels or masks beside ids change
 * what is trained; so all of them are used, or the file is refused. */
#include "common/data/table.h"
#include "common/base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IGNORED (-100) /* PyTorch's ignore_index: the label of a token that does not count */

static const char *const role_names[TABLE_ROLES] = {[TABLE_TEXT] = "text",
                                                    [TABLE_IDS] = "input_ids",
                                                    [TABLE_LABELS] = "labels",
                                                    [TABLE_LOSS_MASK] = "loss_mask",
                                                    [TABLE_ATTENTION_MASK] = "attention_mask"};

/* ---- columns ---- */

void table_clean_name(char *name)
{
    uint32_t c;
    for (int len; *name; name += len) {
        len = utf8_decode(name, &c);
        if (!len || c < ' ' || (c >= 0x7f && c < 0xa0)) {
            *name = '?';
            len = 1;
        }
    }
}

static int find_column(const struct table_column *columns, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(columns[i].name, name) == 0)
            return i;
    return -1;
}

/* "a, b, c, .." of at most 300 bytes. */
static void list_columns(const struct table_column *columns, int n, char ret[320])
{
    size_t at = 0;
    ret[0] = '\0';
    for (int i = 0; i < n; i++) {
        size_t len = strlen(columns[i].name);
        if (at + len > 300) {
            memcpy(ret + at, ", ..", 5);
            return;
        }
        at += (size_t)sprintf(ret + at, "%s%s", at ? ", " : "", columns[i].name);
    }
}

static err_t no_column(const struct table *t, const struct table_column *columns, int n, const char *field,
                       struct why *why)
{
    char names[320];
    list_columns(columns, n, names);
    if (field)
        return why_set(why, ERR_INVALID, "%s: no column %s; the columns are: %s. Set data.field to one of them",
                       t->file, field, names);
    return why_set(why, ERR_INVALID,
                   "%s: no column text or input_ids; the columns are: %s. Set data.field to the one to read", t->file,
                   names);
}

static err_t choose_main(struct table *t, const struct table_column *columns, int n, const char *field, struct why *why)
{
    int text = find_column(columns, n, role_names[TABLE_TEXT]), ids = find_column(columns, n, role_names[TABLE_IDS]);
    if (!field && text >= 0 && ids >= 0)
        return why_set(why, ERR_INVALID, "%s: it has the columns text and input_ids; set data.field to the one to read",
                       t->file);
    int c = field ? find_column(columns, n, field) : text >= 0 ? text : ids;
    if (c < 0)
        return no_column(t, columns, n, field, why);
    if (columns[c].kind != TABLE_BYTES && columns[c].kind != TABLE_INTS)
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: column %s: its type is %s. Text must be one string in each row, and token ids one list of "
                       "integers",
                       t->file, columns[c].name, columns[c].type);
    t->column[columns[c].kind == TABLE_BYTES ? TABLE_TEXT : TABLE_IDS] = c;
    return OK;
}

static err_t choose_label(struct table *t, const struct table_column *columns, int n, const char *label,
                          struct why *why)
{
    char names[320];
    const int c = label ? find_column(columns, n, label) : -1;
    if (!label)
        return OK;
    list_columns(columns, n, names);
    if (c < 0)
        return why_set(why, ERR_INVALID,
                       "%s: no column %s; the columns are: %s. Set data.label to the one of the classes", t->file,
                       label, names);
    if (columns[c].kind != TABLE_INT)
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: column %s: its type is %s. A label must be one integer in each row (data.label)", t->file,
                       columns[c].name, columns[c].type);
    t->column[TABLE_LABEL] = c;
    return OK;
}

err_t table_choose(struct table *t, const char *file, const struct table_column *columns, int n,
                   const struct doc_options *o, struct why *why)
{
    t->file = file;
    for (int role = 0; role < TABLE_ROLES; role++)
        t->column[role] = -1;
    err_t err = choose_main(t, columns, n, o ? o->field : NULL, why);
    /* Labels that are no lists are those of a classifier, and no matter of the tokens. */
    for (int role = TABLE_LABELS; !err && t->column[TABLE_IDS] >= 0 && role <= TABLE_ATTENTION_MASK; role++) {
        int c = find_column(columns, n, role_names[role]);
        if (c >= 0 && c != t->column[TABLE_IDS] && columns[c].kind == TABLE_INTS)
            t->column[role] = c;
    }
    if (!err && t->column[TABLE_LABELS] >= 0 && t->column[TABLE_LOSS_MASK] >= 0)
        err = why_set(why, ERR_INVALID,
                      "%s: it has the columns labels and loss_mask, and both give weights; remove one", file);
    return err ? err : choose_label(t, columns, n, o ? o->label : NULL, why);
}

/* ---- documents ---- */

static err_t fail_row(const struct table *t, int64_t row, err_t err, struct why *why)
{
    return why_prefix(why, err, "%s: row %" PRId64, t->file, row);
}

static err_t check_lengths(const struct table *t, const struct table_value *values, struct why *why)
{
    for (int role = TABLE_LABELS; role <= TABLE_ATTENTION_MASK; role++) {
        if (t->column[role] < 0)
            continue;
        if (values[role].null)
            return why_set(why, ERR_INVALID, "%s is null, but input_ids is not", role_names[role]);
        if (values[role].n != values[TABLE_IDS].n)
            return why_set(why, ERR_INVALID, "%s has %" PRId64 " values for %" PRId64 " tokens", role_names[role],
                           values[role].n, values[TABLE_IDS].n);
    }
    return OK;
}

/* A mask's value: 0 or 1. Without the column it is 1. */
static err_t mask_at(const struct table *t, const struct table_value *values, int role, int64_t i, bool *ret,
                     struct why *why)
{
    int64_t v = t->column[role] < 0 ? 1 : values[role].ints[i];
    if (v != 0 && v != 1)
        return why_set(why, ERR_INVALID, "value %" PRId64 " of %s is %" PRId64 ", but must be 0 or 1", i,
                       role_names[role], v);
    *ret = v;
    return OK;
}

static err_t weight_at(const struct table *t, const struct table_value *values, int64_t i, bool *ret, struct why *why)
{
    if (t->column[TABLE_LABELS] < 0)
        return mask_at(t, values, TABLE_LOSS_MASK, i, ret, why);
    int64_t label = values[TABLE_LABELS].ints[i], id = values[TABLE_IDS].ints[i];
    if (label != IGNORED && label != id)
        return why_set(why, ERR_INVALID,
                       "label %" PRId64 " is %" PRId64 ", but must be -100 or the token's id %" PRId64
                       " (labels are not shifted)",
                       i, label, id);
    *ret = label != IGNORED;
    return OK;
}

/* Appends token i, unless it is padding. */
static err_t add_token(struct table *t, const struct table_value *values, int64_t i, struct why *why)
{
    int64_t id = values[TABLE_IDS].ints[i];
    bool kept = true, counts = true;
    err_t err = mask_at(t, values, TABLE_ATTENTION_MASK, i, &kept, why);
    if (err || !kept)
        return err;
    if (id < 0 || id > INT32_MAX)
        return why_set(why, ERR_INVALID, "token %" PRId64 " is %" PRId64 ", which is no token id", i, id);
    if ((err = weight_at(t, values, i, &counts, why)))
        return err;
    ((int32_t *)(void *)t->ids.data)[t->ids.len++] = (int32_t)id;
    t->weights.data[t->weights.len++] = counts;
    return OK;
}

static err_t make_tokens(struct table *t, const struct table_value *values, struct document *ret, struct why *why)
{
    int64_t n = values[TABLE_IDS].n;
    if (n > TABLE_MAX_TOKENS)
        return why_set(why, ERR_LIMIT, "%" PRId64 " tokens; a document has at most %" PRId64, n, TABLE_MAX_TOKENS);
    t->ids.len = t->weights.len = 0; /* counted in tokens */
    err_t err = check_lengths(t, values, why);
    if (!err && (buf_reserve(&t->ids, ((size_t)n + 1) * sizeof(int32_t)) || buf_reserve(&t->weights, (size_t)n + 1)))
        err = why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (int64_t i = 0; !err && i < n; i++)
        err = add_token(t, values, i, why);
    if (err)
        return err;
    ret->ids = (const int32_t *)(void *)t->ids.data;
    ret->n_ids = (int64_t)t->ids.len;
    if (t->column[TABLE_LABELS] >= 0 || t->column[TABLE_LOSS_MASK] >= 0)
        ret->weights = t->weights.data;
    return OK;
}

static err_t make_label(const struct table *t, const struct table_value *v, struct document *ret, struct why *why)
{
    if (t->column[TABLE_LABEL] < 0)
        return OK;
    if (v->null || v->n != 1)
        return why_set(why, ERR_INVALID, "its label is null");
    return document_label(ret, v->ints[0])
               ? OK
               : why_set(why, ERR_INVALID, "its label is %" PRId64 ", but must be a class from 0 to %d", v->ints[0],
                         DOC_MAX_LABEL);
}

err_t table_document(struct table *t, int64_t row, const struct table_value values[TABLE_ROLES], struct document *ret,
                     bool *ret_none, struct why *why)
{
    const struct table_value *main = &values[t->column[TABLE_TEXT] >= 0 ? TABLE_TEXT : TABLE_IDS];
    struct document d = {.row = row};
    *ret_none = main->null;
    if (main->null)
        return OK;
    err_t err = OK;
    if (t->column[TABLE_TEXT] >= 0) {
        d.text = main->bytes;
        d.len = main->len;
    } else {
        err = make_tokens(t, values, &d, why);
    }
    err = err ? err : make_label(t, &values[TABLE_LABEL], &d, why);
    if (err)
        return fail_row(t, row, err, why);
    *ret = d;
    return OK;
}

void table_fini(struct table *t)
{
    buf_fini(&t->ids);
    buf_fini(&t->weights);
}
