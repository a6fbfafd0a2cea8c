#include "daemon/control/cluster/lineage_file.h"

#include "common/base/key_lines.h"
#include "daemon/control/cluster/text_sum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool read_name(const char *value, void *field, size_t size)
{
    return !strpbrk(value, " \t\r") && key_line_text(value, field, size);
}

/* "all", or numbers with a space between two. */
static bool read_gone(const char *value, void *field, size_t size)
{
    struct lineage_file *f = field;
    char copy[KEY_LINES_MAX + 1], *rest = copy, *one;
    (void)size;
    if (strcmp(value, "all") == 0) {
        f->all_gone = true;
        return true;
    }
    snprintf(copy, sizeof(copy), "%s", value);
    while (value[0] && (one = strsep(&rest, " ")))
        if (f->n_gone == LOG_MAX_MEMBERS || !key_line_number(one, &f->gone[f->n_gone++], sizeof(f->gone[0])))
            return false;
    return true;
}

#define FIELD(name) KEY_LINE_FIELD(struct lineage_file, name)
static const struct key_line keys[] = {
    {"generation", key_line_number, FIELD(generation)},
    {"at_ms", key_line_number, FIELD(at_ms)},
    {"uid", key_line_number, FIELD(uid)},
    {"by", read_name, FIELD(by)},
    {"gone", read_gone, 0, sizeof(struct lineage_file)},
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

err_t lineage_file_parse(const char *path, const char *text, size_t len, struct lineage_file *ret, struct why *why)
{
    struct lineage_file f = {0};
    uint32_t seen = 0;
    err_t err = text_sum_check(path, text, len, &len, why);
    err = err ? err : key_lines_parse(path, text, len, keys, N_KEYS, &f, &seen, why);
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
    n += (size_t)snprintf(ret + n, LINEAGE_FILE_MAX - n, "\n");
    text_sum_print(ret, n, ret + n);
    return n + TEXT_SUM_BYTES;
}

err_t lineage_file_read(const char *path, struct lineage_file *ret, struct why *why)
{
    struct buf text = {0};
    err_t err = key_lines_load(path, &text, why);
    err = err ? err : lineage_file_parse(path, (const char *)text.data, text.len, ret, why);
    buf_fini(&text);
    return err;
}

err_t lineage_file_write(const char *path, const struct lineage_file *f, struct why *why)
{
    char text[LINEAGE_FILE_MAX];
    return key_lines_store(path, text, lineage_file_print(f, text), why);
}
