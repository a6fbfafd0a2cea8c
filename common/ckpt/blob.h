/* Blobs: a blob is one torch.save archive, of a tensor or of one Python value. dtd writes contiguous tensors; torch's
 * may have any strides. Built on zip and pickle, without file I/O of its own. */
#ifndef DTD_COMMON_CKPT_BLOB_H
#define DTD_COMMON_CKPT_BLOB_H

#include "common/ckpt/ckpt.h"
#include "common/ckpt/zip.h"

/* Appends the bytes before (head) and after (tail) the payload of a contiguous tensor whose payload has this CRC-32. */
NODISCARD err_t blob_tensor_write(enum dtype dtype, int ndim, const int64_t *size, uint64_t bytes, uint32_t crc,
                                  struct buf *head, struct buf *tail);
/* Appends a complete blob. ERR_INVALID for CKPT_OPAQUE. */
NODISCARD err_t blob_scalar_write(const struct ckpt_scalar *s, struct buf *ret);

struct blob_tensor {
    enum dtype dtype;
    int ndim;
    int64_t size[BOX_MAX_DIMS], stride[BOX_MAX_DIMS]; /* in elements */
    int64_t first;                                    /* storage offset in elements */
    uint64_t payload;                                 /* offset of the storage from the start of the blob */
    uint64_t payload_bytes;
    uint32_t crc; /* CRC-32 of the payload; 0: none */
};
/* `scan`: try the local headers first (for blobs that dtd wrote). After OK, every element lies inside the payload. */
NODISCARD err_t blob_tensor_read(const struct zip_source *src, bool scan, struct blob_tensor *ret, struct why *why);
/* Decodes int, float, bool, None, str and pairs of floats; any other value is CKPT_OPAQUE. The caller frees ret->s. */
NODISCARD err_t blob_scalar_read(const struct zip_source *src, bool scan, struct ckpt_scalar *ret, struct why *why);
/* The same for the bytes of data.pkl; also used by the fuzzer. */
NODISCARD err_t blob_tensor_parse(const void *pkl, size_t len, struct blob_tensor *ret, struct why *why);
NODISCARD err_t blob_scalar_parse(const void *pkl, size_t len, struct ckpt_scalar *ret, struct why *why);

#endif
