/* Writing: values as YAML that reads back to the same struct, and documentation. Strings are always in double quotes,
 * and every character is escaped that libyaml's reader or a terminal could interpret. */
#include "common/conf/schema.h"

#include "common/base/utf8.h"
#include "common/conf/number.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static err_t print_code_point(uint32_t c, const char *bytes, int len, struct buf *ret)
{
    if (c == '"' || c == '\\')
        return buf_printf(ret, "\\%c", (char)c);
    if (c < 0x20 || (c >= 0x7f && c < 0xa1))
        return buf_printf(ret, "\\x%02X", c);
    if ((c >= 0x2028 && c < 0x202f) || c == 0xfeff || (c & 0xfffe) == 0xfffe)
        return buf_printf(ret, "\\U%08X", c);
    return buf_append(ret, bytes, (size_t)len);
}

static err_t print_text(const char *text, struct buf *ret)
{
    err_t err = buf_append(ret, "\"", 1);
    for (int len; !err && *text; text += len) {
        uint32_t c;
        len = utf8_decode(text, &c);
        if (!len)
            return ERR_INVALID;
        err = print_code_point(c, text, len, ret);
    }
    return err ? err : buf_append(ret, "\"", 1);
}

static err_t print_entry(const char *entry, struct buf *ret)
{
    const char *equals = strchr(entry, '=');
    char *name = equals ? strndup(entry, (size_t)(equals - entry)) : NULL;
    if (!name)
        return equals ? ERR_NOMEM : ERR_INVALID;
    err_t err = print_text(name, ret);
    if (!err)
        err = buf_append(ret, ": ", 2);
    if (!err)
        err = print_text(equals + 1, ret);
    free(name);
    return err;
}

static err_t print_items(const struct schema_row *row, const void *object, struct buf *ret)
{
    char *const *texts = *(char *const *const *)((const char *)object + row->offset);
    int n = *(const int *)((const char *)object + row->count_offset);
    bool list = row->type == SCHEMA_LIST;
    err_t err = buf_append(ret, list ? "[" : "{", 1);
    for (int i = 0; !err && i < n; i++) {
        if (i)
            err = buf_append(ret, ", ", 2);
        if (!err)
            err = list ? print_text(texts[i], ret) : print_entry(texts[i], ret);
    }
    return err ? err : buf_append(ret, list ? "]" : "}", 1);
}

err_t schema_value_print(const struct schema_row *row, const void *object, struct buf *ret)
{
    const void *p = (const char *)object + row->offset;
    char number[NUMBER_TEXT];
    switch (row->type) {
    case SCHEMA_INT:
        return buf_printf(ret, "%" PRId64, *(const int64_t *)p);
    case SCHEMA_UINT:
        return buf_printf(ret, "%" PRIu64, *(const uint64_t *)p);
    case SCHEMA_FLOAT:
        number_double_print(*(const double *)p, number);
        return buf_append(ret, number, strlen(number));
    case SCHEMA_BOOL:
        return buf_printf(ret, "%s", *(const bool *)p ? "true" : "false");
    case SCHEMA_ENUM:
        for (const struct schema_name *n = row->names; n->name; n++)
            if (n->value == *(const int *)p)
                return buf_append(ret, n->name, strlen(n->name));
        return ERR_INVALID;
    case SCHEMA_TEXT:
        return print_text(*(const char *const *)p ? *(const char *const *)p : "", ret);
    case SCHEMA_LIST:
    case SCHEMA_MAP:
        return print_items(row, object, ret);
    }
    return ERR_INTERNAL;
}

/* Length of the section's name in a key; 0 for a key outside sections. */
static size_t section_length(const char *key)
{
    const char *point = strchr(key, '.');
    return point ? (size_t)(point - key) : 0;
}

/* ---- keys of newer versions ---- */

static err_t is_at_default(const struct schema *schema, const struct schema_row *row, const void *object, bool *ret)
{
    struct schema_reader r;
    struct buf a = {0}, b = {0};
    struct why why = {""};
    void *defaults = malloc(schema->size);
    if (!defaults)
        return ERR_NOMEM;
    err_t err = schema_start(&r, schema, "defaults", defaults, &why);
    if (!err)
        err = schema_value_print(row, object, &a);
    if (!err)
        err = schema_value_print(row, defaults, &b);
    *ret = !err && a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
    schema_fini(schema, defaults);
    free(defaults);
    buf_fini(&a);
    buf_fini(&b);
    return err;
}

