/* The safetensors format of Hugging Face: one file of tensors.
 *
 * Layout: the length of the header as u64 (little-endian); the header, JSON: name -> {"dtype", "shape", "data_offsets":
 * [begin, end]} and "__metadata__"; then the tensors' bytes, row-major, without gaps. Files are untrusted: the header
 * is bounded, and every offset is checked against type, shape, neighbours and file size before data is read. Blocking;
 * any number of threads may read an open file. */
#ifndef DTD_COMMON_CKPT_SAFETENSORS_H
#define DTD_COMMON_CKPT_SAFETENSORS_H

#include "common/base/box.h"
#include "common/base/buf.h"
#include "common/base/dtype.h"
#include "common/base/err.h"

#include <stdint.h>

#define SAFETENSORS_MAX_HEADER ((size_t)64 << 20) /* bounds the memory that a hostile file can claim */

struct safetensor {
    char *name;
    enum dtype dtype; /* DT_NONE: a type that dtd does not support */
    char type[16];    /* as in the file */
    int ndim;
    int64_t shape[BOX_MAX_DIMS];
    uint64_t begin, end; /* bytes, counted from the end of the header */
};

struct safetensors {
    struct safetensor *list; /* sorted by name */
    int n;
    int fd;
    uint64_t data; /* offset of the tensors' bytes in the file */
};

int64_t safetensor_elements(const struct safetensor *t);
/* Parses a header that `data_bytes` of data follow. ERR_CORRUPT: the sentence names the tensor and the problem. */
NODISCARD err_t safetensors_parse(const void *header, size_t len, uint64_t data_bytes, struct safetensors *ret,
                                  struct why *why);
/* Opens a file. Error sentences name it. */
NODISCARD err_t safetensors_open(const char *path, struct safetensors *ret, struct why *why);
void safetensors_close(struct safetensors *s); /* may be called on a zeroed struct */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);
/* Reads elements first .. first + n - 1 contiguously to dst, as type `to`. float32, float64, bfloat16 and float16 are
 * converted into each other; other types must be read as stored. */
NODISCARD err_t safetensors_read(const struct safetensors *s, const struct safetensor *t, int64_t first, int64_t n,
                                 enum dtype to, void *dst, struct why *why);

/* Appends the start of a file with these tensors: length and header, padded to 8 bytes. Reads name, dtype, ndim and
 * shape; sets begin and end, in the order of the list. ret_data: number of data bytes that must follow. */
NODISCARD err_t safetensors_header(struct safetensor *list, int n, struct buf *ret, uint64_t *ret_data);

#endif
