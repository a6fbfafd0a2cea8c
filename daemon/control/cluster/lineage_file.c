/* Every key occurs at most once; an unknown one, written by a newer dtd, is an error, since its meaning may matter. */
#include "daemon/control/cluster/lineage_file.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_number(const char *text, uint64_t max, uint64_t *ret)
{
    char *end;
    if (text[0] < '0' || text[0] > '9' || strlen(text) > 19)
        return false;
    *ret = strtoull(text, &end, 10);
    return !*end && *ret <= max;
}

static bool read_generation(const char *value, struct lineage_file *f)
{
    return read_number(value, INT64_MAX, &f->generation);
}

static bool read_at(const char *value, struct lineage_file *f)
{
    uint64_t n;
    bool ok = read_number(value, INT64_MAX, &n);
    f->at_ms = ok ? (int64_t)n : 0;
    return ok;
}

static bool read_uid(const char *value, struct lineage_file *f)
{
    uint64_t n;
    bool ok = read_number(value, UINT32_MAX, &n);
    f->uid = ok ? (uint32_t)n : 0;
    return ok;
}

static bool read_by(const char *value, struct lineage_file *f)
{
    size_t len = strlen(value);
    if (len > NODE_NAME_MAX || strpbrk(value, " \t\r"))
        return false;
    memcpy(f->by, value, len + 1);
    return true;
}

/* "all", or numbers with a space between two. */
static bool read_gone(const char *value, struct lineage_file *f)
{
    char copy[LINEAGE_FILE_MAX + 1], *rest = copy, *one;
    if (strcmp(value, "all") == 0) {
        f->all_gone = true;
        return true;
    }
    snprintf(copy, sizeof(copy), "%s", value);
    while (value[0] && (one = strsep(&rest, " ")))
        if (f->n_gone == LOG_MAX_MEMBERS || !read_number(one, INT64_MAX, &f->gone[f->n_gone++]))
            return false;
    return true;
}

static const struct {
    const char *name;
    bool (*read)(const char *value, struct lineage_file *f);
} keys[] = {
    {"generation", read_generation}, {"at_ms", read_at}, {"uid", read_uid}, {"by", read_by}, {"gone", read_gone},
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static err_t read_line(const char *path, int number, char *line, uint32_t *seen, struct lineage_file *ret,
                       struct why *why)
{
    char *value = strchr(line, '=');
    if (value)
        *value++ = '\0';
    for (size_t k = 0; value && k < N_KEYS; k++) {
        if (strcmp(keys[k].name, line) != 0)
            continue;
        if (*seen & 1u << k || !keys[k].read(value, ret))
            break;
        *seen |= 1u << k;
        return OK;
    }
    return why_set(why, ERR_CORRUPT, "%s:%d: not a valid line. This file is written by dtd and not edited by hand",
                   path, number);
}

err_t lineage_file_parse(const char *path, const char *text, size_t len, struct lineage_file *ret, struct why *why)
{
    struct lineage_file f = {0};
    char copy[LINEAGE_FILE_MAX + 1], *rest = copy, *line;
    uint32_t seen = 0;
    err_t err = OK;
    if (len > LINEAGE_FILE_MAX || memchr(text, '\0', len))
        return why_set(why, ERR_CORRUPT, "%s: too long, or not a text", path);
    memcpy(copy, text, len);
    copy[len] = '\0';
    for (int number = 1; !err && (line = strsep(&rest, "\n")) && (rest || *line); number++)
        err = read_line(path, number, line, &seen, &f, why);
    if (!err && seen != (1u << N_KEYS) - 1)
        err = why_set(why, ERR_CORRUPT, "%s: lines are missing", path);
    if (!err)
        *ret = f;
    return err;
}

size_t lineage_file_print(const struct lineage_file *f, char ret[LINEAGE_FILE_MAX])
{
    size_t n = (size_t)snprintf(ret, LINEAGE_FILE_MAX,
                                "generation=%" PRIu64 "\nat_ms=%" PRId64 "\nuid=%" PRIu32 "\nby=%s\ngone=%s",
                                f->generation, f->at_ms, f->uid, f->by, f->all_gone ? "all" : "");
    for (int i = 0; !f->all_gone && i < f->n_gone; i++)
        n += (size_t)snprintf(ret + n, LINEAGE_FILE_MAX - n, "%s%" PRIu64, i ? " " : "", f->gone[i]);
    return n + (size_t)snprintf(ret + n, LINEAGE_FILE_MAX - n, "\n");
}

err_t lineage_file_read(const char *path, struct lineage_file *ret, struct why *why)
{
    struct buf text = {0};
    err_t err = file_read(path, LINEAGE_FILE_MAX, &text);
    if (err)
        why_set(why, err, "%s: %s", path, err_text(err));
    else
        err = lineage_file_parse(path, text.data ? (char *)text.data : "", text.len, ret, why);
    buf_fini(&text);
    return err;
}

err_t lineage_file_write(const char *path, const struct lineage_file *f, struct why *why)
{
    char text[LINEAGE_FILE_MAX];
    size_t len = lineage_file_print(f, text);
    err_t err = file_replace(path, text, len, 0600);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}
