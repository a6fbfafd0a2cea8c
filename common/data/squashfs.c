/* libsquashfs keeps one data block and one fragment block, so reading a file from its begin to its end decompresses
 * each block once. It reads the directory that is open only; so a folder's files are matched in one pass, and its
 * folders are entered behind that. */
#include "common/data/squashfs.h"
#include "common/base/buf.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <sqfs/compressor.h>
#include <sqfs/data_reader.h>
#include <sqfs/dir.h>
#include <sqfs/dir_reader.h>
#include <sqfs/error.h>
#include <sqfs/inode.h>
#include <sqfs/io.h>
#include <sqfs/super.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_DEPTH 64
/* A damaged image may have folders that contain themselves. */
#define MAX_ENTRIES 20000000

struct squashfs {
    char *image;
    sqfs_file_t *file;
    sqfs_super_t super;
    sqfs_compressor_t *compressor;
    sqfs_dir_reader_t *folders;
    sqfs_data_reader_t *data;
};

struct squashfs_file {
    struct byte_source base;
    struct squashfs *image;
    sqfs_inode_generic_t *inode;
    char *name;
};

/* ---- errors ---- */

static err_t code_of(int rc, const char **ret)
{
    static const struct {
        int rc;
        err_t err;
        const char *text;
    } table[] = {
        {SQFS_ERROR_ALLOC, ERR_NOMEM, "out of memory"},
        {SQFS_ERROR_IO, ERR_IO, "input/output error"},
        {SQFS_ERROR_COMPRESSOR, ERR_CORRUPT, "a block cannot be decompressed; the image is damaged"},
        {SQFS_ERROR_UNSUPPORTED, ERR_UNSUPPORTED, "this libsquashfs does not support its compression or version"},
        {SQFS_ERROR_OUT_OF_BOUNDS, ERR_CORRUPT, "it is cut short"},
        {SQFS_ERROR_NO_ENTRY, ERR_NOTFOUND, "there is no such file in the image"},
        {SQFS_ERROR_NOT_DIR, ERR_NOTFOUND, "there is no such file in the image"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].rc == rc) {
            *ret = table[i].text;
            return table[i].err;
        }
    *ret = "the image is damaged";
    return ERR_CORRUPT;
}

static err_t fail_image(const struct squashfs *s, const char *path, int rc, struct why *why)
{
    const char *text;
    err_t err = code_of(rc, &text);
    return why_set(why, err, "%s%s%s: %s", s->image, path ? ":" : "", path ? path : "", text);
}

/* ---- opening ---- */

bool squashfs_is(const uint8_t *head, size_t len)
{
    return len >= 4 && memcmp(head, "hsqs", 4) == 0;
}

bool squashfs_split(const char *name, char *ret_image, const char **ret_path)
{
    const char *colon = strstr(name, ":/");
    if (!colon || colon == name || colon - name >= PATH_MAX || !colon[2])
        return false;
    memcpy(ret_image, name, (size_t)(colon - name));
    ret_image[colon - name] = '\0';
    *ret_path = colon + 1;
    return true;
}

static err_t open_file(struct squashfs *s, struct why *why)
{
    struct stat st;
    if (stat(s->image, &st) || !S_ISREG(st.st_mode))
        return why_set(why, ERR_INVALID, "%s: it is not a regular file", s->image);
    s->file = sqfs_open_file(s->image, SQFS_FILE_OPEN_READ_ONLY);
    if (!s->file)
        return why_set(why, err_from_errno(errno), "%s: %s", s->image, strerror(errno));
    int rc = sqfs_super_read(&s->super, s->file);
    if (rc)
        return fail_image(s, NULL, rc, why);
    if (s->super.bytes_used > (sqfs_u64)st.st_size)
        return why_set(why, ERR_CORRUPT,
                       "%s: the image has %" PRIu64 " bytes, but the file only %" PRId64 "; it is cut short", s->image,
                       (uint64_t)s->super.bytes_used, (int64_t)st.st_size);
    return OK;
}

