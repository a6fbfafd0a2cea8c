/* The hash covers the contents of all files, the tokenizer and the rules, so a folder with this hash can be continued
 * whatever happened to names and times of the files. Reading everything for the hash takes far less time than encoding.
 *
 * flock(2) keeps two processes out of one folder; the system releases it when a process exits. The lock may be that of
 * a folder that was published or removed meanwhile, so its place is compared after locking. */
#include "common/data/unfinished.h"

#include "common/base/file.h"
#include "common/data/cache.h"
#include "common/data/sha.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_FILE "lock"
#define INPUTS_FILE "inputs"
#define INPUTS_MAX_BYTES ((size_t)64 << 20)

/* ---- the lock ---- */

static bool is_in_place(int fd, const char *path)
{
    struct stat here, there;
    return !fstat(fd, &here) && !stat(path, &there) && here.st_ino == there.st_ino && here.st_dev == there.st_dev;
}

/* -1: another process has the folder, or the file system has no locks. */
static int lock_folder(const char *dir)
{
    char path[PATH_MAX];
    if (cache_join(dir, LOCK_FILE, path, sizeof(path), NULL))
        return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || (!flock(fd, LOCK_EX | LOCK_NB) && is_in_place(fd, path)))
        return fd;
    close(fd);
    return -1;
}

/* ---- unfinished sets of other inputs ---- */

static err_t print_inputs(const struct unfinished_inputs *in, struct buf *ret)
{
    struct buf paths = {0};
    char sha256[65];
    err_t err = OK;
    for (int i = 0; !err && i < in->n_paths; i++)
        err = buf_append(&paths, in->paths[i], strlen(in->paths[i]) + 1);
    err = err ? err : sha_of(paths.data, paths.len, sha256);
    err = err ? err : buf_printf(ret, "paths %s\n", sha256);
    err = err ? err : buf_append(ret, in->text->data, in->text->len);
    buf_fini(&paths);
    return err;
}

static const char *line_end(const char *at, const char *end)
{
    const char *n = memchr(at, '\n', (size_t)(end - at));
    return n ? n + 1 : end;
}

/* What the lines before the files stand for, by their first letters. */
static const char *rule_name(const char *line)
{
    static const struct {
        const char *word, *name;
    } rules[] = {{"field ", "data.field"}, {"template ", "data.template"}, {"before ", "data.bos"},
                 {"after ", "data.eos"},   {"line\n", "data.eos"},         {"dtd-data ", "data.format"}};
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (strncmp(line, rules[i].word, strlen(rules[i].word)) == 0)
            return rules[i].name;
    return "tokenizer";
}

/* Names the first difference between two texts of inputs. */
static void note_difference(const struct unfinished_inputs *in, const struct buf *old, const struct buf *new,
                            struct why *note)
{
    const char *a = (const char *)old->data, *a_end = a + old->len;
    const char *b = (const char *)new->data, *b_end = b + new->len;
    int file = 0;
    while (a < a_end && b < b_end) {
        const char *a_next = line_end(a, a_end), *b_next = line_end(b, b_end);
        bool is_file = strncmp(b, "file ", 5) == 0;
        if (a_next - a != b_next - b || memcmp(a, b, (size_t)(b_next - b)) != 0) {
            if (is_file && file < in->n_paths)
                why_set(note, OK, "starts anew: %s has changed since the run that was interrupted", in->paths[file]);
            else
                why_set(note, OK, "starts anew: the run that was interrupted had another %s", rule_name(b));
            return;
        }
        file += is_file;
        a = a_next;
        b = b_next;
    }
}

static void compare_other(const struct unfinished_inputs *in, const char *dir, const struct buf *mine, struct why *note)
{
    char path[PATH_MAX];
    struct buf other = {0};
    const char *end = line_end((const char *)mine->data, (const char *)mine->data + mine->len);
    size_t line = (size_t)(end - (const char *)mine->data);
    err_t err = cache_join(dir, INPUTS_FILE, path, sizeof(path), NULL);
    err = err ? err : file_read_plain(path, INPUTS_MAX_BYTES, &other);
    err = err ? err : buf_append(&other, "", 1); /* strncmp of the last line ends here */
    if (!err && other.len > line && memcmp(other.data, mine->data, line) == 0)
        note_difference(in, &other, mine, note);
    buf_fini(&other);
}

/* The same files, but another content, tokenizer or rule: the user may wonder why nothing continues. */
static void compare_others(const char *cache, const struct unfinished_inputs *in, const struct buf *mine,
                           struct why *note)
{
    DIR *d = opendir(cache);
    for (struct dirent *e; d && (e = readdir(d));) {
        char dir[PATH_MAX];
        bool other = strncmp(e->d_name, CACHE_UNFINISHED, strlen(CACHE_UNFINISHED)) == 0 &&
                     strcmp(e->d_name + strlen(CACHE_UNFINISHED), in->hash) != 0;
        if (other && !cache_join(cache, e->d_name, dir, sizeof(dir), NULL))
            compare_other(in, dir, mine, note);
    }
    if (d)
        closedir(d);
}

/* ---- opening ---- */

