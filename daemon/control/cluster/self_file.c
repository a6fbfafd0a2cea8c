/* Every key occurs exactly once. An unknown key, written by a newer dtd, is an error that stops the start, since its
 * meaning may matter. */
#include "daemon/control/cluster/self_file.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, NUMBER, BYTES, FLAG };
#define AT(field) offsetof(struct cluster_self, field), sizeof(((struct cluster_self *)0)->field)
static const struct {
    const char *name;
    enum kind kind;
    size_t offset, size;
} keys[] = {
    {"name", TEXT, AT(name)},     {"id", NUMBER, AT(id)},         {"instance", BYTES, AT(instance)},
    {"listen", TEXT, AT(listen)}, {"address", TEXT, AT(address)}, {"domain", TEXT, AT(domain)},
    {"joins", FLAG, AT(joins)},   {"fresh", FLAG, AT(fresh)},     {"recover", FLAG, AT(recover)},
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static bool read_hex(const char *text, uint8_t *ret, size_t n)
{
    if (strlen(text) != 2 * n || strspn(text, "0123456789abcdef") != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};
        ret[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return true;
}

static bool read_value(size_t k, const char *value, struct cluster_self *ret)
{
    char *at = (char *)ret + keys[k].offset, *end;
    switch (keys[k].kind) {
    case TEXT:
        if (strlen(value) >= keys[k].size)
            return false;
        strcpy(at, value);
        return true;
    case NUMBER:
        *(uint64_t *)(void *)at = strtoull(value, &end, 10);
        return *value >= '0' && *value <= '9' && !*end;
    case BYTES:
        return read_hex(value, (uint8_t *)at, keys[k].size);
    case FLAG:
        *(bool *)at = value[0] == '1';
        return (value[0] == '0' || value[0] == '1') && !value[1];
    }
    return false;
}

static err_t read_line(const char *path, int number, char *line, uint32_t *seen, struct cluster_self *ret,
                       struct why *why)
{
    char *value = strchr(line, '=');
    if (value)
        *value++ = '\0';
    for (size_t k = 0; value && k < N_KEYS; k++) {
        if (strcmp(keys[k].name, line) != 0)
            continue;
        if (*seen & 1u << k || !read_value(k, value, ret))
            return why_set(why, ERR_CORRUPT, "%s:%d: %s occurs twice or has no valid value", path, number, line);
        *seen |= 1u << k;
        return OK;
    }
    return why_set(why, ERR_CORRUPT, "%s:%d: not a valid line. This file is written by dtd and not edited by hand",
                   path, number);
}

err_t cluster_file_parse(const char *path, const char *text, size_t len, struct cluster_self *ret, struct why *why)
{
    struct cluster_self self = {0};
    char copy[CLUSTER_FILE_MAX + 1], *rest = copy, *line;
    uint32_t seen = 0;
    err_t err = OK;
    if (len > CLUSTER_FILE_MAX || memchr(text, '\0', len))
        return why_set(why, ERR_CORRUPT, "%s: too long, or not a text", path);
    memcpy(copy, text, len);
    copy[len] = '\0';
    for (int number = 1; !err && (line = strsep(&rest, "\n")) && (rest || *line); number++)
        err = read_line(path, number, line, &seen, &self, why);
    if (!err && (seen != (1u << N_KEYS) - 1 || !self.name[0] || !self.id || !self.address[0]))
        err = why_set(why, ERR_CORRUPT, "%s: lines are missing", path);
    if (!err)
        *ret = self;
    return err;
}

size_t cluster_file_print(const struct cluster_self *s, char ret[CLUSTER_FILE_MAX])
{
    char hex[2 * NODE_INSTANCE_BYTES + 1];
    for (int i = 0; i < NODE_INSTANCE_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", s->instance[i]);
    int n = snprintf(ret, CLUSTER_FILE_MAX,
                     "name=%s\nid=%" PRIu64 "\ninstance=%s\nlisten=%s\naddress=%s\ndomain=%s\njoins=%d\nfresh=%d\n"
                     "recover=%d\n",
                     s->name, s->id, hex, s->listen, s->address, s->domain, s->joins, s->fresh, s->recover);
    return (size_t)n;
}

err_t cluster_file_read(const char *path, struct cluster_self *ret, struct why *why)
{
    struct buf text = {0};
    err_t err = file_read(path, CLUSTER_FILE_MAX, &text);
    if (err)
        why_set(why, err, "%s: %s", path, err_text(err));
    else
        err = cluster_file_parse(path, text.data ? (char *)text.data : "", text.len, ret, why);
    buf_fini(&text);
    return err;
}

err_t cluster_file_write(const char *path, const struct cluster_self *self, struct why *why)
{
    char text[CLUSTER_FILE_MAX];
    size_t len = cluster_file_print(self, text);
    err_t err = file_replace(path, text, len, 0600);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}
