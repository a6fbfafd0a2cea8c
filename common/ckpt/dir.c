/* A checkpoint directory. The names of its entries define their state:
 *
 *   step-N                 committed (or written by torch) .step-N.eE.I.partial parts of epoch E, not committed
 *   step-N.eE              abandoned after a roll-back     .step-N.eE.I.index   markers of those parts (shared.h)
 *   .dtd.epoch             owner of the directory          .trash-*             being removed
 *
 * I is the incarnation of the job (ckpt_incarnation). Folders of earlier versions of dtd and of imports have none.
 *
 * Every change of a committed folder starts with a rename, so no reader ever sees an incomplete step. */
#include "common/base/file.h"
#include "common/ckpt/ckpt_priv.h"
#include "common/ckpt/shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DEPTH 8 /* of folders to remove; a step folder has no folders in it */

/* N of "step-N"; -1 for any other name. */
static int64_t step_of(const char *name)
{
    long long step;
    int end = 0;
    if (sscanf(name, "step-%lld%n", &step, &end) != 1 || name[end] || step < 0)
        return -1;
    char again[40];
    snprintf(again, sizeof(again), "step-%lld", step);
    return strcmp(again, name) == 0 ? step : -1;
}

/* The epoch and incarnation of an uncommitted save's folder (incarnation 0: none); false for any other name. */
static bool open_name_read(const char *name, uint64_t *ret_epoch, uint64_t *ret_incarnation)
{
    long long step;
    unsigned long long epoch, incarnation = 0;
    int end = 0, more = 0;
    if (sscanf(name, ".step-%lld.e%llu.%n", &step, &epoch, &end) != 2 || !end)
        return false;
    if (sscanf(name + end, "%16llx.%n", &incarnation, &more) == 1 && more == 17)
        end += more;
    else
        incarnation = 0;
    *ret_epoch = epoch;
    *ret_incarnation = incarnation;
    return strcmp(name + end, "partial") == 0 || strcmp(name + end, "index") == 0;
}

/* ---- removing a folder ---- */

static err_t tree_remove(int parent, const char *name, int depth)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return OK;
    if (errno != EISDIR && errno != EPERM)
        return err_from_errno(errno);
    int fd = depth < MAX_DEPTH ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        err_t err = fd >= 0 || depth < MAX_DEPTH ? err_from_errno(errno) : ERR_LIMIT;
        if (fd >= 0)
            close(fd);
        return err;
    }
    err_t err = OK;
    for (struct dirent *e; !err && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            err = tree_remove(dirfd(d), e->d_name, depth + 1);
    closedir(d);
    if (!err && unlinkat(parent, name, AT_REMOVEDIR) && errno != ENOENT)
        err = err_from_errno(errno);
    return err;
}

/* ---- listing ---- */

typedef err_t (*entry_fn)(int dir, const char *root, const char *name, void *arg);

/* Calls fn for every entry; a missing root has none. The names are collected first, because fn may rename entries. */
static err_t each(const char *root, entry_fn fn, void *arg, struct why *why)
{
    struct dirent **names = NULL;
    int n = scandir(root, &names, NULL, alphasort);
    if (n < 0)
        return errno == ENOENT ? OK : why_set(why, err_from_errno(errno), "%s: %s", root, strerror(errno));
    int dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    err_t err = dir < 0 ? err_from_errno(errno) : OK;
    for (int i = 0; i < n; i++) {
        if (!err) {
            err = fn(dir, root, names[i]->d_name, arg);
            if (err)
                why_set(why, err, "%s/%s: %s", root, names[i]->d_name, err_text(err));
        }
        free(names[i]);
    }
    free(names);
    if (dir >= 0)
        close(dir);
    return err;
}

/* ---- scan ---- */

struct scan {
    struct ckpt_info *infos;
    int n;
};

static err_t sizes_sum(const char *dir, const struct manifest *m, struct ckpt_info *ret)
{
    char path[PATH_MAX];
    struct stat st;
    for (int i = 0; i < m->n_files; i++) {
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, m->files[i].name) >= sizeof(path))
            return ERR_LIMIT;
        if (stat(path, &st) || (uint64_t)st.st_size != m->files[i].size)
            return ERR_CORRUPT;
        ret->bytes += st.st_size;
    }
    return OK;
}

