/* The footer is parsed twice: once for the schema and the number of rows of each group, and once for the chunks of each
 * column that is read. A wide table thus costs memory for its schema only. */
#include "common/data/parquet_priv.h"
#include "common/data/thrift.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A footer grows with columns x row groups; 1,000 columns in 1,000 groups make about 100 MiB. */
#define MAX_FOOTER ((int64_t)1 << 28)
#define MAX_ELEMENTS 100000 /* of a schema: keeps the memory for them small */
#define MAX_NESTING 32
#define MAX_NAME 1024

/* ---- the structures of parquet.thrift ---- */

enum repetition { REQUIRED, OPTIONAL, REPEATED };
enum converted {
    CONVERTED_NONE = -1,
    CONVERTED_UTF8 = 0,
    CONVERTED_LIST = 3,
    CONVERTED_ENUM = 4,
    CONVERTED_UINT_8 = 11,
    CONVERTED_INT_64 = 18,
    CONVERTED_JSON = 19
};

struct pq_logical {
    bool list, decimal, date, time, timestamp;
};
struct pq_element {
    int64_t type, repetition, children, converted;
    struct thrift_bytes name;
    struct pq_logical logical;
};
struct pq_metadata {
    int64_t codec, values, bytes, data_at, dictionary_at;
    bool there;
};
struct pq_chunk_head {
    struct thrift_bytes other_file;
    struct pq_metadata metadata;
    bool encrypted;
};
struct pq_group {
    int64_t rows;
    size_t n_columns;
    /* The chunk that is wanted, -1: none. */
    int64_t want;
    struct pq_chunk_head chunk;
};

#define MEMBER(of, id, name, how)          \
    {                                      \
        id, how, offsetof(struct of, name) \
    }
#define COUNT(x) (sizeof(x) / sizeof((x)[0]))

static void read_logical(struct thrift *t, int type, void *dst)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_logical, 3, list, thrift_present),      MEMBER(pq_logical, 5, decimal, thrift_present),
        MEMBER(pq_logical, 6, date, thrift_present),      MEMBER(pq_logical, 7, time, thrift_present),
        MEMBER(pq_logical, 8, timestamp, thrift_present),
    };
    if (thrift_is_struct(t, type))
        thrift_struct(t, members, COUNT(members), dst);
}

static void read_metadata(struct thrift *t, int type, void *dst)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_metadata, 4, codec, thrift_int),          MEMBER(pq_metadata, 5, values, thrift_int),
        MEMBER(pq_metadata, 7, bytes, thrift_int),          MEMBER(pq_metadata, 9, data_at, thrift_int),
        MEMBER(pq_metadata, 11, dictionary_at, thrift_int),
    };
    if (!thrift_is_struct(t, type))
        return;
    thrift_struct(t, members, COUNT(members), dst);
    ((struct pq_metadata *)dst)->there = true;
}

static void read_chunk_head(struct thrift *t, void *dst)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_chunk_head, 1, other_file, thrift_binary),
        MEMBER(pq_chunk_head, 3, metadata, read_metadata),
        MEMBER(pq_chunk_head, 8, encrypted, thrift_present),
        MEMBER(pq_chunk_head, 9, encrypted, thrift_present),
    };
    thrift_struct(t, members, COUNT(members), dst);
}

/* The columns of a group; `dst` is the whole group. */
static void read_columns(struct thrift *t, int type, void *dst)
{
    struct pq_group *g = dst;
    g->n_columns = thrift_list_of_structs(t, type);
    for (size_t i = 0; i < g->n_columns && !t->bad; i++) {
        if (g->want >= 0 && i == (size_t)g->want)
            read_chunk_head(t, &g->chunk);
        else
            thrift_struct(t, NULL, 0, NULL);
    }
}

static void read_group(struct thrift *t, struct pq_group *ret)
{
    static const struct thrift_member members[] = {
        {1, read_columns, 0},
        MEMBER(pq_group, 3, rows, thrift_int),
    };
    thrift_struct(t, members, COUNT(members), ret);
}

