/* A marker: a small file through which the dtd-io processes of one job, one per node, communicate in their shared
 * checkpoint directory. It contains the identity of its writer, so a marker that an earlier job left behind is not
 * mistaken for a current one. docs/formats/checkpoint.md describes the bytes. Blocking; any thread. */
#ifndef DTD_COMMON_CKPT_MARKER_H
#define DTD_COMMON_CKPT_MARKER_H

#include "common/ckpt/shared.h"

/* The index of a part grows with its tensors and bytes, 4 bytes per MiB; this limit bounds memory. */
#define MARKER_MAX_BYTES ((size_t)256 << 20)

enum marker_kind {
    MARKER_PREPARING = 1, /* a committer is preparing the directory for an epoch */
    MARKER_READY,         /* the directory is prepared */
    MARKER_PART,          /* body: the index of a durable part */
    MARKER_FAILED,        /* body: the error message */
    MARKER_LEASE,         /* body: lease.h */
    MARKER_KINDS
};

struct marker {
    enum marker_kind kind;
    struct ckpt_writer_id by; /* the writer */
    int64_t step;             /* for PART and FAILED, else 0 */
    int rank, world;          /* for PART and FAILED; rank -1: the whole save */
    err_t code;               /* for FAILED */
    const void *body;
    size_t body_bytes;
};

NODISCARD err_t marker_encode(const struct marker *w, struct buf *ret);
/* ret->body points into data. ERR_CORRUPT; ERR_UNSUPPORTED for another version. Bounded, fuzzed. */
NODISCARD err_t marker_decode(const void *data, size_t len, struct marker *ret);

/* Replaces root/sub/name atomically and durably. sub may be NULL; the folder must exist. */
NODISCARD err_t marker_write(const char *root, const char *sub, const char *name, const struct marker *w,
                             struct why *why);
/* Appends the file to `bytes`; ret->body points into it. ERR_NOTFOUND; ERR_CORRUPT unless it is a regular file (no
 * link) that contains a complete marker. */
NODISCARD err_t marker_read(const char *root, const char *sub, const char *name, struct buf *bytes, struct marker *ret,
                            struct why *why);
/* Opens root, then sub in it without following a link. Returns -1 and sets errno on failure. Opening the folder again
 * for each access makes a network file system ask its server (close-to-open consistency); otherwise its client might
 * cache that a name does not exist. */
int marker_folder_open(const char *root, const char *sub);

#endif
