/* Values of a column of a record batch, row by row. Offsets need not begin at 0, and a null may have bytes; both are
 * skipped. */
#include "common/data/arrow_priv.h"

#include <inttypes.h>
#include <string.h>

#define PIECE ((int64_t)1 << 20) /* memory grows with what is read, not with what a hostile length claims */

err_t arrow_column_fail(const struct arrow_column *c, err_t err, const char *text, struct why *why)
{
    return why_set(why, err, "%s: column %s, near row %" PRId64 ": %s", c->in->name, c->field->name, c->row, text);
}

/* The place of buffer i of the column in the file. */
static err_t find_buffer(struct arrow_column *c, struct arrow_batch *b, size_t i, int64_t *ret_at, int64_t *ret_len,
                         struct why *why)
{
    int64_t index = (int64_t)(c->field->buffer + i);
    for (size_t v = 0; v < c->field->views; v++) {
        int64_t more = flat_element(&b->flat, b->variadic, v, 8, 0);
        if (more < 0 || more > INT32_MAX)
            b->flat.bad = true;
        index += b->flat.bad ? 0 : more;
    }
    int64_t at = flat_element(&b->flat, b->buffers, (size_t)index, 16, 0);
    int64_t len = flat_element(&b->flat, b->buffers, (size_t)index, 16, 8);
    if (b->flat.bad || at < 0 || len < 0 || at > b->body_len || len > b->body_len - at)
        return arrow_column_fail(c, ERR_CORRUPT, "a record batch has no such buffer; the file is damaged", why);
    *ret_at = b->body + at;
    *ret_len = len;
    return OK;
}

static err_t open_lane(struct arrow_column *c, struct arrow_batch *b, size_t i, struct arrow_lane *ret, struct why *why)
{
    int64_t at = 0, len = 0;
    err_t err = find_buffer(c, b, i, &at, &len, why);
    return err ? err : arrow_lane_open(ret, c, at, len, b->codec, why);
}

/* Opens the validity in buffer i of node `node`. */
static err_t open_bits(struct arrow_column *c, struct arrow_batch *b, size_t i, size_t node, struct arrow_bits *ret,
                       struct why *why)
{
    int64_t nulls = flat_element(&b->flat, b->nodes, c->field->node + node, 16, 8);
    err_t err = open_lane(c, b, i, &ret->lane, why);
    ret->left = 0;
    ret->absent = nulls == 0 || ret->lane.left == 0;
    if (!err && nulls != 0 && ret->absent)
        err = arrow_column_fail(c, ERR_CORRUPT, "it has nulls, but no list of them; the file is damaged", why);
    return err;
}

static err_t read_offset(struct arrow_column *c, int64_t *ret, struct why *why)
{
    int32_t narrow = 0;
    bool wide = c->field->offset_bytes == 8;
    err_t err = arrow_lane_read(&c->offsets, wide ? (void *)ret : (void *)&narrow, wide ? 8 : 4, why);
    if (!wide)
        *ret = narrow;
    return err;
}

static err_t skip_values(struct arrow_column *c, int64_t n, struct why *why)
{
    int64_t bytes;
    if (c->field->layout == ARROW_TEXT)
        return arrow_lane_skip(&c->data, n, why);
    if (__builtin_mul_overflow(n, (int64_t)c->field->int_bytes, &bytes))
        return arrow_column_fail(c, ERR_CORRUPT, "an offset is too large; the file is damaged", why);
    err_t err = arrow_lane_skip(&c->data, bytes, why);
    return err ? err : arrow_bits_skip(&c->child_valid, n, why);
}

/* Goes to the first value. */
static err_t begin_offsets(struct arrow_column *c, struct why *why)
{
    err_t err = read_offset(c, &c->offset, why);
    if (!err && c->offset < 0)
        err = arrow_column_fail(c, ERR_CORRUPT, "an offset is negative; the file is damaged", why);
    return err ? err : skip_values(c, c->offset, why);
}

err_t arrow_column_batch(struct arrow_column *c, struct arrow_batch *b, struct why *why)
{
    size_t i = 0;
    enum arrow_layout layout = c->field->layout;
    if (flat_element(&b->flat, b->nodes, c->field->node, 16, 0) != b->length || b->flat.bad)
        return arrow_column_fail(c, ERR_CORRUPT, "its length is not that of the record batch; the file is damaged",
                                 why);
    const bool offsets = layout == ARROW_TEXT || layout == ARROW_LIST;
    err_t err = open_bits(c, b, i++, 0, &c->valid, why);
    c->child_valid.absent = true;
    if (!err && offsets)
        err = open_lane(c, b, i++, &c->offsets, why);
    if (!err && (layout == ARROW_LIST || layout == ARROW_FIXED_LIST))
        err = open_bits(c, b, i++, 1, &c->child_valid, why);
    if (!err)
        err = open_lane(c, b, i, &c->data, why);
    if (!err && offsets && b->length > 0)
        err = begin_offsets(c, why);
    return err;
}

