/* Reading a configuration: a walk over the YAML tree that carries the path of keys. A value is converted first and
 * stored only if it is legal, so the object is valid at any time. Defaults are YAML and go through the same code. */
#include "common/conf/schema.h"

#include "common/conf/number.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PATH 256
#define MAX_SHOWN 60 /* bytes of a wrong value in a message: the message must fit on a screen */
#define MAX_SET 120  /* bytes of a --set in a message */

/* ---- messages ---- */

static err_t complain_at(const struct schema_reader *r, struct schema_origin at, const char *key, err_t err,
                         struct why *why, const char *text)
{
    const char *point = key[0] ? ": " : "";
    if (at.set)
        return why_set(why, err, "--set %.*s%s: %s%s%s", MAX_SET, at.set, strlen(at.set) > MAX_SET ? ".." : "", key,
                       point, text);
    if (at.line)
        return why_set(why, err, "%s:%d: %s%s%s", r->file, at.line, key, point, text);
    return why_set(why, err, "%s: %s%s%s", r->file, key, point, text);
}

static int row_find(const struct schema *schema, const char *key)
{
    for (int i = 0; i < schema->n_rows; i++)
        if (strcmp(schema->rows[i].key, key) == 0)
            return i;
    return -1;
}

err_t schema_complain(const struct schema_reader *r, const char *key, err_t err, struct why *why, const char *fmt, ...)
{
    char text[sizeof(why->text)];
    int i = row_find(r->schema, key);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return complain_at(r, i < 0 ? (struct schema_origin){0} : r->origin[i], key, err, why, text);
}

bool schema_given(const struct schema_reader *r, const char *key)
{
    int i = row_find(r->schema, key);
    return i >= 0 && (r->origin[i].line || r->origin[i].set);
}

bool schema_overridden(const struct schema_reader *r, const char *key)
{
    int i = row_find(r->schema, key);
    return i >= 0 && r->origin[i].set;
}

/* Describes the value that was found: `"many"`, `a list`, `nothing`. Control characters are replaced, because the
 * message may be shown on a terminal. */
