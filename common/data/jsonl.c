/* A line is scanned once to its end, so that all of it is checked. The scan decodes the text on its way; it only notes
 * where the other known values begin, because the kind of a line, and so whether `labels` are labels of tokens, is not
 * known before its end. */
#include "common/data/jsonl.h"

#include "common/data/json_scan.h"

#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)256 << 10)
#define NO_LOSS (-100) /* the label that PyTorch's cross entropy ignores */

enum line_key {
    KEY_TEXT,
    KEY_IDS,
    KEY_LABELS,
    KEY_LOSS_MASK,
    KEY_ATTENTION_MASK,
    KEY_MESSAGES,
    KEY_PROMPT,
    KEY_COMPLETION,
    KEY_LABEL, /* the one of doc_options, if it has a name */
    KEYS
};
static const char *const key_names[KEYS] = {"text",     "input_ids", "labels",     "loss_mask", "attention_mask",
                                            "messages", "prompt",    "completion", ""};

enum line_kind { KIND_NONE, KIND_TEXT, KIND_IDS, KIND_MESSAGES, KIND_PROMPT };
static const char *const kind_names[] = {
    [KIND_TEXT] = "text", [KIND_IDS] = "input_ids", [KIND_MESSAGES] = "messages", [KIND_PROMPT] = "prompt"};

/* A string of the current line: at `plain`, or at `from` of jsonl_reader.decoded. */
struct line_string {
    const uint8_t *plain;
    size_t from, len;
};

struct line_turn {
    size_t role; /* in decoded, NUL-terminated */
    struct line_string text;
};

struct jsonl_reader {
    struct doc_reader base;
    struct byte_stream *in;
    char *field; /* NULL: the keys determine the kind */
    char *label; /* NULL: no label is read */
    enum line_kind kind;
    uint8_t *bytes;
    size_t from, len, cap; /* bytes[from, len) are not used yet */
    bool end;
    int64_t row;
    /* of the current line */
    const uint8_t *values[KEYS]; /* NULL: the line has no such key */
    bool text_read;
    struct line_string text;
    struct buf key, decoded, ids, weights, turns, views;
};

/* ---- errors ---- */

static err_t fail_row(const struct jsonl_reader *r, struct why *why, err_t err, const char *text)
{
    return why_set(why, err, "%s: line %lld: %s", r->in->name, (long long)r->row + 1, text);
}

static err_t fail_scan(const struct jsonl_reader *r, const struct json_scan *s, struct why *why)
{
    if (s->err == ERR_NOMEM)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    return why_set(why, ERR_INVALID, "%s: line %lld, byte %zu: %s", r->in->name, (long long)r->row + 1,
                   (size_t)(s->at - s->begin) + 1, s->error);
}

/* ---- lines ---- */

static err_t read_more(struct jsonl_reader *r, struct why *why)
{
    size_t n;
    if (r->from) {
        memmove(r->bytes, r->bytes + r->from, r->len - r->from);
        r->len -= r->from;
        r->from = 0;
    }
    if (r->cap - r->len < PIECE) {
        if (r->cap >= JSONL_MAX_LINE)
            return why_set(why, ERR_LIMIT, "%s: line %lld is longer than %zu MiB", r->in->name, (long long)r->row + 1,
                           JSONL_MAX_LINE >> 20);
        size_t cap = r->cap ? 2 * r->cap : 4 * PIECE;
        uint8_t *bytes = realloc(r->bytes, cap);
        if (!bytes)
            return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        r->bytes = bytes;
        r->cap = cap;
    }
    err_t err = r->in->ops->read(r->in, r->bytes + r->len, r->cap - r->len, &n, why);
    if (err)
        return err;
    r->end = n == 0;
    r->len += n;
    return OK;
}

