/* Reads gzip files as streams (zlib). Members that follow each other are one file, as for gunzip; bytes behind the last
 * member that are no member are an error, except zeros, with which tapes and `tar` pad. For common/data only. */
#ifndef DTD_COMMON_DATA_GZIP_H
#define DTD_COMMON_DATA_GZIP_H

#include "common/data/stream.h"

extern const struct stream_codec gzip_codec;

#endif
