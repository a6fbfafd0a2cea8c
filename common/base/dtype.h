/* Element types of tensors, in memory, in programs and in checkpoints. */
#ifndef DTD_COMMON_BASE_DTYPE_H
#define DTD_COMMON_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* X(name, value, torch name, bytes). Values are stored in files: append new ones, never renumber. */
#define DTYPE_LIST(X)            \
    X(DT_F32, 1, "float32", 4)   \
    X(DT_F64, 2, "float64", 8)   \
    X(DT_BF16, 3, "bfloat16", 2) \
    X(DT_F16, 4, "float16", 2)   \
    X(DT_I64, 5, "int64", 8)     \
    X(DT_I32, 6, "int32", 4)     \
    X(DT_I16, 7, "int16", 2)     \
    X(DT_I8, 8, "int8", 1)       \
    X(DT_U8, 9, "uint8", 1)      \
    X(DT_BOOL, 10, "bool", 1)

enum dtype {
    DT_NONE = 0,
#define X(name, value, text, bytes) name = (value),
    DTYPE_LIST(X)
#undef X
};

static inline size_t dtype_bytes(enum dtype t)
{
    switch (t) {
#define X(name, value, text, bytes) \
    case name:                      \
        return bytes;
        DTYPE_LIST(X)
#undef X
    case DT_NONE:
        break;
    }
    return 0;
}

static inline const char *dtype_name(enum dtype t)
{
    switch (t) {
#define X(name, value, text, bytes) \
    case name:                      \
        return text;
        DTYPE_LIST(X)
#undef X
    case DT_NONE:
        break;
    }
    return "?";
}

/* DT_NONE for an unknown name. */
static inline enum dtype dtype_parse(const char *name)
{
#define X(n, value, text, bytes) \
    if (strcmp(name, text) == 0) \
        return n;
    DTYPE_LIST(X)
#undef X
    return DT_NONE;
}

#endif
