/* Files in SquashFS images by name, for data_resolve and data_prepare (struct data_containers). */
#ifndef DTD_COMMON_DATA_IMAGE_H
#define DTD_COMMON_DATA_IMAGE_H

#include "common/data/source.h"

/* "IMAGE:/PATH" of each file whose path is `pattern`, or matches it (squashfs_list). The caller frees the names and the
 * list. */
NODISCARD err_t image_files(const char *image, const char *pattern, char ***ret, int *ret_n, struct why *why);
/* A file of the image. Its close closes the image too. */
NODISCARD err_t image_open(const char *image, const char *path, struct byte_source **ret, struct why *why);

#endif
