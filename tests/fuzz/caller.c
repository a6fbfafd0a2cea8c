/* What a command inherits, which comes from a job file: accepted settings, printed and read again, are the same, and so
 * are variables that are packed, and bytes that are encoded. */
#include "common/base/caller.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *printed(const struct caller *c)
{
    struct buf b = {0};
    if (caller_print(c, &b) || buf_append(&b, "", 1))
        abort();
    return (char *)b.data;
}

static void settings_read_back(const char *text)
{
    struct caller c, again;
    if (caller_parse(text, &c))
        return;
    char *first = printed(&c);
    if (caller_parse(first, &again))
        abort();
    char *second = printed(&again);
    if (strcmp(first, second) != 0)
        abort();
    free(first);
    free(second);
}

static void variables_read_back(char *text)
{
    struct buf b = {0};
    char *words[] = {"A=1", text, ""};
    if (caller_pack(words, 3, &b) || buf_append(&b, "", 1))
        abort();
    char **back = caller_unpack((char *)b.data);
    if (!back || strcmp(back[1], text) != 0 || strcmp(back[2], "") != 0 || back[3])
        abort();
    free(back);
    buf_fini(&b);
}

static void bytes_read_back(const char *text)
{
    char *coded = caller_percent_encode(text);
    if (!coded || !caller_percent_decode(coded) || strcmp(coded, text) != 0)
        abort();
    free(coded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* exactly this size, so that the sanitizer detects a read after the end */
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    settings_read_back(text);
    variables_read_back(text);
    bytes_read_back(text);
    char **words = caller_unpack(text); /* in place, and of any bytes */
    free(words);
    memcpy(text, data, size);
    text[size] = '\0';
    (void)caller_percent_decode(text);
    free(text);
    return 0;
}
