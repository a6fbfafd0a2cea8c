/* Writes a file from its first byte to its last, with several writes in flight (io_uring), and past the page cache
 * where the file system allows it (O_DIRECT): the disk works while the caller computes checksums, and a save does not
 * push the pages of other programs out of memory. Where the process may not use io_uring, writes are synchronous;
 * where the file system has no O_DIRECT, they go through the page cache. Neither changes the file.
 *
 * On the heap; one thread at a time. Errors are sticky: after the first, every call returns it. */
#ifndef DTD_COMMON_CKPT_FILE_WRITER_H
#define DTD_COMMON_CKPT_FILE_WRITER_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define FILE_WRITER_ALIGN                                                                       \
    4096 /* bytes: the largest logical block of a disk. Data of put aligned to it is not copied \
          */

struct file_writer;

/* fd: an empty file that is open for writing; remains the caller's. path: for log lines. */
NODISCARD err_t file_writer_new(int fd, const char *path, struct file_writer **ret);
/* Appends a copy of the data. */
NODISCARD err_t file_writer_copy(struct file_writer *w, const void *data, size_t len);
/* Appends the data, which must remain unchanged until file_writer_end or file_writer_free. */
NODISCARD err_t file_writer_put(struct file_writer *w, const void *data, size_t len);
/* Appends `len` bytes that file_writer_release will replace, and which are not written before. False: not possible, and
 * nothing is appended. It is possible if they end at a multiple of FILE_WRITER_ALIGN in the file, do not cross another
 * one, and nothing else is held. */
bool file_writer_hold(struct file_writer *w, const void *data, size_t len);
/* `data` are as many bytes as were held. */
NODISCARD err_t file_writer_release(struct file_writer *w, const void *data);
/* Waits until all is written, and sets the file's size to the bytes that were appended. Does not fsync. */
NODISCARD err_t file_writer_end(struct file_writer *w);
/* Waits for writes in flight. NULL is allowed. */
void file_writer_free(struct file_writer *w);

#endif
