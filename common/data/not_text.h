/* Recognises files that are no text: compressed files, tables, arrays, UTF-16. Trained on by mistake, their bytes give
 * a loss that falls, and a model of nothing. For common/data only. */
#ifndef DTD_COMMON_DATA_NOT_TEXT_H
#define DTD_COMMON_DATA_NOT_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define NOT_TEXT_BYTES 512 /* of a file's beginning, where all known signatures are */

/* Looks at the first n bytes of a file, and at the NUL bytes among the first `read` bytes. NULL: it may be text; else a
 * sentence about the file with a remedy, such as "it is compressed by xz; decompress it with xz -d". */
const char *not_text(const uint8_t *head, size_t n, size_t nuls, size_t read);

#endif