static void describe(const struct tree_node *node, char *ret, size_t cap)
{
    if (node->kind != TREE_SCALAR || tree_is_null(node)) {
        snprintf(ret, cap, "%s", node->kind == TREE_LIST ? "a list" : node->kind == TREE_MAP ? "a map" : "nothing");
        return;
    }
    size_t len = strlen(node->text);
    snprintf(ret, cap, "%s\"%.*s\"%s", node->plain ? "" : "the string ", MAX_SHOWN, node->text,
             len > MAX_SHOWN ? " (truncated)" : "");
    for (char *c = ret; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

static err_t complain_value(const struct schema_reader *r, struct schema_origin at, const struct schema_row *row,
                            const struct tree_node *node, const char *needed, const char *hint, struct why *why)
{
    char found[MAX_SHOWN + 64], text[sizeof(why->text)];
    struct buf made = {0};
    describe(node, found, sizeof(found));
    if (!needed) {
        err_t err = schema_needed_print(row, &made);
        if (!err)
            err = buf_append(&made, "", 1);
        if (err) {
            buf_fini(&made);
            return err;
        }
        needed = (const char *)made.data;
    }
    snprintf(text, sizeof(text), "expected %s, found %s%s%s%s%s", needed, found, hint && hint[0] ? "; " : "",
             hint ? hint : "", r->schema->explain ? ". The key: " : "", r->schema->explain ? row->help : "");
    buf_fini(&made);
    return complain_at(r, at, row->key, ERR_INVALID, why, text);
}

/* ---- the nearest known key ---- */

/* Edit distance with swaps of neighbours (optimal string alignment), over three rows of the table. */
static int edit_distance(const char *a, const char *b)
{
    int la = (int)strnlen(a, MAX_PATH), lb = (int)strnlen(b, MAX_PATH);
    int rows[3][MAX_PATH + 1];
    for (int j = 0; j <= lb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= la; i++) {
        int *cur = rows[i % 3], *prev = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        cur[0] = i;
        for (int j = 1; j <= lb; j++) {
            int best = prev[j - 1] + (a[i - 1] != b[j - 1]);
            best = prev[j] + 1 < best ? prev[j] + 1 : best;
            best = cur[j - 1] + 1 < best ? cur[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            cur[j] = best;
        }
    }
    return rows[la % 3][lb];
}

static const char *last_name(const char *key)
{
    const char *point = strrchr(key, '.');
    return point ? point + 1 : key;
}

/* A key may be misspelt, or be in the wrong section, so the distance of the whole path and that of the last name both
 * count. NULL: no key is similar. */
static const char *nearest_key(const struct schema *schema, const char *path)
{
    const char *nearest = NULL;
    int best = (int)strlen(last_name(path)) / 3 + 2;
    for (int i = 0; i < schema->n_rows; i++) {
        const char *key = schema->rows[i].key;
        if (schema->rows[i].hidden)
            continue;
        int whole = edit_distance(path, key), last = edit_distance(last_name(path), last_name(key)) + 1;
        int distance = whole < last ? whole : last;
        if (distance < best) {
            best = distance;
            nearest = key;
        }
    }
    for (int i = 0; i < schema->n_sections; i++) {
        int distance = edit_distance(path, schema->sections[i].name);
        if (distance < best) {
            best = distance;
            nearest = schema->sections[i].name;
        }
    }
    return nearest;
}

/* What a key of another program is here, with or without its section; NULL: no alias. */
static const char *alias_find(const struct schema *schema, const char *path)
{
    for (const struct schema_alias *a = schema->aliases; a && a->word; a++)
        if (strcmp(a->word, path) == 0 || strcmp(a->word, last_name(path)) == 0)
            return a->meant;
    return NULL;
}

/* Lists the names in a section (NULL: the sections and the keys outside sections), separated by commas. */
static void list_names(const struct schema *schema, const char *section, char *ret, size_t cap)
{
    size_t used = 0, len = section ? strlen(section) : 0;
    ret[0] = '\0';
    for (int i = 0; i < schema->n_rows && used < cap; i++) {
        const char *key = schema->rows[i].key;
        if (schema->rows[i].hidden)
            continue;
        if (section ? strncmp(key, section, len) == 0 && key[len] == '.' : !strchr(key, '.'))
            used += (size_t)snprintf(ret + used, cap - used, "%s%s", used ? ", " : "", last_name(key));
    }
    for (int i = 0; !section && i < schema->n_sections && used < cap; i++)
        used += (size_t)snprintf(ret + used, cap - used, "%s%s", used ? ", " : "", schema->sections[i].name);
}

static const struct schema_section *section_find(const struct schema *schema, const char *name, size_t len)
{
    for (int i = 0; i < schema->n_sections; i++)
        if (strlen(schema->sections[i].name) == len && memcmp(schema->sections[i].name, name, len) == 0)
            return &schema->sections[i];
    return NULL;
}

static err_t complain_unknown(const struct schema_reader *r, struct schema_origin at, const char *path, struct why *why)
{
    char names[800], text[sizeof(why->text)];
    const char *alias = alias_find(r->schema, path), *near = alias ? alias : nearest_key(r->schema, path);
    const char *point = strchr(path, '.');
    const struct schema_section *section = point ? section_find(r->schema, path, (size_t)(point - path)) : NULL;
    list_names(r->schema, section ? section->name : NULL, names, sizeof(names));
    snprintf(text, sizeof(text), "unknown key%s%s%s (%s%s: %s)", near ? "; did you mean " : "", near ? near : "",
             near ? "?" : "", section ? "keys of " : "top level", section ? section->name : "", names);
    return complain_at(r, at, path, ERR_INVALID, why, text);
}

/* ---- values ---- */

static void *field(const struct schema_row *row, void *object)
{
    return (char *)object + row->offset;
}

static int *field_count(const struct schema_row *row, void *object)
{
    return (int *)((char *)object + row->count_offset);
}

static void texts_free(char **texts, int n)
{
    for (int i = 0; i < n; i++)
        free(texts[i]);
    free(texts);
}

/* NULL if `node` is a legal string, else what is expected instead. */
static const char *check_text(const struct schema_row *row, const struct tree_node *node, const char *needed)
{
    if (node->kind != TREE_SCALAR || tree_is_null(node))
        return needed;
    if (strlen(node->text) > SCHEMA_MAX_TEXT)
        return "a string of at most 65536 bytes";
    return row->check && row->type != SCHEMA_MAP ? row->check(node->text) : NULL;
}

static const char no_memory[] = "out of memory";

/* The functions below return NULL if they stored the value. Otherwise the value is rejected, and they return a hint for
 * the message, "" for none. They may set `ret_needed` to what is expected if that is more precise than the row's type.
 */
typedef const char *read_fn(const struct schema_row *row, const struct tree_node *node, void *object,
                            const char **ret_needed);

static const char *unquoted(const struct tree_node *node)
{
    if (node->kind != TREE_SCALAR || tree_is_null(node))
        return "";
    return node->plain ? NULL : "write it without quotes";
}

static const char *parse_int(const struct schema_row *row, const char *text, int64_t *ret)
{
    static const int64_t counts[] = {1000, 1000, 1000000, 1000000000}, seconds[] = {1, 60, 3600, 86400};
    const char *wrong = row->unit == UNIT_COUNT     ? number_scaled_parse(text, "kKMG", counts, ret)
                        : row->unit == UNIT_SECONDS ? number_scaled_parse(text, "smhd", seconds, ret)
                                                    : number_int_parse(text, ret);
    int64_t digits;
    if (wrong && row->unit == UNIT_NONE && !number_scaled_parse(text, "kKMG", counts, &digits))
        return "write all digits: k may mean 1000 or 1024";
    return wrong;
}

static const char *read_int(const struct schema_row *row, const struct tree_node *node, void *object,
                            const char **ret_needed)
{
    int64_t value;
    const char *wrong = unquoted(node);
    if (!wrong)
        wrong = parse_int(row, node->text, &value);
    if (!wrong && (value < row->min || value > row->max))
        wrong = "";
    if (!wrong)
        *(int64_t *)field(row, object) = value;
    return wrong;
}

static const char *read_uint(const struct schema_row *row, const struct tree_node *node, void *object,
                             const char **ret_needed)
{
    uint64_t value;
    const char *wrong = unquoted(node);
    if (!wrong)
        wrong = number_uint_parse(node->text, &value);
    if (!wrong)
        *(uint64_t *)field(row, object) = value;
    return wrong;
}

static const char *read_float(const struct schema_row *row, const struct tree_node *node, void *object,
                              const char **ret_needed)
{
    double value;
    const char *wrong = unquoted(node);
    if (!wrong)
        wrong = number_double_parse(node->text, &value);
    if (!wrong && (value < row->low || value > row->high))
        wrong = "";
    if (!wrong)
        *(double *)field(row, object) = value;
    return wrong;
}

static const char *read_bool(const struct schema_row *row, const struct tree_node *node, void *object,
                             const char **ret_needed)
{
    const char *wrong = unquoted(node);
    if (wrong)
        return wrong;
    bool yes = strcmp(node->text, "true") == 0;
    if (!yes && strcmp(node->text, "false") != 0)
        return "";
    *(bool *)field(row, object) = yes;
    return NULL;
}

static const struct schema_name *name_find(const struct schema_name *names, const char *text)
{
    for (; names && names->name; names++)
        if (strcmp(names->name, text) == 0)
            return names;
    return NULL;
}

static const char *read_enum(const struct schema_row *row, const struct tree_node *node, void *object,
                             const char **ret_needed)
{
    const struct schema_name *n = node->kind == TREE_SCALAR ? name_find(row->names, node->text) : NULL;
    if (!n && node->kind == TREE_SCALAR)
        n = name_find(row->also, node->text);
    if (!n)
        return "";
    *(int *)field(row, object) = n->value;
    return NULL;
}

static const char *read_text(const struct schema_row *row, const struct tree_node *node, void *object,
                             const char **ret_needed)
{
    *ret_needed = check_text(row, node, "a string");
    if (*ret_needed)
        return tree_is_null(node) ? "write \"\" for an empty string" : "";
    char *text = strdup(node->text), **place = field(row, object);
    if (!text)
        return no_memory;
    free(*place);
    *place = text;
    return NULL;
}

/* The string that is stored for a child: its text, or KEY=VALUE. NULL: out of memory. */
static char *item_text(const struct tree_node *child)
{
    char *text = NULL;
    if (!child->key)
        return strdup(child->text);
    return asprintf(&text, "%s=%s", child->key, child->text) < 0 ? NULL : text;
}

static const char *check_item(const struct schema_row *row, const struct tree_node *child)
{
    const char *needed = child->key && row->check ? row->check(child->key) : NULL;
    return needed ? needed : check_text(row, child, child->key ? "a string for each key" : "a string for each item");
}

static const char *read_items(const struct schema_row *row, const struct tree_node *node, void *object,
                              const char **ret_needed)
{
    int n = 0, wanted = 0;
    const char *wrong = NULL;
    struct tree_node one = {.kind = TREE_SCALAR, .line = node->line, .plain = node->plain, .text = node->text};
    const struct tree_node list = {.kind = TREE_LIST, .first = one.text && one.text[0] ? &one : NULL};
    if (row->single && node->kind == TREE_SCALAR && !tree_is_null(node))
        node = &list;
    if (node->kind != (row->type == SCHEMA_LIST ? TREE_LIST : TREE_MAP))
        return row->type == SCHEMA_LIST ? "write [a, b]" : "write {KEY: value}";
    for (const struct tree_node *c = node->first; c && !*ret_needed; c = c->next, wanted++)
        *ret_needed = wanted < SCHEMA_MAX_ITEMS ? check_item(row, c) : "at most 65536 items";
    if (*ret_needed)
        return "";
    char **texts = calloc((size_t)wanted + 1, sizeof(*texts));
    if (!texts)
        return no_memory;
    for (const struct tree_node *c = node->first; c && !wrong; c = c->next, n++)
        if (!(texts[n] = item_text(c)))
            wrong = no_memory;
    if (wrong) {
        texts_free(texts, n);
        return wrong;
    }
    texts_free(*(char ***)field(row, object), *field_count(row, object));
    *(char ***)field(row, object) = texts;
    *field_count(row, object) = n;
    return NULL;
}

static read_fn *const readers[] = {
    [SCHEMA_INT] = read_int,   [SCHEMA_UINT] = read_uint, [SCHEMA_FLOAT] = read_float, [SCHEMA_BOOL] = read_bool,
    [SCHEMA_ENUM] = read_enum, [SCHEMA_TEXT] = read_text, [SCHEMA_LIST] = read_items,  [SCHEMA_MAP] = read_items,
};

/* The part of a rejected item that the message shows: its key if the key is wrong. */
static struct tree_node shown_item(const struct schema_row *row, const struct tree_node *item)
{
    struct tree_node shown = *item;
    if (item->key && row->check && row->check(item->key))
        shown = (struct tree_node){.kind = TREE_SCALAR, .line = item->line, .text = item->key};
    return shown;
}

/* The child because of which a list or map was rejected; the message shows it and its line. */
static struct tree_node wrong_item(const struct schema_row *row, const struct tree_node *node)
{
    for (const struct tree_node *c = node->first; c; c = c->next)
        if (check_item(row, c))
            return shown_item(row, c);
    return *node;
}

static err_t store(struct schema_reader *r, int i, const struct tree_node *node, struct schema_origin at,
                   struct why *why)
{
    const struct schema_row *row = &r->schema->rows[i];
    const char *needed = NULL, *hint = readers[row->type](row, node, r->object, &needed);
    if (!hint) {
        r->origin[i] = at;
        return OK;
    }
    if (hint == no_memory)
        return ERR_NOMEM;
    struct tree_node shown = needed && node->kind != TREE_SCALAR ? wrong_item(row, node) : *node;
    at.line = at.set ? 0 : shown.line;
    return complain_value(r, at, row, &shown, needed, hint, why);
}

/* ---- the walk ---- */

static struct schema_origin origin_of(const struct tree_node *node, const char *set)
{
    return (struct schema_origin){.line = set ? 0 : node->line, .set = set};
}

/* run.env.NAME=value: adds one entry to a map, or replaces the entry of that name. */
static err_t store_entry(struct schema_reader *r, int i, const char *name, const struct tree_node *node,
                         const char *set, struct why *why)
{
    const struct schema_row *row = &r->schema->rows[i];
    struct tree_node entry = {.kind = node->kind, .plain = node->plain, .key = (char *)name, .text = node->text};
    const char *needed = check_item(row, &entry);
    struct schema_origin at = origin_of(node, set);
    struct tree_node shown = shown_item(row, &entry);
    if (needed)
        return complain_value(r, at, row, &shown, needed, "", why);
    char ***texts = field(row, r->object);
    int *n = field_count(row, r->object), k = 0;
    size_t len = strlen(name);
    while (k < *n && (strncmp((*texts)[k], name, len) != 0 || (*texts)[k][len] != '='))
        k++;
    if (k == SCHEMA_MAX_ITEMS)
        return complain_at(r, at, row->key, ERR_LIMIT, why, "more than 65536 entries");
    char *text = item_text(&entry), **grown = text ? realloc(*texts, ((size_t)*n + 1) * sizeof(*grown)) : NULL;
    if (!grown) {
        free(text);
        return ERR_NOMEM;
    }
    *texts = grown;
    if (k < *n)
        free(grown[k]);
    else
        *n += 1;
    grown[k] = text;
    r->origin[i] = at;
    return OK;
}

/* Finds the map that `path` is an entry of: returns its row, and the entry's name in ret_name. -1: none. */
static int entry_find(const struct schema *schema, const char *path, const char **ret_name)
{
    for (int i = 0; i < schema->n_rows; i++) {
        size_t len = strlen(schema->rows[i].key);
        if (schema->rows[i].type == SCHEMA_MAP && strncmp(path, schema->rows[i].key, len) == 0 && path[len] == '.') {
            *ret_name = path + len + 1;
            return i;
        }
    }
    return -1;
}

static err_t walk(struct schema_reader *r, const char *path, const struct tree_node *node, const char *set,
                  struct why *why);

/* The row whose name stands for a whole section; -1: there is none. */
static int whole_find(const struct schema *schema, const char *section)
{
    const size_t len = strlen(section);
    for (int i = 0; i < schema->n_rows; i++)
        if (schema->rows[i].whole && strncmp(schema->rows[i].key, section, len) == 0 && schema->rows[i].key[len] == '.')
            return i;
    return -1;
}

static err_t complain_section(const struct schema_reader *r, const char *path, const struct tree_node *node,
                              const char *set, struct why *why)
{
    char text[1000], names[800], found[MAX_SHOWN + 64];
    const int whole = whole_find(r->schema, path);
    const char *word = whole < 0 ? NULL : last_name(r->schema->rows[whole].key);
    list_names(r->schema, path[0] ? path : NULL, names, sizeof(names));
    describe(node, found, sizeof(found));
    snprintf(text, sizeof(text), "expected %s%sa map with some of the keys %s, found %s", word ? word : "",
             word ? ", or " : "", names, found);
    return complain_at(r, origin_of(node, set), path, ERR_INVALID, why, text);
}

static err_t walk_section(struct schema_reader *r, const char *path, const struct tree_node *node, const char *set,
                          struct why *why)
{
    const int whole = whole_find(r->schema, path);
    if (whole >= 0 && node->kind == TREE_SCALAR && strcmp(node->text, last_name(r->schema->rows[whole].key)) == 0) {
        const struct tree_node yes = {.kind = TREE_SCALAR, .plain = true, .text = (char *)"true", .line = node->line};
        return store(r, whole, &yes, origin_of(node, set), why);
    }
    if (node->kind != TREE_MAP)
        return complain_section(r, path, node, set, why);
    for (const struct tree_node *c = node->first; c; c = c->next) {
        char child[MAX_PATH];
        if ((size_t)snprintf(child, sizeof(child), "%s%s%s", path, path[0] ? "." : "", c->key) >= sizeof(child))
            return complain_at(r, origin_of(c, set), path, ERR_INVALID, why, "unknown key: it is too long");
        err_t err = walk(r, child, c, set, why);
        if (err)
            return err;
    }
    return OK;
}

static err_t walk(struct schema_reader *r, const char *path, const struct tree_node *node, const char *set,
                  struct why *why)
{
    const char *name;
    int i = row_find(r->schema, path);
    if (i >= 0)
        return store(r, i, node, origin_of(node, set), why);
    if (section_find(r->schema, path, strlen(path)))
        return walk_section(r, path, node, set, why);
    i = set ? entry_find(r->schema, path, &name) : -1;
    if (i >= 0)
        return store_entry(r, i, name, node, set, why);
    return complain_unknown(r, origin_of(node, set), path, why);
}

err_t schema_start(struct schema_reader *r, const struct schema *schema, const char *file, void *object,
                   struct why *why)
{
    assert(schema->n_rows <= SCHEMA_MAX_ROWS);
    *r = (struct schema_reader){.schema = schema, .object = object, .file = file};
    memset(object, 0, schema->size);
    for (int i = 0; i < schema->n_rows; i++) {
        const char *def = schema->rows[i].def;
        struct tree_node *node;
        struct tree_error error;
        if (!def)
            continue;
        err_t err = tree_parse(def, strlen(def), &node, &error);
        if (err)
            return why_set(why, err, "default of %s: %s", schema->rows[i].key, error.text);
        err = store(r, i, node, (struct schema_origin){0}, why);
        tree_free(node);
        if (err)
            return err;
    }
    return OK;
}

err_t schema_read(struct schema_reader *r, const char *text, size_t len, struct why *why)
{
    struct tree_node *root;
    struct tree_error error;
    err_t err = tree_parse(text, len, &root, &error);
    if (err)
        return complain_at(r, (struct schema_origin){.line = error.line}, "", err, why, error.text);
    if (tree_is_null(root))
        err = why_set(why, ERR_INVALID, "%s: the file is empty", r->file);
    else
        err = walk_section(r, "", root, NULL, why);
    tree_free(root);
    return err;
}

err_t schema_set(struct schema_reader *r, const char *set, struct why *why)
{
    const struct schema_origin at = {.set = set};
    const char *equals = strchr(set, '=');
    char path[MAX_PATH];
    struct tree_node *root;
    struct tree_error error;
    if (!equals || equals == set || (size_t)(equals - set) >= sizeof(path))
        return complain_at(r, at, "", ERR_INVALID, why, "KEY=VALUE is needed, such as train.lr=1e-4");
    memcpy(path, set, (size_t)(equals - set));
    path[equals - set] = '\0';
    err_t err = tree_parse(equals + 1, strlen(equals + 1), &root, &error);
    if (err)
        return complain_at(r, at, path, err, why, error.text);
    err = walk(r, path, root, set, why);
    tree_free(root);
    return err;
}

err_t schema_finish(const struct schema_reader *r, struct why *why)
{
    for (int i = 0; i < r->schema->n_rows; i++) {
        const struct schema_row *row = &r->schema->rows[i];
        if (!row->def && !r->origin[i].line && !r->origin[i].set)
            return why_set(why, ERR_INVALID, "%s: %s: required key is missing (%s)", r->file, row->key, row->help);
    }
    return OK;
}

void schema_fini(const struct schema *schema, void *object)
{
    for (int i = 0; i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        if (row->type == SCHEMA_TEXT) {
            free(*(char **)field(row, object));
        } else if (row->type == SCHEMA_LIST || row->type == SCHEMA_MAP) {
            texts_free(*(char ***)field(row, object), *field_count(row, object));
        }
    }
    memset(object, 0, schema->size);
}
