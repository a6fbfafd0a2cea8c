/* save_to_disk writes state.json last, so a folder that has it is complete. A builder writes into a folder whose name
 * ends with .incomplete and holds a lock meanwhile; the file of the lock stays behind, so only a lock that is held
 * counts. */
#include "common/data/datasets.h"
#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/data/table.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_JSON ((size_t)64 << 20)
#define MAX_FILES 100000 /* five digits number the files */

struct datasets_list {
    const char *dir;
    char **paths;
    int n;
    struct why *why;
};

static bool join(const char *dir, const char *name, char ret[PATH_MAX])
{
    return snprintf(ret, PATH_MAX, "%s/%s", dir, name) < PATH_MAX;
}

static bool exists(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return join(dir, name, path) && access(path, F_OK) == 0;
}

bool datasets_is_folder(const char *dir)
{
    return exists(dir, "state.json") || exists(dir, "dataset_dict.json") || exists(dir, "dataset_info.json");
}

static err_t refuse(struct datasets_list *l, err_t err, const char *text)
{
    return why_set(l->why, err, "%s: %s", l->dir, text);
}

static err_t read_json(struct datasets_list *l, const char *name, json_t **ret)
{
    char path[PATH_MAX];
    struct buf text = {0};
    json_error_t error;
    err_t err = join(l->dir, name, path) ? file_read_plain(path, MAX_JSON, &text) : ERR_INVALID;
    if (err)
        return why_set(l->why, err, "%s/%s: %s", l->dir, name, err_text(err));
    *ret = json_loadb((char *)text.data, text.len, JSON_ALLOW_NUL, &error);
    buf_fini(&text);
    if (*ret && json_is_object(*ret))
        return OK;
    json_decref(*ret);
    return why_set(l->why, ERR_CORRUPT, "%s/%s: it is not a JSON object; the folder is damaged", l->dir, name);
}

/* ---- files ---- */

/* A name that leads out of the folder is refused: the folder may be another user's. */
static err_t add_file(struct datasets_list *l, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if (!name || !*name || strchr(name, '/') || !join(l->dir, name, path) || l->n == MAX_FILES)
        return refuse(l, ERR_CORRUPT, "a name in state.json is no file of this folder; the folder is damaged");
    if (stat(path, &st) || !S_ISREG(st.st_mode))
        return why_set(l->why, ERR_INVALID, "%s: it is missing or no file, so the folder is incomplete; write it again",
                       path);
    char **more = realloc(l->paths, ((size_t)l->n + 1) * sizeof(*more));
    if (more)
        l->paths = more;
    if (!more || !(l->paths[l->n] = strdup(path)))
        return refuse(l, ERR_NOMEM, err_text(ERR_NOMEM));
    l->n++;
    return OK;
}

static err_t state_files(struct datasets_list *l, const json_t *state)
{
    const char *key;
    const json_t *value;
    void *at = json_object_iter((json_t *)(uintptr_t)state);
    for (; at; at = json_object_iter_next((json_t *)(uintptr_t)state, at)) {
        key = json_object_iter_key(at);
        value = json_object_iter_value(at);
        if (strncmp(key, "_indices", 8) == 0 && (json_array_size(value) || json_is_string(value)))
            return refuse(l, ERR_UNSUPPORTED,
                          "its rows are chosen by a table of indices (a shuffle or filter of an old version of "
                          "datasets); load it and call flatten_indices() and save_to_disk()");
    }
    const json_t *files = json_object_get(state, "_data_files");
    err_t err = json_is_array(files) ? OK : refuse(l, ERR_CORRUPT, "state.json has no list _data_files");
    for (size_t i = 0; !err && i < json_array_size(files); i++)
        err = add_file(l, json_string_value(json_object_get(json_array_get(files, i), "filename")));
    return err;
}

static err_t read_state(struct datasets_list *l)
{
    json_t *state = NULL;
    err_t err = read_json(l, "state.json", &state);
    if (err)
        return err;
    err = state_files(l, state);
    json_decref(state);
    return err;
}

/* ---- splits ---- */

static void list_names(const json_t *splits, char ret[320])
{
    size_t at = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < json_array_size(splits); i++) {
        const char *name = json_string_value(json_array_get(splits, i));
        if (name && at + strlen(name) < 300)
            at += (size_t)sprintf(ret + at, "%s%s", at ? ", " : "", name);
    }
    table_clean_name(ret);
}

static err_t list_folder(struct datasets_list *l);

/* A DatasetDict: a folder for each split. */
static err_t read_dict(struct datasets_list *l)
{
    json_t *dict = NULL;
    char names[320], path[PATH_MAX];
    err_t err = read_json(l, "dataset_dict.json", &dict);
    if (err)
        return err;
    const json_t *splits = json_object_get(dict, "splits");
    const char *only = json_string_value(json_array_get(splits, 0)), *parent = l->dir;
    list_names(splits, names);
    if (json_array_size(splits) != 1 || !only || strchr(only, '/') || !join(l->dir, only, path)) {
        err = why_set(l->why, ERR_INVALID, "%s: it has the splits %s; name the folder of one, as in %s/train", l->dir,
                      names, l->dir);
    } else {
        l->dir = path;
        err = exists(path, "state.json") ? list_folder(l) : refuse(l, ERR_INVALID, "the folder has no state.json");
        l->dir = parent;
    }
    json_decref(dict);
    return err;
}