/* The next line without its end; *ret NULL: none is left. It stays valid until the next call. */
static err_t next_line(struct jsonl_reader *r, const uint8_t **ret, size_t *ret_len, struct why *why)
{
    size_t seen = 0;
    for (;;) {
        size_t left = r->len - r->from;
        const uint8_t *line = r->bytes + r->from, *stop = left > seen ? memchr(line + seen, '\n', left - seen) : NULL;
        if (stop || r->end) {
            *ret = stop || left ? line : NULL;
            *ret_len = stop ? (size_t)(stop - line) : left;
            r->from += *ret_len + (stop != NULL);
            return OK;
        }
        seen = left;
        err_t err = read_more(r, why);
        if (err)
            return err;
    }
}

/* ---- keys ---- */

static bool is_key(const char *key, const uint8_t *name, size_t len)
{
    return key && strlen(key) == len && memcmp(key, name, len) == 0;
}

static enum line_key find_key(const struct jsonl_reader *r, const uint8_t *name, size_t len)
{
    if (is_key(r->label, name, len))
        return KEY_LABEL;
    if (r->field)
        return is_key(r->field, name, len) ? KEY_TEXT : KEYS;
    int i = 0;
    while (i < KEY_LABEL && (strlen(key_names[i]) != len || memcmp(key_names[i], name, len) != 0))
        i++;
    return i < KEY_LABEL ? (enum line_key)i : KEYS;
}

static bool read_string(struct jsonl_reader *r, struct json_scan *s, struct line_string *ret)
{
    const uint8_t *text;
    size_t before = r->decoded.len, len;
    if (!json_scan_string(s, &r->decoded, &text, &len))
        return false;
    bool plain = r->decoded.len == before;
    *ret = (struct line_string){plain ? text : NULL, before, len};
    return true;
}

static const uint8_t *string_at(const struct jsonl_reader *r, const struct line_string *s)
{
    return s->plain ? s->plain : r->decoded.data + s->from;
}

static err_t read_value(struct jsonl_reader *r, struct json_scan *s, enum line_key key, struct why *why)
{
    if (key < KEYS && r->values[key])
        return why_set(why, ERR_INVALID, "%s: line %lld: the key %s occurs twice", r->in->name, (long long)r->row + 1,
                       key == KEY_LABEL ? r->label
                       : r->field       ? r->field
                                        : key_names[key]);
    enum json_type type = json_scan_type(s);
    if (key < KEYS)
        r->values[key] = s->at;
    r->text_read |= key == KEY_TEXT && type == JSON_IS_STRING;
    bool ok = key == KEY_TEXT && type == JSON_IS_STRING ? read_string(r, s, &r->text) : json_scan_skip(s);
    return ok ? OK : fail_scan(r, s, why);
}

static err_t read_keys(struct jsonl_reader *r, struct json_scan *s, struct why *why)
{
    err_t err = OK;
    memset(r->values, 0, sizeof(r->values));
    r->text_read = false;
    r->decoded.len = 0;
    for (bool more = json_scan_enter(s, '{'); more; more = json_scan_more(s, '}')) {
        const uint8_t *name;
        size_t len;
        r->key.len = 0;
        if (!json_scan_key(s, &r->key, &name, &len))
            break;
        err = read_value(r, s, find_key(r, name, len), why);
        if (err)
            return err;
    }
    return !s->error && json_scan_end(s) ? OK : fail_scan(r, s, why);
}

/* ---- kinds ---- */

static err_t fail_kinds(const struct jsonl_reader *r, enum line_kind a, enum line_kind b, struct why *why)
{
    return why_set(why, ERR_INVALID,
                   "%s: line %lld has the keys %s and %s, either of which may be the document. Set data.field to the "
                   "key of a text, or remove one",
                   r->in->name, (long long)r->row + 1, kind_names[a], kind_names[b]);
}

static err_t fail_missing(const struct jsonl_reader *r, struct why *why)
{
    if (r->field)
        return why_set(why, ERR_INVALID, "%s: line %lld has no key \"%s\" (data.field)", r->in->name,
                       (long long)r->row + 1, r->field);
    return why_set(
        why, ERR_INVALID,
        "%s: line %lld has none of the keys text, input_ids, messages, or prompt and completion. If the text "
        "has another key, set data.field to it",
        r->in->name, (long long)r->row + 1);
}

