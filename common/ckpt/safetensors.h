/* Hugging Face's safetensors: one file of tensors.
 *
 * u64 (little-endian) length of the header; the header, JSON: name -> {"dtype", "shape", "data_offsets": [begin, end]},
 * and "__metadata__"; then the tensors' bytes, row-major, without a gap. A file is a stranger's: the header is bounded,
 * and every offset is checked against type, shape, neighbours and the file's size before anything is read. Blocking; an
 * open file may be read by any number of threads. */
#ifndef DTD_COMMON_CKPT_SAFETENSORS_H
#define DTD_COMMON_CKPT_SAFETENSORS_H

#include "common/base/box.h"
#include "common/base/buf.h"
#include "common/base/dtype.h"
#include "common/base/err.h"

#include <stdint.h>

#define SAFETENSORS_MAX_HEADER ((size_t)64 << 20)

struct safetensor {
    char *name;
    enum dtype dtype; /* DT_NONE: a type that we have not */
    char type[16];    /* as the file says it */
    int ndim;
    int64_t shape[BOX_MAX_DIMS];
    uint64_t begin, end; /* behind the header */
};

struct safetensors {
    struct safetensor *list; /* sorted by name */
    int n;
    int fd;
    uint64_t data; /* where the tensors' bytes begin in the file */
};

int64_t safetensor_elements(const struct safetensor *t);
/* A header alone, of a file with `data_bytes` behind it. ERR_CORRUPT says which tensor and what. */
NODISCARD err_t safetensors_parse(const void *header, size_t len, uint64_t data_bytes, struct safetensors *ret,
                                  struct why *why);
/* Opens a file; errors name it. */
NODISCARD err_t safetensors_open(const char *path, struct safetensors *ret, struct why *why);
void safetensors_close(struct safetensors *s); /* legal on a zeroed one */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);
/* Elements first .. first + n - 1, as float32, float64, bfloat16 or float16 from any of these (or in the type that is
 * stored), contiguously at dst. */
NODISCARD err_t safetensors_read(const struct safetensors *s, const struct safetensor *t, int64_t first, int64_t n,
                                 enum dtype to, void *dst, struct why *why);

/* The first bytes of a file of these tensors (name, dtype, ndim, shape; begin and end are given here, in the order of
 * the list): length and header, padded to 8 bytes. ret_data: bytes that have to follow. */
NODISCARD err_t safetensors_header(struct safetensor *list, int n, struct buf *ret, uint64_t *ret_data);

#endif
