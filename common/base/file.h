/* Operations on whole files: reads and writes that are complete, replacement that is atomic and durable. Blocking. */
#ifndef DTD_COMMON_BASE_FILE_H
#define DTD_COMMON_BASE_FILE_H

#include "common/base/buf.h"

#include <sys/types.h>

NODISCARD err_t file_write_all(int fd, const void *data, size_t len);
NODISCARD err_t file_pwrite_all(int fd, const void *data, size_t len, off_t offset);
/* ERR_CORRUPT if the file ends before `len` bytes. */
NODISCARD err_t file_pread_all(int fd, void *data, size_t len, off_t offset);
/* Appends the whole file to `ret`; ERR_LIMIT above `max_bytes`. */
NODISCARD err_t file_read(const char *path, size_t max_bytes, struct buf *ret);
/* Opens a regular file for reading. Returns -1 and sets errno on failure. Links are followed. A pipe or a device gives
 * EINVAL at once, because opening one could block forever. For files in folders that other users may write to. */
int file_open_plain(const char *path);
/* file_read with file_open_plain. */
NODISCARD err_t file_read_plain(const char *path, size_t max_bytes, struct buf *ret);
/* Writes path.tmp, fsyncs it, renames it onto `path`, fsyncs the folder. */
NODISCARD err_t file_replace(const char *path, const void *data, size_t len, mode_t mode);
NODISCARD err_t file_sync_dir(const char *path);
/* Like mkdir -p: an existing folder is not an error, an existing file is. Sets errno on failure. */
NODISCARD err_t file_make_dirs(const char *path, mode_t mode);
/* Like rm -rf: a link is removed, but not its target. A missing path is not an error. Stops at the first entry that
 * cannot be removed. */
NODISCARD err_t file_remove_tree(const char *path);

#endif
