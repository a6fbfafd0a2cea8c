/* See caller.h. All functions are pure but for caller_take and caller_limits_apply. */
#include "common/base/caller.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* RTSIG_MAX of Linux: the bits of SigIgn and SigBlk in /proc/PID/status. */
#define MAX_SIGNAL 64
#define HARD_COLUMN 47 /* of /proc/PID/limits, which has "%-25s %-20s %-20s %-10s" */
#define MAX_WORD 256   /* the longest word lists 64 signals: 8 + 183 bytes */

static const char *const limit_names[RLIM_NLIMITS] = {
    [RLIMIT_AS] = "as",           [RLIMIT_CORE] = "core",         [RLIMIT_CPU] = "cpu",
    [RLIMIT_DATA] = "data",       [RLIMIT_FSIZE] = "fsize",       [RLIMIT_LOCKS] = "locks",
    [RLIMIT_MEMLOCK] = "memlock", [RLIMIT_MSGQUEUE] = "msgqueue", [RLIMIT_NICE] = "nice",
    [RLIMIT_NOFILE] = "nofile",   [RLIMIT_NPROC] = "nproc",       [RLIMIT_RSS] = "rss",
    [RLIMIT_RTPRIO] = "rtprio",   [RLIMIT_RTTIME] = "rttime",     [RLIMIT_SIGPENDING] = "sigpending",
    [RLIMIT_STACK] = "stack",
};

const char *caller_limit_name(int resource)
{
    return limit_names[resource];
}

/* ---- of this process ---- */

