/* An error stops the start of dtd-control. */
#include "daemon/control/cluster/self_file.h"

#include "common/base/file.h"
#include "common/base/key_lines.h"
#include "daemon/control/cluster/text_sum.h"
#include "daemon/control/log/sum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIELD(name) KEY_LINE_FIELD(struct cluster_self, name)
static const struct key_line keys[] = {
    {"name", key_line_text, FIELD(name)},        {"id", key_line_number, FIELD(id)},
    {"instance", key_line_hex, FIELD(instance)}, {"listen", key_line_text, FIELD(listen)},
    {"address", key_line_text, FIELD(address)},  {"domain", key_line_text, FIELD(domain)},
    {"joins", key_line_flag, FIELD(joins)},      {"fresh", key_line_flag, FIELD(fresh)},
    {"recover", key_line_flag, FIELD(recover)},  {"generation", key_line_number, FIELD(generation)},
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))
#define N_REQUIRED (N_KEYS - 1) /* the last one was added later, and is written only after a recovery */

err_t cluster_file_parse(const char *path, const char *text, size_t len, struct cluster_self *ret, struct why *why)
{
    struct cluster_self self = {0};
    uint32_t seen = 0;
    err_t err = text_sum_check(path, text, len, &len, why);
    err = err ? err : key_lines_parse(path, text, len, keys, N_KEYS, &self, &seen, why);
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
    int n = 0;
    if (s->generation) /* not the last line: a file that has lost its end must not be that of the first generation */
        n += snprintf(ret, CLUSTER_FILE_MAX, "generation=%" PRIu64 "\n", s->generation);
    n += snprintf(ret + n, CLUSTER_FILE_MAX - (size_t)n,
                  "name=%s\nid=%" PRIu64 "\ninstance=%s\nlisten=%s\naddress=%s\ndomain=%s\njoins=%d\nfresh=%d\n"
                  "recover=%d\n",
                  s->name, s->id, hex, s->listen, s->address, s->domain, s->joins, s->fresh, s->recover);
    text_sum_print(ret, (size_t)n, ret + n);
    return (size_t)n + TEXT_SUM_BYTES;
}

err_t cluster_file_read(const char *path, struct cluster_self *ret, struct why *why)
{
    struct buf text = {0};
    err_t err = key_lines_load(path, &text, why);
    err = err ? err : cluster_file_parse(path, (const char *)text.data, text.len, ret, why);
    buf_fini(&text);
    return err;
}

err_t cluster_file_write(const char *path, const struct cluster_self *self, struct why *why)
{
    char text[CLUSTER_FILE_MAX];
    return key_lines_store(path, text, cluster_file_print(self, text), why);
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
    if (!err && log_sum_check(bytes.data ? bytes.data : (const uint8_t *)"", bytes.len, &len)) /* also without one: */
        err = ERR_CORRUPT;                                                                     /* its end is missing */
    if (err) {
        buf_fini(&bytes);
        return err;
    }
    bytes.len = len;
    *ret = bytes;
    return OK;
}
