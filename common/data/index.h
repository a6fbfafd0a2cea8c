/* index.json of a prepared set: the content of the folder, protected by its own hash. For common/data only. */
#ifndef DTD_COMMON_DATA_INDEX_H
#define DTD_COMMON_DATA_INDEX_H

#include "common/base/buf.h"
#include "common/conf/job.h"
#include "common/data/token_type.h"

#include <stdbool.h>
#include <stdint.h>

#define INDEX_MAX_SHARDS 16384 /* each is a mapping; a process may have 65,530 (vm.max_map_count) */
#define INDEX_MAX_TOKENS ((int64_t)1 << 60)
#define INDEX_MAX_DOCUMENTS ((int64_t)1 << 48)
#define INDEX_MAX_BYTES (64u << 20) /* a set may name 65,536 source files */
#define INDEX_FILE "index.json"
#define INDEX_DOCUMENTS "documents.bin"
#define INDEX_WEIGHTS "weights.bin"
#define INDEX_VOCAB "vocab"
#define INDEX_SHARD "tokens-%05d.bin"

/* A file of another program whose tokens the set uses in place. A file that has another size or time is refused. */
struct index_place {
    char *path; /* absolute */
    enum token_type type;
    int64_t offset;          /* bytes before the first token */
    int64_t bytes, mtime_ns; /* of the whole file, when it was prepared */
};

struct index_shard {
    int64_t tokens;
    char sha256[65];           /* of the shard; of a place: its fingerprint (fingerprint.h) */
    struct index_place *place; /* NULL: the set's own file, INDEX_SHARD */
};

/* What a file gave to the set; for `dtctl data show` only. */
struct index_source {
    char *path, *format;
    int64_t bytes, documents, tokens;
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
    /* Version 2. A set without any of this is written as version 1, which older programs read. */
    int64_t documents;                             /* ends in documents.bin; 0: no boundaries */
    char documents_sha256[65], weights_sha256[65]; /* "": there is no such file */
    int64_t labels;                                /* the largest class of a document and one; 0: they have none */
    int n_sources;
    struct index_source *sources;
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
void index_place_free(struct index_place *p);
void index_fini(struct data_index *x);

#endif