/* ---- the schema ---- */

struct pq_schema {
    struct pq_element *elements;
    size_t n, cap;
    bool too_many;
};
struct pq_file_metadata {
    struct pq_schema schema;
    int64_t rows;
    size_t n_groups;
    struct buf group_rows; /* int64_t */
    err_t err;
    bool encrypted, has_groups;
};

static struct pq_element *add_element(struct pq_schema *s)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        struct pq_element *more = realloc(s->elements, cap * sizeof(*more));
        if (!more)
            return NULL;
        s->elements = more;
        s->cap = cap;
    }
    s->elements[s->n] = (struct pq_element){.type = -1, .converted = CONVERTED_NONE};
    return &s->elements[s->n++];
}

static void read_schema(struct thrift *t, int type, void *dst)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_element, 1, type, thrift_int),      MEMBER(pq_element, 3, repetition, thrift_int),
        MEMBER(pq_element, 4, name, thrift_binary),   MEMBER(pq_element, 5, children, thrift_int),
        MEMBER(pq_element, 6, converted, thrift_int), MEMBER(pq_element, 10, logical, read_logical),
    };
    struct pq_schema *s = dst;
    for (size_t n = thrift_list_of_structs(t, type); n > 0 && !t->bad; n--) {
        struct pq_element *e = s->n < MAX_ELEMENTS ? add_element(s) : NULL;
        if (!e) {
            s->too_many = t->bad = true;
            return;
        }
        thrift_struct(t, members, COUNT(members), e);
    }
}

static void read_groups(struct thrift *t, int type, void *dst)
{
    struct pq_file_metadata *m = dst;
    m->n_groups = thrift_list_of_structs(t, type);
    m->has_groups = true;
    for (size_t i = 0; i < m->n_groups && !t->bad; i++) {
        struct pq_group g = {.want = -1};
        read_group(t, &g);
        if (!m->err)
            m->err = buf_append(&m->group_rows, &g.rows, sizeof(g.rows));
    }
}

static bool parse_metadata(const struct buf *bytes, struct pq_file_metadata *ret)
{
    static const struct thrift_member members[] = {
        MEMBER(pq_file_metadata, 2, schema, read_schema),
        MEMBER(pq_file_metadata, 3, rows, thrift_int),
        {4, read_groups, 0},
        MEMBER(pq_file_metadata, 8, encrypted, thrift_present),
    };
    struct thrift t = {.p = bytes->data, .end = bytes->data + bytes->len};
    ret->rows = -1; /* a required member, as the list of row groups is */
    thrift_struct(&t, members, COUNT(members), ret);
    return !t.bad && t.p == t.end && ret->has_groups;
}

/* Walks the elements, which are in depth-first order. */
struct pq_walk {
    const struct pq_schema *s;
    struct parquet_footer *ret;
    size_t next;
    char name[MAX_NAME];
    err_t err;
};

static const char *type_words(const struct parquet_leaf *l, const struct pq_element *e)
{
    static const char *const one[PQ_TYPES] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                              "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
    static const char *const list[PQ_TYPES] = {
        "list of BOOLEAN", "list of INT32",  "list of INT64",      "list of INT96",
        "list of FLOAT",   "list of DOUBLE", "list of BYTE_ARRAY", "list of FIXED_LEN_BYTE_ARRAY"};
    if (l->max_rep > 1)
        return "list of lists";
    if (e->converted != CONVERTED_NONE && l->type < PQ_BYTE_ARRAY && e->converted < CONVERTED_UINT_8)
        return "a number with a unit (date, time or decimal)";
    return (l->max_rep ? list : one)[l->type];
}

