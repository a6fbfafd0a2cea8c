/* `.metadata`: the tensors of a checkpoint, and the boxes of them that are stored, with file and offset. The reader
 * accepts files of torch 2.2 and later; the writer writes files for torch 2.3 and later. These records are dtd's own;
 * torch's classes appear only in metadata_read.c and metadata_write.c. */
#ifndef DTD_COMMON_CKPT_METADATA_H
#define DTD_COMMON_CKPT_METADATA_H

#include "common/ckpt/ckpt.h"

#define METADATA_FILE ".metadata"
#define METADATA_MAX_BYTES ((size_t)1 << 30)

/* One BYTE_IO value. */
struct meta_leaf {
    const char *fqn, *file;
    int64_t offset, length;
};

struct meta {
    struct ckpt_tensor *tensors; /* sorted by fqn; dtype DT_NONE: a type that dtd does not support */
    struct meta_leaf *leaves;    /* sorted by fqn */
    int n_tensors, n_leaves;
    bool ours; /* written by metadata_write, so there must be a manifest */
    /* Memory that the pointers above point into. */
    char *strings;
    struct ckpt_chunk *chunks;
};

/* After OK, boxes lie inside their tensors and do not overlap, and files are plain relative paths. */
NODISCARD err_t metadata_read(const void *data, size_t len, struct meta *ret, struct why *why);
void metadata_fini(struct meta *m); /* for a struct that metadata_read filled */
/* Appends to ret. Uses only tensors and leaves. */
NODISCARD err_t metadata_write(const struct meta *m, struct buf *ret);

/* Checks that the boxes of t->chunks lie inside t->shape, are disjoint and, if `whole`, cover it. The sentence names
 * the tensor and both files. */
NODISCARD err_t cover_check(const struct ckpt_tensor *t, bool whole, struct why *why);

#endif
