/* The page: a template that CMake makes of explain.html, explain.css and explain.js, with the data in its place. The
 * page loads nothing else, so that it can be sent to anyone and opened without a network. */
#include "client/explain/explain.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In JSON, '<' occurs only within strings; escaped, no text of a user ends the element that holds the data. */
static void print_data(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text == '<')
            fputs("\\u003c", out);
        else
            fputc(*text, out);
}

static err_t close_file(FILE *out, const char *path, struct why *why)
{
    bool bad = ferror(out) != 0;
    if (fclose(out) || bad)
        return why_set(why, ERR_IO, "%s: the file could not be written completely", path);
    return OK;
}

err_t explain_page_print(const struct explain *x, const char *name, const char *about, bool linked, FILE *out,
                         struct why *why)
{
    static const char place[] = "@DATA@";
    const char *page = linked ? explain_linked_template : explain_template, *at = strstr(page, place);
    json_t *data = explain_json(x, name, about);
    char *text = data ? json_dumps(data, JSON_COMPACT) : NULL;
    json_decref(data);
    if (!text)
        return why_set(why, ERR_NOMEM, "out of memory for the page of %d ranks", x->n);
    fwrite(page, 1, (size_t)(at - page), out);
    print_data(out, text);
    fputs(at + strlen(place), out);
    free(text);
    return OK;
}

err_t explain_page_write(const struct explain *x, const char *name, const char *about, const char *path,
                         struct why *why)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    err_t err = explain_page_print(x, name, about, false, out, why);
    if (!err)
        return close_file(out, path, why);
    fclose(out);
    return err;
}