void caller_take(struct caller *ret)
{
    sigset_t mask;
    struct sigaction action;
    *ret = (struct caller){.umask = (int)umask(0)};
    (void)umask((mode_t)ret->umask);
    bool has_mask = sigprocmask(SIG_SETMASK, NULL, &mask) == 0;
    for (int s = 1; s <= MAX_SIGNAL; s++) {
        bool ignored = sigaction(s, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
        ret->ignored |= (uint64_t)ignored << (s - 1);
        ret->blocked |= (uint64_t)(has_mask && sigismember(&mask, s) == 1) << (s - 1);
    }
    for (int i = 0; i < RLIM_NLIMITS; i++)
        ret->has_limit[i] = limit_names[i] && getrlimit((__rlimit_resource_t)i, &ret->limit[i]) == 0;
    errno = 0; /* -1 is a niceness, too */
    ret->niceness = getpriority(PRIO_PROCESS, 0);
    ret->has_niceness = errno == 0;
}

/* The hard limit in a line "Max open files  1024  524288  files": the second number behind the name, which has blanks.
 */
static rlim_t hard_limit(const char *line)
{
    size_t at = strcspn(line, "\n") > HARD_COLUMN ? HARD_COLUMN : 0;
    return at && isdigit((unsigned char)line[at]) ? (rlim_t)strtoull(line + at, NULL, 10) : RLIM_INFINITY;
}

void caller_keep_lower(struct caller *c, const char *limits)
{
    const char *line = limits;
    c->env = c->percent = false;
    c->umask = -1;
    c->ignored = c->blocked = 0;
    c->has_niceness = c->has_niceness && c->niceness != 0;
    for (int i = 0; i < RLIM_NLIMITS; i++) { /* the kernel prints them in the order of their numbers, below a title */
        line = strchr(line, '\n') ? strchr(line, '\n') + 1 : "";
        c->has_limit[i] = c->has_limit[i] && *line && c->limit[i].rlim_max < hard_limit(line);
    }
}

static rlim_t lesser(rlim_t a, rlim_t b)
{
    return a < b ? a : b; /* RLIM_INFINITY is the largest number */
}

static void value_print(rlim_t value, char *ret, size_t size)
{
    if (value == RLIM_INFINITY)
        snprintf(ret, size, "unlimited");
    else
        snprintf(ret, size, "%ju", (uintmax_t)value);
}

/* Without the privilege to raise a hard limit, the daemon's is the most that the job can get. */
static void limit_apply(int resource, const struct rlimit *want)
{
    struct rlimit own;
    char wanted[24], got[24];
    if (setrlimit((__rlimit_resource_t)resource, want) == 0 || getrlimit((__rlimit_resource_t)resource, &own))
        return;
    const struct rlimit most = {.rlim_cur = lesser(want->rlim_cur, own.rlim_max),
                                .rlim_max = lesser(want->rlim_max, own.rlim_max)};
    bool set = setrlimit((__rlimit_resource_t)resource, &most) == 0;
    value_print(want->rlim_cur, wanted, sizeof(wanted));
    value_print(set ? most.rlim_cur : own.rlim_cur, got, sizeof(got));
    if (!set || most.rlim_cur != want->rlim_cur)
        fprintf(stderr,
                "dtd: the limit %s is %s, not %s as where the job was submitted, because dtd on this node must not set "
                "more; start dtd with a higher limit (prlimit, or the systemd unit)\n",
                caller_limit_name(resource), got, wanted);
}

void caller_limits_apply(const struct caller *c)
{
    for (int i = 0; i < RLIM_NLIMITS; i++)
        if (c->has_limit[i])
            limit_apply(i, &c->limit[i]);
    if (c->has_niceness && setpriority(PRIO_PROCESS, 0, c->niceness))
        fprintf(stderr,
                "dtd: the niceness is %d, not %d as where the job was submitted, because dtd on this node must not set "
                "less (Nice= and LimitNICE= of the systemd unit)\n",
                getpriority(PRIO_PROCESS, 0), c->niceness);
}

void caller_limits_apply_text(const char *text)
{
    struct caller c;
    if (text && text[0] && caller_parse(text, &c) == OK)
        caller_limits_apply(&c);
}

/* ---- the settings as text ---- */

static err_t print_signals(const char *key, uint64_t set, struct buf *ret)
{
    const char *comma = "";
    err_t err = buf_printf(ret, " %s=", key);
    for (int s = 1; !err && s <= MAX_SIGNAL; s++)
        if (set >> (s - 1) & 1) {
            err = buf_printf(ret, "%s%d", comma, s);
            comma = ",";
        }
    return err;
}

static err_t print_value(rlim_t value, struct buf *ret)
{
    return value == RLIM_INFINITY ? buf_printf(ret, "unlimited") : buf_printf(ret, "%ju", (uintmax_t)value);
}

static err_t print_limit(const char *name, const struct rlimit *limit, struct buf *ret)
{
    err_t err = buf_printf(ret, " %s=", name);
    if (!err)
        err = print_value(limit->rlim_cur, ret);
    if (!err)
        err = buf_printf(ret, ":");
    return err ? err : print_value(limit->rlim_max, ret);
}

/* Each word with a blank before it. */
static err_t print_limits(const struct caller *c, struct buf *ret)
{
    err_t err = c->has_niceness ? buf_printf(ret, " niceness=%d", c->niceness) : OK;
    for (int i = 0; !err && i < RLIM_NLIMITS; i++)
        if (c->has_limit[i])
            err = print_limit(limit_names[i], &c->limit[i], ret);
    return err;
}

err_t caller_print(const struct caller *c, struct buf *ret)
{
    struct buf words = {0};
    err_t err = buf_printf(&words, "%s%s", c->env ? " env" : "", c->percent ? " percent" : "");
    if (!err && c->umask >= 0)
        err = buf_printf(&words, " umask=%04o", (unsigned)c->umask);
    if (!err)
        err = print_signals("ignored", c->ignored, &words);
    if (!err)
        err = print_signals("blocked", c->blocked, &words);
    err = err ? err : print_limits(c, &words);
    if (!err)
        err = buf_append(ret, words.data + 1, words.len - 1);
    buf_fini(&words);
    return err;
}

err_t caller_print_limits(const struct caller *c, struct buf *ret)
{
    struct buf words = {0};
    err_t err = print_limits(c, &words);
    if (!err && words.len)
        err = buf_append(ret, words.data + 1, words.len - 1);
    buf_fini(&words);
    return err;
}

/* Parses digits up to `end`, which it moves there. */
static bool parse_number(const char **at, int base, uintmax_t max, uintmax_t *ret)
{
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    errno = 0;
    *ret = strtoumax(*at, &end, base);
    *at = end;
    return !errno && *ret <= max;
}

static bool parse_signals(const char *text, uint64_t *ret)
{
    uintmax_t s;
    for (const char *at = text; *at; at += *at == ',' && at[1]) {
        if (!parse_number(&at, 10, MAX_SIGNAL, &s) || s < 1 || (*at && *at != ','))
            return false;
        *ret |= UINT64_C(1) << (s - 1);
        if (*at == ',' && !at[1])
            return false;
    }
    return true;
}

static bool parse_value(const char **at, rlim_t *ret)
{
    uintmax_t value;
    size_t len = strlen("unlimited");
    if (strncmp(*at, "unlimited", len) == 0) {
        *at += len;
        *ret = RLIM_INFINITY;
        return true;
    }
    if (!parse_number(at, 10, RLIM_INFINITY, &value))
        return false;
    *ret = (rlim_t)value;
    return true;
}

static bool parse_limit(const char *text, struct rlimit *ret)
{
    const char *at = text;
    if (!parse_value(&at, &ret->rlim_cur) || *at++ != ':' || !parse_value(&at, &ret->rlim_max) || *at)
        return false;
    return ret->rlim_cur <= ret->rlim_max; /* RLIM_INFINITY is the largest number */
}

static bool parse_niceness(const char *text, int *ret)
{
    uintmax_t number;
    bool negative = *text == '-';
    text += negative;
    if (!parse_number(&text, 10, 20, &number) || *text || (!negative && number > 19))
        return false;
    *ret = negative ? -(int)number : (int)number;
    return true;
}

static bool parse_setting(const char *key, const char *value, struct caller *c)
{
    uintmax_t number;
    if (strcmp(key, "umask") == 0) {
        bool good = parse_number(&value, 8, 0777, &number) && !*value;
        c->umask = good ? (int)number : -1;
        return good;
    }
    if (strcmp(key, "ignored") == 0)
        return parse_signals(value, &c->ignored);
    if (strcmp(key, "blocked") == 0)
        return parse_signals(value, &c->blocked);
    if (strcmp(key, "niceness") == 0)
        return c->has_niceness = parse_niceness(value, &c->niceness);
    for (int i = 0; i < RLIM_NLIMITS; i++)
        if (limit_names[i] && strcmp(key, limit_names[i]) == 0)
            return c->has_limit[i] = parse_limit(value, &c->limit[i]);
    return false;
}

static bool parse_word(char *word, struct caller *c)
{
    char *equals = strchr(word, '=');
    bool env = strcmp(word, "env") == 0, percent = strcmp(word, "percent") == 0;
    c->env = c->env || env;
    c->percent = c->percent || percent;
    if (env || percent)
        return true;
    if (!equals)
        return false;
    *equals = '\0';
    return parse_setting(word, equals + 1, c);
}

err_t caller_parse(const char *text, struct caller *ret)
{
    struct caller c = {.umask = -1};
    char word[MAX_WORD];
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, " ");
        if (len >= sizeof(word))
            return ERR_INVALID;
        memcpy(word, at, len);
        word[len] = '\0';
        if (!parse_word(word, &c) || (at[len] == ' ' && !at[len + 1]))
            return ERR_INVALID;
        at += len + (at[len] == ' ');
    }
    *ret = c;
    return OK;
}