static err_t find_kind(struct jsonl_reader *r, struct why *why)
{
    const bool has[] = {[KIND_TEXT] = r->values[KEY_TEXT] != NULL,
                        [KIND_IDS] = r->values[KEY_IDS] != NULL,
                        [KIND_MESSAGES] = r->values[KEY_MESSAGES] != NULL,
                        [KIND_PROMPT] = r->values[KEY_PROMPT] && r->values[KEY_COMPLETION]};
    enum line_kind kind = KIND_NONE;
    for (enum line_kind k = KIND_TEXT; k <= KIND_PROMPT; k++) {
        if (has[k] && kind)
            return fail_kinds(r, kind, k, why);
        kind = has[k] ? k : kind;
    }
    if (!kind)
        return fail_missing(r, why);
    if (r->kind && r->kind != kind)
        return why_set(why, ERR_INVALID,
                       "%s: line %lld has the key %s, but the lines before have %s; put them into two "
                       "files",
                       r->in->name, (long long)r->row + 1, kind_names[kind], kind_names[r->kind]);
    r->kind = kind;
    return OK;
}

/* ---- text ---- */

static err_t make_text(struct jsonl_reader *r, struct json_scan *s, struct document *ret, struct why *why)
{
    int word = 0;
    if (!r->text_read) {
        s->at = r->values[KEY_TEXT];
        if (json_scan_type(s) != JSON_IS_WORD || !json_scan_word(s, &word) || word >= 0)
            return why_set(why, ERR_INVALID, "%s: line %lld: the value of %s is not a string", r->in->name,
                           (long long)r->row + 1, r->field ? r->field : "text");
        r->text = (struct line_string){s->at, 0, 0};
    }
    ret->text = string_at(r, &r->text);
    ret->len = r->text.len;
    return OK;
}

/* ---- token ids ---- */

/* Reads a list of integers, of which null, true and false are -1, 1 and 0 if `words`. Calls `add` with each. */
static err_t read_list(struct jsonl_reader *r, struct json_scan *s, enum line_key key, struct why *why,
                       err_t (*add)(struct jsonl_reader *r, int64_t i, int64_t value, struct why *why), int64_t *ret_n)
{
    int64_t n = 0;
    s->at = r->values[key];
    for (bool more = json_scan_enter(s, '['); more; more = json_scan_more(s, ']')) {
        int64_t value;
        int word = 0;
        bool is_word = json_scan_type(s) == JSON_IS_WORD;
        if (is_word ? !json_scan_word(s, &word) : !json_scan_integer(s, &value))
            break;
        err_t err = add(r, n++, is_word ? word : value, why);
        if (err)
            return err;
    }
    if (s->error)
        return why_prefix(why, fail_scan(r, s, why), "%s", key_names[key]);
    *ret_n = n;
    return OK;
}

