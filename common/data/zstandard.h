/* Reads zstd files as streams (libzstd). Frames that follow each other are one file; skippable frames are skipped. For
 * common/data only. */
#ifndef DTD_COMMON_DATA_ZSTANDARD_H
#define DTD_COMMON_DATA_ZSTANDARD_H

#include "common/data/stream.h"

extern const struct stream_codec zstd_codec;

#endif
