/* A name consists of text and brackets with ranges. Expansion iterates over the brackets like an odometer, the last one
 * fastest, as Slurm does. There are two passes over the list: the first measures, so nothing is allocated for a list
 * that is too long. */
#include "common/base/hostlist.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BRACKETS 4 /* in one name; bounds the recursion */
#define MAX_DIGITS 9   /* a number fits into unsigned */

struct hostlist_out {
    char **names; /* NULL: measure only */
    char *bytes;
    size_t used;
    int n;
};

struct bracket {
    const char *ranges; /* after '[' */
    size_t len;         /* without ']' */
};

struct name {
    const char *text[MAX_BRACKETS + 1]; /* before, between and after the brackets */
    size_t len[MAX_BRACKETS + 1];
    struct bracket bracket[MAX_BRACKETS];
    int n;
};

/* ---- ranges ---- */

struct host_range {
    unsigned lo, hi;
    int width;
};

static bool number_parse(const char **at, unsigned *ret, int *ret_width)
{
    const char *from = *at;
    unsigned n = 0;
    while (isdigit((unsigned char)**at) && *at - from < MAX_DIGITS)
        n = n * 10 + (unsigned)(*(*at)++ - '0');
    *ret = n;
    *ret_width = (int)(*at - from);
    return *at > from;
}

/* "7", "1-3", "001-010"; then ',' or the end. */
static bool range_parse(const char **at, const char *end, struct host_range *ret)
{
    int width;
    if (!number_parse(at, &ret->lo, &ret->width))
        return false;
    ret->hi = ret->lo;
    if (*at < end && **at == '-') {
        ++*at;
        if (!number_parse(at, &ret->hi, &width))
            return false;
    }
    if (*at > end || ret->hi < ret->lo || ret->hi - ret->lo >= HOSTLIST_MAX)
        return false;
    if (*at < end && *(*at)++ != ',')
        return false;
    return true;
}

/* ---- one name ---- */

static bool is_name_byte(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '.' || c == '_';
}

/* Splits the name at *at into its parts and moves *at to the ',' after it, or to the end. */
static bool name_split(const char **at, struct name *ret)
{
    ret->n = 0;
    for (;;) {
        const char *from = *at;
        while (is_name_byte(**at))
            ++*at;
        ret->text[ret->n] = from;
        ret->len[ret->n] = (size_t)(*at - from);
        if (**at != '[')
            return (**at == ',' || !**at) && (ret->n || ret->len[0]);
        const char *end = strchr(*at, ']');
        if (!end || ret->n == MAX_BRACKETS)
            return false;
        ret->bracket[ret->n++] = (struct bracket){*at + 1, (size_t)(end - *at - 1)};
        *at = end + 1;
    }
}

static err_t emit(struct hostlist_out *o, const char *name, size_t len)
{
    if (len > HOSTLIST_NAME_MAX || o->n == HOSTLIST_MAX)
        return ERR_LIMIT;
    if (o->names) {
        o->names[o->n] = o->bytes + o->used;
        memcpy(o->names[o->n], name, len);
        o->names[o->n][len] = '\0';
    }
    o->used += len + 1;
    o->n++;
    return OK;
}

/* Expands parts k and later of the name; `name` contains the expansion of the parts before. */
static err_t expand(struct hostlist_out *o, const struct name *p, int k, char *name, size_t len)
{
    if (len + p->len[k] > HOSTLIST_NAME_MAX)
        return ERR_LIMIT;
    memcpy(name + len, p->text[k], p->len[k]);
    len += p->len[k];
    if (k == p->n || k == MAX_BRACKETS)
        return emit(o, name, len);
    const char *at = p->bracket[k].ranges, *end = at + p->bracket[k].len;
    do {
        struct host_range r;
        if (!range_parse(&at, end, &r))
            return ERR_INVALID;
        for (unsigned i = r.lo; i <= r.hi; i++) {
            size_t room = HOSTLIST_NAME_MAX + 1 - len;
            int more = snprintf(name + len, room, "%0*u", r.width, i);
            err_t err = (size_t)more >= room ? ERR_LIMIT : expand(o, p, k + 1, name, len + (size_t)more);
            if (err)
                return err;
        }
    } while (at < end);
    return at[-1] == ',' ? ERR_INVALID : OK;
}

/* ---- the list ---- */

static err_t walk(const char *text, struct hostlist_out *o, const char **ret_at)
{
    char name[HOSTLIST_NAME_MAX + 1];
    const char *at = text;
    for (;;) {
        struct name p;
        *ret_at = at;
        if (!name_split(&at, &p))
            return ERR_INVALID;
        err_t err = expand(o, &p, 0, name, 0);
        if (err || !*at)
            return err;
        at++;
    }
}

err_t hostlist_expand(const char *text, char ***ret, int *ret_n, struct why *why)
{
    struct hostlist_out o = {0};
    const char *at;
    err_t err = walk(text, &o, &at);
    if (err == ERR_LIMIT)
        return why_set(why, err, "the host list has more than %d names, or a name of more than %d bytes", HOSTLIST_MAX,
                       HOSTLIST_NAME_MAX);
    if (err)
        return why_set(why, err, "\"%.64s\" is not a host list; write, for example, n[1-3,07],login", at);
    size_t table = (size_t)o.n * sizeof(char *);
    char **names = malloc(table + o.used);
    if (!names)
        return why_set(why, ERR_NOMEM, "out of memory for %d host names", o.n);
    o = (struct hostlist_out){.names = names, .bytes = (char *)names + table};
    err = walk(text, &o, &at);
    if (err) {
        free(names);
        return why_set(why, err, "the host list has changed"); /* cannot happen: both passes read the same text */
    }
    *ret = names;
    *ret_n = o.n;
    return OK;
}
