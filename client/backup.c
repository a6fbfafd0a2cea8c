/* Files of the log are only appended to, renamed and removed, except three that are written in place. So a copy is
 * consistent if no name has appeared or disappeared meanwhile, and if the term and the vote are the same before and
 * after: else it is made again. The order matters, too: libraft's own term and vote (metadata1, metadata2) are never
 * newer than those in `marks`, and `marks` never counts an entry that is not in a segment yet. */
#include "client/backup.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/holder.h"
#include "common/ckpt/sums.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ATTEMPTS 50
#define PAUSE_US 100000
#define FILE_MAX_BYTES ((size_t)2 << 30) /* far above the largest snapshot */
#define FILES_MAX 4096
#define VOTE_BYTES 1024 /* of `marks`: term and vote */
#define SUMS "SHA256SUMS"
#define SUMS_MAX_BYTES (1u << 20)

static const char *const folders[] = {"raft/log", "cluster"};

/* The copy gets these first, in this order. */
static const char *const first[] = {"raft/log/metadata1", "raft/log/metadata2", "raft/log/marks"};
#define N_FIRST (sizeof(first) / sizeof(first[0]))

struct names {
    char *at[FILES_MAX]; /* relative to the state directory, in order */
    int n;
};

/* A path that is too long becomes "", which no file has. */
static void join(char ret[PATH_MAX], const char *dir, const char *name)
{
    if (snprintf(ret, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        ret[0] = '\0';
}

static void names_fini(struct names *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->at[i]);
    l->n = 0;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Segments that are prepared for later use, and temporary files, come and go and contain nothing. */
static bool is_wanted(const char *folder, const char *name)
{
    static const char *const node[] = {"self", "view", "identity"};
    if (name[0] == '.' || strstr(name, ".tmp"))
        return false;
    if (strcmp(folder, "cluster") != 0)
        return true;
    for (size_t i = 0; i < sizeof(node) / sizeof(node[0]); i++)
        if (strcmp(name, node[i]) == 0)
            return true;
    return false;
}

static err_t list_folder(const char *dir, const char *folder, struct names *ret, struct why *why)
{
    char path[PATH_MAX];
    join(path, dir, folder);
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? OK : why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    err_t err = OK;
    for (struct dirent *e; !err && (e = readdir(d));) {
        join(path, folder, e->d_name);
        if (!is_wanted(folder, e->d_name))
            continue;
        if (ret->n == FILES_MAX || !(ret->at[ret->n] = strdup(path)))
            err = why_set(why, ERR_LIMIT, "%s/%s has too many files", dir, folder);
        else
            ret->n++;
    }
    closedir(d);
    return err;
}

static err_t list(const char *dir, struct names *ret, struct why *why)
{
    err_t err = OK;
    ret->n = 0;
    for (size_t i = 0; !err && i < sizeof(folders) / sizeof(folders[0]); i++)
        err = list_folder(dir, folders[i], ret, why);
    qsort(ret->at, (size_t)ret->n, sizeof(ret->at[0]), compare);
    return err;
}

static bool has(const struct names *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->at[i], name) == 0)
            return true;
    return false;
}

static bool is_same(const struct names *a, const struct names *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++)
        same = strcmp(a->at[i], b->at[i]) == 0;
    return same;
}

/* ---- one file ---- */

static void print_sum(const struct buf *bytes, char ret[2 * SUMS_SHA256_BYTES + 1])
{
    uint8_t sum[SUMS_SHA256_BYTES] = {0};
    if (sums_sha256(bytes->data ? bytes->data : (const uint8_t *)"", bytes->len, sum))
        ret[0] = '\0';
    for (int i = 0; i < SUMS_SHA256_BYTES; i++)
        snprintf(ret + 2 * i, 3, "%02x", sum[i]);
}

/* The owner of the file stays its owner, if we may set that. */
static err_t write_file(const char *path, const struct buf *bytes, const struct stat *like, struct why *why)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    err_t err = fd < 0 ? err_from_errno(errno) : file_write_all(fd, bytes->data, bytes->len);
    if (!err && fchown(fd, like->st_uid, like->st_gid) && errno != EPERM)
        err = err_from_errno(errno);
    if (!err && fsync(fd))
        err = err_from_errno(errno);
    if (fd >= 0 && close(fd) && !err)
        err = err_from_errno(errno);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

/* Copies a file and appends its line to `sums`. `expected` NULL: any sum. */
static err_t copy_file(const char *from, const char *to, const char *name, const char *expected, struct buf *sums,
                       uint64_t *ret_bytes, struct why *why)
{
    char path[PATH_MAX], sum[2 * SUMS_SHA256_BYTES + 1], line[PATH_MAX + 80];
    struct buf bytes = {0};
    struct stat st;
    join(path, from, name);
    err_t err = lstat(path, &st) ? err_from_errno(errno) : S_ISREG(st.st_mode) ? OK : ERR_CORRUPT;
    if (!err)
        err = file_read(path, FILE_MAX_BYTES, &bytes);
    if (err)
        return why_set(why, err, "%s: %s", path, err_text(err));
    print_sum(&bytes, sum);
    if (expected && strcmp(sum, expected) != 0)
        err = why_set(why, ERR_CORRUPT, "%s is damaged: its SHA-256 is not that of %s/" SUMS, path, from);
    join(path, to, name);
    if (!err)
        err = write_file(path, &bytes, &st, why);
    int n = snprintf(line, sizeof(line), "%s  %s\n", sum, name);
    if (!err && sums)
        err = buf_append(sums, line, (size_t)n);
    *ret_bytes += bytes.len;
    buf_fini(&bytes);
    return err;
}

