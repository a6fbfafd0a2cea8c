/* A word: a small file by which the dtd-ios of one job, each on its own node, speak to each other in the checkpoint
 * directory that they share. Whose it is stands in it, so that what an earlier job left is never taken for this one's.
 * docs/manifest.md has the bytes. Blocking; any thread. */
#ifndef DTD_COMMON_CKPT_MARKER_H
#define DTD_COMMON_CKPT_MARKER_H

#include "common/ckpt/shared.h"

#define WORD_MAX_BYTES ((size_t)256 << 20)

enum word_kind {
    WORD_PREPARING = 1, /* the directory is being made ready for an epoch */
    WORD_READY,
    WORD_PART,   /* the body is the index of a durable part */
    WORD_FAILED, /* the body is a sentence */
    WORD_KINDS
};

struct word {
    enum word_kind kind;
    struct ckpt_speaker by;
    int64_t step;    /* of PART and FAILED, else 0 */
    int rank, world; /* likewise; rank -1: of the whole save */
    err_t code;      /* of FAILED */
    const void *body;
    size_t body_bytes;
};

NODISCARD err_t word_encode(const struct word *w, struct buf *ret);
/* The body points into data. ERR_CORRUPT, ERR_UNSUPPORTED. Bounded, fuzzed. */
NODISCARD err_t word_decode(const void *data, size_t len, struct word *ret);

/* Replaces root/sub/name (sub may be NULL; it must be there), durably and in one step. */
NODISCARD err_t word_put(const char *root, const char *sub, const char *name, const struct word *w, struct why *why);
/* Appends the file to `bytes`, into which ret->body points. ERR_NOTFOUND; ERR_CORRUPT for anything but a whole word in
 * a plain file, no link. */
NODISCARD err_t word_get(const char *root, const char *sub, const char *name, struct buf *bytes, struct word *ret,
                         struct why *why);
/* Opens root, then sub in it without following a link. Opening a folder anew makes a network file system ask its
 * server (close-to-open), so that a name that was absent a moment ago is not remembered as absent. -1 and errno. */
int word_folder_open(const char *root, const char *sub);

#endif