err_t schema_since(const struct schema *schema, const void *object, uint32_t *ret, const char **ret_key)
{
    uint32_t highest = 1;
    const char *key = NULL;
    for (int i = 0; i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        bool is_default = true;
        err_t err = row->since > highest ? is_at_default(schema, row, object, &is_default) : OK;
        if (err)
            return err;
        highest = is_default ? highest : row->since;
        key = is_default ? key : row->key;
    }
    *ret = highest;
    *ret_key = key;
    return OK;
}

/* Whether schema_print leaves the key out. */
static err_t is_left_out(const struct schema *schema, const struct schema_row *row, const void *object, bool *ret)
{
    *ret = row->hidden;
    return row->since > 1 && !row->hidden ? is_at_default(schema, row, object, ret) : OK;
}

err_t schema_print(const struct schema *schema, const void *object, struct buf *ret)
{
    const char *section = "";
    for (int i = 0; i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        size_t len = section_length(row->key);
        bool is_out;
        err_t err = is_left_out(schema, row, object, &is_out);
        if (err)
            return err;
        if (is_out)
            continue;
        bool opens = len && (section_length(section) != len || memcmp(section, row->key, len) != 0);
        err = opens ? buf_printf(ret, "%.*s:\n", (int)len, row->key) : OK;
        section = row->key;
        if (!err)
            err = buf_printf(ret, "%s%s: ", len ? "  " : "", row->key + (len ? len + 1 : 0));
        if (!err)
            err = schema_value_print(row, object, ret);
        if (!err)
            err = buf_append(ret, "\n", 1);
        if (err)
            return err;
    }
    return OK;
}

static err_t needed_names(const struct schema_name *names, struct buf *ret)
{
    err_t err = buf_printf(ret, "%s", names[1].name ? "one of" : "only");
    for (const struct schema_name *n = names; !err && n->name; n++)
        err = buf_printf(ret, "%s %s", n == names ? "" : ",", n->name);
    return err;
}

err_t schema_needed_print(const struct schema_row *row, struct buf *ret)
{
    char low[NUMBER_TEXT], high[NUMBER_TEXT];
    switch (row->type) {
    case SCHEMA_INT:
        return buf_printf(ret, "an integer from %" PRId64 " to %" PRId64 "%s", row->min, row->max,
                          row->unit == UNIT_SECONDS ? " (or 90s, 30m, 1h, 2d)" : "");
    case SCHEMA_UINT:
        return buf_printf(ret, "an integer from 0 to %" PRIu64, UINT64_MAX);
    case SCHEMA_FLOAT:
        number_double_print(row->low, low);
        number_double_print(row->high, high);
        return buf_printf(ret, "a number from %s to %s", low, high);
    case SCHEMA_BOOL:
        return buf_printf(ret, "true or false");
    case SCHEMA_ENUM:
        return needed_names(row->names, ret);
    case SCHEMA_TEXT:
        return buf_printf(ret, "a string");
    case SCHEMA_LIST:
        return buf_printf(ret, row->single ? "a string, or a list of strings" : "a list of strings");
    case SCHEMA_MAP:
        return buf_printf(ret, "a map of strings");
    }
    return ERR_INTERNAL;
}

err_t schema_resume_check(const struct schema *schema, const void *before, const void *after, struct why *why)
{
    for (int i = 0; i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        struct buf old = {0}, new = {0};
        if (row->resume)
            continue;
        err_t err = schema_value_print(row, before, &old);
        if (!err)
            err = schema_value_print(row, after, &new);
        if (err)
            why_set(why, err, "%s: the value cannot be printed", row->key);
        else if (old.len != new.len || memcmp(old.data, new.data, old.len) != 0)
            err = why_set(why, ERR_INVALID,
                          "%s: the checkpoint's job has %.*s, this one %.*s; a resumed job cannot change this key: "
                          "leave the key out, or start a new job",
                          row->key, (int)old.len, (const char *)old.data, (int)new.len, (const char *)new.data);
        buf_fini(&old);
        buf_fini(&new);
        if (err)
            return err;
    }
    return OK;
}

