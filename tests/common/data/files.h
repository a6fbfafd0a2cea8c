/* Files and prepared sets for the tests of common/data, in the folder of the test case. */
#ifndef DTD_TESTS_COMMON_DATA_FILES_H
#define DTD_TESTS_COMMON_DATA_FILES_H

#include "common/base/file.h"
#include "common/data/data.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

/* test_tmpdir()/name, in one of a few static buffers that are used in turn. */
static inline char *file_path(const char *name)
{
    static char paths[64][PATH_MAX];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, PATH_MAX, "%s/%s", test_tmpdir(), name);
    return path;
}

static inline char *file_make(const char *name, const void *data, size_t len)
{
    char *path = file_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_ok(file_write_all(fd, data, len));
    close(fd);
    return path;
}

static inline char *file_make_text(const char *name, const char *text)
{
    return file_make(name, text, strlen(text));
}

/* Number of entries of a folder that start with `prefix`. */
static inline int file_count(const char *dir, const char *prefix)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
             strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    if (d)
        closedir(d);
    return n;
}

/* Prepares one file with the given tokenizer and opens the set. */
static inline struct data_set *set_make(char *path, enum tokenizer_kind kind, int64_t shard_tokens, char ret_hash[65])
{
    struct data_set *set = NULL;
    struct why why = {0};
    char *cache = file_path("cache");
    struct data_prepare p = {
        .files = &path, .n_files = 1, .tokenizer = kind, .cache = cache, .shard_tokens = shard_tokens};
    if (data_prepare(&p, ret_hash, &why) || data_open(cache, ret_hash, &set, &why))
        fail_msg("%s", why.text);
    return set;
}

/* A small random generator with the same numbers on every machine. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

#endif
