/* See ports.h. */
#include "common/base/ports.h"

#include <stdlib.h>
#include <string.h>

static const char *parse_one(const char *text, uint16_t *ret)
{
    const size_t n = strspn(text, "0123456789");
    const long port = n >= 4 && n <= 5 ? strtol(text, NULL, 10) : 0;
    if (port < 1024 || port > UINT16_MAX)
        return NULL;
    *ret = (uint16_t)port;
    return text + n;
}

bool ports_parse(const char *text, struct ports *ret)
{
    struct ports p = {0};
    if (text && text[0]) {
        const char *dash = parse_one(text, &p.first), *end = dash && *dash == '-' ? parse_one(dash + 1, &p.last) : NULL;
        if (!end || *end || p.last < p.first)
            return false;
    }
    *ret = p;
    return true;
}

int ports_count(const struct ports *p)
{
    return p->first ? p->last - p->first + 1 : 0;
}
