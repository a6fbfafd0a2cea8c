#include "common/data/formats.h"

#include "common/data/jsonl.h"
#include "common/data/tar.h"

#include <stdio.h>
#include <string.h>

static bool is_any(const uint8_t *head, size_t len, const char *path)
{
    return true;
}

#define TOKENS(name, i)                                         \
    {                                                           \
        name, INPUT_TOKENS, NULL, NULL, NULL, &token_formats[i] \
    }
static const struct format_row formats[] = {
    TOKENS("megatron", 0),
    TOKENS("llmc", 1),
    TOKENS("datatrove", 2),
    TOKENS("npy", 3),
    TOKENS("uint16", 4),
    TOKENS("uint32", 5),
    TOKENS("int32", 6),
    TOKENS("int64", 7),
    {"tar", INPUT_DOCUMENTS, tar_is, tar_open, NULL, NULL},
    {"jsonl", INPUT_DOCUMENTS, jsonl_is, jsonl_open, NULL, NULL},
    {"text", INPUT_TEXT, is_any, NULL, NULL, NULL},
    {0},
};

static bool is_format(const struct format_row *f, const uint8_t *head, size_t len, const char *path)
{
    return f->tokens ? f->tokens->is(head, len, path) : f->docs ? f->docs->is(head, len, path) : f->is(head, len, path);
}

static const struct format_row *recognise(const struct format_row *rows, const uint8_t *head, size_t len,
                                          const char *path)
{
    for (const struct format_row *f = rows; f && f->name; f++)
        if (is_format(f, head, len, path))
            return f;
    return NULL;
}

const struct format_row *format_recognise(const struct format_row *tables, const uint8_t *head, size_t len,
                                          const char *path)
{
    const struct format_row *f = recognise(tables, head, len, path);
    return f ? f : recognise(formats, head, len, path);
}

static const struct format_row *find(const struct format_row *rows, const char *name)
{
    for (const struct format_row *f = rows; f && f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

const struct format_row *format_find(const struct format_row *tables, const char *name)
{
    const struct format_row *f = find(tables, name);
    return f ? f : find(formats, name);
}

static void add_names(const struct format_row *rows, char ret[FORMAT_NAMES_BYTES])
{
    size_t n = strlen(ret);
    for (const struct format_row *f = rows; f && f->name && n < FORMAT_NAMES_BYTES; f++)
        n += (size_t)snprintf(ret + n, FORMAT_NAMES_BYTES - n, ", %s", f->name);
}

void format_names(const struct format_row *tables, char ret[FORMAT_NAMES_BYTES])
{
    strcpy(ret, "auto");
    add_names(tables, ret);
    add_names(formats, ret);
}
