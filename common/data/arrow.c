/* A file is a stream between a magic word and a footer, and both are read as a stream, from message to message. So many
 * small record batches cost no memory: a footer has 24 bytes for each. The footer is still looked at, because a file
 * that lacks it is incomplete; and a stream must end with its end marker, for the same reason. */
#include "common/data/arrow.h"
#include "common/data/arrow_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "ARROW1"
#define MAX_METADATA ((int64_t)64 << 20) /* of one message: the schema of a wide table takes a few MiB */
#define MAX_FOOTER ((int64_t)1 << 28)    /* 11 million record batches */

enum { HEADER_SCHEMA = 1, HEADER_DICTIONARY = 2, HEADER_BATCH = 3 };
/* Message of Message.fbs: its slots. */
enum { MESSAGE_HEADER_TYPE = 1, MESSAGE_HEADER = 2, MESSAGE_BODY_LENGTH = 3 };
enum { BATCH_LENGTH = 0, BATCH_NODES = 1, BATCH_BUFFERS = 2, BATCH_COMPRESSION = 3, BATCH_VARIADIC = 4 };

struct arrow_reader {
    struct doc_reader base;
    struct byte_source *in;
    int64_t at, end;  /* the next message; where messages end */
    int64_t batches;  /* that have been read */
    int64_t expected; /* from the footer; -1: a stream */
    struct buf metadata;
    struct arrow_schema schema;
    struct table table;
    struct arrow_column columns[TABLE_ROLES];
    int64_t row, batch_left;
};

static bool arrow_is(const uint8_t *head, size_t len, const char *path)
{
    static const uint8_t marker[4] = {0xff, 0xff, 0xff, 0xff};
    uint32_t metadata;
    if (len >= 8 && memcmp(head, MAGIC "\0\0", 8) == 0)
        return true;
    if (len < 8 || memcmp(head, marker, sizeof(marker)) != 0)
        return false;
    memcpy(&metadata, head + 4, sizeof(metadata));
    return metadata % 8 == 0 && metadata <= MAX_METADATA;
}

static err_t fail_arrow(const struct arrow_reader *r, err_t err, const char *text, struct why *why)
{
    return why_set(why, err, "%s: %s", r->in->name, err == ERR_NOMEM ? err_text(err) : text);
}

/* ---- messages ---- */

struct arrow_message {
    struct flat flat;
    struct flat_ref header;
    int64_t type, body, body_len;
};

static err_t load_metadata(struct arrow_reader *r, int64_t at, int64_t len, struct why *why)
{
    r->metadata.len = 0;
    if (buf_reserve(&r->metadata, (size_t)len + 1))
        return fail_arrow(r, ERR_NOMEM, NULL, why);
    r->metadata.len = (size_t)len;
    return r->in->ops->read(r->in, at, r->metadata.data, (size_t)len, why);
}

/* The length of the next message's metadata; 0: the end marker. */
static err_t message_length(struct arrow_reader *r, int64_t *ret, struct why *why)
{
    uint32_t head[2];
    if (r->end - r->at < 8)
        return fail_arrow(r, ERR_CORRUPT,
                          "the Arrow data has no end marker. It is cut short, or its writer has not finished", why);
    err_t err = r->in->ops->read(r->in, r->at, head, sizeof(head), why);
    if (err)
        return err;
    if (head[0] != UINT32_MAX)
        return fail_arrow(r, ERR_CORRUPT,
                          "no Arrow message where one should begin; the file is damaged, or its writer is older than "
                          "Arrow 0.15",
                          why);
    *ret = head[1];
    if (*ret > MAX_METADATA || *ret > r->end - r->at - 8)
        return fail_arrow(r, ERR_CORRUPT,
                          "the metadata of an Arrow message is longer than the file; the file is cut short or damaged",
                          why);
    r->at += 8;
    return OK;
}

/* Reads the next message's metadata and goes behind its body. *ret_end: there is none. */
static err_t next_message(struct arrow_reader *r, struct arrow_message *ret, bool *ret_end, struct why *why)
{
    int64_t len = 0;
    *ret_end = r->expected >= 0 && r->at == r->end; /* some writers leave out the marker in front of the footer */
    if (*ret_end)
        return OK;
    err_t err = message_length(r, &len, why);
    if (err || len == 0) {
        *ret_end = !err;
        return err;
    }
    err = load_metadata(r, r->at, len, why);
    if (err)
        return err;
    *ret = (struct arrow_message){.flat = {.data = r->metadata.data, .size = (size_t)len}, .body = r->at + len};
    struct flat_ref root = flat_root(&ret->flat);
    ret->type = flat_int(&ret->flat, root, MESSAGE_HEADER_TYPE, 1, 0);
    ret->header = flat_table(&ret->flat, root, MESSAGE_HEADER);
    ret->body_len = flat_int(&ret->flat, root, MESSAGE_BODY_LENGTH, 8, 0);
    if (ret->flat.bad || !ret->header.at || ret->body_len < 0)
        return fail_arrow(r, ERR_CORRUPT, "the metadata of an Arrow message is damaged", why);
    if (ret->body_len > r->end - ret->body)
        return fail_arrow(r, ERR_CORRUPT, "an Arrow message is longer than the file; the file is cut short or damaged",
                          why);
    r->at = ret->body + ret->body_len;
    return OK;
}

