/* The fields are encoded here independently of the code under test. */
#include "tests/daemon/store/say.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void put(struct buf *b, const void *data, size_t len)
{
    if (buf_append(b, data, len))
        abort();
}

static void put_little(struct buf *b, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)(value >> (8 * i));
        put(b, &byte, 1);
    }
}

void say(struct buf *b, enum wire_op op, const char *fields, ...)
{
    va_list ap;
    va_start(ap, fields);
    put_little(b, (uint64_t)op, 1);
    for (const char *f = fields; *f; f++) {
        const void *data = *f == 's' || *f == 'b' ? va_arg(ap, const void *) : NULL;
        size_t len = *f == 's' ? strlen(data) : *f == 'b' ? va_arg(ap, size_t) : 0;
        if (*f == 's' || *f == 'b') {
            put_little(b, len, 8);
            put(b, data, len);
        } else if (*f == 'n') {
            put_little(b, va_arg(ap, uint64_t), 8);
        } else {
            put_little(b, va_arg(ap, uint32_t), 4);
        }
    }
    va_end(ap);
}

void say_hello(struct buf *b)
{
    say(b, WIRE_VALIDATE, "w", WIRE_MAGIC);
}

void say_hex(struct buf *b, const char *hex)
{
    for (; *hex; hex++) {
        if (isspace((unsigned char)*hex))
            continue;
        const char two[3] = {hex[0], hex[1], 0};
        uint8_t byte = (uint8_t)strtoul(two, NULL, 16);
        put(b, &byte, 1);
        hex++;
    }
}