static err_t info_by_manifest(const char *dir, const struct buf *b, struct ckpt_info *ret)
{
    struct manifest m;
    err_t err = manifest_read(b->data, b->len, &m, NULL);
    if (err)
        return err;
    ret->bytes = (int64_t)b->len;
    ret->epoch = m.epoch;
    ret->loss = m.loss;
    ret->committed_ms = m.committed_ms;
    ret->manifest = true;
    err = sizes_sum(dir, &m, ret);
    manifest_fini(&m);
    return err;
}

/* A checkpoint of torch has a .metadata. A folder with a job file but no manifest is a damaged checkpoint of dtd. */
static err_t info_by_metadata(const char *dir, struct ckpt_info *ret)
{
    char path[PATH_MAX];
    struct stat st;
    struct dirent **names = NULL;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, CKPT_JOB_FILE) >= sizeof(path))
        return ERR_LIMIT;
    if (stat(path, &st) == 0)
        return ERR_CORRUPT;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, METADATA_FILE) >= sizeof(path) || stat(path, &st))
        return ERR_CORRUPT;
    ret->committed_ms = (int64_t)st.st_mtim.tv_sec * 1000;
    int n = scandir(dir, &names, NULL, NULL);
    for (int i = 0; i < n; i++) {
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name) < sizeof(path) &&
            stat(path, &st) == 0 && S_ISREG(st.st_mode))
            ret->bytes += st.st_size;
        free(names[i]);
    }
    free(names);
    return OK;
}

static err_t info_read(const char *dir, struct ckpt_info *ret)
{
    char path[PATH_MAX];
    struct buf b = {0};
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, CKPT_MANIFEST) >= sizeof(path))
        return ERR_LIMIT;
    err_t err = file_read_plain(path, MANIFEST_MAX_BYTES, &b);
    if (!err)
        err = info_by_manifest(dir, &b, ret);
    else if (err == ERR_NOTFOUND)
        err = info_by_metadata(dir, ret);
    buf_fini(&b);
    return err;
}

static err_t info_of(const char *root, const char *name, struct ckpt_info *ret)
{
    char dir[PATH_MAX];
    if ((size_t)snprintf(dir, sizeof(dir), "%s/%s", root, name) >= sizeof(dir))
        return ERR_LIMIT;
    return info_read(dir, ret);
}

err_t ckpt_info(const char *dir, struct ckpt_info *ret, struct why *why)
{
    const char *slash = strrchr(dir, '/');
    struct ckpt_info info = {.step = step_of(slash ? slash + 1 : dir), .loss = (double)NAN};
    struct stat st;
    if (stat(dir, &st))
        return why_set(why, err_from_errno(errno), "%s: %s", dir, strerror(errno));
    err_t err = info_read(dir, &info);
    if (err)
        return why_set(why, err,
                       "%s is not a complete checkpoint: its manifest is invalid, or a file has the wrong size", dir);
    *ret = info;
    return OK;
}

static err_t scan_one(int dir, const char *root, const char *name, void *arg)
{
    struct scan *s = arg;
    struct ckpt_info info = {.step = step_of(name), .loss = (double)NAN};
    if (info.step < 0 || info_of(root, name, &info) != OK)
        return OK; /* not a complete checkpoint; `dtctl ckpt verify` reports why */
    struct ckpt_info *infos = realloc(s->infos, ((size_t)s->n + 1) * sizeof(*infos));
    if (!infos)
        return ERR_NOMEM;
    s->infos = infos;
    infos[s->n++] = info;
    return OK;
}

static int info_compare(const void *x, const void *y)
{
    const struct ckpt_info *a = x, *b = y;
    return a->step < b->step ? -1 : a->step > b->step;
}

err_t ckpt_scan(const char *root, struct ckpt_info **ret, int *ret_n, struct why *why)
{
    struct scan s = {0};
    err_t err = each(root, scan_one, &s, why);
    if (err) {
        free(s.infos);
        return err;
    }
    if (s.n)
        qsort(s.infos, (size_t)s.n, sizeof(*s.infos), info_compare);
    *ret = s.infos;
    *ret_n = s.n;
    return OK;
}

