#include "common/base/log_cut.h"

#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOTE "--- dtd left out "
#define NOTE_REST " bytes here: the log reached its limit (run.log_bytes), or the disk was full ---"
#define SEARCH_BYTES (64 << 10) /* for a newline or a note: longer lines are cut within the line */

const char *log_cut_note(const char *text, size_t len, int64_t *ret_bytes)
{
    const char *end = text + len, *at = text;
    for (; (at = memmem(at, (size_t)(end - at), NOTE, strlen(NOTE))) && end - at >= LOG_CUT_NOTE_BYTES; at++) {
        char *rest;
        int64_t bytes = strtoll(at + strlen(NOTE), &rest, 10);
        if (bytes >= LOG_CUT_NOTE_BYTES && strncmp(rest, NOTE_REST, strlen(NOTE_REST)) == 0 &&
            at[LOG_CUT_NOTE_BYTES - 1] == '\n') {
            *ret_bytes = bytes;
            return at;
        }
    }
    return NULL;
}

/* Reads SEARCH_BYTES from `from` on, or fewer; returns their number. */
static size_t read_text(int fd, int64_t from, char text[SEARCH_BYTES])
{
    ssize_t n = pread(fd, text, SEARCH_BYTES, from);
    return n > 0 ? (size_t)n : 0;
}

static int64_t at_least_0(int64_t n)
{
    return n > 0 ? n : 0;
}

/* Where the note begins: at that of an earlier cut, just before the first hole, else behind the last line of the
 * beginning. */
static int64_t find_from(int fd, int64_t size, int64_t head)
{
    static _Thread_local char text[SEARCH_BYTES];
    int64_t bytes, hole = lseek(fd, 0, SEEK_HOLE);
    if (hole > 0 && hole < size) {
        int64_t start = at_least_0(hole - SEARCH_BYTES);
        const char *note = log_cut_note(text, read_text(fd, start, text), &bytes);
        if (note)
            return start + (note - text);
    }
    int64_t start = at_least_0(head - SEARCH_BYTES);
    size_t n = read_text(fd, start, text);
    n = (int64_t)n < head - start ? n : (size_t)(head - start);
    const char *nl = memrchr(text, '\n', n);
    return nl ? start + (nl - text) + 1 : head;
}

static int64_t find_to(int fd, int64_t least)
{
    static _Thread_local char text[SEARCH_BYTES];
    const char *nl = memchr(text, '\n', read_text(fd, least, text));
    return nl ? least + (nl - text) + 1 : least;
}

bool log_cut_find(int fd, int64_t size, int64_t keep, struct log_cut *ret)
{
    int64_t head = keep / 4 < LOG_CUT_HEAD_BYTES ? keep / 4 : LOG_CUT_HEAD_BYTES;
    int64_t least = size - (keep - head);
    if (least <= head)
        return false;
    struct log_cut cut = {.from = find_from(fd, size, head), .to = find_to(fd, least)};
    int64_t data = lseek(fd, cut.from + LOG_CUT_NOTE_BYTES, SEEK_HOLE); /* the same place if it was cut before */
    data = data >= 0 && data - cut.from < SEARCH_BYTES ? lseek(fd, data, SEEK_DATA) : cut.from;
    if (cut.to - (data > cut.from ? data : cut.from) < LOG_CUT_LEAST_BYTES)
        return false;
    *ret = cut;
    return true;
}

int log_cut(int fd, const struct log_cut *cut)
{
    struct stat st;
    char text[2 * LOG_CUT_NOTE_BYTES];
    int64_t behind = cut->from + LOG_CUT_NOTE_BYTES, to = cut->to;
    if (fstat(fd, &st))
        return errno;
    if (!S_ISREG(st.st_mode) || cut->from < 0 || cut->to <= behind || cut->to > st.st_size)
        return EINVAL; /* its user has replaced or truncated the file */
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, behind, to - behind)) {
        if (errno != EOPNOTSUPP || ftruncate(fd, behind))
            return errno;
        to = st.st_size;
    }
    int n = snprintf(text, sizeof(text), NOTE "%" PRId64 NOTE_REST, to - cut->from);
    if (n >= LOG_CUT_NOTE_BYTES)
        return EINVAL;
    memset(text + n, ' ', (size_t)(LOG_CUT_NOTE_BYTES - 1 - n));
    text[LOG_CUT_NOTE_BYTES - 1] = '\n';
    return file_pwrite_all(fd, text, LOG_CUT_NOTE_BYTES, cut->from) ? errno : 0;
}
