/* A table row lists the fields of each request, and the parser walks these fields. `at` counts the parsed bytes of the
 * current part and is the only position that it needs. The bytes of a part are contiguous: they lie in the caller's
 * input while the input has not ended inside the part (held.len is 0), and in `held` from then on. For a held part the
 * parser copies exactly the bytes that the current field lacks, so that `held` ends where the part ends, and the next
 * part is parsed in the caller's input again.
 *
 * A part is a request, or the head of a list (operation and count), or one key of a list with its value. */
#include "daemon/store/wire.h"

#include <endian.h>
#include <string.h>

#define HELD_KEPT_BYTES 1024 /* memory that `held` keeps between requests; usual keys fit */
#define LEGACY_OPS 12        /* number of operations in PyTorch 2.1 */

enum field { FIELD_END, FIELD_KEY, FIELD_VALUE, FIELD_NUMBER, FIELD_NONCE, FIELD_MAGIC, FIELD_COUNT };

static const struct {
    const char *name;
    uint8_t fields[4]; /* the fields after a count repeat for each key */
} shapes[WIRE_OPS] = {
    [WIRE_VALIDATE] = {"VALIDATE", {FIELD_MAGIC}},
    [WIRE_SET] = {"SET", {FIELD_KEY, FIELD_VALUE}},
    [WIRE_COMPARE_SET] = {"COMPARE_SET", {FIELD_KEY, FIELD_VALUE, FIELD_VALUE}},
    [WIRE_GET] = {"GET", {FIELD_KEY}},
    [WIRE_ADD] = {"ADD", {FIELD_KEY, FIELD_NUMBER}},
    [WIRE_CHECK] = {"CHECK", {FIELD_COUNT, FIELD_KEY}},
    [WIRE_WAIT] = {"WAIT", {FIELD_COUNT, FIELD_KEY}},
    [WIRE_GETNUMKEYS] = {"GETNUMKEYS", {FIELD_END}},
    [WIRE_DELETE_KEY] = {"DELETE_KEY", {FIELD_KEY}},
    [WIRE_APPEND] = {"APPEND", {FIELD_KEY, FIELD_VALUE}},
    [WIRE_MULTI_GET] = {"MULTI_GET", {FIELD_COUNT, FIELD_KEY}},
    [WIRE_MULTI_SET] = {"MULTI_SET", {FIELD_COUNT, FIELD_KEY, FIELD_VALUE}},
    [WIRE_CANCEL_WAIT] = {"CANCEL_WAIT", {FIELD_END}},
    [WIRE_PING] = {"PING", {FIELD_NONCE}},
    [WIRE_QUEUE_PUSH] = {"QUEUE_PUSH", {FIELD_KEY, FIELD_VALUE}},
    [WIRE_QUEUE_POP] = {"QUEUE_POP", {FIELD_KEY}},
    [WIRE_QUEUE_LEN] = {"QUEUE_LEN", {FIELD_KEY}},
    [WIRE_LIST_KEYS] = {"LIST_KEYS", {FIELD_END}},
    [WIRE_BARRIER] = {"BARRIER", {FIELD_KEY, FIELD_NUMBER}},
};

const char *wire_op_name(enum wire_op op)
{
    return op >= 0 && op < WIRE_OPS ? shapes[op].name : "?";
}

void wire_init(struct wire_parser *w, struct budget *budget)
{
    *w = (struct wire_parser){.held = {.budget = budget}};
}

void wire_fini(struct wire_parser *w)
{
    bytebuf_fini(&w->held);
}

static enum wire_result broken(struct wire_parser *w, const char *reason)
{
    w->reason = reason;
    return WIRE_BROKEN;
}

/* Appends input to `held`: only as much as the part needs to have `n` more bytes after `at`, if it is held already. */
static enum wire_result hold(struct wire_parser *w, struct byte_view *in, size_t n)
{
    size_t lacks = w->held.len ? w->at + n - w->held.len : in->len;
    size_t take = lacks < in->len ? lacks : in->len;
    err_t err = bytebuf_add(&w->held, in->data, take);
    if (err)
        return broken(w, err == ERR_LIMIT ? "the store is full" : "out of memory");
    in->data += take;
    in->len -= take;
    return WIRE_MORE;
}

