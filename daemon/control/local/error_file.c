/* The formats that torch.distributed.elastic reads, as in its class ProcessFailure:
 *
 *     {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, "timestamp": SECONDS}}}
 *     {"message": TEXT, "timestamp": SECONDS}
 *
 * The file is the user's, so any content is possible. */
#include "daemon/control/local/error_file.h"

#include "common/base/clock.h"
#include "common/base/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 512 /* of ERROR_FILE_TEXT; the traceback repeats a longer message */

void error_file_path(const char *dir, uint64_t job, int slot, uint64_t epoch, char ret[PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/jobs/%" PRIu64 "/error-%d-%" PRIu64 ".json", dir, job, slot, epoch);
}

/* The length of the longest prefix of whole code points that has at most `most` bytes. */
static size_t whole_prefix(const char *text, size_t most)
{
    size_t n = strnlen(text, most + 1);
    if (n <= most)
        return n;
    for (n = most; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;)
        n--;
    return n;
}

/* The last whole lines of `text` that have at most `most` bytes; "" if the last line is longer. */
static const char *last_lines(const char *text, size_t most)
{
    size_t n = strlen(text);
    if (n <= most)
        return text;
    const char *line = strchr(text + n - most - 1, '\n');
    return line ? line + 1 : text + n;
}

/* A terminal would execute control characters of the user's text. */
static void remove_controls(char *text)
{
    for (char *p = text; *p; p++)
        if (((unsigned char)*p < ' ' && *p != '\n' && *p != '\t') || *p == 0x7f)
            *p = '?';
}

static int64_t seconds_of(const json_t *value)
{
    if (json_is_string(value))
        return strtoll(json_string_value(value), NULL, 10);
    return json_is_number(value) ? (int64_t)json_number_value(value) : 0;
}

static void text_fill(struct error_file *ret, const char *message, const char *stack)
{
    size_t n = whole_prefix(message, MESSAGE_BYTES);
    memcpy(ret->text, message, n);
    while (n > 0 && ret->text[n - 1] == '\n')
        n--;
    if (*stack) {
        ret->text[n++] = '\n';
        const char *lines = last_lines(stack, ERROR_FILE_TEXT - n);
        size_t len = strlen(lines);
        memcpy(ret->text + n, lines, len);
        n += len;
    }
    while (n > 0 && ret->text[n - 1] == '\n')
        n--;
    ret->text[n] = '\0';
    remove_controls(ret->text);
}

err_t error_file_parse(const char *json, size_t len, struct error_file *ret)
{
    const char *message = NULL, *stack = "";
    err_t err = ERR_CORRUPT;
    struct error_file e = {.when_s = 0};
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *outer = json_object_get(root, "message"), *extra = json_object_get(outer, "extraInfo");
    if (json_is_string(outer)) {
        message = json_string_value(outer);
        e.when_s = seconds_of(json_object_get(root, "timestamp"));
    } else {
        message = json_string_value(json_object_get(outer, "message"));
        stack = json_string_value(json_object_get(extra, "py_callstack"));
        e.when_s = seconds_of(json_object_get(extra, "timestamp"));
    }
    if (message) {
        text_fill(&e, message, stack ? stack : "");
        e.when_s = e.when_s > 0 ? e.when_s : 0;
        *ret = e;
        err = OK;
    }
    json_decref(root);
    return err;
}

err_t error_file_read(const char *path, struct error_file *ret)
{
    struct buf text = {0};
    err_t err = file_read_plain(path, ERROR_FILE_MAX_BYTES, &text);
    if (!err)
        err = text.len ? error_file_parse((const char *)text.data, text.len, ret) : ERR_NOTFOUND;
    buf_fini(&text);
    return err;
}

int64_t error_file_age_ms(const struct error_file *e)
{
    if (e->when_s <= 0 || e->when_s > INT64_MAX / 1000)
        return -1;
    const int64_t age = clock_wall_ms() - e->when_s * 1000;
    return age > 0 ? age : 0;
}
