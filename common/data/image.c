/* Each file opens the image again, so files have no common state and may be closed in any order. */
#include "common/data/image.h"
#include "common/data/squashfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct image_source {
    struct byte_source base;
    struct squashfs *image;
    struct byte_source *inside;
};

static err_t fail_memory(const char *image, struct why *why)
{
    return why_set(why, ERR_NOMEM, "%s: %s", image, err_text(ERR_NOMEM));
}

/* ---- names ---- */

/* The name of a file may have brackets, so a pattern that is one is no pattern. */
static err_t list(struct squashfs *s, const char *pattern, char ***ret, int *ret_n, struct why *why)
{
    struct byte_source *file;
    if (squashfs_source(s, pattern, &file, NULL))
        return squashfs_list(s, pattern, ret, ret_n, why);
    file->ops->close(file);
    char **names = calloc(1, sizeof(*names)), *name = strdup(pattern);
    if (!names || !name) {
        free(names);
        free(name);
        return fail_memory(pattern, why);
    }
    names[0] = name;
    *ret = names;
    *ret_n = 1;
    return OK;
}

static err_t add_prefix(const char *image, char **names, int n, struct why *why)
{
    for (int i = 0; i < n; i++) {
        char *full;
        if (asprintf(&full, "%s:%s", image, names[i]) < 0)
            return fail_memory(image, why);
        free(names[i]);
        names[i] = full;
    }
    return OK;
}

err_t image_files(const char *image, const char *pattern, char ***ret, int *ret_n, struct why *why)
{
    struct squashfs *s;
    char **names;
    int n;
    err_t err = squashfs_open(image, &s, why);
    if (err)
        return err;
    err = list(s, pattern, &names, &n, why);
    squashfs_close(s);
    if (err)
        return err;
    err = add_prefix(image, names, n, why);
    for (int i = 0; err && i < n; i++)
        free(names[i]);
    if (err) {
        free(names);
        return err;
    }
    *ret = names;
    *ret_n = n;
    return OK;
}

/* ---- files ---- */

static err_t image_read(struct byte_source *s, int64_t at, void *ret, size_t len, struct why *why)
{
    struct byte_source *inside = ((struct image_source *)s)->inside;
    return inside->ops->read(inside, at, ret, len, why);
}

static void image_close(struct byte_source *s)
{
    struct image_source *f = (struct image_source *)s;
    if (f->inside)
        f->inside->ops->close(f->inside);
    squashfs_close(f->image);
    free(f);
}

err_t image_open(const char *image, const char *path, struct byte_source **ret, struct why *why)
{
    static const struct byte_source_ops ops = {image_read, image_close};
    struct image_source *f = calloc(1, sizeof(*f));
    if (!f)
        return fail_memory(image, why);
    err_t err = squashfs_open(image, &f->image, why);
    if (err) {
        free(f);
        return err;
    }
    err = squashfs_source(f->image, path, &f->inside, why);
    if (err) {
        image_close(&f->base);
        return err;
    }
    f->base = (struct byte_source){&ops, f->inside->name, f->inside->size};
    *ret = &f->base;
    return OK;
}
