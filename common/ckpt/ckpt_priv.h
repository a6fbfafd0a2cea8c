/* An open checkpoint as its own files see it, and the reader that hands out bytes of its files only after checking
 * them. */
#ifndef DTD_COMMON_CKPT_CKPT_PRIV_H
#define DTD_COMMON_CKPT_CKPT_PRIV_H

#include "common/ckpt/manifest.h"
#include "common/ckpt/metadata.h"
#include "common/ckpt/zip.h"

#include <limits.h>

struct ckpt_file {
    const char *name;
    uint64_t size;
    const struct manifest_file *sums; /* NULL without a manifest */
};

struct ckpt {
    char dir[PATH_MAX];
    struct meta meta;
    struct manifest manifest;
    bool has_manifest;
    int64_t step;
    struct ckpt_file *files; /* those that .metadata names; sorted by name */
    int n_files;
    char **kept; /* strings handed out by ckpt_scalar */
    int n_kept;
};

const struct ckpt_file *ckpt_file_find(const struct ckpt *c, const char *name);

/* Reads one file front to back through a window. With a manifest the window is whole extents, each verified as it is
 * loaded; without, blocks of 4 KiB. Asking in ascending order reads nothing twice. */
struct extent_reader {
    const char *dir;
    const struct ckpt_file *file;
    int fd;
    uint8_t *window;
    uint64_t at, len; /* of the window in the file */
    int64_t bytes_read;
};

void extent_reader_init(struct extent_reader *r, const char *dir); /* no file yet */
void extent_reader_fini(struct extent_reader *r);
/* Goes on with this file; the same one again keeps the window. */
NODISCARD err_t extent_reader_open(struct extent_reader *r, const struct ckpt_file *file, struct why *why);
/* After OK the window holds byte `from`, and where it had to be loaded as much up to `to` as fits. */
NODISCARD err_t extent_reader_load(struct extent_reader *r, uint64_t from, uint64_t to, struct why *why);
uint64_t extent_reader_grain(const struct extent_reader *r);
/* A copy of some bytes, whatever windows they take. */
NODISCARD err_t extent_reader_copy(struct extent_reader *r, uint64_t from, void *dst, size_t len, struct why *why);

/* One blob of the reader's file as an archive. */
struct blob_source {
    struct extent_reader *reader;
    uint64_t offset;
    struct zip_source zip;
};
void blob_source_init(struct blob_source *s, struct extent_reader *r, uint64_t offset, uint64_t length);

/* Elements of a box inside a row-major array, as runs that are contiguous in source and destination. */
struct copy_run {
    uint64_t at; /* in the file */
    uint64_t elements;
    uint8_t *dst;
    enum dtype to;
};
struct copy_runs {
    struct copy_run *v;
    size_t n, cap;
};
/* `part` lies in both `src` (whose first element is at byte src_at of the file) and `dst` (at ret[0]). */
NODISCARD err_t runs_add(struct copy_runs *r, const struct box *part, const struct box *src, uint64_t src_at,
                         enum dtype from, const struct box *dst, uint8_t *dst_data, enum dtype to);

/* Floating types into each other, anything into itself. */
bool convert_is_possible(enum dtype from, enum dtype to);
void convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t n);

#endif
