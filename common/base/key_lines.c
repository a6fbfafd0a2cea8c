#include "common/base/key_lines.h"

#include "common/base/file.h"

#include <stdlib.h>
#include <string.h>

bool key_line_text(const char *value, void *field, size_t size)
{
    size_t len = strlen(value);
    if (len >= size)
        return false;
    memcpy(field, value, len + 1);
    return true;
}

bool key_line_number(const char *value, void *field, size_t size)
{
    size_t len = strlen(value);
    if (!len || len > 19 || strspn(value, "0123456789") != len) /* 19 digits fit into 64 bits */
        return false;
    uint64_t n = strtoull(value, NULL, 10);
    if (n > (size == sizeof(uint32_t) ? UINT32_MAX : (uint64_t)INT64_MAX))
        return false;
    if (size == sizeof(uint32_t))
        *(uint32_t *)field = (uint32_t)n;
    else
        *(uint64_t *)field = n;
    return true;
}

bool key_line_hex(const char *value, void *field, size_t size)
{
    uint8_t *bytes = field;
    if (strlen(value) != 2 * size || strspn(value, "0123456789abcdef") != 2 * size)
        return false;
    for (size_t i = 0; i < size; i++) {
        const char pair[3] = {value[2 * i], value[2 * i + 1], '\0'};
        bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return true;
}

bool key_line_flag(const char *value, void *field, size_t size)
{
    (void)size;
    if ((value[0] != '0' && value[0] != '1') || value[1])
        return false;
    *(bool *)field = value[0] == '1';
    return true;
}

/* The row of the line's key; ret_value: behind the '='. NULL: unknown. */
static const struct key_line *find_key(char *line, const struct key_line *keys, size_t n_keys, const char **ret_value)
{
    char *equals = strchr(line, '=');
    if (!equals)
        return NULL;
    *equals = '\0';
    *ret_value = equals + 1;
    for (size_t k = 0; k < n_keys; k++)
        if (strcmp(keys[k].key, line) == 0)
            return &keys[k];
    return NULL;
}

err_t key_lines_parse(const char *where, const char *text, size_t len, const struct key_line *keys, size_t n_keys,
                      void *to, uint32_t *ret_seen, struct why *why)
{
    char copy[KEY_LINES_MAX + 1], *rest = copy;
    const char *value;
    uint32_t seen = 0;
    if (len > KEY_LINES_MAX || (len && (memchr(text, '\0', len) || text[len - 1] != '\n')))
        return why_set(why, ERR_CORRUPT, "%s: too long, or not lines of text", where);
    if (len)
        memcpy(copy, text, len);
    copy[len] = '\0';
    for (int number = 1; *rest; number++) {
        const struct key_line *k = find_key(strsep(&rest, "\n"), keys, n_keys, &value);
        if (!k)
            return why_set(why, ERR_CORRUPT, "%s:%d: unknown key. This file is written by dtd and not edited by hand",
                           where, number);
        if (seen & 1u << (k - keys))
            return why_set(why, ERR_CORRUPT, "%s:%d: duplicate key %s", where, number, k->key);
        if (!k->read(value, (char *)to + k->offset, k->size))
            return why_set(why, ERR_CORRUPT, "%s:%d: invalid value of %s", where, number, k->key);
        seen |= 1u << (k - keys);
    }
    *ret_seen = seen;
    return OK;
}

err_t key_lines_load(const char *path, struct buf *ret, struct why *why)
{
    err_t err = file_read(path, KEY_LINES_MAX, ret);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

err_t key_lines_store(const char *path, const char *text, size_t len, struct why *why)
{
    err_t err = file_replace(path, text, len, 0600);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}
