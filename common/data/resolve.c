/* Files are sorted by byte value and not by locale: their order is part of the set's name and must be the same on every
 * machine. */
#include "common/data/data.h"

#include "common/base/utf8.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_PATHS 65536 /* the limit of a list in a job file (SCHEMA_MAX_ITEMS) */

struct paths {
    char **list;
    int n, cap;
    const struct data_containers *containers;
};

void data_paths_free(char **paths, int n)
{
    for (int i = 0; i < n; i++)
        free(paths[i]);
    free(paths);
}

/* Removes "//" and "/./", so that a file has one name. ".." stays: its meaning depends on symbolic links. */
static void clean(char *path)
{
    char *out = path;
    for (const char *in = path; *in; in++) {
        while (in[0] == '/' && (in[1] == '/' || (in[1] == '.' && in[2] == '/')))
            in += in[1] == '/' ? 1 : 2;
        *out++ = *in;
    }
    *out = '\0';
}

static err_t add(struct paths *p, const char *path, struct why *why)
{
    if (!utf8_valid(path))
        return why_set(why, ERR_INVALID, "%s: the name is not UTF-8, so a job file cannot contain it; rename the file",
                       path);
    if (p->n == MAX_PATHS)
        return why_set(why, ERR_LIMIT, "more than %d files; concatenate some, or name fewer", MAX_PATHS);
    if (p->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 16;
        char **list = realloc(p->list, (size_t)cap * sizeof(*list));
        if (!list)
            return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        p->list = list;
        p->cap = cap;
    }
    char *copy = strdup(path);
    if (!copy)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    clean(copy);
    p->list[p->n++] = copy;
    return OK;
}

/* The folder, escaped for glob, and the pattern. NULL: out of memory. */
static char *full_pattern(const char *dir, const char *pattern)
{
    char *full = malloc(2 * strlen(dir) + strlen(pattern) + 2), *out = full;
    if (!full)
        return NULL;
    for (; *dir && pattern[0] != '/'; dir++) {
        if (strchr("*?[\\", *dir))
            *out++ = '\\';
        *out++ = *dir;
    }
    if (pattern[0] != '/')
        *out++ = '/';
    strcpy(out, pattern);
    return full;
}

static bool is_container(const struct paths *p, const char *path, const struct stat *st)
{
    return S_ISDIR(st->st_mode) && p->containers && p->containers->is_folder(path);
}

/* The list is sorted in the end, so the files' order must be that of their names. */
static err_t add_container(struct paths *p, const char *dir, struct why *why)
{
    char **files;
    int n;
    err_t err = p->containers->folder_files(dir, &files, &n, why);
    if (err)
        return err;
    for (int i = 0; !err && i < n; i++)
        err = i && strcmp(files[i - 1], files[i]) >= 0
                  ? why_set(why, ERR_UNSUPPORTED,
                            "%s: its list has %s before %s, but files are read in the order of their names; load the "
                            "folder with datasets and write it again with save_to_disk",
                            dir, files[i - 1], files[i])
                  : add(p, files[i], why);
    data_paths_free(files, n);
    return err;
}

/* *ret_done: the pattern names files in an image that exists. */
static err_t add_image(struct paths *p, const char *dir, const char *pattern, bool *ret_done, struct why *why)
{
    char image[PATH_MAX], path[2 * PATH_MAX], **files;
    const char *inside;
    struct stat st;
    int n;
    if (!p->containers || !p->containers->split(pattern, image, &inside))
        return OK;
    snprintf(path, sizeof(path), "%s%s%s", image[0] == '/' ? "" : dir, image[0] == '/' ? "" : "/", image);
    *ret_done = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    err_t err = *ret_done ? p->containers->image_files(path, inside, &files, &n, why) : OK;
    if (err || !*ret_done)
        return err;
    for (int i = 0; !err && i < n; i++)
        err = add(p, files[i], why);
    data_paths_free(files, n);
    return err;
}

static err_t add_match(struct paths *p, const char *path, int *folders, struct why *why)
{
    struct stat st;
    if (stat(path, &st))
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    if (is_container(p, path, &st))
        return add_container(p, path, why);
    if (S_ISDIR(st.st_mode)) {
        ++*folders;
        return OK;
    }
    return S_ISREG(st.st_mode) ? add(p, path, why) : why_set(why, ERR_INVALID, "%s: it is not a regular file", path);
}

static err_t add_pattern(struct paths *p, const char *dir, const char *pattern, struct why *why)
{
    glob_t found = {0};
    int before = p->n, folders = 0;
    char *full = full_pattern(dir, pattern);
    int rc = full ? glob(full, GLOB_NOSORT, NULL, &found) : GLOB_NOSPACE;
    err_t err = rc == GLOB_NOSPACE ? why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM)) : OK;
    for (size_t i = 0; !err && !rc && i < found.gl_pathc; i++)
        err = add_match(p, found.gl_pathv[i], &folders, why);
    if (!err && p->n == before && folders)
        err = why_set(why, ERR_NOTFOUND, "%s: it matches only folders; write %s/* for the files in them", pattern,
                      pattern);
    else if (!err && p->n == before)
        err = why_set(why, ERR_NOTFOUND, "%s: no such file (looked for in %s)", pattern, pattern[0] == '/' ? "/" : dir);
    globfree(&found);
    free(full);
    return err;
}

/* Adds a pattern that is an exact name; names may contain brackets. */
static err_t add_literal(struct paths *p, const char *dir, const char *pattern, bool *ret_done, struct why *why)
{
    struct stat st;
    char *path = NULL;
    if (asprintf(&path, "%s%s%s", pattern[0] == '/' ? "" : dir, pattern[0] == '/' ? "" : "/", pattern) < 0)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    bool exists = stat(path, &st) == 0, container = exists && is_container(p, path, &st);
    *ret_done = container || (exists && S_ISREG(st.st_mode));
    err_t err = container ? add_container(p, path, why) : *ret_done ? add(p, path, why) : OK;
    free(path);
    return err;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ret_repeated: the first path that is listed more than once; "": none. */
static void sort_unique(struct paths *p, char *ret_repeated)
{
    int n = 0;
    if (p->n)
        qsort(p->list, (size_t)p->n, sizeof(*p->list), compare);
    for (int i = 0; i < p->n; i++) {
        if (!n || strcmp(p->list[n - 1], p->list[i]) != 0) {
            p->list[n++] = p->list[i];
            continue;
        }
        if (ret_repeated && !ret_repeated[0])
            snprintf(ret_repeated, PATH_MAX, "%s", p->list[i]);
        free(p->list[i]);
    }
    p->n = n;
}

err_t data_resolve(const char *dir, char *const *patterns, int n, const struct data_containers *containers,
                   char ***ret_paths, int *ret_n, char *ret_repeated, struct why *why)
{
    struct paths p = {.containers = containers};
    if (ret_repeated)
        ret_repeated[0] = '\0';
    err_t err = dir[0] == '/' ? OK : why_set(why, ERR_INVALID, "%s: the folder must be an absolute path", dir);
    for (int i = 0; !err && i < n; i++) {
        bool done = false;
        err = add_literal(&p, dir, patterns[i], &done, why);
        if (!err && !done)
            err = add_image(&p, dir, patterns[i], &done, why);
        if (!err && !done)
            err = add_pattern(&p, dir, patterns[i], why);
    }
    if (err) {
        data_paths_free(p.list, p.n);
        return err;
    }
    sort_unique(&p, ret_repeated);
    *ret_paths = p.list;
    *ret_n = p.n;
    return OK;
}