static enum table_kind kind_of(const struct parquet_leaf *l, const struct pq_element *e)
{
    int64_t c = e->converted;
    const struct pq_logical *g = &e->logical;
    if (g->decimal || g->date || g->time || g->timestamp)
        return TABLE_OTHER;
    if (l->type == PQ_BYTE_ARRAY && l->max_rep == 0)
        return c == CONVERTED_NONE || c == CONVERTED_UTF8 || c == CONVERTED_ENUM || c == CONVERTED_JSON ? TABLE_BYTES
                                                                                                        : TABLE_OTHER;
    if ((l->type == PQ_INT32 || l->type == PQ_INT64) && l->max_rep <= 1 &&
        (c == CONVERTED_NONE || (c >= CONVERTED_UINT_8 && c <= CONVERTED_INT_64)))
        return l->max_rep ? TABLE_INTS : TABLE_INT;
    return TABLE_OTHER;
}

static bool add_leaf(struct pq_walk *w, const struct pq_element *e, struct parquet_leaf leaf)
{
    struct parquet_footer *f = w->ret;
    if (e->type < 0 || e->type >= PQ_TYPES)
        return false;
    leaf.type = (int)e->type;
    leaf.name = strdup(w->name);
    if (!leaf.name) {
        w->err = ERR_NOMEM;
        return false;
    }
    table_clean_name(leaf.name);
    f->leaves[f->n_leaves] = leaf;
    f->columns[f->n_leaves++] =
        (struct table_column){.name = leaf.name, .kind = kind_of(&leaf, e), .type = type_words(&leaf, e)};
    return true;
}

/* Appends the element's name; false: too long, or it contains a NUL. */
static bool push_name(char name[MAX_NAME], const struct pq_element *e)
{
    size_t at = strlen(name);
    if (at + e->name.len + 2 > MAX_NAME || (e->name.len && memchr(e->name.data, '\0', e->name.len)))
        return false;
    if (at)
        name[at++] = '.';
    if (e->name.len)
        memcpy(name + at, e->name.data, e->name.len);
    name[at + e->name.len] = '\0';
    return true;
}

/* The next element and all below it. `in_list`: its name is that of a level inside a list, and left out. */
static bool walk(struct pq_walk *w, struct parquet_leaf above, bool in_list, int depth)
{
    if (w->next >= w->s->n || depth > MAX_NESTING)
        return false;
    const struct pq_element *e = &w->s->elements[w->next++];
    size_t name = strlen(w->name);
    if (!in_list && depth > 0 && !push_name(w->name, e))
        return false;
    if (depth > 0 && e->repetition != REQUIRED)
        above.max_def++;
    if (depth > 0 && e->repetition == REPEATED) {
        above.max_rep++;
        above.element_def = above.max_def;
    }
    bool ok = true, list = in_list || e->converted == CONVERTED_LIST || e->logical.list;
    if (e->children <= 0 && depth > 0)
        ok = add_leaf(w, e, above);
    for (int64_t i = 0; ok && i < e->children; i++)
        ok = walk(w, above, list && e->children == 1, depth + 1);
    w->name[name] = '\0';
    return ok;
}

static err_t keep_schema(struct pq_file_metadata *m, struct parquet_footer *f)
{
    struct pq_walk w = {.s = &m->schema, .ret = f};
    f->leaves = calloc(m->schema.n + 1, sizeof(*f->leaves));
    f->columns = calloc(m->schema.n + 1, sizeof(*f->columns));
    if (!f->leaves || !f->columns)
        return ERR_NOMEM;
    if (!walk(&w, (struct parquet_leaf){0}, false, 0) || w.next != m->schema.n)
        return w.err ? w.err : ERR_CORRUPT;
    return OK;
}

