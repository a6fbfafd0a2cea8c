/* Archives of tar (ustar, pax, and GNU's long names) as documents: a member with JSON lines gives its lines, any other
 * member is a text and one document. For common/data only. */
#ifndef DTD_COMMON_DATA_TAR_H
#define DTD_COMMON_DATA_TAR_H

#include "common/data/stream.h"

#define TAR_MAX_TEXT ((size_t)1 << 30) /* a member that is one document is in memory as a whole */

bool tar_is(const uint8_t *head, size_t len, const char *path);
/* `in` must stay open until the reader is closed. */
NODISCARD err_t tar_open(struct byte_stream *in, const struct doc_options *o, struct doc_reader **ret, struct why *why);

#endif