static void read_journal(struct unfinished *u, const struct unfinished_inputs *in, struct why *note)
{
    char path[PATH_MAX];
    struct buf text = {0};
    if (cache_join(u->dir, JOURNAL_FILE, path, sizeof(path), NULL) || file_read_plain(path, INPUTS_MAX_BYTES, &text))
        return;
    struct journal *j = &u->journal;
    u->saved = !journal_parse(text.data, text.len, j) && strcmp(j->hash, in->hash) == 0 && j->cap == in->cap &&
               j->source < in->n_paths;
    buf_fini(&text);
    if (u->saved)
        return;
    journal_fini(j);
    why_set(note, OK, "starts anew: the journal of the run that was interrupted is damaged, or of another version");
}

/* Removes the files that the journal does not describe: they were made after it. */
static void remove_later(const struct unfinished *u)
{
    DIR *d = opendir(u->dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        int shard = 0, used = 0;
        bool is_shard = sscanf(e->d_name, "tokens-%5d.bin%n", &shard, &used) == 1 && used && !e->d_name[used];
        bool keep = strcmp(e->d_name, LOCK_FILE) == 0 ||
                    (u->saved && ((is_shard && shard < u->journal.n_shards) || strcmp(e->d_name, JOURNAL_FILE) == 0 ||
                                  strcmp(e->d_name, INPUTS_FILE) == 0 ||
                                  (strcmp(e->d_name, INDEX_DOCUMENTS) == 0 && u->journal.documents) ||
                                  (strcmp(e->d_name, INDEX_WEIGHTS) == 0 && u->journal.weighted)));
        if (e->d_name[0] != '.' && !keep)
            unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d)
        closedir(d);
}

static err_t open_folder(const struct unfinished_inputs *in, const struct buf *mine, struct unfinished *u,
                         struct why *note, struct why *why)
{
    char path[PATH_MAX];
    read_journal(u, in, note);
    remove_later(u);
    if (u->saved)
        return OK;
    err_t err = cache_join(u->dir, INPUTS_FILE, path, sizeof(path), why);
    if (!err && (err = file_replace(path, mine->data, mine->len, 0644)))
        return why_set(why, err, "%s: %s", path, err_text(err));
    return err;
}

/* Sets u->lock, or makes the folder a private one. */
static err_t claim_folder(const char *cache, const struct unfinished_inputs *in, struct unfinished *u, struct why *note,
                          struct why *why)
{
    int n = snprintf(u->dir, sizeof(u->dir), "%s/%s%s", cache, CACHE_UNFINISHED, in->hash);
    if ((size_t)n >= sizeof(u->dir))
        return why_set(why, ERR_LIMIT, "%s: the path is too long", cache);
    if (mkdir(u->dir, 0755) && errno != EEXIST)
        return why_set(why, err_from_errno(errno), "%s: %s", u->dir, strerror(errno));
    u->lock = lock_folder(u->dir);
    if (u->lock >= 0)
        return OK;
    why_set(note, OK,
            "another process prepares this set, or the file system of the cache has no locks: this run cannot be "
            "continued if it is interrupted");
    return cache_temp_new(cache, u->dir, sizeof(u->dir), why);
}

err_t unfinished_open(const char *cache, const struct unfinished_inputs *in, struct unfinished *ret,
                      struct why *ret_note, struct why *why)
{
    struct unfinished u = {.lock = -1};
    struct buf mine = {0};
    ret_note->text[0] = '\0';
    err_t err = print_inputs(in, &mine);
    err = err ? why_set(why, err, "%s", err_text(err)) : claim_folder(cache, in, &u, ret_note, why);
    if (!err && u.lock >= 0) {
        err = open_folder(in, &mine, &u, ret_note, why);
        if (!err && u.saved)
            why_set(ret_note, OK, "continues: %d of %d files were done", u.journal.source, in->n_paths);
        else if (!err && !ret_note->text[0])
            compare_others(cache, in, &mine, ret_note);
    }
    buf_fini(&mine);
    if (err)
        unfinished_close(&u, false);
    else
        *ret = u;
    return err;
}

/* ---- saving and closing ---- */

err_t unfinished_save(struct unfinished *u, const struct journal *j, struct why *why)
{
    struct buf text = {0};
    char path[PATH_MAX];
    err_t err = journal_print(j, &text);
    err = err ? why_set(why, err, "%s", err_text(err)) : cache_join(u->dir, JOURNAL_FILE, path, sizeof(path), why);
    if (!err && (err = file_replace(path, text.data, text.len, 0644)))
        why_set(why, err, "writing %s: %s", path, err_text(err));
    u->saved = u->saved || !err;
    buf_fini(&text);
    return err;
}

void unfinished_strip(const struct unfinished *u)
{
    static const char *const names[] = {JOURNAL_FILE, INPUTS_FILE, LOCK_FILE};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[PATH_MAX];
        if (!cache_join(u->dir, names[i], path, sizeof(path), NULL))
            unlink(path);
    }
}

void unfinished_close(struct unfinished *u, bool keep)
{
    if (u->dir[0] && !(keep && u->saved))
        cache_remove(u->dir);
    if (u->lock >= 0)
        close(u->lock);
    u->lock = -1;
    journal_fini(&u->journal);
}
