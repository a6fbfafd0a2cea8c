/* SquashFS images, read without mounting them, by libsquashfs: one file on the file system instead of a million.
 *
 * Any compression that libsquashfs was built with. One thread for each image and the files in it. Only regular files
 * are seen; symbolic links in the image are not followed. */
#ifndef DTD_COMMON_DATA_SQUASHFS_H
#define DTD_COMMON_DATA_SQUASHFS_H

#include "common/data/source.h"

struct squashfs;

/* Whether a file that begins with these bytes is an image. */
bool squashfs_is(const uint8_t *head, size_t len);
/* "set.sqsh:/a/b.txt" -> "set.sqsh" (of PATH_MAX bytes) and "/a/b.txt". False: no such name. */
bool squashfs_split(const char *name, char *ret_image, const char **ret_path);

NODISCARD err_t squashfs_open(const char *image, struct squashfs **ret, struct why *why);
void squashfs_close(struct squashfs *s);
/* The regular files whose path in the image ("/a/b.txt") matches the pattern (glob(7)), sorted by byte value.
 * ERR_NOTFOUND: none. The caller frees the names and the list. */
NODISCARD err_t squashfs_list(struct squashfs *s, const char *pattern, char ***ret, int *ret_n, struct why *why);
/* A file of the image, named "IMAGE:PATH". Its close frees it, before the image is closed. */
NODISCARD err_t squashfs_source(struct squashfs *s, const char *path, struct byte_source **ret, struct why *why);

#endif