/* The rows of the groups must add up to those of the file. */
static err_t keep_groups(struct pq_file_metadata *m, struct parquet_footer *f)
{
    int64_t sum = 0;
    if (m->n_groups > INT32_MAX)
        return ERR_CORRUPT;
    f->rows = m->rows;
    f->n_groups = (int)m->n_groups;
    f->group_rows = (int64_t *)(void *)m->group_rows.data;
    m->group_rows = (struct buf){0};
    for (int i = 0; i < f->n_groups; i++)
        if (f->group_rows[i] < 0 || __builtin_add_overflow(sum, f->group_rows[i], &sum))
            return ERR_CORRUPT;
    return sum == f->rows ? OK : ERR_CORRUPT;
}

/* ---- reading ---- */

static err_t fail_footer(const char *file, err_t err, struct why *why)
{
    if (err == ERR_CORRUPT)
        return why_set(why, err, "%s: the footer of the Parquet file is damaged; copy or write the file again", file);
    return why_set(why, err, "%s: %s", file, err_text(err));
}

/* Reads the footer's bytes and checks what stands around them. */
static err_t read_bytes(struct byte_source *in, struct parquet_footer *f, struct why *why)
{
    uint8_t head[4], tail[8];
    uint32_t len;
    if (in->size < 12)
        return why_set(why, ERR_CORRUPT, "%s: %" PRId64 " bytes are too few for a Parquet file", in->name, in->size);
    err_t err = in->ops->read(in, 0, head, sizeof(head), why);
    err = err ? err : in->ops->read(in, in->size - 8, tail, sizeof(tail), why);
    if (err)
        return err;
    if (memcmp(tail + 4, "PARE", 4) == 0)
        return why_set(why, ERR_UNSUPPORTED, "%s: the Parquet file is encrypted; write it without encryption",
                       in->name);
    if (memcmp(head, "PAR1", 4) != 0 || memcmp(tail + 4, "PAR1", 4) != 0)
        return why_set(why, ERR_CORRUPT,
                       "%s: a Parquet file begins and ends with PAR1, and this one does not. It is "
                       "cut short, or its writer has not finished",
                       in->name);
    memcpy(&len, tail, sizeof(len));
    if (len > in->size - 12)
        return fail_footer(in->name, ERR_CORRUPT, why);
    if (len > MAX_FOOTER)
        return why_set(why, ERR_LIMIT, "%s: a footer of %" PRIu32 " bytes; at most %" PRId64 " are read", in->name, len,
                       MAX_FOOTER);
    f->data_end = in->size - 8 - len;
    if (buf_reserve(&f->bytes, len + 1))
        return fail_footer(in->name, ERR_NOMEM, why);
    f->bytes.len = len;
    return in->ops->read(in, f->data_end, f->bytes.data, len, why);
}

err_t parquet_footer_read(struct byte_source *in, struct parquet_footer *ret, struct why *why)
{
    struct parquet_footer f = {0};
    struct pq_file_metadata m = {0};
    err_t err = read_bytes(in, &f, why);
    if (!err) {
        if (!parse_metadata(&f.bytes, &m))
            err = m.schema.too_many ? ERR_LIMIT : ERR_CORRUPT;
        err = err ? err : m.err;
        err = err ? err : keep_schema(&m, &f);
        err = err ? err : keep_groups(&m, &f);
        if (err)
            fail_footer(in->name, err, why);
        else if (m.encrypted)
            err = why_set(why, ERR_UNSUPPORTED,
                          "%s: columns of the Parquet file are encrypted; write it without "
                          "encryption",
                          in->name);
    }
    free(m.schema.elements);
    buf_fini(&m.group_rows);
    if (err)
        parquet_footer_fini(&f);
    else
        *ret = f;
    return err;
}

/* ---- chunks ---- */