/* ---- record batches ---- */

static err_t read_codec(struct arrow_reader *r, struct arrow_message *m, enum arrow_codec *ret, struct why *why)
{
    struct flat_ref compression = flat_table(&m->flat, m->header, BATCH_COMPRESSION);
    *ret = ARROW_RAW;
    if (!compression.at)
        return OK;
    int64_t codec = flat_int(&m->flat, compression, 0, 1, 0), method = flat_int(&m->flat, compression, 1, 1, 0);
    if (codec < 0 || codec > 1 || method != 0)
        return fail_arrow(r, ERR_UNSUPPORTED, "the compression of a record batch is neither none, lz4 frames nor zstd",
                          why);
    *ret = codec == 0 ? ARROW_LZ4 : ARROW_ZSTD;
    return OK;
}

static err_t open_batch(struct arrow_reader *r, struct arrow_message *m, struct why *why)
{
    struct arrow_batch b = {.body = m->body, .body_len = m->body_len};
    err_t err = read_codec(r, m, &b.codec, why);
    b.length = flat_int(&m->flat, m->header, BATCH_LENGTH, 8, 0);
    b.nodes = flat_vector(&m->flat, m->header, BATCH_NODES, 16);
    b.buffers = flat_vector(&m->flat, m->header, BATCH_BUFFERS, 16);
    b.variadic = flat_vector(&m->flat, m->header, BATCH_VARIADIC, 8);
    b.flat = m->flat;
    if (!err && (m->flat.bad || b.length < 0 || b.nodes.n != r->schema.nodes || b.buffers.n < r->schema.buffers ||
                 (!r->schema.views && b.buffers.n != r->schema.buffers)))
        err = fail_arrow(r, ERR_CORRUPT, "a record batch does not match the schema; the file is damaged", why);
    for (int role = 0; !err && role < TABLE_ROLES; role++)
        if (r->table.column[role] >= 0) {
            r->columns[role].row = r->row;
            err = arrow_column_batch(&r->columns[role], &b, why);
        }
    r->batch_left = err ? 0 : b.length;
    r->batches++;
    return err;
}

/* Behind the end marker there is the footer, or nothing. */
static err_t check_end(const struct arrow_reader *r, struct why *why)
{
    if (r->expected >= 0 && r->batches != r->expected)
        return why_set(why, ERR_CORRUPT,
                       "%s: %" PRId64 " record batches, but the footer lists %" PRId64 "; the file is damaged",
                       r->in->name, r->batches, r->expected);
    if (r->expected < 0 && r->at != r->end)
        return fail_arrow(r, ERR_CORRUPT,
                          "there are bytes behind the end of the Arrow stream; files of this format cannot be joined "
                          "with cat",
                          why);
    return OK;
}

/* Goes to the next record batch with rows. */
static err_t next_batch(struct arrow_reader *r, bool *ret_end, struct why *why)
{
    err_t err = OK;
    *ret_end = false;
    while (!err && r->batch_left == 0) {
        struct arrow_message m;
        err = next_message(r, &m, ret_end, why);
        if (!err && *ret_end)
            return check_end(r, why);
        if (err || m.type == HEADER_DICTIONARY)
            continue;
        err = m.type == HEADER_BATCH ? open_batch(r, &m, why)
                                     : fail_arrow(r, ERR_CORRUPT, "an Arrow message that is no record batch", why);
    }
    return err;
}

static err_t arrow_next(struct doc_reader *base, struct document *ret, bool *ret_end, struct why *why)
{
    struct arrow_reader *r = (struct arrow_reader *)base;
    struct table_value values[TABLE_ROLES] = {0};
    bool none = true;
    err_t err = OK;
    *ret_end = false;
    while (!err && none) {
        err = next_batch(r, ret_end, why);
        if (err || *ret_end)
            return err;
        for (int role = 0; !err && role < TABLE_ROLES; role++)
            if (r->table.column[role] >= 0) {
                r->columns[role].row = r->row;
                err = arrow_column_next(&r->columns[role], &values[role], why);
            }
        err = err ? err : table_document(&r->table, r->row, values, ret, &none, why);
        r->row++;
        r->batch_left--;
    }
    return err;
}

