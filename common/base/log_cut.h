/* Removes the middle of a log, whose beginning has the errors of the start and whose end has the newest lines. The
 * writer has the file open for appending and takes no part: the blocks are freed, and the offsets of what remains stay
 * the same. A line in the file, the note, names the number of bytes that were left out:
 *
 *   beginning | note | zeros that occupy no space | end
 *               ^ from                            ^ to
 *
 * Where the file system cannot free blocks within a file (NFS before 4.2), the file is truncated behind its beginning,
 * and its end is left out as well. The supervisor cuts; control finds the place, and readers find the note. Blocking.
 */
#ifndef DTD_COMMON_BASE_LOG_CUT_H
#define DTD_COMMON_BASE_LOG_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOG_CUT_NOTE_BYTES 128          /* of every note, with its newline */
#define LOG_CUT_HEAD_BYTES (1ll << 20)  /* of the beginning at most: thousands of lines */
#define LOG_CUT_LEAST_BYTES (1ll << 20) /* fewer bytes are not left out: the cut would be repeated soon */

struct log_cut {
    int64_t from, to; /* offsets in the file; both are at the beginning of a line if the lines are not too long */
};

/* Finds the place to cut a log of `size` bytes, so that about `keep` bytes remain. A log that was cut before keeps its
 * beginning, and its note is replaced. False: there is nothing to cut. */
bool log_cut_find(int fd, int64_t size, int64_t keep, struct log_cut *ret);
/* Cuts a regular file, open for writing without O_APPEND. Returns 0 or an errno. */
int log_cut(int fd, const struct log_cut *cut);
/* The first note in the text; NULL: none that is complete. Stores the number of bytes from its beginning to `to`, where
 * the log goes on; where the file was truncated instead, it goes on behind the note, and no zeros follow it. */
const char *log_cut_note(const char *text, size_t len, int64_t *ret_bytes);

#endif