static const uint8_t *base(const struct wire_parser *w, const struct byte_view *in)
{
    return w->held.len ? w->held.data : in->data;
}

/* Returns WIRE_REQUEST and the next `n` bytes of the part if they have arrived. */
static enum wire_result take_bytes(struct wire_parser *w, struct byte_view *in, size_t n, const uint8_t **ret)
{
    size_t have = (w->held.len ? w->held.len : in->len) - w->at;
    if (have < n) {
        if (!in->len || hold(w, in, n))
            return w->reason ? WIRE_BROKEN : WIRE_MORE;
        if (w->held.len - w->at < n)
            return WIRE_MORE;
    }
    *ret = base(w, in) + w->at;
    w->at += n;
    return WIRE_REQUEST;
}

static enum wire_result take_u32(struct wire_parser *w, struct byte_view *in, uint32_t *ret)
{
    const uint8_t *p;
    enum wire_result r = take_bytes(w, in, sizeof(*ret), &p);
    if (r == WIRE_REQUEST) {
        memcpy(ret, p, sizeof(*ret));
        *ret = le32toh(*ret);
    }
    return r;
}

static enum wire_result take_u64(struct wire_parser *w, struct byte_view *in, uint64_t *ret)
{
    const uint8_t *p;
    enum wire_result r = take_bytes(w, in, sizeof(*ret), &p);
    if (r == WIRE_REQUEST) {
        memcpy(ret, p, sizeof(*ret));
        *ret = le64toh(*ret);
    }
    return r;
}

/* ---- fields ---- */

/* Parses a length, which is checked as soon as it is known, and that many bytes. */
static enum wire_result take_string(struct wire_parser *w, struct byte_view *in, bool is_key)
{
    const uint8_t *p;
    enum wire_result r = WIRE_REQUEST;
    if (!w->in_body) {
        r = take_u64(w, in, &w->length);
        if (r != WIRE_REQUEST)
            return r;
        if (is_key ? w->length > WIRE_KEY_MAX : w->length > WIRE_VALUE_MAX)
            return broken(w, is_key ? "a key of more than 8 KiB" : "a value of more than 8 MiB");
        w->in_body = true;
    }
    size_t at = w->at;
    r = take_bytes(w, in, w->length, &p);
    if (r != WIRE_REQUEST)
        return r;
    w->in_body = false;
    if (is_key) {
        w->key_at = at;
        w->key_len = w->length;
    } else {
        w->value_at[w->n_values] = at;
        w->value_len[w->n_values++] = w->length;
    }
    return WIRE_REQUEST;
}

static enum wire_result take_number(struct wire_parser *w, struct byte_view *in)
{
    uint64_t number;
    enum wire_result r = take_u64(w, in, &number);
    if (r == WIRE_REQUEST)
        w->number = (int64_t)number;
    return r;
}

static enum wire_result take_count(struct wire_parser *w, struct byte_view *in)
{
    uint64_t count;
    enum wire_result r = take_u64(w, in, &count);
    if (r != WIRE_REQUEST)
        return r;
    if (count > WIRE_KEYS_MAX)
        return broken(w, "more than 131072 keys");
    w->left = (uint32_t)count;
    w->head = true;
    return WIRE_REQUEST;
}

/* FIELD_MAGIC comes here only for a VALIDATE that is not the first request. */
static enum wire_result take_field(struct wire_parser *w, struct byte_view *in, enum field field)
{
    switch (field) {
    case FIELD_KEY:
    case FIELD_VALUE:
        return take_string(w, in, field == FIELD_KEY);
    case FIELD_NUMBER:
        return take_number(w, in);
    case FIELD_NONCE:
        return take_u32(w, in, &w->nonce);
    case FIELD_COUNT:
        return take_count(w, in);
    case FIELD_MAGIC:
    case FIELD_END:
        break;
    }
    return broken(w, "a second VALIDATE");
}