static void arrow_close(struct doc_reader *base)
{
    struct arrow_reader *r = (struct arrow_reader *)base;
    for (int role = 0; role < TABLE_ROLES; role++)
        arrow_column_fini(&r->columns[role]);
    arrow_schema_fini(&r->schema);
    table_fini(&r->table);
    buf_fini(&r->metadata);
    free(r);
}

/* ---- opening ---- */

/* Finds where the messages begin and end, and counts the record batches in the footer. */
static err_t read_footer(struct arrow_reader *r, struct why *why)
{
    uint8_t tail[10];
    int32_t len;
    r->at = 8;
    if (r->in->size < 8 + 10)
        return fail_arrow(r, ERR_CORRUPT, "it is too short for an Arrow file", why);
    err_t err = r->in->ops->read(r->in, r->in->size - 10, tail, sizeof(tail), why);
    if (err)
        return err;
    memcpy(&len, tail, sizeof(len));
    if (memcmp(tail + 4, MAGIC, 6) != 0 || len <= 0 || len > r->in->size - 18)
        return fail_arrow(r, ERR_CORRUPT,
                          "an Arrow file ends with ARROW1, and this one does not. It is cut short, or its writer has "
                          "not finished",
                          why);
    if (len > MAX_FOOTER)
        return fail_arrow(r, ERR_LIMIT,
                          "the footer of the Arrow file is longer than 256 MiB; write larger record "
                          "batches",
                          why);
    r->end = r->in->size - 10 - len;
    err = load_metadata(r, r->end, len, why);
    if (err)
        return err;
    struct flat f = {.data = r->metadata.data, .size = (size_t)len};
    r->expected = (int64_t)flat_vector(&f, flat_root(&f), 3, 24).n;
    return f.bad ? fail_arrow(r, ERR_CORRUPT, "the footer of the Arrow file is damaged", why) : OK;
}

static err_t find_messages(struct arrow_reader *r, struct why *why)
{
    uint8_t head[8] = {0};
    r->expected = -1;
    r->end = r->in->size;
    if (r->in->size < 8)
        return fail_arrow(r, ERR_CORRUPT, "it is too short for Arrow data", why);
    err_t err = r->in->ops->read(r->in, 0, head, sizeof(head), why);
    return err || memcmp(head, MAGIC, 6) != 0 ? err : read_footer(r, why);
}

static err_t read_schema(struct arrow_reader *r, struct why *why)
{
    struct arrow_message m;
    bool end;
    err_t err = next_message(r, &m, &end, why);
    if (err)
        return err;
    if (end || m.type != HEADER_SCHEMA)
        return fail_arrow(r, ERR_CORRUPT, "the Arrow data does not begin with a schema", why);
    err = arrow_schema_read(&m.flat, m.header, &r->schema);
    if (err == ERR_UNSUPPORTED)
        return fail_arrow(r, err, "the schema has a type that is newer than this reader, or big-endian values", why);
    return err ? fail_arrow(r, err, "the schema is damaged", why) : OK;
}

/* A cached filter or shuffle of Hugging Face datasets. */
static bool is_mapping(const struct arrow_schema *s)
{
    return s->n == 1 && strcmp(s->fields[0].name, "indices") == 0;
}

static err_t choose(struct arrow_reader *r, const struct doc_options *o, struct why *why)
{
    if (is_mapping(&r->schema))
        return fail_arrow(r, ERR_UNSUPPORTED,
                          "it has only the column indices: the rows that a filter or shuffle of datasets keeps, and "
                          "not their text. Write the result with save_to_disk and name that folder",
                          why);
    err_t err = table_choose(&r->table, r->in->name, r->schema.columns, r->schema.n, o, why);
    for (int role = 0; !err && role < TABLE_ROLES; role++)
        if (r->table.column[role] >= 0) {
            r->columns[role].in = r->in;
            r->columns[role].field = &r->schema.fields[r->table.column[role]];
        }
    return err;
}

static err_t arrow_open(struct byte_source *in, const struct doc_options *o, struct doc_reader **ret, struct why *why)
{
    static const struct doc_reader_ops ops = {.next = arrow_next, .close = arrow_close};
    struct arrow_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return why_set(why, ERR_NOMEM, "%s: %s", in->name, err_text(ERR_NOMEM));
    r->base.ops = &ops;
    r->in = in;
    err_t err = find_messages(r, why);
    err = err ? err : read_schema(r, why);
    err = err ? err : choose(r, o, why);
    if (err)
        arrow_close(&r->base);
    else
        *ret = &r->base;
    return err;
}

const struct doc_format arrow_format = {.name = "arrow", .is = arrow_is, .open = arrow_open};