static err_t make_folders(const char *dir, struct why *why)
{
    char path[PATH_MAX];
    err_t err = OK;
    for (size_t i = 0; !err && i < sizeof(folders) / sizeof(folders[0]); i++) {
        join(path, dir, folders[i]);
        err = file_make_dirs(path, 0700);
        if (err)
            why_set(why, err, "%s: %s", path, err_text(err));
    }
    return err;
}

/* ---- backup ---- */

static err_t read_vote(const char *state_dir, uint8_t ret[VOTE_BYTES])
{
    char path[PATH_MAX];
    join(path, state_dir, first[2]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_from_errno(errno);
    err_t err = file_pread_all(fd, ret, VOTE_BYTES, 0);
    close(fd);
    return err;
}

static err_t copy_all(const char *state_dir, const char *to, const struct names *l, struct buf *sums,
                      uint64_t *ret_bytes, struct why *why)
{
    err_t err = make_folders(to, why);
    for (size_t i = 0; !err && i < N_FIRST; i++)
        if (has(l, first[i]))
            err = copy_file(state_dir, to, first[i], NULL, sums, ret_bytes, why);
    for (int i = 0; !err && i < l->n; i++) {
        bool done = false;
        for (size_t k = 0; k < N_FIRST; k++)
            done |= strcmp(l->at[i], first[k]) == 0;
        if (!done)
            err = copy_file(state_dir, to, l->at[i], NULL, sums, ret_bytes, why);
    }
    return err;
}

/* ERR_AGAIN: the files have changed meanwhile. */
static err_t attempt(const char *state_dir, const char *to, uint64_t *ret_bytes, struct why *why)
{
    struct names *before = calloc(1, sizeof(*before)), *after = calloc(1, sizeof(*after));
    uint8_t vote[VOTE_BYTES] = {0}, later[VOTE_BYTES] = {0};
    struct buf sums = {0};
    err_t err = before && after ? list(state_dir, before, why) : ERR_NOMEM;
    if (!err && !has(before, first[2]))
        err =
            why_set(why, ERR_NOTFOUND, "%s/raft/log is not the log of a dtd: is this its state directory?", state_dir);
    if (!err && read_vote(state_dir, vote))
        err = ERR_AGAIN;
    *ret_bytes = 0;
    if (!err)
        err = copy_all(state_dir, to, before, &sums, ret_bytes, why);
    if (err == ERR_NOTFOUND && before && has(before, first[2]))
        err = ERR_AGAIN; /* a file that was listed is gone */
    if (!err)
        err = list(state_dir, after, why);
    if (!err && (!is_same(before, after) || read_vote(state_dir, later) || memcmp(vote, later, VOTE_BYTES) != 0))
        err = ERR_AGAIN;
    char path[PATH_MAX];
    join(path, to, SUMS);
    if (!err && (err = file_replace(path, sums.data, sums.len, 0600)))
        why_set(why, err, "%s: %s", path, err_text(err));
    buf_fini(&sums);
    if (before)
        names_fini(before);
    if (after)
        names_fini(after);
    free(before);
    free(after);
    return err;
}

err_t backup_make(const char *state_dir, const char *to, uint64_t *ret_bytes, struct why *why)
{
    char partial[PATH_MAX];
    struct stat st;
    if (snprintf(partial, sizeof(partial), "%s.partial", to) >= (int)sizeof(partial))
        return why_set(why, ERR_LIMIT, "the name of the folder is too long");
    if (lstat(to, &st) == 0)
        return why_set(why, ERR_EXISTS, "%s exists: name a new folder", to);
    err_t err = ERR_AGAIN;
    for (int i = 0; err == ERR_AGAIN && i < ATTEMPTS; i++) {
        if (i)
            usleep(PAUSE_US);
        err = file_remove_tree(partial);
        err = err ? why_set(why, err, "%s: %s", partial, err_text(err)) : attempt(state_dir, partial, ret_bytes, why);
    }
    if (err == ERR_AGAIN)
        why_set(why, err, "the log changed its files during each of %d attempts: try again", ATTEMPTS);
    if (!err && rename(partial, to))
        err = why_set(why, err_from_errno(errno), "%s: %s", to, strerror(errno));
    if (err && file_remove_tree(partial))
        return err; /* `why` has the first reason */
    return err;
}

/* ---- restore ---- */

static err_t check_empty(const char *state_dir, struct why *why)
{
    static const char *const never[] = {"raft/log", "cluster/self"};
    char path[PATH_MAX];
    struct stat st;
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++) {
        join(path, state_dir, never[i]);
        if (lstat(path, &st) == 0)
            return why_set(why, ERR_EXISTS,
                           "%s exists, and a node with a log of its own must not get an older one: rename %s, then try "
                           "again",
                           path, state_dir);
    }
    return OK;
}

