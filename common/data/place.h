/* Files of other programs whose tokens a set uses in place: how a change of such a file is noticed. For common/data
 * only. */
#ifndef DTD_COMMON_DATA_PLACE_H
#define DTD_COMMON_DATA_PLACE_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

static inline int64_t place_mtime_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* SHA-256 of the size, the first and the last MiB, and 4,096 blocks of 4 KiB between them at equal distances; of all
 * bytes if there are not more. It names a file of terabytes within seconds and notices every change of size and nearly
 * every file with other tokens, but not a change of a few bytes; the file's time notices that. */
NODISCARD err_t place_fingerprint(const uint8_t *data, size_t len, char ret[65]);

#endif
