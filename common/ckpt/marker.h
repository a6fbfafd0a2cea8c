/* A word: a small file by which the dtd-ios of one job, each on its own node, speak to each other in the checkpoint
 * directory that they share. Whose it is stands in it, so that what an earlier job left is never taken for this one's.
 * docs/manifest.md has the bytes. Blocking; any thread. */
#ifndef DTD_COMMON_CKPT_MARKER_H
#define DTD_COMMON_CKPT_MARKER_H

#include "common/ckpt/shared.h"

#define MARKER_MAX_BYTES ((size_t)256 << 20)

enum marker_kind {
    MARKER_PREPARING = 1, /* the directory is being made ready for an epoch */
    MARKER_READY,
    MARKER_PART,   /* the body is the index of a durable part */
    MARKER_FAILED, /* the body is a sentence */
    MARKER_KINDS
};

struct marker {
    enum marker_kind kind;
    struct ckpt_writer_id by;
    int64_t step;    /* of PART and FAILED, else 0 */
    int rank, world; /* likewise; rank -1: of the whole save */
    err_t code;      /* of FAILED */
    const void *body;
    size_t body_bytes;
};

NODISCARD err_t marker_encode(const struct marker *w, struct buf *ret);
/* The body points into data. ERR_CORRUPT, ERR_UNSUPPORTED. Bounded, fuzzed. */
NODISCARD err_t marker_decode(const void *data, size_t len, struct marker *ret);

/* Replaces root/sub/name (sub may be NULL; it must be there), durably and in one step. */
NODISCARD err_t marker_write(const char *root, const char *sub, const char *name, const struct marker *w,
                             struct why *why);
/* Appends the file to `bytes`, into which ret->body points. ERR_NOTFOUND; ERR_CORRUPT for anything but a whole word in
 * a plain file, no link. */
NODISCARD err_t marker_read(const char *root, const char *sub, const char *name, struct buf *bytes, struct marker *ret,
                            struct why *why);
/* Opens root, then sub in it without following a link. Opening a folder anew makes a network file system ask its
 * server (close-to-open), so that a name that was absent a moment ago is not remembered as absent. -1 and errno. */
int marker_folder_open(const char *root, const char *sub);

#endif
