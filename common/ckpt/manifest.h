/* `dtd.manifest`: step, epoch, loss and time, and for every other file of the folder its size and the CRC-32C of each
 * of its 1 MiB extents. The last 32 bytes are the SHA-256 of all bytes before. docs/formats/checkpoint.md describes the
 * bytes. */
#ifndef DTD_COMMON_CKPT_MANIFEST_H
#define DTD_COMMON_CKPT_MANIFEST_H

#include "common/ckpt/ckpt.h"

#define MANIFEST_MAX_BYTES ((size_t)1 << 30)

struct manifest_file {
    char *name; /* without slashes, relative to the folder */
    uint64_t size;
    uint32_t *crcs; /* one per extent */
    uint32_t n_crcs;
};

struct manifest {
    int64_t step;
    uint64_t epoch;
    double loss; /* NAN: unknown */
    int64_t committed_ms;
    struct manifest_file *files; /* sorted by name, unique */
    int n_files;
};

/* Appends the whole file; m->files must be sorted. */
NODISCARD err_t manifest_write(const struct manifest *m, struct buf *ret);
NODISCARD err_t manifest_read(const void *data, size_t len, struct manifest *ret, struct why *why);
void manifest_fini(struct manifest *m);
const struct manifest_file *manifest_find(const struct manifest *m, const char *name);
/* Takes ownership of crcs (frees them on failure); copies the name. */
NODISCARD err_t manifest_add(struct manifest *m, const char *name, uint64_t size, uint32_t *crcs, uint32_t n_crcs);
void manifest_sort(struct manifest *m);

#endif
