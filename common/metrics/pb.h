/* The few parts of the protobuf encoding that event files and W&B logs need, written without a schema: a message is a
 * struct buf to which fields are appended. The messages of other programs are not part of this tree's proto/. Pure; any
 * thread. */
#ifndef DTD_COMMON_METRICS_PB_H
#define DTD_COMMON_METRICS_PB_H

#include "common/base/buf.h"

#include <stdbool.h>

NODISCARD err_t pb_uint(struct buf *b, uint32_t field, uint64_t value);
NODISCARD err_t pb_double(struct buf *b, uint32_t field, double value);
NODISCARD err_t pb_float(struct buf *b, uint32_t field, float value);
NODISCARD err_t pb_bytes(struct buf *b, uint32_t field, const void *data, size_t len);
NODISCARD err_t pb_text(struct buf *b, uint32_t field, const char *text);
NODISCARD err_t pb_message(struct buf *b, uint32_t field, const struct buf *message);

/* A message that is read field by field. */
struct pb_reader {
    const uint8_t *at, *end;
    bool broken; /* pb_next ended before the end of the message */
};
/* The number of a message's field is `field`; `data` and `len` hold a text or message, `whole` a varint, `real` a
 * double or float. */
struct pb_field {
    uint32_t field;
    uint64_t whole;
    double real;
    const uint8_t *data; /* NULL: it is a number */
    size_t len;
};
static inline struct pb_reader pb_read(const void *data, size_t len)
{
    return (struct pb_reader){data, (const uint8_t *)data + len, false};
}
/* False at the end, and at the first field that is not protobuf. */
bool pb_next(struct pb_reader *r, struct pb_field *ret);

#endif
