/* One loop per type, which the compiler vectorizes. The OR of all ids costs less than their maximum and decides most
 * cases: only if it reaches the vocabulary's size are the ids compared one by one. */
#include "common/data/token_type.h"

#include <endian.h>
#include <string.h>

#define WIDEN(name, type, convert)                                     \
    static uint64_t name(const uint8_t *in, int64_t n, int32_t *ret)   \
    {                                                                  \
        uint64_t any = 0;                                              \
        for (int64_t i = 0; i < n; i++) {                              \
            type raw;                                                  \
            memcpy(&raw, in + (size_t)i * sizeof(type), sizeof(type)); \
            type id = (type)convert(raw);                              \
            any |= (uint64_t)(int64_t)id;                              \
            ret[i] = (int32_t)id;                                      \
        }                                                              \
        return any;                                                    \
    }

#define SAME(x) (x)
WIDEN(widen_u8, uint8_t, SAME)
WIDEN(widen_i8, int8_t, SAME)
WIDEN(widen_u16, uint16_t, le16toh)
WIDEN(widen_i16, int16_t, le16toh)
WIDEN(widen_u32, uint32_t, le32toh)
WIDEN(widen_i32, int32_t, le32toh)
WIDEN(widen_i64, int64_t, le64toh)

const struct token_type_row token_types[TOKEN_TYPES] = {
    [TOKEN_U16] = {"uint16", 2, widen_u16}, [TOKEN_U32] = {"uint32", 4, widen_u32},
    [TOKEN_U8] = {"uint8", 1, widen_u8},    [TOKEN_I8] = {"int8", 1, widen_i8},
    [TOKEN_I16] = {"int16", 2, widen_i16},  [TOKEN_I32] = {"int32", 4, widen_i32},
    [TOKEN_I64] = {"int64", 8, widen_i64},
};

enum token_type token_type_find(const char *name)
{
    int i = 0;
    while (i < TOKEN_TYPES && strcmp(token_types[i].name, name) != 0)
        i++;
    return (enum token_type)i;
}

bool token_ids_illegal(const int32_t *ids, int64_t n, uint64_t any, int64_t vocab)
{
    if (any < (uint64_t)vocab)
        return false;
    if (any > INT32_MAX)
        return true;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= vocab)
            return true;
    return false;
}
