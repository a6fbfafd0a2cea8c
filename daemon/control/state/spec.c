/* The count is in front of the text, so that users have a plain string. */
#include "daemon/control/state/spec.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct spec {
    int refs;
    char text[];
};

static struct spec *spec_of(const char *text)
{
    return (struct spec *)((char *)(size_t)text - offsetof(struct spec, text));
}

const char *spec_new(const char *text)
{
    size_t len = strlen(text) + 1;
    struct spec *s = malloc(sizeof(*s) + len);
    if (!s)
        return NULL;
    s->refs = 1;
    memcpy(s->text, text, len);
    return s->text;
}

const char *spec_ref(const char *spec)
{
    spec_of(spec)->refs++;
    return spec;
}

void spec_unref(const char *spec)
{
    if (spec && --spec_of(spec)->refs == 0)
        free(spec_of(spec));
}
