/* index.json of a prepared set: what the folder holds, sealed with its own hash. Inside common/data only. */
#ifndef DTD_COMMON_DATA_INDEX_H
#define DTD_COMMON_DATA_INDEX_H

#include "common/base/buf.h"
#include "common/conf/job.h"

#include <stdbool.h>
#include <stdint.h>

#define INDEX_MAX_SHARDS 16384 /* each is a mapping, and a process has 65,530 */
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
    char hash[65]; /* the set's name */
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

/* As the index and the text that names a set spell it. */
const char *index_tokenizer_name(enum tokenizer_kind kind);
NODISCARD err_t index_print(const struct data_index *x, struct buf *ret);
/* ERR_CORRUPT when it is no index, not sealed, or contradicts itself. */
NODISCARD err_t index_parse(const void *text, size_t len, struct data_index *ret, struct why *why);
void index_fini(struct data_index *x);

#endif
