/* A name is made of pieces: text, and brackets with ranges. Expansion counts like an odometer over the brackets, the
 * last one fastest, which is the order in which Slurm prints them. Two passes over the same walk: the first measures,
 * so that nothing is allocated for a list that is too long. */
#include "common/base/hostlist.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BRACKETS 4
#define MAX_DIGITS 9

struct hostlist_out {
    char **names; /* NULL: only measure */
    char *bytes;
    size_t used;
    int n;
};

struct bracket {
    const char *ranges; /* behind '[' */
    size_t len;         /* up to ']' */
};

struct name {
    const char *text[MAX_BRACKETS + 1]; /* before, between and behind the brackets */
    size_t len[MAX_BRACKETS + 1];
    struct bracket bracket[MAX_BRACKETS];
    int n;
};

/* ---- ranges ---- */

struct host_range {
    unsigned lo, hi;
    int width;
};

static bool take_number(const char **at, unsigned *ret, int *ret_width)
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
static bool take_range(const char **at, const char *end, struct host_range *ret)
{
    int width;
    if (!take_number(at, &ret->lo, &ret->width))
        return false;
    ret->hi = ret->lo;
    if (*at < end && **at == '-') {
        ++*at;
        if (!take_number(at, &ret->hi, &width))
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

/* Cuts the name at *at into pieces; *at is then at ',' or the end. */
static bool cut(const char **at, struct name *ret)
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

/* Everything behind piece `k` of the name, whose beginning is in `name`. */
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
        if (!take_range(&at, end, &r))
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
        if (!cut(&at, &p))
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
        return why_set(why, err, "the list of hosts has more than %d names, or one of more than %d bytes", HOSTLIST_MAX,
                       HOSTLIST_NAME_MAX);
    if (err)
        return why_set(why, err, "\"%.64s\" is no list of hosts; one is written n[1-3,07],login", at);
    size_t table = (size_t)o.n * sizeof(char *);
    char **names = malloc(table + o.used);
    if (!names)
        return why_set(why, ERR_NOMEM, "out of memory for %d host names", o.n);
    o = (struct hostlist_out){.names = names, .bytes = (char *)names + table};
    err = walk(text, &o, &at);
    if (err) {
        free(names);
        return why_set(why, err, "the list of hosts has changed"); /* cannot be: both walks are the same */
    }
    *ret = names;
    *ret_n = o.n;
    return OK;
}