/* ---- the cache of a builder ---- */

static err_t check_written(struct datasets_list *l)
{
    static const char text[] = "datasets is writing this folder, or was stopped while it did. Wait, or load it with "
                               "datasets again";
    char path[PATH_MAX];
    size_t len = strlen(l->dir), end = strlen(".incomplete");
    if (len > end && strcmp(l->dir + len - end, ".incomplete") == 0)
        return refuse(l, ERR_BUSY, text);
    if (snprintf(path, sizeof(path), "%s.incomplete", l->dir) < PATH_MAX && access(path, F_OK) == 0)
        return refuse(l, ERR_BUSY, text);
    if (snprintf(path, sizeof(path), "%s_builder.lock", l->dir) >= PATH_MAX)
        return OK;
    int fd = file_open_plain(path);
    if (fd < 0)
        return OK;
    bool held = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    close(fd);
    return held ? refuse(l, ERR_BUSY, text) : OK;
}

/* "-train.arrow", or "-train-00000-of-00004.arrow": how the name of the first file ends, and of file i. */
static void file_end(const char *split, size_t i, size_t n, char ret[512])
{
    if (n > 1)
        snprintf(ret, 512, "-%s-%05zu-of-%05zu.arrow", split, i, n);
    else
        snprintf(ret, 512, "-%s.arrow", split);
}

/* The one name in the folder that ends so, without its end. Results of map() and filter() do not count. */
static err_t find_prefix(struct datasets_list *l, const char *end, char ret[NAME_MAX + 1])
{
    int found = 0;
    DIR *d = opendir(l->dir);
    if (!d)
        return refuse(l, err_from_errno(errno), strerror(errno));
    for (const struct dirent *e; (e = readdir(d));) {
        size_t len = strlen(e->d_name), n = strlen(end);
        if (len <= n || strcmp(e->d_name + len - n, end) != 0 || strncmp(e->d_name, "cache-", 6) == 0)
            continue;
        snprintf(ret, NAME_MAX + 1, "%.*s", (int)(len - n), e->d_name);
        found++;
    }
    closedir(d);
    return found == 1 ? OK
                      : why_set(l->why, ERR_INVALID, "%s: %s file whose name ends with %s; name the files themselves",
                                l->dir, found ? "more than one" : "no", end);
}

static err_t split_files(struct datasets_list *l, const char *split, size_t n)
{
    char end[512], prefix[NAME_MAX + 1] = "", name[NAME_MAX + 513];
    file_end(split, 0, n, end);
    err_t err = find_prefix(l, end, prefix);
    for (size_t i = 0; !err && i < n; i++) {
        file_end(split, i, n, end);
        snprintf(name, sizeof(name), "%s%s", prefix, end);
        err = add_file(l, name);
    }
    return err;
}

static err_t info_files(struct datasets_list *l, const json_t *info)
{
    const json_t *splits = json_object_get(info, "splits");
    char names[320] = "";
    size_t at = 0;
    void *first = json_object_iter((json_t *)(uintptr_t)splits);
    for (void *i = first; i; i = json_object_iter_next((json_t *)(uintptr_t)splits, i))
        if (at + strlen(json_object_iter_key(i)) < 300)
            at += (size_t)sprintf(names + at, "%s%s", at ? ", " : "", json_object_iter_key(i));
    table_clean_name(names);
    if (json_object_size(splits) != 1)
        return why_set(l->why, ERR_INVALID,
                       "%s: it has the splits %s; name the files of one, as in '%s/*-train*.arrow'", l->dir,
                       at ? names : "of no known name", l->dir);
    size_t n = json_array_size(json_object_get(json_object_iter_value(first), "shard_lengths"));
    return split_files(l, json_object_iter_key(first), n ? n : 1);
}

static err_t read_info(struct datasets_list *l)
{
    json_t *info = NULL;
    err_t err = check_written(l);
    err = err ? err : read_json(l, "dataset_info.json", &info);
    if (err)
        return err;
    err = info_files(l, info);
    json_decref(info);
    return err;
}

static err_t list_folder(struct datasets_list *l)
{
    if (exists(l->dir, "state.json"))
        return read_state(l);
    return exists(l->dir, "dataset_dict.json") ? read_dict(l) : read_info(l);
}

err_t datasets_files(const char *dir, char ***ret, int *ret_n, struct why *why)
{
    char clean[PATH_MAX];
    struct datasets_list l = {.dir = clean, .why = why};
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/')
        len--;
    snprintf(clean, sizeof(clean), "%.*s", (int)len, dir);
    err_t err = list_folder(&l);
    if (!err && l.n == 0)
        err = refuse(&l, ERR_INVALID, "it has no data files");
    if (!err) {
        *ret = l.paths;
        *ret_n = l.n;
        return OK;
    }
    for (int i = 0; i < l.n; i++)
        free(l.paths[i]);
    free(l.paths);
    return err;
}