static err_t open_readers(struct squashfs *s, struct why *why)
{
    sqfs_compressor_config_t config;
    int rc =
        sqfs_compressor_config_init(&config, s->super.compression_id, s->super.block_size, SQFS_COMP_FLAG_UNCOMPRESS);
    rc = rc ? rc : sqfs_compressor_create(&config, &s->compressor);
    if (!rc && (s->super.flags & SQFS_FLAG_COMPRESSOR_OPTIONS))
        rc = s->compressor->read_options(s->compressor, s->file);
    if (!rc) {
        s->folders = sqfs_dir_reader_create(&s->super, s->compressor, s->file, 0);
        s->data = sqfs_data_reader_create(s->file, s->super.block_size, s->compressor, 0);
        rc = s->folders && s->data ? 0 : SQFS_ERROR_ALLOC;
    }
    rc = rc ? rc : sqfs_data_reader_load_fragment_table(s->data, &s->super);
    return rc ? fail_image(s, NULL, rc, why) : OK;
}

err_t squashfs_open(const char *image, struct squashfs **ret, struct why *why)
{
    struct squashfs *s = calloc(1, sizeof(*s));
    if (!s || !(s->image = strdup(image))) {
        free(s);
        return why_set(why, ERR_NOMEM, "%s: %s", image, err_text(ERR_NOMEM));
    }
    err_t err = open_file(s, why);
    err = err ? err : open_readers(s, why);
    if (err)
        squashfs_close(s);
    else
        *ret = s;
    return err;
}

void squashfs_close(struct squashfs *s)
{
    sqfs_destroy(s->data);
    sqfs_destroy(s->folders);
    sqfs_destroy(s->compressor);
    sqfs_destroy(s->file);
    free(s->image);
    free(s);
}

/* ---- listing ---- */

struct squashfs_walk {
    struct squashfs *s;
    const char *pattern;
    struct buf names; /* char * */
    int64_t entries;
    struct why *why;
};
struct squashfs_folder {
    char *path;
    sqfs_inode_generic_t *inode;
};

static void free_folders(struct buf *list)
{
    struct squashfs_folder *f = (void *)list->data;
    for (size_t i = 0; i < list->len / sizeof(*f); i++) {
        free(f[i].path);
        sqfs_free(f[i].inode);
    }
    buf_fini(list);
}

static err_t fail_walk(struct squashfs_walk *w, err_t err)
{
    return why_set(w->why, err, "%s: %s", w->s->image,
                   err == ERR_LIMIT ? "its folders contain themselves, or have more than 20 million files"
                                    : err_text(err));
}

static err_t keep_folder(struct squashfs_walk *w, char *path, struct buf *folders)
{
    struct squashfs_folder f = {.path = path};
    int rc = sqfs_dir_reader_get_inode(w->s->folders, &f.inode);
    err_t err = rc ? fail_image(w->s, path, rc, w->why) : buf_append(folders, &f, sizeof(f));
    if (err && !rc) {
        sqfs_free(f.inode);
        fail_walk(w, err);
    }
    return err;
}

/* A file or folder of the folder that is open. Names with a slash would lead elsewhere, so they are damage. */
static err_t visit(struct squashfs_walk *w, const char *folder, const sqfs_dir_entry_t *e, struct buf *folders)
{
    size_t len = (size_t)e->size + 1;
    char *path = NULL;
    if (memchr(e->name, '/', len) || memchr(e->name, '\0', len))
        return fail_image(w->s, folder, SQFS_ERROR_CORRUPTED, w->why);
    if (asprintf(&path, "%s/%.*s", folder, (int)len, (const char *)e->name) < 0)
        return fail_walk(w, ERR_NOMEM);
    err_t err = OK;
    bool kept = true;
    if (e->type == SQFS_INODE_DIR) {
        err = keep_folder(w, path, folders);
    } else {
        kept = e->type == SQFS_INODE_FILE && fnmatch(w->pattern, path, FNM_PATHNAME | FNM_PERIOD) == 0;
        if (kept && (err = buf_append(&w->names, &path, sizeof(path))))
            fail_walk(w, err);
    }
    if (err || !kept)
        free(path);
    return err;
}

static err_t scan_folder(struct squashfs_walk *w, const char *path, const sqfs_inode_generic_t *inode,
                         struct buf *folders)
{
    int rc = sqfs_dir_reader_open_dir(w->s->folders, inode, 0);
    err_t err = OK;
    while (!err && !rc) {
        sqfs_dir_entry_t *e = NULL;
        rc = sqfs_dir_reader_read(w->s->folders, &e);
        if (rc)
            break;
        err = ++w->entries > MAX_ENTRIES ? fail_walk(w, ERR_LIMIT) : visit(w, path, e, folders);
        sqfs_free(e);
    }
    return err ? err : rc < 0 ? fail_image(w->s, path, rc, w->why) : OK; /* above 0: the end */
}

