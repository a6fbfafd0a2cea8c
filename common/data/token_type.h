/* How a file stores token ids: the types of prepared sets and of other programs' token files, little-endian. For
 * common/data only. */
#ifndef DTD_COMMON_DATA_TOKEN_TYPE_H
#define DTD_COMMON_DATA_TOKEN_TYPE_H

#include <stdbool.h>
#include <stdint.h>

enum token_type { TOKEN_U16, TOKEN_U32, TOKEN_U8, TOKEN_I8, TOKEN_I16, TOKEN_I32, TOKEN_I64, TOKEN_TYPES };

struct token_type_row {
    const char *name; /* as in NumPy: "uint16" */
    int bytes;
    /* Converts n ids at `in`, which may be unaligned. Returns the OR of all ids, as unsigned 64-bit numbers of which a
     * negative id has the top bit: it is >= every id, so a caller that finds it below the vocabulary need not look at
     * single ids. */
    uint64_t (*widen)(const uint8_t *in, int64_t n, int32_t *ret);
};

extern const struct token_type_row token_types[TOKEN_TYPES];
/* TOKEN_TYPES: there is none of that name. */
enum token_type token_type_find(const char *name);
/* True if one of n ids is negative or >= vocab. `any` is what widen returned for them. Ids beyond int32 are found by
 * `any` alone. */
bool token_ids_illegal(const int32_t *ids, int64_t n, uint64_t any, int64_t vocab);

#endif