/* ---- collect, remove, abandon ---- */

/* Renames first: a committer of an older epoch that renames the folder at the same time gets all of it or nothing. */
static err_t trash(int dir, const char *name)
{
    char to[NAME_MAX + 16];
    snprintf(to, sizeof(to), ".trash-%s", name + 1);
    err_t err = tree_remove(dir, to, 0);
    if (!err && renameat(dir, name, dir, to))
        return errno == ENOENT ? OK : err_from_errno(errno);
    return err ? err : tree_remove(dir, to, 0);
}

/* A temporary file of a marker that a killed dtd-io was writing. */
static bool is_marker_temp(const char *name)
{
    size_t len = strlen(name), prefix = sizeof(CKPT_EPOCH_FILE) - 1;
    return strncmp(name, CKPT_EPOCH_FILE ".", prefix + 1) == 0 && strcmp(name + len - 4, ".tmp") == 0;
}

struct collect {
    uint64_t before, incarnation;
};

static err_t collect_one(int dir, const char *root, const char *name, void *arg)
{
    const struct collect *c = arg;
    uint64_t epoch, incarnation;
    bool open = open_name_read(name, &epoch, &incarnation);
    bool foreign = open && incarnation && c->incarnation && incarnation != c->incarnation;
    if (foreign || (open && epoch < c->before))
        return trash(dir, name);
    return strncmp(name, ".trash-", 7) == 0 || is_marker_temp(name) ? tree_remove(dir, name, 0) : OK;
}

err_t ckpt_collect(const char *root, uint64_t epoch, uint64_t incarnation, struct why *why)
{
    struct collect c = {.before = epoch, .incarnation = incarnation};
    return each(root, collect_one, &c, why);
}

err_t ckpt_partial_remove(const char *dir, struct why *why)
{
    err_t err = tree_remove(AT_FDCWD, dir, 0);
    return err ? why_set(why, err, "cannot remove %s: %s", dir, err_text(err)) : OK;
}

static err_t sync_root(const char *root, struct why *why)
{
    err_t err = file_sync_dir(root);
    return err ? why_set(why, err, "%s: %s", root, err_text(err)) : OK;
}

err_t ckpt_remove(const char *root, int64_t step, struct why *why)
{
    char from[40], to[48];
    int dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", root, strerror(errno));
    snprintf(from, sizeof(from), "step-%lld", (long long)step);
    snprintf(to, sizeof(to), ".trash-%s", from);
    err_t err = tree_remove(dir, to, 0); /* left by an interrupted attempt */
    if (!err && renameat(dir, from, dir, to))
        err = err_from_errno(errno);
    if (!err)
        err = fsync(dir) ? err_from_errno(errno) : tree_remove(dir, to, 0);
    if (err)
        why_set(why, err, "cannot remove %s/%s: %s", root, from, err_text(err));
    close(dir);
    return err;
}

struct abandon {
    int64_t after;
    uint64_t before;
    bool any;
};

static err_t abandon_one(int dir, const char *root, const char *name, void *arg)
{
    struct abandon *a = arg;
    struct ckpt_info info = {.step = step_of(name)};
    char to[96];
    if (info.step <= a->after)
        return OK;
    if (info_of(root, name, &info))
        info.epoch = 0; /* a damaged step has no epoch, whatever its manifest has: it would be in the way of a save */
    if (info.epoch >= a->before)
        return OK;
    for (int k = 0; k < 1000; k++) {
        snprintf(to, sizeof(to), k ? "%s.e%llu.%d" : "%s.e%llu", name, (unsigned long long)info.epoch, k);
        if (renameat(dir, name, dir, to) == 0) {
            a->any = true;
            return OK;
        }
        if (errno != ENOTEMPTY && errno != EEXIST)
            break;
    }
    return err_from_errno(errno);
}

err_t ckpt_abandon_after(const char *root, int64_t step, uint64_t epoch, struct why *why)
{
    struct abandon a = {.after = step, .before = epoch};
    err_t err = each(root, abandon_one, &a, why);
    return err || !a.any ? err : sync_root(root, why);
}
