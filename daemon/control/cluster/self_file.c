/* Every key occurs exactly once; the last one may be missing. An unknown key, written by a newer dtd, is an error that
 * stops the start, since its meaning may matter. */
#include "daemon/control/cluster/self_file.h"

#include "common/base/file.h"
#include "daemon/control/log/sum.h"

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
    {"name", TEXT, AT(name)},          {"id", NUMBER, AT(id)},
    {"instance", BYTES, AT(instance)}, {"listen", TEXT, AT(listen)},
    {"address", TEXT, AT(address)},    {"domain", TEXT, AT(domain)},
    {"joins", FLAG, AT(joins)},        {"fresh", FLAG, AT(fresh)},
    {"recover", FLAG, AT(recover)},    {"generation", NUMBER, AT(generation)},
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))
#define N_REQUIRED (N_KEYS - 1) /* the last one was added later, and is written only after a recovery */

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

#define SUM_BYTES (sizeof("sum=00000000\n") - 1)

static void print_sum(const char *text, size_t len, char ret[SUM_BYTES + 1])
{
    snprintf(ret, SUM_BYTES + 1, "sum=%08" PRIx32 "\n", log_crc(0, text, len));
}

/* The last line is the checksum of those before; without it, in a file of an older version, nothing is checked. A
 * damaged line is no checksum, and is refused as an unknown key later. */
static err_t check_sum(const char *path, const char *text, size_t len, size_t *ret_len, struct why *why)
{
    char sum[SUM_BYTES + 1];
    size_t body = len < SUM_BYTES ? 0 : len - SUM_BYTES;
    *ret_len = len;
    if (len < SUM_BYTES || memcmp(text + body, "sum=", 4) != 0)
        return OK;
    print_sum(text, body, sum);
    if (memcmp(text + body, sum, SUM_BYTES) != 0)
        return why_set(why, ERR_CORRUPT, "%s is damaged: its checksum does not match", path);
    *ret_len = body;
    return OK;
}

err_t cluster_file_parse(const char *path, const char *text, size_t len, struct cluster_self *ret, struct why *why)
{
    struct cluster_self self = {0};
    char copy[CLUSTER_FILE_MAX + 1], *rest = copy, *line;
    uint32_t seen = 0;
    if (len > CLUSTER_FILE_MAX || memchr(text, '\0', len))
        return why_set(why, ERR_CORRUPT, "%s: too long, or not a text", path);
    err_t err = check_sum(path, text, len, &len, why);
    memcpy(copy, text, len);
    copy[len] = '\0';
    for (int number = 1; !err && (line = strsep(&rest, "\n")) && (rest || *line); number++)
        err = read_line(path, number, line, &seen, &self, why);
    if (!err &&
        ((seen & ((1u << N_REQUIRED) - 1)) != (1u << N_REQUIRED) - 1 || !self.name[0] || !self.id || !self.address[0]))
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
    if (s->generation)
        n += snprintf(ret + n, CLUSTER_FILE_MAX - (size_t)n, "generation=%" PRIu64 "\n", s->generation);
    print_sum(ret, (size_t)n, ret + n);
    return (size_t)n + SUM_BYTES;
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

err_t cluster_view_write(const char *path, const void *view, size_t len)
{
    struct buf bytes = {0};
    uint8_t sum[LOG_SUM_BYTES];
    log_sum_make(view, len, sum);
    err_t err = buf_append(&bytes, view, len);
    err = err ? err : buf_append(&bytes, sum, sizeof(sum));
    err = err ? err : file_replace(path, bytes.data, bytes.len, 0600);
    buf_fini(&bytes);
    return err;
}

err_t cluster_view_read(const char *path, struct buf *ret)
{
    struct buf bytes = {0};
    size_t len;
    err_t err = file_read(path, CLUSTER_VIEW_MAX_BYTES, &bytes);
    if (!err && log_sum_check(bytes.data ? bytes.data : (const uint8_t *)"", bytes.len, &len) == ERR_CORRUPT)
        err = ERR_CORRUPT;
    if (err) {
        buf_fini(&bytes);
        return err;
    }
    bytes.len = len;
    *ret = bytes;
    return OK;
}
