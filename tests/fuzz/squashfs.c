/* SquashFS images, through libsquashfs: the list of files, and the first megabyte of each. */
#include "common/data/squashfs.h"

#include "common/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST 100 /* files of an image */

static void read_file(struct squashfs *s, const char *path)
{
    static uint8_t to[1 << 20];
    struct byte_source *f;
    struct why why = {0};
    if (squashfs_source(s, path, &f, &why))
        return;
    size_t n = f->size < (int64_t)sizeof(to) ? (size_t)f->size : sizeof(to);
    if (f->ops->read(f, 0, to, n, &why) && !why.text[0])
        abort();
    f->ops->close(f);
}

static void read_image(struct squashfs *s, const char *pattern)
{
    struct why why = {0};
    char **names;
    int n;
    if (squashfs_list(s, pattern, &names, &n, &why))
        return;
    for (int i = 0; i < n; i++) {
        if (i < MOST)
            read_file(s, names[i]);
        free(names[i]);
    }
    free(names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    struct squashfs *s;
    struct why why = {0};
    if (fd < 0)
        fd = memfd_create("image", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) || file_pwrite_all(fd, data, size, 0))
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (squashfs_open(path, &s, &why))
        return 0;
    read_image(s, "/*");
    read_image(s, "/*/*");
    squashfs_close(s);
    return 0;
}
