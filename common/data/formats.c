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
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

static bool is_format(const struct format_row *f, const uint8_t *head, size_t len, const char *path)
{
    return f->tokens ? f->tokens->is(head, len, path) : f->is(head, len, path);
}

const struct format_row *format_recognise(const uint8_t *head, size_t len, const char *path)
{
    size_t i = 0;
    while (!is_format(&formats[i], head, len, path)) /* the last row is text */
        i++;
    return &formats[i];
}

const struct format_row *format_find(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

const char *format_names(void)
{
    static char names[N_FORMATS * 16 + 8];
    size_t n = (size_t)snprintf(names, sizeof(names), "auto");
    for (size_t i = 0; i < N_FORMATS; i++)
        n += (size_t)snprintf(names + n, sizeof(names) - n, ", %s", formats[i].name);
    return names;
}