static err_t add_id(struct jsonl_reader *r, int64_t i, int64_t value, struct why *why)
{
    int32_t id = (int32_t)value;
    if (value < 0 || value > INT32_MAX)
        return fail_row(r, why, ERR_INVALID, "input_ids has an element that is not a token id");
    err_t err = buf_append(&r->ids, &id, sizeof(id));
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

static err_t add_weight(struct jsonl_reader *r, uint8_t weight, struct why *why)
{
    err_t err = buf_append(&r->weights, &weight, 1);
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

static bool has_id(const struct jsonl_reader *r, int64_t i)
{
    return (size_t)i < r->ids.len / sizeof(int32_t);
}

static err_t add_label(struct jsonl_reader *r, int64_t i, int64_t value, struct why *why)
{
    if (has_id(r, i) && value != NO_LOSS && value != ((const int32_t *)(const void *)r->ids.data)[i])
        return fail_row(r, why, ERR_INVALID,
                        "an element of labels is neither -100 nor equal to that of input_ids; labels are not shifted");
    return add_weight(r, value != NO_LOSS, why);
}

static err_t add_mask(struct jsonl_reader *r, int64_t i, int64_t value, struct why *why)
{
    if (value != 0 && value != 1)
        return fail_row(r, why, ERR_INVALID, "an element of loss_mask is neither 0 nor 1");
    return add_weight(r, (uint8_t)value, why);
}

static err_t add_attention(struct jsonl_reader *r, int64_t i, int64_t value, struct why *why)
{
    return value == 1 ? OK
                      : fail_row(r, why, ERR_UNSUPPORTED,
                                 "attention_mask has elements other than 1, so the line is padded; write it without "
                                 "padding and without attention_mask");
}

static err_t check_length(const struct jsonl_reader *r, enum line_key key, int64_t n, int64_t n_ids, struct why *why)
{
    return n == n_ids ? OK
                      : why_set(why, ERR_INVALID, "%s: line %lld: %s has %lld elements, but input_ids has %lld",
                                r->in->name, (long long)r->row + 1, key_names[key], (long long)n, (long long)n_ids);
}

static err_t make_ids(struct jsonl_reader *r, struct json_scan *s, struct document *ret, struct why *why)
{
    static const struct {
        enum line_key key;
        err_t (*add)(struct jsonl_reader *r, int64_t i, int64_t value, struct why *why);
    } others[] = {{KEY_LABELS, add_label}, {KEY_LOSS_MASK, add_mask}, {KEY_ATTENTION_MASK, add_attention}};
    int64_t n_ids = 0, n = 0;
    r->ids.len = r->weights.len = 0;
    if (r->values[KEY_LABELS] && r->values[KEY_LOSS_MASK])
        return fail_row(r, why, ERR_INVALID, "it has labels and loss_mask; remove one of them");
    err_t err = read_list(r, s, KEY_IDS, why, add_id, &n_ids);
    for (size_t i = 0; !err && i < sizeof(others) / sizeof(others[0]); i++) {
        if (!r->values[others[i].key])
            continue;
        err = read_list(r, s, others[i].key, why, others[i].add, &n);
        err = err ? err : check_length(r, others[i].key, n, n_ids, why);
    }
    if (err)
        return err;
    ret->ids = (const int32_t *)(const void *)r->ids.data;
    ret->n_ids = n_ids;
    ret->weights = r->values[KEY_LABELS] || r->values[KEY_LOSS_MASK] ? r->weights.data : NULL;
    return OK;
}

/* ---- turns ---- */

static err_t add_turn(struct jsonl_reader *r, const struct line_turn *turn, struct why *why)
{
    err_t err = buf_append(&r->turns, turn, sizeof(*turn));
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

/* Appends a role to decoded, with a NUL. */
static err_t keep_role(struct jsonl_reader *r, const uint8_t *role, size_t len, size_t *ret, struct why *why)
{
    if (memchr(role, 0, len))
        return fail_row(r, why, ERR_INVALID, "a role has a NUL byte");
    err_t err = buf_reserve(&r->decoded, len + 1);
    if (err)
        return why_set(why, err, "%s", err_text(err));
    *ret = r->decoded.len;
    memcpy(r->decoded.data + r->decoded.len, role, len);
    r->decoded.data[r->decoded.len + len] = '\0';
    r->decoded.len += len + 1;
    return OK;
}

static err_t read_role(struct jsonl_reader *r, struct json_scan *s, struct line_turn *turn, struct why *why)
{
    const uint8_t *role;
    size_t len;
    r->key.len = 0;
    if (!json_scan_string(s, &r->key, &role, &len))
        return fail_scan(r, s, why);
    return keep_role(r, role, len, &turn->role, why);
}

static err_t read_content(struct jsonl_reader *r, struct json_scan *s, struct line_turn *turn, struct why *why)
{
    if (json_scan_type(s) == JSON_IS_LIST)
        return fail_row(r, why, ERR_UNSUPPORTED, "a message's content is a list of parts; only text is supported");
    return read_string(r, s, &turn->text) ? OK : fail_scan(r, s, why);
}

/* Calls of tools are part of what the model should learn; a template for plain turns would drop them silently. */
static err_t refuse_tools(struct jsonl_reader *r, struct json_scan *s, struct line_turn *turn, struct why *why)
{
    int word = 0;
    if (json_scan_type(s) == JSON_IS_WORD && json_scan_word(s, &word) && word < 0)
        return OK;
    return fail_row(r, why, ERR_UNSUPPORTED, "a message has tool_calls, which are not supported");
}

static err_t read_message_key(struct jsonl_reader *r, struct json_scan *s, struct line_turn *turn, unsigned *seen,
                              struct why *why)
{
    static const struct {
        const char *name;
        err_t (*read)(struct jsonl_reader *r, struct json_scan *s, struct line_turn *turn, struct why *why);
    } keys[] = {{"role", read_role}, {"content", read_content}, {"tool_calls", refuse_tools}};
    const uint8_t *name;
    size_t len;
    r->key.len = 0;
    if (!json_scan_key(s, &r->key, &name, &len))
        return fail_scan(r, s, why);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (strlen(keys[i].name) != len || memcmp(keys[i].name, name, len) != 0)
            continue;
        if (*seen & 1u << i)
            return fail_row(r, why, ERR_INVALID, "a key of a message occurs twice");
        *seen |= 1u << i;
        return keys[i].read(r, s, turn, why);
    }
    return json_scan_skip(s) ? OK : fail_scan(r, s, why);
}

static err_t read_message(struct jsonl_reader *r, struct json_scan *s, struct why *why)
{
    struct line_turn turn = {0};
    unsigned seen = 0;
    for (bool more = json_scan_enter(s, '{'); more; more = json_scan_more(s, '}')) {
        err_t err = read_message_key(r, s, &turn, &seen, why);
        if (err)
            return err;
    }
    if (s->error)
        return fail_scan(r, s, why);
    if ((seen & 3) != 3)
        return fail_row(r, why, ERR_INVALID, "a message needs the keys role and content");
    return add_turn(r, &turn, why);
}

static err_t read_messages(struct jsonl_reader *r, struct json_scan *s, struct why *why)
{
    s->at = r->values[KEY_MESSAGES];
    for (bool more = json_scan_enter(s, '['); more; more = json_scan_more(s, ']')) {
        err_t err = read_message(r, s, why);
        if (err)
            return err;
    }
    return s->error ? why_prefix(why, fail_scan(r, s, why), "messages") : OK;
}

static err_t read_part(struct jsonl_reader *r, struct json_scan *s, enum line_key key, struct why *why)
{
    struct line_turn turn = {0};
    s->at = r->values[key];
    if (json_scan_type(s) != JSON_IS_STRING)
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: line %lld: the value of %s is not a string; write conversations with the key messages",
                       r->in->name, (long long)r->row + 1, key_names[key]);
    if (!read_string(r, s, &turn.text))
        return fail_scan(r, s, why);
    err_t err = keep_role(r, (const uint8_t *)key_names[key], strlen(key_names[key]), &turn.role, why);
    return err ? err : add_turn(r, &turn, why);
}

static err_t make_turns(struct jsonl_reader *r, struct json_scan *s, struct document *ret, struct why *why)
{
    r->turns.len = r->views.len = 0;
    err_t err = r->kind == KIND_MESSAGES ? read_messages(r, s, why) : read_part(r, s, KEY_PROMPT, why);
    if (!err && r->kind == KIND_PROMPT)
        err = read_part(r, s, KEY_COMPLETION, why);
    const struct line_turn *turns = (const struct line_turn *)(const void *)r->turns.data;
    size_t n = r->turns.len / sizeof(*turns);
    for (size_t i = 0; !err && i < n; i++) {
        const struct doc_turn view = {(const char *)r->decoded.data + turns[i].role,
                                      (const char *)string_at(r, &turns[i].text), turns[i].text.len};
        if ((err = buf_append(&r->views, &view, sizeof(view))))
            why_set(why, err, "%s", err_text(err));
    }
    ret->turns = (const struct doc_turn *)(const void *)r->views.data;
    ret->n_turns = (int)n;
    return err;
}

/* ---- labels ---- */

static err_t read_label(struct jsonl_reader *r, struct json_scan *s, struct document *ret, struct why *why)
{
    int64_t value = -1;
    if (!r->label)
        return OK;
    if (!r->values[KEY_LABEL])
        return why_set(why, ERR_INVALID, "%s: line %lld has no key \"%s\" (data.label)", r->in->name,
                       (long long)r->row + 1, r->label);
    s->at = r->values[KEY_LABEL];
    s->error = NULL;
    if (!json_scan_integer(s, &value) || !document_label(ret, value))
        return why_set(why, ERR_INVALID, "%s: line %lld: the value of %s is no class: write an integer from 0 to %d",
                       r->in->name, (long long)r->row + 1, r->label, DOC_MAX_LABEL);
    return OK;
}

/* ---- the reader ---- */

static bool is_blank(const uint8_t *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static err_t read_line(struct jsonl_reader *r, const uint8_t *line, size_t len, struct document *ret, struct why *why)
{
    static err_t (*const make[])(struct jsonl_reader * r, struct json_scan * s, struct document * ret,
                                 struct why * why) = {
        [KIND_TEXT] = make_text, [KIND_IDS] = make_ids, [KIND_MESSAGES] = make_turns, [KIND_PROMPT] = make_turns};
    struct json_scan s;
    json_scan_init(&s, line, len);
    if (json_scan_type(&s) != JSON_IS_OBJECT)
        return fail_row(r, why, ERR_INVALID, "it is not a JSON object; each line is one object, {..}");
    err_t err = read_keys(r, &s, why);
    err = err ? err : find_kind(r, why);
    err = err ? err : make[r->kind](r, &s, ret, why);
    return err ? err : read_label(r, &s, ret, why);
}

static err_t jsonl_next(struct doc_reader *base, struct document *ret, bool *ret_end, struct why *why)
{
    struct jsonl_reader *r = (struct jsonl_reader *)base;
    for (;; r->row++) {
        const uint8_t *line;
        size_t len;
        err_t err = next_line(r, &line, &len, why);
        if (err)
            return err;
        *ret_end = !line;
        if (!line)
            return OK;
        if (r->row == 0 && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
            line += 3;
            len -= 3;
        }
        if (is_blank(line, len))
            continue;
        *ret = (struct document){.row = r->row};
        err = read_line(r, line, len, ret, why);
        if (err)
            return err;
        if (ret->len || ret->n_ids || ret->n_turns)
            break;
    }
    r->row++;
    return OK;
}

static void jsonl_close(struct doc_reader *base)
{
    struct jsonl_reader *r = (struct jsonl_reader *)base;
    struct buf *bufs[] = {&r->key, &r->decoded, &r->ids, &r->weights, &r->turns, &r->views};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        buf_fini(bufs[i]);
    free(r->bytes);
    free(r->field);
    free(r->label);
    free(r);
}

err_t jsonl_open(struct byte_stream *in, const struct doc_options *o, struct doc_reader **ret, struct why *why)
{
    static const struct doc_reader_ops ops = {jsonl_next, jsonl_close};
    struct jsonl_reader *r = calloc(1, sizeof(*r));
    if (!r || (o->field && !(r->field = strdup(o->field))) || (o->label && !(r->label = strdup(o->label)))) {
        free(r ? r->field : NULL);
        free(r);
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    }
    r->base.ops = &ops;
    r->in = in;
    *ret = &r->base;
    return OK;
}

/* True if the first line that is not blank is an object, or begins as one and does not end in the head. */
bool jsonl_is(const uint8_t *head, size_t len, const char *path)
{
    struct json_scan s;
    struct buf key = {0};
    const uint8_t *name, *stop;
    size_t n;
    if (len >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0) {
        head += 3;
        len -= 3;
    }
    json_scan_init(&s, head, len);
    if (json_scan_type(&s) != JSON_IS_OBJECT)
        return false;
    len -= (size_t)(s.at - head);
    head = s.at;
    stop = memchr(head, '\n', len);
    json_scan_init(&s, head, stop ? (size_t)(stop - head) : len);
    if (stop || len < DOC_HEAD_BYTES / 2)
        return json_scan_skip(&s) && json_scan_end(&s);
    bool is = json_scan_enter(&s, '{') && json_scan_key(&s, &key, &name, &n);
    buf_fini(&key);
    return is;
}
