/* The journal of a set that is being prepared: how far its files are durable, so that a later run continues there. For
 * common/data only; one thread. */
#ifndef DTD_COMMON_DATA_JOURNAL_H
#define DTD_COMMON_DATA_JOURNAL_H

#include "common/data/index.h"

#define JOURNAL_FILE "journal"

struct journal {
    char hash[65]; /* name of the set: it covers the files' contents, the tokenizer and all rules */
    int64_t cap;   /* maximum tokens per shard */
    /* Input that is encoded: the sources before `source`, and of this one the first `offset` documents, or bytes of
     * its text. */
    int source;
    int64_t offset;
    /* What the set's files contain. The last shard is open if its sha256 is "". */
    int n_shards;
    struct index_shard *shards;
    int64_t documents;
    bool weighted;
    int64_t labels; /* of the index */
    uint8_t bits;   /* of weights.bin: its last byte, which is incomplete */
    int n_counts;   /* of documents: sources 0 to `source`; of text: 0 */
    struct journal_count {
        int64_t documents, tokens;
    } * counts;
};

NODISCARD err_t journal_print(const struct journal *j, struct buf *ret);
/* ERR_CORRUPT: it is no journal, or it contradicts itself. The caller frees *ret with journal_fini. */
NODISCARD err_t journal_parse(const void *text, size_t len, struct journal *ret);
void journal_fini(struct journal *j);

#endif
