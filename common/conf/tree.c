/* The reader uses libyaml's events and not its documents: events arrive one by one, so bounds are checked before the
 * next allocation, and events carry the line numbers for messages. TREE_MAX_DEPTH bounds the recursion.
 *
 * The encoding is fixed to UTF-8, because libyaml would otherwise detect UTF-16 from any two matching bytes. */
#include "common/conf/tree.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct yaml_reader {
    yaml_parser_t yaml;
    int nodes;
    struct tree_error *error;
};

static err_t fail(struct yaml_reader *r, err_t err, size_t line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static err_t fail(struct yaml_reader *r, err_t err, size_t line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->error->text, sizeof(r->error->text), fmt, ap);
    va_end(ap);
    r->error->line = (int)line;
    return err;
}

static err_t fail_syntax(struct yaml_reader *r)
{
    const yaml_parser_t *y = &r->yaml;
    const char *problem = y->problem ? y->problem : "it cannot be parsed";
    if (y->error == YAML_MEMORY_ERROR)
        return fail(r, ERR_NOMEM, 0, "out of memory");
    if (y->error == YAML_READER_ERROR)
        return fail(r, ERR_INVALID, y->mark.line + 1, "not YAML: %s (the file must be UTF-8 text)", problem);
    const char *hint = "";
    if (strstr(problem, "cannot start any token"))
        hint = "; indent with spaces, not tabs, and put a string that begins with %, @ or ` in quotes";
    if (y->context && (strstr(y->context, "an alias") || strstr(y->context, "an anchor")))
        hint = "; put a string that begins with * or & in quotes";
    if (y->context)
        return fail(r, ERR_INVALID, y->problem_mark.line + 1, "not YAML: %s, %s%s", y->context, problem, hint);
    return fail(r, ERR_INVALID, y->problem_mark.line + 1, "not YAML: %s%s", problem, hint);
}

static err_t next_event(struct yaml_reader *r, yaml_event_t *event)
{
    return yaml_parser_parse(&r->yaml, event) ? OK : fail_syntax(r);
}

void tree_free(struct tree_node *node)
{
    while (node) {
        struct tree_node *next = node->next;
        tree_free(node->first);
        free(node->key);
        free(node->text);
        free(node);
        node = next;
    }
}

bool tree_is_null(const struct tree_node *node)
{
    return node->kind == TREE_SCALAR && node->plain &&
           (!node->text[0] || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0);
}

static err_t node_new(struct yaml_reader *r, enum tree_kind kind, size_t line, struct tree_node **ret)
{
    if (++r->nodes > TREE_MAX_NODES)
        return fail(r, ERR_LIMIT, line, "more than %d values", TREE_MAX_NODES);
    struct tree_node *node = calloc(1, sizeof(*node));
    if (!node)
        return fail(r, ERR_NOMEM, line, "out of memory");
    node->kind = kind;
    node->line = (int)line;
    *ret = node;
    return OK;
}

static err_t copy_text(struct yaml_reader *r, const yaml_event_t *event, char **ret)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t len = event->data.scalar.length;
    if (memchr(value, 0, len))
        return fail(r, ERR_INVALID, event->start_mark.line + 1, "a string cannot contain a zero byte");
    *ret = strndup(value, len);
    return *ret ? OK : fail(r, ERR_NOMEM, 0, "out of memory");
}

static err_t refuse_decoration(struct yaml_reader *r, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    size_t line = event->start_mark.line + 1;
    if (event->type == YAML_ALIAS_EVENT)
        return fail(r, ERR_INVALID, line,
                    "*%.64s is a YAML alias; aliases are not supported: put a string that begins with * in quotes",
                    (const char *)event->data.alias.anchor);
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor || tag)
        return fail(r, ERR_INVALID, line, "%s (%.64s) are not supported: put a string that begins with %s in quotes",
                    anchor ? "anchors" : "tags", (const char *)(anchor ? anchor : tag), anchor ? "&" : "!");
    return OK;
}

static err_t read_node(struct yaml_reader *r, const yaml_event_t *event, int depth, struct tree_node **ret);

static err_t read_child(struct yaml_reader *r, int depth, yaml_event_type_t end, bool *ret_end, struct tree_node **ret)
{
    yaml_event_t event;
    err_t err = next_event(r, &event);
    if (err)
        return err;
    *ret_end = event.type == end;
    if (!*ret_end)
        err = read_node(r, &event, depth, ret);
    yaml_event_delete(&event);
    assert(err || *ret_end || *ret);
    return err;
}

static err_t read_list(struct yaml_reader *r, int depth, struct tree_node *list)
{
    for (struct tree_node **last = &list->first;; last = &(*last)->next) {
        bool end;
        err_t err = read_child(r, depth, YAML_SEQUENCE_END_EVENT, &end, last);
        if (err || end)
            return err;
    }
}

