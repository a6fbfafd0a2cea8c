/* Members are read in order, as they come, so an archive may be compressed and nothing is unpacked. Every length is
 * bounded before it is used, and the checksum of every header is checked: behind a damaged length all later headers
 * would be read from the middle of files.
 *
 * Folders, links and devices are skipped, and so are members that are not the user's: "._x" of macOS and "__x__" of
 * WebDataset. */
#include "common/data/tar.h"

#include "common/base/buf.h"
#include "common/data/jsonl.h"
#include "common/data/not_text.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 512
#define MAX_EXTENDED ((int64_t)1 << 20) /* a pax header or a long name */

struct tar_reader {
    struct doc_reader base;
    struct byte_stream *in;
    char *field, *class;
    int64_t left, padding; /* bytes of the member, and behind it, that were not read yet */
    int64_t size;          /* from a pax header; -1: none */
    struct buf path, label, text;
    /* the current member */
    struct byte_stream member;
    uint8_t head[DOC_HEAD_BYTES];
    size_t head_len, head_at; /* head[head_at, head_len) comes before what is left */
    struct doc_reader *lines; /* NULL: no JSON lines */
    int64_t row;
};

static err_t fail(const struct tar_reader *r, err_t err, const char *text, struct why *why)
{
    return why_set(why, err, "%s: %s", r->in->name, text);
}

