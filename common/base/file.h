/* Files done whole: reads and writes that finish, replacement that is atomic and durable. Blocking. */
#ifndef DTD_COMMON_BASE_FILE_H
#define DTD_COMMON_BASE_FILE_H

#include "common/base/buf.h"

#include <sys/types.h>

NODISCARD err_t file_write_all(int fd, const void *data, size_t len);
NODISCARD err_t file_pwrite_all(int fd, const void *data, size_t len, off_t offset);
/* ERR_CORRUPT when the file ends before `len` bytes. */
NODISCARD err_t file_pread_all(int fd, void *data, size_t len, off_t offset);
/* Appends the whole file to `ret`; ERR_LIMIT above `max_bytes`. */
NODISCARD err_t file_read(const char *path, size_t max_bytes, struct buf *ret);
/* A plain file, to be read; -1 and errno. Links are followed, but a pipe or a device is refused (EINVAL) at once:
 * opening one may take for ever. For files whose folder others may write into. */
int file_open_plain(const char *path);
/* file_read of a plain file. */
NODISCARD err_t file_read_plain(const char *path, size_t max_bytes, struct buf *ret);
/* Writes path.tmp, fsyncs it, renames it onto `path`, fsyncs the folder. */
NODISCARD err_t file_replace(const char *path, const void *data, size_t len, mode_t mode);
NODISCARD err_t file_sync_dir(const char *path);
/* mkdir -p; an existing folder is no error. */
NODISCARD err_t file_make_dirs(const char *path, mode_t mode);
/* rm -rf: a link is removed, what it points to stays. What is not there is no error; the first that cannot be removed
 * ends it. */
NODISCARD err_t file_remove_tree(const char *path);

#endif
