/* Internals of an open checkpoint, and the extent_reader, which returns bytes of its files only after it has verified
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
    struct ckpt_file *files; /* the files that .metadata names, sorted by name */
    int n_files;
    struct read_claims *claims; /* shared with other readers of the process, or NULL */
    char **kept;                /* strings that ckpt_scalar returned; freed by ckpt_close */
    int n_kept;
};

const struct ckpt_file *ckpt_file_find(const struct ckpt *c, const char *name);

struct file_reader;
struct file_range;
struct read_claims;

/* Reads files through a window. With a manifest the window is an extent, which is verified when it is loaded; without
 * one, it consists of pages. Reading in ascending order reads no byte twice. */
struct extent_reader {
    const char *dir;
    struct read_claims *claims; /* NULL: none */
    const struct ckpt_file *file;
    struct file_reader *source;
    const uint8_t *window;
    uint64_t at, len; /* position of the window in the file */
};

void extent_reader_init(struct extent_reader *r, const char *dir, struct read_claims *claims); /* no file is open */
void extent_reader_fini(struct extent_reader *r);
/* Switches to this file. If it is open already, the window is kept. */
NODISCARD err_t extent_reader_open(struct extent_reader *r, const struct ckpt_file *file, struct why *why);
/* As file_reader_expect. Before the first load. */
NODISCARD err_t extent_reader_expect(struct extent_reader *r, const struct file_range *ranges, size_t n);
/* After OK the window contains byte `from`. Without a manifest, it contains as many bytes up to `to` as fit if it had
 * to be loaded. */
NODISCARD err_t extent_reader_load(struct extent_reader *r, uint64_t from, uint64_t to, struct why *why);
uint64_t extent_reader_grain(const struct extent_reader *r);
int64_t extent_reader_bytes(const struct extent_reader *r); /* number of bytes read so far */
/* Copies bytes through as many windows as needed. */
NODISCARD err_t extent_reader_copy(struct extent_reader *r, uint64_t from, void *dst, size_t len, struct why *why);

/* One blob of the reader's file, as a zip archive. */
struct blob_source {
    struct extent_reader *reader;
    uint64_t offset;
    struct zip_source zip;
};
void blob_source_init(struct blob_source *s, struct extent_reader *r, uint64_t offset, uint64_t length);

/* Elements of a box, as runs that are contiguous both in the source and in the destination. */
struct copy_run {
    uint64_t at; /* byte in the file */
    uint64_t elements;
    uint8_t *dst;
    enum dtype to;
};
struct copy_runs {
    struct copy_run *v;
    size_t n, cap;
};
/* Adds the runs of `part`, which lies inside `src` (first element at byte src_at of the file) and `dst` (at dst_data).
 */
NODISCARD err_t runs_add(struct copy_runs *r, const struct box *part, const struct box *src, uint64_t src_at,
                         enum dtype from, const struct box *dst, uint8_t *dst_data, enum dtype to);

/* Floating-point types convert into each other; every type converts into itself. */
bool convert_is_possible(enum dtype from, enum dtype to);
void convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t n);

#endif