/* ---- requests ---- */

static struct byte_view view(const uint8_t *from, size_t at, size_t len)
{
    return (struct byte_view){from + at, len};
}

/* Returns the part. The next part is a key of the same list or a new request. */
static enum wire_result part_finish(struct wire_parser *w, struct byte_view *in, struct wire_request *ret)
{
    const uint8_t *from = base(w, in);
    bool of_list = shapes[w->op].fields[0] == FIELD_COUNT;
    if (of_list && !w->head)
        w->left--;
    *ret = (struct wire_request){.op = w->op, .head = w->head, .number = w->number, .nonce = w->nonce};
    ret->left = of_list ? w->left : 0;
    ret->key = view(from, w->key_at, w->key_len);
    ret->value = view(from, w->value_at[0], w->value_len[0]);
    ret->desired = view(from, w->value_at[1], w->value_len[1]);
    if (!w->held.len) {
        in->data += w->at;
        in->len -= w->at;
    }
    w->field = ret->left ? 2 : 0;
    w->in_part = false;
    return WIRE_REQUEST;
}

/* Called before the first byte of a part. Drops the bytes of the previous part, which the caller has processed. */
static void part_begin(struct wire_parser *w)
{
    bytebuf_clear(&w->held, HELD_KEPT_BYTES);
    w->in_part = true;
    w->head = false;
    w->n_values = 0;
    w->at = w->key_at = w->key_len = 0;
    memset(w->value_at, 0, sizeof(w->value_at));
    memset(w->value_len, 0, sizeof(w->value_len));
    w->number = 0;
    w->nonce = 0;
}

/* The first byte of a connection: 0 is VALIDATE, or SET of PyTorch 2.1. The magic number after it distinguishes the
 * two: a SET with a key of that length would be refused anyway. */
static enum wire_result take_first(struct wire_parser *w, struct byte_view *in)
{
    const uint8_t *p;
    uint32_t magic;
    enum wire_result r;
    if (!w->at) {
        r = take_bytes(w, in, 1, &p);
        if (r != WIRE_REQUEST)
            return r;
        if (*p >= LEGACY_OPS)
            return broken(w, "not a TCPStore client");
        if (*p) {
            w->started = w->legacy = true;
            w->op = *p + 1;
            w->field = 1;
            return WIRE_REQUEST;
        }
    }
    r = take_u32(w, in, &magic);
    if (r != WIRE_REQUEST)
        return r;
    w->started = true;
    w->legacy = magic != WIRE_MAGIC;
    w->op = w->legacy ? WIRE_SET : WIRE_VALIDATE;
    w->field = w->legacy ? 1 : 2;
    w->at -= w->legacy ? sizeof(magic) : 0;
    return WIRE_REQUEST;
}

static enum wire_result take_op(struct wire_parser *w, struct byte_view *in)
{
    const uint8_t *p;
    enum wire_result r = take_bytes(w, in, 1, &p);
    if (r != WIRE_REQUEST)
        return r;
    if (*p >= (w->legacy ? LEGACY_OPS : WIRE_OPS))
        return broken(w, "an unknown operation");
    w->op = *p + w->legacy;
    w->field = 1;
    return WIRE_REQUEST;
}

enum wire_result wire_next(struct wire_parser *w, struct byte_view *in, struct wire_request *ret)
{
    enum wire_result r = WIRE_REQUEST;
    if (w->reason)
        return WIRE_BROKEN;
    if (!w->in_part)
        part_begin(w);
    if (!w->field)
        r = w->started ? take_op(w, in) : take_first(w, in);
    while (r == WIRE_REQUEST) {
        enum field field = shapes[w->op].fields[w->field - 1];
        if (field == FIELD_END || w->head)
            return part_finish(w, in, ret);
        r = take_field(w, in, field);
        if (r == WIRE_REQUEST)
            w->field++;
    }
    return r;
}

bool wire_in_request(const struct wire_parser *w)
{
    return w->field != 0;
}