static err_t walk_folder(struct squashfs_walk *w, const char *path, const sqfs_inode_generic_t *inode, int depth)
{
    struct buf folders = {0};
    err_t err = depth > MAX_DEPTH ? fail_walk(w, ERR_LIMIT) : scan_folder(w, path, inode, &folders);
    const struct squashfs_folder *f = (void *)folders.data;
    for (size_t i = 0; !err && i < folders.len / sizeof(*f); i++)
        err = walk_folder(w, f[i].path, f[i].inode, depth + 1);
    free_folders(&folders);
    return err;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

err_t squashfs_list(struct squashfs *s, const char *pattern, char ***ret, int *ret_n, struct why *why)
{
    struct squashfs_walk w = {.s = s, .pattern = pattern, .why = why};
    sqfs_inode_generic_t *root = NULL;
    int rc = sqfs_dir_reader_get_root_inode(s->folders, &root);
    err_t err = rc ? fail_image(s, NULL, rc, why) : walk_folder(&w, "", root, 0);
    char **names = (char **)(void *)w.names.data;
    size_t n = names ? w.names.len / sizeof(char *) : 0;
    if (!rc)
        sqfs_free(root);
    if (!err && n == 0)
        err = why_set(why, ERR_NOTFOUND, "%s: no file in the image matches %s", s->image, pattern);
    if (!err && n > INT_MAX)
        err = fail_walk(&w, ERR_LIMIT);
    if (err) {
        for (size_t i = 0; i < n; i++)
            free(names[i]);
        buf_fini(&w.names);
        return err;
    }
    if (names)
        qsort(names, n, sizeof(*names), by_name);
    *ret = names;
    *ret_n = (int)n;
    return OK;
}

/* ---- files ---- */

static err_t squashfs_read(struct byte_source *base, int64_t at, void *ret, size_t len, struct why *why)
{
    struct squashfs_file *f = (struct squashfs_file *)base;
    uint8_t *to = ret;
    if (at < 0 || at > base->size || len > (uint64_t)(base->size - at))
        return why_set(why, ERR_CORRUPT, "%s: it ends early", base->name);
    while (len > 0) {
        sqfs_u32 some = len < (1 << 30) ? (sqfs_u32)len : 1 << 30;
        sqfs_s32 n = sqfs_data_reader_read(f->image->data, f->inode, (sqfs_u64)at, to, some);
        if (n <= 0)
            return fail_image(f->image, base->name + strlen(f->image->image) + 1, n < 0 ? n : SQFS_ERROR_CORRUPTED,
                              why);
        to += n;
        at += n;
        len -= (size_t)n;
    }
    return OK;
}

static void squashfs_file_close(struct byte_source *base)
{
    struct squashfs_file *f = (struct squashfs_file *)base;
    sqfs_free(f->inode);
    free(f->name);
    free(f);
}

static err_t find_file(struct squashfs *s, const char *path, struct squashfs_file *f, struct why *why)
{
    sqfs_inode_generic_t *root = NULL;
    sqfs_u64 size = 0;
    int rc = sqfs_dir_reader_get_root_inode(s->folders, &root);
    rc = rc ? rc : sqfs_dir_reader_find_by_path(s->folders, root, path, &f->inode);
    if (root)
        sqfs_free(root);
    if (rc)
        return fail_image(s, path, rc, why);
    if (f->inode->base.type != SQFS_INODE_FILE && f->inode->base.type != SQFS_INODE_EXT_FILE)
        return why_set(why, ERR_INVALID, "%s:%s: it is not a regular file of the image", s->image, path);
    rc = sqfs_inode_get_file_size(f->inode, &size);
    if (rc || size > INT64_MAX)
        return fail_image(s, path, rc ? rc : SQFS_ERROR_CORRUPTED, why);
    f->base.size = (int64_t)size;
    return OK;
}

err_t squashfs_source(struct squashfs *s, const char *path, struct byte_source **ret, struct why *why)
{
    static const struct byte_source_ops ops = {.read = squashfs_read, .close = squashfs_file_close};
    struct squashfs_file *f = calloc(1, sizeof(*f));
    if (!f || asprintf(&f->name, "%s:%s", s->image, path) < 0) {
        free(f);
        return why_set(why, ERR_NOMEM, "%s: %s", s->image, err_text(ERR_NOMEM));
    }
    f->base.ops = &ops;
    f->base.name = f->name;
    f->image = s;
    err_t err = find_file(s, path, f, why);
    if (err)
        squashfs_file_close(&f->base);
    else
        *ret = &f->base;
    return err;
}