static void help_row(const struct schema_row *row, FILE *out)
{
    struct buf needed = {0};
    if (!schema_needed_print(row, &needed))
        fprintf(out, "  %-26s %.*s; %s%s%s\n", row->key, (int)needed.len, (const char *)needed.data,
                row->def ? "default " : "required", row->def ? row->def : "",
                row->resume ? "; may change on resume" : "");
    fprintf(out, "  %-26s   %s\n", "", row->help);
    buf_fini(&needed);
}

void schema_help(const struct schema *schema, FILE *out)
{
    const char *section = "";
    for (int i = 0; i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        size_t len = section_length(row->key);
        if (row->hidden)
            continue;
        bool opens = len && (section_length(section) != len || memcmp(section, row->key, len) != 0);
        for (int s = 0; opens && s < schema->n_sections; s++)
            if (strlen(schema->sections[s].name) == len && memcmp(schema->sections[s].name, row->key, len) == 0)
                fprintf(out, "\n%s: %s\n", schema->sections[s].name, schema->sections[s].help);
        section = row->key;
        help_row(row, out);
    }
}

/* ---- the installed configuration file, and the manual ---- */

static err_t example_row(const struct schema_row *row, size_t section, struct buf *ret)
{
    const char *indent = section ? "  " : "";
    err_t err = buf_printf(ret, "\n# %s\n# ", row->help);
    if (!err)
        err = schema_needed_print(row, ret);
    return err ? err
               : buf_printf(ret, "\n#%s%s: %s\n", indent, row->key + (section ? section + 1 : 0),
                            row->def ? row->def : "");
}

err_t schema_example(const struct schema *schema, struct buf *ret)
{
    const char *section = "";
    err_t err = buf_printf(ret,
                           "# %s. Every key is listed with its default. To set a key, remove the # before it and\n"
                           "# before its section.\n",
                           schema->title);
    for (int i = 0; !err && i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        size_t len = section_length(row->key);
        if (row->hidden)
            continue;
        bool opens = len && (section_length(section) != len || memcmp(section, row->key, len) != 0);
        section = row->key;
        if (opens)
            err = buf_printf(ret, "\n#%.*s:\n", (int)len, row->key);
        if (!err)
            err = example_row(row, len, ret);
    }
    return err;
}

/* Only jobs are resumed: a schema in which nothing may change on resume has no such column. */
static bool has_resume_column(const struct schema *schema)
{
    for (int i = 0; i < schema->n_rows; i++)
        if (schema->rows[i].resume)
            return true;
    return false;
}

static err_t manual_header(const struct schema *schema, struct buf *ret)
{
    return buf_printf(ret, has_resume_column(schema)
                               ? "| key | value | default | on resume | description |\n|---|---|---|---|---|\n"
                               : "| key | value | default | description |\n|---|---|---|---|\n");
}

static err_t manual_rows(const struct schema *schema, const char *section, struct buf *ret)
{
    size_t len = strlen(section);
    err_t err = OK;
    for (int i = 0; !err && i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        if (row->hidden || section_length(row->key) != len || memcmp(section, row->key, len) != 0)
            continue;
        err = buf_printf(ret, "| `%s` | ", row->key);
        if (!err)
            err = schema_needed_print(row, ret);
        if (!err && row->def)
            err = buf_printf(ret, " | `%s`", row->def);
        else if (!err)
            err = buf_printf(ret, " | required");
        if (!err && has_resume_column(schema))
            err = buf_printf(ret, " | %s", row->resume ? "may change" : "fixed");
        if (!err)
            err = buf_printf(ret, " | %s |\n", row->help);
    }
    return err;
}

err_t schema_manual(const struct schema *schema, struct buf *ret)
{
    err_t err = buf_printf(ret, "# %s\n\n%s\n\n", schema->title, schema->intro);
    if (!err)
        err = manual_header(schema, ret);
    if (!err)
        err = manual_rows(schema, "", ret);
    for (int s = 0; !err && s < schema->n_sections; s++) {
        err = buf_printf(ret, "\n## %s\n\n%s\n\n", schema->sections[s].name, schema->sections[s].help);
        if (!err)
            err = manual_header(schema, ret);
        if (!err)
            err = manual_rows(schema, schema->sections[s].name, ret);
    }
    return err;
}