/* Reads n bytes into `ret`. */
static err_t read_bytes(struct arrow_column *c, int64_t n, struct buf *ret, struct why *why)
{
    err_t err = OK;
    ret->len = 0;
    if (buf_reserve(ret, 1))
        return arrow_column_fail(c, ERR_NOMEM, err_text(ERR_NOMEM), why);
    while (!err && n > 0) {
        size_t some = (size_t)(n < PIECE ? n : PIECE);
        if (buf_reserve(ret, some))
            return arrow_column_fail(c, ERR_NOMEM, err_text(ERR_NOMEM), why);
        err = arrow_lane_read(&c->data, ret->data + ret->len, some, why);
        ret->len += some;
        n -= (int64_t)some;
    }
    return err;
}

static int64_t int_at(const struct arrow_field *f, const uint8_t *p)
{
    int unused = 64 - 8 * f->int_bytes;
    uint64_t v = 0;
    memcpy(&v, p, (size_t)f->int_bytes);
    return f->is_signed ? (int64_t)(v << unused) >> unused : (int64_t)v;
}

static err_t read_ints(struct arrow_column *c, int64_t n, struct table_value *ret, struct why *why)
{
    bool valid = true;
    if (n > TABLE_MAX_TOKENS)
        return arrow_column_fail(c, ERR_LIMIT, "a list has more than 67108864 values", why);
    err_t err = read_bytes(c, n * c->field->int_bytes, &c->bytes, why);
    if (!err && buf_reserve(&c->ints, ((size_t)n + 1) * sizeof(int64_t)))
        err = arrow_column_fail(c, ERR_NOMEM, err_text(ERR_NOMEM), why);
    for (int64_t i = 0; !err && i < n; i++) {
        err = arrow_bits_next(&c->child_valid, &valid, why);
        if (!err && !valid)
            err = arrow_column_fail(c, ERR_INVALID, "a list contains a null, which is no token", why);
        ((int64_t *)(void *)c->ints.data)[i] = int_at(c->field, c->bytes.data + i * c->field->int_bytes);
    }
    ret->ints = (const int64_t *)(const void *)c->ints.data;
    ret->n = n;
    return err;
}

static err_t read_text(struct arrow_column *c, int64_t n, struct table_value *ret, struct why *why)
{
    if (n > TABLE_MAX_TEXT)
        return arrow_column_fail(c, ERR_LIMIT, "a text is longer than 1 GiB", why);
    err_t err = read_bytes(c, n, &c->bytes, why);
    ret->bytes = c->bytes.data;
    ret->len = (size_t)n;
    return err;
}

/* The number of bytes or integers of the next row. */
static err_t next_length(struct arrow_column *c, int64_t *ret, struct why *why)
{
    int64_t end;
    *ret = c->field->fixed;
    if (c->field->layout == ARROW_FIXED_LIST || c->field->layout == ARROW_INT)
        return OK;
    err_t err = read_offset(c, &end, why);
    if (!err && end < c->offset)
        err = arrow_column_fail(c, ERR_CORRUPT, "the offsets are not in order; the file is damaged", why);
    if (err)
        return err;
    *ret = end - c->offset;
    c->offset = end;
    return OK;
}

err_t arrow_column_next(struct arrow_column *c, struct table_value *ret, struct why *why)
{
    int64_t n = 0;
    bool valid = true;
    *ret = (struct table_value){0};
    err_t err = next_length(c, &n, why);
    err = err ? err : arrow_bits_next(&c->valid, &valid, why);
    if (err)
        return err;
    ret->null = !valid;
    if (!valid)
        return skip_values(c, n, why);
    return c->field->layout == ARROW_TEXT ? read_text(c, n, ret, why) : read_ints(c, n, ret, why);
}

void arrow_column_fini(struct arrow_column *c)
{
    arrow_lane_fini(&c->valid.lane);
    arrow_lane_fini(&c->child_valid.lane);
    arrow_lane_fini(&c->offsets);
    arrow_lane_fini(&c->data);
    buf_fini(&c->bytes);
    buf_fini(&c->ints);
}