static err_t check_key(struct yaml_reader *r, const struct tree_node *map, const struct tree_node *key)
{
    int n = 0;
    if (key->kind != TREE_SCALAR || tree_is_null(key))
        return fail(r, ERR_INVALID, (size_t)key->line, "a key must be a string");
    for (const struct tree_node *other = map->first; other; other = other->next, n++)
        if (strcmp(other->key, key->text) == 0)
            return fail(r, ERR_INVALID, (size_t)key->line, "%.128s: duplicate key, first given in line %d", key->text,
                        other->line);
    return n < TREE_MAX_KEYS ? OK : fail(r, ERR_LIMIT, (size_t)key->line, "more than %d keys", TREE_MAX_KEYS);
}

static err_t read_map(struct yaml_reader *r, int depth, struct tree_node *map)
{
    for (struct tree_node **last = &map->first;; last = &(*last)->next) {
        struct tree_node *key = NULL, *value = NULL;
        bool end;
        err_t err = read_child(r, depth, YAML_MAPPING_END_EVENT, &end, &key);
        if (!err && end)
            return OK;
        if (!err)
            err = check_key(r, map, key);
        if (!err)
            err = read_child(r, depth, YAML_NO_EVENT, &end, &value);
        if (err) {
            tree_free(key);
            return err;
        }
        assert(value); /* a map's key is always followed by a value */
        /* The value takes the line of its key, because a block value starts one line later. */
        value->line = key->line;
        value->key = key->text;
        key->text = NULL;
        tree_free(key);
        *last = value;
    }
}

static err_t read_value(struct yaml_reader *r, const yaml_event_t *event, int depth, struct tree_node *node)
{
    if (node->kind == TREE_LIST)
        return read_list(r, depth + 1, node);
    if (node->kind == TREE_MAP)
        return read_map(r, depth + 1, node);
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    err_t err = copy_text(r, event, &node->text);
    assert(err || node->text);
    return err;
}

static err_t read_node(struct yaml_reader *r, const yaml_event_t *event, int depth, struct tree_node **ret)
{
    struct tree_node *node = NULL;
    enum tree_kind kind = event->type == YAML_SEQUENCE_START_EVENT  ? TREE_LIST
                          : event->type == YAML_MAPPING_START_EVENT ? TREE_MAP
                                                                    : TREE_SCALAR;
    if (depth >= TREE_MAX_DEPTH)
        return fail(r, ERR_LIMIT, event->start_mark.line + 1, "nested deeper than %d levels", TREE_MAX_DEPTH);
    err_t err = refuse_decoration(r, event);
    if (!err)
        err = node_new(r, kind, event->start_mark.line + 1, &node);
    if (err)
        return err;
    assert(node);
    err = read_value(r, event, depth, node);
    if (err) {
        tree_free(node);
        return err;
    }
    *ret = node;
    return OK;
}

/* Reads the next event, which must be of this type. */
static err_t expect(struct yaml_reader *r, yaml_event_type_t type)
{
    yaml_event_t event;
    err_t err = next_event(r, &event);
    if (err)
        return err;
    if (event.type != type)
        err = fail(r, ERR_INVALID, event.start_mark.line + 1, "a second YAML document; the file may have only one");
    yaml_event_delete(&event);
    return err;
}

static err_t read_empty(struct yaml_reader *r, struct tree_node **ret)
{
    err_t err = node_new(r, TREE_SCALAR, 1, ret);
    if (err)
        return err;
    (*ret)->plain = true;
    (*ret)->text = strdup("");
    if ((*ret)->text)
        return OK;
    tree_free(*ret);
    return fail(r, ERR_NOMEM, 0, "out of memory");
}

static err_t read_document(struct yaml_reader *r, struct tree_node **ret)
{
    struct tree_node *root = NULL;
    bool end;
    yaml_event_t event;
    err_t err = expect(r, YAML_STREAM_START_EVENT);
    if (!err)
        err = next_event(r, &event);
    if (err)
        return err;
    end = event.type == YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
    if (end)
        return read_empty(r, ret);
    err = read_child(r, 0, YAML_NO_EVENT, &end, &root);
    if (!err)
        err = expect(r, YAML_DOCUMENT_END_EVENT);
    if (!err)
        err = expect(r, YAML_STREAM_END_EVENT);
    if (err) {
        tree_free(root);
        return err;
    }
    *ret = root;
    return OK;
}

err_t tree_parse(const char *text, size_t len, struct tree_node **ret, struct tree_error *ret_error)
{
    struct yaml_reader r = {.error = ret_error};
    if (len > TREE_MAX_BYTES)
        return fail(&r, ERR_LIMIT, 0, "the file has %zu bytes; at most %u are supported", len, TREE_MAX_BYTES);
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        len -= 3;
    }
    if (!yaml_parser_initialize(&r.yaml))
        return fail(&r, ERR_NOMEM, 0, "out of memory");
    yaml_parser_set_encoding(&r.yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.yaml, (const unsigned char *)text, len);
    err_t err = read_document(&r, ret);
    yaml_parser_delete(&r.yaml);
    return err;
}
