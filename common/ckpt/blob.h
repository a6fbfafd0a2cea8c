/* Blobs: one torch.save archive each, of a tensor (contiguous when we write it, any strides when torch did) or of one
 * Python value. Built from zip and pickle; no file I/O of its own. */
#ifndef DTD_COMMON_CKPT_BLOB_H
#define DTD_COMMON_CKPT_BLOB_H

#include "common/ckpt/ckpt.h"
#include "common/ckpt/zip.h"

/* Appends what comes before and after the payload of a contiguous tensor whose bytes have this CRC-32. */
NODISCARD err_t blob_tensor_write(enum dtype dtype, int ndim, const int64_t *size, uint64_t bytes, uint32_t crc,
                                  struct buf *head, struct buf *tail);
/* Appends a whole blob. ERR_INVALID for CKPT_OPAQUE. */
NODISCARD err_t blob_scalar_write(const struct ckpt_scalar *s, struct buf *ret);

struct blob_tensor {
    enum dtype dtype;
    int ndim;
    int64_t size[BOX_MAX_DIMS], stride[BOX_MAX_DIMS]; /* in elements */
    int64_t first;                                    /* storage offset in elements */
    uint64_t payload;                                 /* of the storage, from the blob's start */
    uint64_t payload_bytes;
    uint32_t crc; /* CRC-32 of the payload; 0: none */
};
/* `scan`: try the local headers first (our own blobs). Every element lies inside the payload when this says OK. */
NODISCARD err_t blob_tensor_read(const struct zip_source *src, bool scan, struct blob_tensor *ret, struct why *why);
/* Decodes int, float, bool, None, str and pairs of floats; anything else is CKPT_OPAQUE. ret->s is malloced. */
NODISCARD err_t blob_scalar_read(const struct zip_source *src, bool scan, struct ckpt_scalar *ret, struct why *why);
/* Of data.pkl alone: for the fuzzer too. */
NODISCARD err_t blob_tensor_parse(const void *pkl, size_t len, struct blob_tensor *ret, struct why *why);
NODISCARD err_t blob_scalar_parse(const void *pkl, size_t len, struct ckpt_scalar *ret, struct why *why);

#endif