/* ---- the variables as one string ---- */

enum { SEPARATOR = 1, ESCAPE = 2 };
#define ESCAPED 0x20 /* added to an escaped byte, so that it is none of the two */

bool caller_same_key(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return strncmp(a, b, n) == 0 && (b[n] == '=' || !b[n]) && a[n] == b[n];
}

static bool is_escaped(char c)
{
    return c == SEPARATOR || c == ESCAPE;
}

size_t caller_packed_bytes(const char *word)
{
    size_t n = 1;
    for (const char *p = word; *p; p++)
        n += 1 + is_escaped(*p);
    return n;
}

err_t caller_pack(char *const *words, int n, struct buf *ret)
{
    err_t err = OK;
    for (int i = 0; !err && i < n; i++) {
        err = i ? buf_append(ret, &(char){SEPARATOR}, 1) : OK;
        for (const char *p = words[i]; !err && *p; p++) {
            const char pair[] = {ESCAPE, (char)(*p + ESCAPED)};
            err = is_escaped(*p) ? buf_append(ret, pair, sizeof(pair)) : buf_append(ret, p, 1);
        }
    }
    return err;
}

char **caller_unpack(char *text)
{
    size_t n = *text != '\0', k = 0;
    for (const char *p = text; *p; p++)
        n += *p == SEPARATOR;
    char **words = calloc(n + 1, sizeof(*words));
    char *to = text;
    if (!words || !n)
        return words;
    words[k++] = to;
    for (const char *p = text; *p; p++) {
        bool ends = *p == SEPARATOR; /* read before it is overwritten: `to` may be `p` */
        if (*p == ESCAPE && p[1])
            *to++ = (char)(*++p - ESCAPED);
        else
            *to++ = ends ? '\0' : *p;
        if (ends)
            words[k++] = to;
    }
    *to = '\0';
    return words;
}

/* ---- bytes that are not UTF-8 ---- */

char *caller_percent_encode(const char *text)
{
    char *ret = malloc(3 * strlen(text) + 1), *to = ret;
    for (const unsigned char *p = (const unsigned char *)text; ret && *p; p++)
        if (*p == '%' || *p >= 0x80)
            to += sprintf(to, "%%%02X", *p);
        else
            *to++ = (char)*p;
    if (ret)
        *to = '\0';
    return ret;
}

bool caller_percent_decode(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p != '%') {
            *to++ = *p;
            continue;
        }
        if (!isxdigit((unsigned char)p[1]) || !isxdigit((unsigned char)p[2]) || (p[1] == '0' && p[2] == '0'))
            return false;
        const char digits[] = {p[1], p[2], '\0'};
        *to++ = (char)strtoul(digits, NULL, 16);
        p += 2;
    }
    *to = '\0';
    return true;
}