static err_t copy_back(const char *from, const char *state_dir, char *text, struct why *why)
{
    uint64_t bytes = 0;
    char *rest = text, *line;
    int n = 0;
    err_t err = make_folders(state_dir, why);
    while (!err && (line = strsep(&rest, "\n")) && *line) {
        char *name = strstr(line, "  ");
        bool is_legal = name && name - line == 2 * SUMS_SHA256_BYTES && !strstr(name, "..") &&
                        (strncmp(name + 2, "raft/log/", 9) == 0 || strncmp(name + 2, "cluster/", 8) == 0);
        if (!is_legal)
            return why_set(why, ERR_CORRUPT, "%s/" SUMS " has an invalid line", from);
        *name = '\0';
        err = copy_file(from, state_dir, name + 2, line, NULL, &bytes, why);
        n++;
    }
    return err || n ? err : why_set(why, ERR_CORRUPT, "%s/" SUMS " is empty", from);
}

/* Replaces the value of a line of cluster/self; the line of the checksum goes, which is then not checked. */
static err_t set_line(struct buf *self, const char *key, const char *value)
{
    struct buf next = {0};
    err_t err = buf_append(self, "", 1);
    char *rest = (char *)self->data, *line;
    size_t len = strlen(key);
    while (!err && (line = strsep(&rest, "\n")) && (rest || *line)) {
        bool is_it = strncmp(line, key, len) == 0 && line[len] == '=';
        if (strncmp(line, "sum=", 4) == 0)
            continue;
        err = buf_append(&next, line, is_it ? len + 1 : strlen(line));
        if (!err && is_it)
            err = buf_append(&next, value, strlen(value));
        err = err ? err : buf_append(&next, "\n", 1);
    }
    buf_fini(self);
    *self = next;
    return err;
}

static err_t move_node(const char *state_dir, const struct backup_restore *with, struct why *why)
{
    char path[PATH_MAX];
    struct buf self = {0};
    struct stat st;
    join(path, state_dir, "cluster/self");
    if ((!with->listen && !with->advertise) || lstat(path, &st))
        return OK;
    err_t err = file_read(path, 65536, &self);
    if (!err && with->listen)
        err = set_line(&self, "listen", with->listen);
    if (!err && with->advertise)
        err = set_line(&self, "address", with->advertise);
    if (!err)
        err = file_replace(path, self.data, self.len, 0600);
    if (!err && chown(path, st.st_uid, st.st_gid) && errno != EPERM)
        err = err_from_errno(errno);
    buf_fini(&self);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

/* daemon/control/cluster/lineage_file.h. Written last: without it the node would start as if it had never stopped. */
static err_t order_recovery(const char *state_dir, struct why *why)
{
    char path[PATH_MAX], text[512], host[65] = "";
    struct stat st;
    (void)gethostname(host, sizeof(host) - 1);
    host[strcspn(host, " \t\r\n")] = '\0';
    int n = snprintf(text, sizeof(text), "generation=0\nat_ms=%" PRId64 "\nuid=%u\nby=%s\ngone=all\n", clock_wall_ms(),
                     (unsigned)getuid(), host);
    join(path, state_dir, "raft/log/marks");
    err_t err = lstat(path, &st) ? err_from_errno(errno) : OK;
    join(path, state_dir, "cluster/recovery");
    if (!err)
        err = file_replace(path, text, (size_t)n, 0600);
    if (!err && chown(path, st.st_uid, st.st_gid) && errno != EPERM)
        err = err_from_errno(errno);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

err_t backup_restore(const char *from, const char *state_dir, const struct backup_restore *with, struct why *why)
{
    char path[PATH_MAX];
    struct buf text = {0};
    int lock = -1;
    join(path, from, SUMS);
    err_t err = file_read(path, SUMS_MAX_BYTES, &text);
    if (!err)
        err = buf_append(&text, "", 1);
    if (err)
        return why_set(why, err, "%s is not a complete backup: %s: %s", from, path, err_text(err));
    err = holder_take_lock(state_dir, 0700, &lock, why);
    if (!err)
        err = check_empty(state_dir, why);
    bool is_begun = !err;
    if (!err)
        err = copy_back(from, state_dir, (char *)text.data, why);
    if (!err)
        err = move_node(state_dir, with, why);
    if (!err)
        err = order_recovery(state_dir, why);
    buf_fini(&text);
    for (size_t i = 0; err && is_begun && i < sizeof(folders) / sizeof(folders[0]); i++) {
        join(path, state_dir, folders[i]);
        if (file_remove_tree(path)) /* a part of a log must not be started */
            return err;
    }
    if (lock >= 0)
        close(lock);
    return err;
}
