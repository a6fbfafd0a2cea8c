/* Writes documents.bin and weights.bin of a set: where documents end, and which tokens count in the loss. For
 * common/data only; one thread. */
#ifndef DTD_COMMON_DATA_MARKS_H
#define DTD_COMMON_DATA_MARKS_H

#include "common/base/buf.h"
#include "common/data/sha.h"

#include <stdbool.h>
#include <stdint.h>

struct mark_file {
    int fd; /* -1: none */
    struct sha sha;
    struct buf out;
};

struct marks_writer {
    const char *dir;
    int64_t documents, tokens; /* written so far */
    bool weighted;             /* a document had weights, so weights.bin exists */
    uint8_t bits;              /* the last byte of weights.bin, if tokens % 8 != 0 */
    struct mark_file ends, weights;
};

void marks_writer_init(struct marks_writer *w, const char *dir);
/* Adds a document of n > 0 tokens. `weights`: 0 or 1 for each; NULL: all 1. */
NODISCARD err_t marks_writer_put(struct marks_writer *w, int64_t n, const uint8_t *weights, struct why *why);
/* Continues behind documents of an earlier run that had so many tokens; documents may be 0. ERR_CORRUPT: a file is
 * shorter than they need. */
NODISCARD err_t marks_writer_continue(struct marks_writer *w, int64_t documents, int64_t tokens, bool weighted,
                                      uint8_t bits, struct why *why);
/* Makes what was put durable, except w->bits. */
NODISCARD err_t marks_writer_sync(struct marks_writer *w, struct why *why);
/* Makes the files durable. A set without weights has no weights.bin, and its hash is "". */
NODISCARD err_t marks_writer_finish(struct marks_writer *w, char ret_documents[65], char ret_weights[65],
                                    struct why *why);
void marks_writer_fini(struct marks_writer *w);

#endif
