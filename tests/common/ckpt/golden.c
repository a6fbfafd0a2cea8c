/* See golden.h. */
#include "tests/common/ckpt/golden.h"

#include "common/base/file.h"
#include "tests/lib/test.h"

#include <ctype.h>
#include <limits.h>

static int digit(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

void golden_parse(const char *text, size_t len, struct buf *ret)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '#')
            while (i < len && text[i] != '\n')
                i++;
        if (i + 1 >= len || !isxdigit((unsigned char)text[i]))
            continue;
        const uint8_t byte = (uint8_t)(digit(text[i]) * 16 + digit(text[i + 1]));
        assert_ok(buf_append(ret, &byte, 1));
        i++;
    }
}

void golden_read(const char *name, struct buf *ret)
{
    char path[PATH_MAX];
    struct buf text = {0};
    *ret = (struct buf){0};
    snprintf(path, sizeof(path), "%s/tests/common/ckpt/golden/%s.hex", getenv("DTD_SOURCE"), name);
    assert_ok(file_read(path, 1 << 20, &text));
    golden_parse((const char *)text.data, text.len, ret);
    buf_fini(&text);
}
