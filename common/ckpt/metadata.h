/* `.metadata`: which tensors a checkpoint has, which boxes of them are stored, and where. Read from what any torch
 * since 2.2 wrote, written for torch 2.3 and later. The records are ours; torch's classes exist only in this file's two
 * .c. */
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
    struct ckpt_tensor *tensors; /* sorted by fqn; dtype DT_NONE where we have no such type */
    struct meta_leaf *leaves;    /* sorted by fqn */
    int n_tensors, n_leaves;
    bool ours; /* written by metadata_write: there must be a manifest */
    /* What the pointers above point into. */
    char *strings;
    struct ckpt_chunk *chunks;
};

/* Boxes lie inside their tensors and do not overlap, files are plain relative paths. */
NODISCARD err_t metadata_read(const void *data, size_t len, struct meta *ret, struct why *why);
void metadata_fini(struct meta *m); /* of one that metadata_read filled */
/* Appends. Uses tensors and leaves only. */
NODISCARD err_t metadata_write(const struct meta *m, struct buf *ret);

/* Boxes of t->chunks: inside t->shape, disjoint and, if `whole`, covering it. Names the tensor and both files. */
NODISCARD err_t cover_check(const struct ckpt_tensor *t, bool whole, struct why *why);

#endif