static err_t codec_of(int64_t codec, enum unpack_codec *ret, const char **ret_name)
{
    static const struct {
        const char *name;
        int codec; /* -1: not read */
    } table[] = {
        {"none", UNPACK_NONE}, {"snappy", UNPACK_SNAPPY}, {"gzip", UNPACK_GZIP}, {"lzo", -1},
        {"brotli", -1},        {"lz4 of Hadoop", -1},     {"zstd", UNPACK_ZSTD}, {"lz4_raw", UNPACK_LZ4},
    };
    *ret_name = "of an unknown number";
    if (codec < 0 || codec >= (int64_t)COUNT(table))
        return ERR_UNSUPPORTED;
    *ret_name = table[codec].name;
    if (table[codec].codec < 0)
        return ERR_UNSUPPORTED;
    *ret = (enum unpack_codec)table[codec].codec;
    return OK;
}

static err_t chunk_of(const struct parquet_footer *f, const struct pq_chunk_head *h, const char *where,
                      struct parquet_chunk *ret, struct why *why)
{
    const struct pq_metadata *m = &h->metadata;
    const char *name;
    if (h->encrypted)
        return why_set(why, ERR_UNSUPPORTED, "%s is encrypted; write it without encryption", where);
    if (h->other_file.len)
        return why_set(why, ERR_UNSUPPORTED, "%s is in another file; write one file", where);
    if (!m->there)
        return why_set(why, ERR_CORRUPT, "%s: the footer lacks its offset", where);
    if (codec_of(m->codec, &ret->codec, &name))
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: the compression is %s; none, snappy, gzip, zstd and lz4_raw can be read", where, name);
    if (m->values == 0) /* nothing is written then, and the place may be 0 */
        return OK;
    ret->at = m->dictionary_at > 0 && m->dictionary_at < m->data_at ? m->dictionary_at : m->data_at;
    ret->bytes = m->bytes;
    ret->values = m->values;
    if (ret->at < 4 || ret->bytes < 0 || ret->values < 0 || ret->at > f->data_end || ret->bytes > f->data_end - ret->at)
        return why_set(why, ERR_CORRUPT, "%s: by the footer it is outside the file; the footer is damaged", where);
    return OK;
}

struct pq_chunks {
    int64_t want;
    struct parquet_chunk *chunks;
    const struct parquet_footer *f;
    const char *file;
    struct why *why;
    err_t err;
};

static void read_chunks(struct thrift *t, int type, void *dst)
{
    struct pq_chunks *c = dst;
    size_t n = thrift_list_of_structs(t, type);
    if (n > (size_t)c->f->n_groups)
        t->bad = true;
    for (size_t i = 0; i < n && !t->bad && !c->err; i++) {
        char where[MAX_NAME + 4096 + 64];
        struct pq_group g = {.want = c->want};
        read_group(t, &g);
        snprintf(where, sizeof(where), "%s: column %s, row group %zu", c->file, c->f->leaves[c->want].name, i);
        if (t->bad || (size_t)c->want >= g.n_columns)
            t->bad = true;
        else
            c->err = chunk_of(c->f, &g.chunk, where, &c->chunks[i], c->why);
    }
}

err_t parquet_chunks(const struct parquet_footer *f, int i, const char *file, struct parquet_chunk **ret,
                     struct why *why)
{
    static const struct thrift_member members[] = {{4, read_chunks, 0}};
    struct thrift t = {.p = f->bytes.data, .end = f->bytes.data + f->bytes.len};
    struct pq_chunks c = {.want = i, .f = f, .file = file, .why = why};
    c.chunks = calloc((size_t)f->n_groups + 1, sizeof(*c.chunks));
    if (!c.chunks)
        return fail_footer(file, ERR_NOMEM, why);
    thrift_struct(&t, members, 1, &c);
    if (!c.err && t.bad)
        c.err = fail_footer(file, ERR_CORRUPT, why);
    if (c.err)
        free(c.chunks);
    else
        *ret = c.chunks;
    return c.err;
}

void parquet_footer_fini(struct parquet_footer *f)
{
    for (int i = 0; i < f->n_leaves; i++)
        free(f->leaves[i].name);
    free(f->leaves);
    free(f->columns);
    free(f->group_rows);
    buf_fini(&f->bytes);
    *f = (struct parquet_footer){0};
}
