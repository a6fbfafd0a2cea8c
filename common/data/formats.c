#include "common/data/formats.h"

#include "common/data/jsonl.h"

#include <stdio.h>
#include <string.h>

static bool is_any(const uint8_t *head, size_t len, const char *path)
{
    return true;
}

static const struct format_row formats[] = {
    {"jsonl", INPUT_DOCUMENTS, jsonl_is, jsonl_open, NULL},
    {"text", INPUT_TEXT, is_any, NULL, NULL},
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

const struct format_row *format_recognise(const uint8_t *head, size_t len, const char *path)
{
    size_t i = 0;
    while (!formats[i].is(head, len, path)) /* the last row is text */
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
