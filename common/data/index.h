/* index.json of a prepared set: the content of the folder, protected by its own hash. For common/data only. */
#ifndef DTD_COMMON_DATA_INDEX_H
#define DTD_COMMON_DATA_INDEX_H

#include "common/base/buf.h"
#include "common/conf/job.h"

#include <stdbool.h>
#include <stdint.h>

#define INDEX_MAX_SHARDS 16384 /* each is a mapping; a process may have 65,530 (vm.max_map_count) */
#define INDEX_MAX_TOKENS ((int64_t)1 << 60)
#define INDEX_MAX_BYTES (16u << 20)
#define INDEX_FILE "index.json"
#define INDEX_VOCAB "vocab"
#define INDEX_SHARD "tokens-%05d.bin"

struct index_shard {
    int64_t tokens;
    char sha256[65];
};

struct data_index {
    char hash[65]; /* the name of the set */
    enum tokenizer_kind tokenizer;
    bool lowercase;
    bool wide; /* u32 tokens, else u16 */
    int64_t vocab, tokens, source_bytes;
    char vocab_sha256[65]; /* of the vocab file; "" for bytes */
    int n_shards;
    struct index_shard *shards;
};

static inline int64_t index_token_bytes(const struct data_index *x)
{
    return x->wide ? 4 : 2;
}

/* The tokenizer's name in the index, and in the text whose hash names a set. */
const char *index_tokenizer_name(enum tokenizer_kind kind);
NODISCARD err_t index_print(const struct data_index *x, struct buf *ret);
/* ERR_CORRUPT: it is not an index, its hash is wrong, or it contradicts itself. */
NODISCARD err_t index_parse(const void *text, size_t len, struct data_index *ret, struct why *why);
void index_fini(struct data_index *x);

#endif
