/* Worked examples in docs/ that are also tests: the hex digits of a block between "```hex NAME" and "```". Text after a
 * # in a line is a comment. */
#ifndef DTD_TESTS_LIB_EXAMPLE_H
#define DTD_TESTS_LIB_EXAMPLE_H

#include "common/base/file.h"
#include "tests/lib/test.h"

/* Reads docs/FILE and appends a NUL; the caller calls buf_fini. */
static inline void example_read(const char *file, struct buf *ret)
{
    char path[4096];
    const char *source = getenv("DTD_SOURCE");
    if (!source)
        TEST_SKIP("DTD_SOURCE is not set");
    snprintf(path, sizeof(path), "%s/docs/%s", source, file);
    assert_ok(file_read(path, 1 << 20, ret));
    assert_ok(buf_append(ret, "", 1));
}

static inline size_t example_bytes(const char *file, const char *name, uint8_t *ret, size_t size)
{
    char opening[64];
    struct buf text = {0};
    size_t n = 0;
    example_read(file, &text);
    snprintf(opening, sizeof(opening), "```hex %s\n", name);
    const char *at = strstr((char *)text.data, opening);
    for (at = at ? at + strlen(opening) : NULL; at && strncmp(at, "```", 3) != 0;) {
        unsigned byte;
        if (*at == '#') {
            at += strcspn(at, "\n");
        } else if (*at == ' ' || *at == '\n') {
            at++;
        } else if (n == size || sscanf(at, "%2x", &byte) != 1) {
            fail_msg("block '%s' of docs/%s is too long or no hex", name, file);
        } else {
            ret[n++] = (uint8_t)byte;
            at += 2;
        }
    }
    if (!at)
        fail_msg("no block '%s' in docs/%s", name, file);
    buf_fini(&text);
    return n;
}

#endif
