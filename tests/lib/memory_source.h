/* A byte_source in memory, for tests and fuzzers of readers of files. */
#ifndef DTD_TESTS_LIB_MEMORY_SOURCE_H
#define DTD_TESTS_LIB_MEMORY_SOURCE_H

#include "common/data/source.h"

#include <string.h>

struct memory_source {
    struct byte_source base;
    const uint8_t *data;
};

static inline err_t memory_source_read(struct byte_source *s, int64_t at, void *ret, size_t len, struct why *why)
{
    if (at < 0 || at > s->size || (int64_t)len > s->size - at)
        return why_set(why, ERR_CORRUPT, "%s: the file ends before byte %lld", s->name, (long long)at);
    if (len)
        memcpy(ret, ((struct memory_source *)s)->data + at, len);
    return OK;
}

static inline void memory_source_close(struct byte_source *s)
{
}

static inline struct memory_source memory_source(const void *data, size_t len)
{
    static const struct byte_source_ops ops = {memory_source_read, memory_source_close};
    return (struct memory_source){{&ops, "memory", (int64_t)len}, data};
}

#endif