static err_t no_memory(struct why *why, err_t err)
{
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

/* ---- headers ---- */

/* An octal number, with spaces or NULs around it, or GNU's binary one. -1: neither, or out of range. */
static int64_t number(const uint8_t *field, int n)
{
    int64_t value = 0;
    int i = 0;
    if (field[0] == 0x80) { /* big-endian behind this mark */
        for (i = 1; i < n; i++)
            if (__builtin_mul_overflow(value, 256, &value) || __builtin_add_overflow(value, field[i], &value))
                return -1;
        return value;
    }
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        value = value * 8 + field[i] - '0'; /* at most 12 digits */
    return i == n || field[i] == '\0' || field[i] == ' ' ? value : -1;
}

static bool checksum_matches(const uint8_t *header)
{
    int64_t sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : header[i];
    return number(header + 148, 8) == sum;
}

static bool is_zero(const uint8_t *header)
{
    for (int i = 0; i < BLOCK; i++)
        if (header[i])
            return false;
    return true;
}

bool tar_is(const uint8_t *head, size_t len, const char *path)
{
    return len >= BLOCK && memcmp(head + 257, "ustar", 5) == 0 && checksum_matches(head);
}

/* ---- bytes ---- */

static err_t read_exactly(struct tar_reader *r, void *ret, size_t len, struct why *why)
{
    size_t n;
    err_t err = stream_read_full(r->in, ret, len, &n, why);
    if (err)
        return err;
    return n == len ? OK : fail(r, ERR_CORRUPT, "the archive ends within a member", why);
}

static err_t skip(struct tar_reader *r, int64_t n, struct why *why)
{
    uint8_t bytes[4096];
    err_t err = OK;
    for (; !err && n; n -= n < (int64_t)sizeof(bytes) ? n : (int64_t)sizeof(bytes))
        err = read_exactly(r, bytes, n < (int64_t)sizeof(bytes) ? (size_t)n : sizeof(bytes), why);
    return err;
}

/* The content of a header that describes the next member. */
static err_t read_extended(struct tar_reader *r, int64_t size, struct buf *ret, struct why *why)
{
    if (size < 0 || size > MAX_EXTENDED)
        return fail(r, ERR_CORRUPT, "an extended header is out of range", why);
    ret->len = 0;
    err_t err = no_memory(why, buf_reserve(ret, (size_t)size + 1));
    if (!err)
        err = read_exactly(r, ret->data, (size_t)size, why);
    if (err)
        return err;
    ret->len = (size_t)size;
    ret->data[size] = '\0';
    return skip(r, -size & (BLOCK - 1), why);
}

/* ---- extended headers ---- */

static err_t set_path(struct tar_reader *r, const void *path, size_t len, struct why *why)
{
    r->path.len = 0;
    err_t err = buf_append(&r->path, path, strnlen(path, len));
    return no_memory(why, err ? err : buf_append(&r->path, "", 1));
}

static err_t pax_record(struct tar_reader *r, const char *key, size_t key_len, const char *value, size_t len,
                        struct why *why)
{
    if (key_len == 4 && memcmp(key, "path", 4) == 0)
        return set_path(r, value, len, why);
    if (key_len > 10 && memcmp(key, "GNU.sparse", 10) == 0)
        return fail(r, ERR_UNSUPPORTED, "it has sparse members; write it without --sparse", why);
    if (key_len != 4 || memcmp(key, "size", 4) != 0)
        return OK;
    char *end;
    r->size = strtoll(value, &end, 10);
    return end == value + len && r->size >= 0 ? OK : fail(r, ERR_CORRUPT, "a pax header has an illegal size", why);
}

/* Records "LENGTH KEY=VALUE\n", whose length counts all of it. */
static err_t read_pax(struct tar_reader *r, const struct buf *b, struct why *why)
{
    const char *at = (const char *)b->data, *stop = at + b->len;
    err_t err = OK;
    while (!err && at < stop && *at) {
        char *key;
        long long len = strtoll(at, &key, 10);
        if (len < 5 || len > stop - at || key == at || *key != ' ' || at[len - 1] != '\n')
            return fail(r, ERR_CORRUPT, "a pax header is damaged", why);
        key++;
        const char *equals = key < at + len ? memchr(key, '=', (size_t)(at + len - key)) : NULL;
        if (!equals)
            return fail(r, ERR_CORRUPT, "a pax header is damaged", why);
        err = pax_record(r, key, (size_t)(equals - key), equals + 1, (size_t)(at + len - 1 - (equals + 1)), why);
        at += len;
    }
    return err;
}

/* ---- members ---- */

static err_t ustar_path(struct tar_reader *r, const uint8_t *header, struct why *why)
{
    char path[100 + 155 + 2];
    int prefix = memcmp(header + 257, "ustar\0", 6) == 0 ? (int)strnlen((const char *)header + 345, 155) : 0;
    snprintf(path, sizeof(path), "%.*s%s%.100s", prefix, header + 345, prefix ? "/" : "", header);
    return r->path.len ? OK : set_path(r, path, strlen(path), why);
}

static bool is_foreign(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    return strncmp(name, "._", 2) == 0 || (n > 4 && strncmp(name, "__", 2) == 0 && strcmp(name + n - 2, "__") == 0);
}

/* One header. *ret_file: it is one of a file to read, whose bytes follow. */
static err_t read_header(struct tar_reader *r, const uint8_t *header, bool *ret_file, struct why *why)
{
    struct buf extended = {0};
    int64_t size = number(header + 124, 12);
    char type = (char)header[156];
    *ret_file = false;
    if (size < 0)
        return fail(r, ERR_CORRUPT, "the size of a member is out of range", why);
    if (type == 'x' || type == 'L') {
        err_t err = read_extended(r, size, &extended, why);
        if (!err)
            err = type == 'x' ? read_pax(r, &extended, why) : set_path(r, extended.data, extended.len, why);
        buf_fini(&extended);
        return err;
    }
    if (type == 'S')
        return fail(r, ERR_UNSUPPORTED, "it has sparse members; write it without --sparse", why);
    if (type == 'g' || type == 'K') { /* about all members, or the target of a link */
        err_t err = skip(r, size, why);
        return err ? err : skip(r, -size & (BLOCK - 1), why);
    }
    err_t err = ustar_path(r, header, why);
    bool file = type == '0' || type == '\0' || type == '7', link = type >= '1' && type <= '6';
    r->left = link ? 0 : r->size >= 0 && file ? r->size : size;
    r->padding = -r->left & (BLOCK - 1);
    *ret_file = !err && file && r->left && !is_foreign((const char *)r->path.data);
    if (!*ret_file && !err) {
        r->path.len = 0;
        r->size = -1;
        err = skip(r, r->left, why);
        err = err ? err : skip(r, r->padding, why);
        r->left = r->padding = 0;
    }
    return err;
}

/* Goes on to the next file. */
static err_t next_member(struct tar_reader *r, bool *ret_end, struct why *why)
{
    bool file = false;
    err_t err = skip(r, r->left, why);
    err = err ? err : skip(r, r->padding, why);
    r->left = r->padding = 0;
    r->path.len = 0;
    r->size = -1;
    *ret_end = false;
    while (!err && !file) {
        uint8_t header[BLOCK];
        size_t n;
        err = stream_read_full(r->in, header, BLOCK, &n, why);
        if (err)
            break;
        *ret_end = n == 0 || (n == BLOCK && is_zero(header));
        if (*ret_end)
            return OK;
        if (n < BLOCK || !checksum_matches(header))
            return fail(r, ERR_CORRUPT,
                        n < BLOCK ? "the archive ends within a header" : "a header has a wrong checksum", why);
        err = read_header(r, header, &file, why);
    }
    return err;
}

static err_t member_read(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why)
{
    struct tar_reader *r = (struct tar_reader *)((char *)s - offsetof(struct tar_reader, member));
    size_t n = r->head_len - r->head_at;
    if (n) {
        n = n < cap ? n : cap;
        memcpy(ret, r->head + r->head_at, n);
        r->head_at += n;
        *ret_n = n;
        return OK;
    }
    n = r->left < (int64_t)cap ? (size_t)r->left : cap;
    err_t err = n ? r->in->ops->read(r->in, ret, n, ret_n, why) : OK;
    if (err)
        return err;
    if (n && !*ret_n)
        return fail(r, ERR_CORRUPT, "the archive ends within a member", why);
    *ret_n = n ? *ret_n : 0;
    r->left -= (int64_t)*ret_n;
    return OK;
}

static const struct byte_stream_ops member_ops = {member_read, NULL};

static err_t open_member(struct tar_reader *r, struct why *why)
{
    const struct doc_options o = {.field = r->field, .label = r->class};
    r->head_at = 0;
    r->head_len = r->left < DOC_HEAD_BYTES ? (size_t)r->left : DOC_HEAD_BYTES;
    err_t err = read_exactly(r, r->head, r->head_len, why);
    r->left -= (int64_t)r->head_len;
    r->label.len = 0;
    err = err ? err : no_memory(why, buf_printf(&r->label, "%s:/%s", r->in->name, (const char *)r->path.data));
    if (err)
        return err;
    r->member = (struct byte_stream){&member_ops, (const char *)r->label.data};
    return jsonl_is(r->head, r->head_len, r->member.name) ? jsonl_open(&r->member, &o, &r->lines, why) : OK;
}

/* ---- documents ---- */

static err_t read_text(struct tar_reader *r, struct document *ret, struct why *why)
{
    size_t size = (size_t)r->left + r->head_len, nuls = 0, n;
    for (size_t i = 0; i < r->head_len; i++)
        nuls += r->head[i] == 0;
    const char *other =
        not_text(r->head, r->head_len < NOT_TEXT_BYTES ? r->head_len : NOT_TEXT_BYTES, nuls, r->head_len);
    if (other)
        return why_set(why, ERR_INVALID, "%s: %s. Only text and JSON lines are read from an archive", r->member.name,
                       other);
    if (size > TAR_MAX_TEXT)
        return why_set(why, ERR_LIMIT, "%s: a text of more than 1 GiB in one document", r->member.name);
    r->text.len = 0;
    err_t err = no_memory(why, buf_reserve(&r->text, size));
    err = err ? err : stream_read_full(&r->member, r->text.data, size, &n, why);
    if (err)
        return err;
    *ret = (struct document){.row = r->row++, .text = r->text.data, .len = size};
    return OK;
}

/* The next line of the current member. *ret_end: it has no more. */
static err_t read_line(struct tar_reader *r, struct document *ret, bool *ret_end, struct why *why)
{
    err_t err = r->lines->ops->next(r->lines, ret, ret_end, why);
    if (err || !*ret_end) {
        ret->row = err ? 0 : r->row++;
        return err;
    }
    r->lines->ops->close(r->lines);
    r->lines = NULL;
    return OK;
}

static err_t tar_next(struct doc_reader *base, struct document *ret, bool *ret_end, struct why *why)
{
    struct tar_reader *r = (struct tar_reader *)base;
    for (;;) {
        bool none = true;
        err_t err = r->lines ? read_line(r, ret, &none, why) : OK;
        if (err || !none) {
            *ret_end = false;
            return err;
        }
        err = next_member(r, ret_end, why);
        if (err || *ret_end)
            return err;
        err = open_member(r, why);
        if (err || !r->lines)
            return err ? err : read_text(r, ret, why);
    }
}

static void tar_close(struct doc_reader *base)
{
    struct tar_reader *r = (struct tar_reader *)base;
    if (r->lines)
        r->lines->ops->close(r->lines);
    buf_fini(&r->path);
    buf_fini(&r->label);
    buf_fini(&r->text);
    free(r->field);
    free(r->class);
    free(r);
}

err_t tar_open(struct byte_stream *in, const struct doc_options *o, struct doc_reader **ret, struct why *why)
{
    static const struct doc_reader_ops ops = {tar_next, tar_close};
    struct tar_reader *r = calloc(1, sizeof(*r));
    if (!r || (o->field && !(r->field = strdup(o->field))) || (o->label && !(r->class = strdup(o->label)))) {
        free(r);
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    }
    r->base.ops = &ops;
    r->in = in;
    r->size = -1;
    *ret = &r->base;
    return OK;
}
