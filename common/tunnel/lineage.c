/* The text is read back strictly: what is no lineage stays part of the argument. */
#include "common/tunnel/lineage.h"

#include "common/tunnel/address.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lineage_append(const struct tunnel_lineage *l, char argument[TUNNEL_ARGUMENT_MAX + 1])
{
    char text[LINEAGE_TEXT_MAX + 1];
    size_t len = strlen(argument);
    if (!l->id)
        return;
    int n = snprintf(text, sizeof(text), " ~%016" PRIx64 ".%" PRIu64 ".%" PRIu64 ".%s", l->id, l->generation,
                     (uint64_t)l->at_ms, l->by);
    if (len + (size_t)n <= TUNNEL_ARGUMENT_MAX)
        memcpy(argument + len, text, (size_t)n + 1);
}

/* Reads digits up to a point. Returns what follows; NULL: it is no such number. */
static const char *read_number(const char *at, int base, uint64_t *ret)
{
    char *end;
    const char *digits = base == 16 ? "0123456789abcdef" : "0123456789";
    size_t n = strspn(at, digits);
    if (!n || n > (base == 16 ? 16 : 19) || at[n] != '.')
        return NULL;
    *ret = strtoull(at, &end, base);
    return end + 1;
}

void lineage_take(char argument[TUNNEL_ARGUMENT_MAX + 1], struct tunnel_lineage *ret)
{
    struct tunnel_lineage l = {.id = 0};
    uint64_t at_ms = 0;
    char *begin = strrchr(argument, '~');
    *ret = l;
    if (!begin || begin == argument || begin[-1] != ' ')
        return;
    const char *at = read_number(begin + 1, 16, &l.id);
    at = at ? read_number(at, 10, &l.generation) : NULL;
    at = at ? read_number(at, 10, &at_ms) : NULL;
    if (!at || !l.id || !l.generation || strlen(at) > TUNNEL_BY_MAX || (at[0] && !node_name_valid(at, strlen(at))))
        return;
    l.at_ms = (int64_t)at_ms;
    strcpy(l.by, at);
    begin[-1] = '\0';
    *ret = l;
}
