/* Golden files: hex, 60 bytes per line, comments after #. */
#ifndef DTD_TESTS_COMMON_CKPT_GOLDEN_H
#define DTD_TESTS_COMMON_CKPT_GOLDEN_H

#include "common/base/buf.h"

/* Reads tests/common/ckpt/golden/<name>.hex; the caller frees. */
void golden_read(const char *name, struct buf *ret);
void golden_parse(const char *text, size_t len, struct buf *ret);

#endif
