/* Sources of bytes for the tests of readers: a file, and memory. */
#ifndef DTD_TESTS_COMMON_DATA_SOURCE_FILE_H
#define DTD_TESTS_COMMON_DATA_SOURCE_FILE_H

#include "common/base/file.h"
#include "common/data/source.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_source {
    struct byte_source base;
    int fd;
};

static inline err_t file_source_read(struct byte_source *s, int64_t at, void *ret, size_t len, struct why *why)
{
    err_t err = file_pread_all(((struct file_source *)s)->fd, ret, len, at);
    return err ? why_set(why, err, "%s: %s", s->name, err_text(err)) : OK;
}

static inline void file_source_close(struct byte_source *s)
{
    close(((struct file_source *)s)->fd);
}

/* False: the file cannot be opened. */
static inline bool file_source_open(struct file_source *s, const char *path)
{
    static const struct byte_source_ops ops = {.read = file_source_read, .close = file_source_close};
    struct stat st;
    s->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &st))
        return false;
    s->base = (struct byte_source){.ops = &ops, .name = path, .size = st.st_size};
    return true;
}

struct memory_source {
    struct byte_source base;
    const uint8_t *data;
};

static inline err_t memory_source_read(struct byte_source *s, int64_t at, void *ret, size_t len, struct why *why)
{
    if (at < 0 || at > s->size || (uint64_t)len > (uint64_t)(s->size - at))
        return why_set(why, ERR_CORRUPT, "%s: it ends early", s->name);
    if (len)
        memcpy(ret, ((struct memory_source *)s)->data + at, len);
    return OK;
}

static inline void memory_source_close(struct byte_source *s)
{
}

static inline struct memory_source memory_source_of(const uint8_t *data, size_t size, const char *name)
{
    static const struct byte_source_ops ops = {.read = memory_source_read, .close = memory_source_close};
    return (struct memory_source){{.ops = &ops, .name = name, .size = (int64_t)size}, data};
}

#endif
