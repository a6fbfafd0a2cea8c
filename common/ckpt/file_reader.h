/* Reads files of a checkpoint by units of at most FILE_READER_BYTES, and reads ahead what the caller expects to need:
 * several units, also of several files, are read at the same time (io_uring), past the page cache (O_DIRECT). Units
 * that are in the page cache are copied from there, which is faster. Where the process may not use io_uring or the file
 * system has no O_DIRECT, the kernel reads ahead into the page cache. None of this changes the bytes that the caller
 * gets.
 *
 * Readers of one process that need the same bytes can share `read_claims`: as soon as two of them read the same unit,
 * that file is read through the page cache, so that the disk reads it once.
 *
 * On the heap; one thread at a time. The claims belong to the caller; any thread. */
#ifndef DTD_COMMON_CKPT_FILE_READER_H
#define DTD_COMMON_CKPT_FILE_READER_H

#include "common/ckpt/ckpt_priv.h"
#include "common/ckpt/read_claims.h"

/* The size of an extent. A window of this size stays in a core's cache between its checksum and its copy. */
#define FILE_READER_BYTES CKPT_EXTENT_BYTES

/* Bytes that will be needed. */
struct file_range {
    const struct ckpt_file *file;
    uint64_t from, to;
};

struct file_window {
    const uint8_t *data;
    uint64_t at, len; /* position in the file */
};

struct file_reader;

/* dir: must remain valid. claims NULL: none. */
NODISCARD err_t file_reader_new(const char *dir, struct read_claims *claims, struct file_reader **ret);
/* Replaces what is expected. `ranges` remain the caller's, sorted in the order in which they will be read; a wrong
 * expectation costs time only. */
void file_reader_expect(struct file_reader *r, const struct file_range *ranges, size_t n);
/* Opens the file if it is not open, so that an error about its name or type appears before any of its bytes is needed.
 */
NODISCARD err_t file_reader_open(struct file_reader *r, const struct ckpt_file *file, struct why *why);
/* The unit that contains byte `from`, which lies before the end of the file. With a manifest that is an extent; without
 * one it consists of whole pages up to `to`, or of what was expected. The window is valid until the next call. */
NODISCARD err_t file_reader_get(struct file_reader *r, const struct ckpt_file *file, uint64_t from, uint64_t to,
                                struct file_window *ret, struct why *why);
int64_t file_reader_bytes(const struct file_reader *r);   /* number of bytes read so far */
uint64_t file_reader_grain(const struct ckpt_file *file); /* units begin and end at multiples of it */
/* Waits for reads in flight. NULL is allowed. */
void file_reader_free(struct file_reader *r);

#endif
