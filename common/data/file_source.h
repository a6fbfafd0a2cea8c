/* A file of the user as a byte_source. For common/data only. */
#ifndef DTD_COMMON_DATA_FILE_SOURCE_H
#define DTD_COMMON_DATA_FILE_SOURCE_H

#include "common/data/source.h"

/* By this a file is recognized as the same as before. */
struct file_identity {
    int64_t bytes, mtime_ns, ctime_ns;
    uint64_t dev, ino;
};

/* `path` must stay valid. ERR_INVALID: not a regular file. */
NODISCARD err_t file_source_open(const char *path, struct byte_source **ret, struct why *why);
void file_source_identity(const struct byte_source *s, struct file_identity *ret);
/* ERR_AGAIN: the file has changed since it had this identity. */
NODISCARD err_t file_source_same(const struct byte_source *s, const struct file_identity *before, struct why *why);

#endif
