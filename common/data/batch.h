/* A batch of documents on its way from files to tokens, and threads that encode batches. For common/data only. */
#ifndef DTD_COMMON_DATA_BATCH_H
#define DTD_COMMON_DATA_BATCH_H

#include "common/data/doc_ends.h"
#include "common/data/source.h"

/* One document: first what the reader gave, then the number of its tokens. */
struct batch_doc {
    int64_t row;
    size_t at, len; /* in batch.text; of ids: in batch.given, in elements */
    bool is_ids, weighted, labelled;
    int32_t label;
    int64_t tokens;
};

struct batch {
    const char *path; /* of the file, for messages; a batch is of one file */
    int source;       /* its number */
    struct buf docs;  /* struct batch_doc */
    struct buf text, given, given_weights;
    struct buf ids, weights; /* the result: of all documents; weights only of those that are weighted */
    int64_t consumed;        /* bytes of the file that were read for this batch */
    err_t err;
    struct why why;
};

#define BATCH_BYTES ((size_t)1 << 20)

NODISCARD err_t batch_add(struct batch *b, const struct document *d, struct why *why);
bool batch_full(const struct batch *b);
void batch_reset(struct batch *b);
void batch_fini(struct batch *b);

struct batch_pool;
/* Threads (threads >= 1) that encode. `t` and `ends` stay valid until the pool is freed. */
NODISCARD err_t batch_pool_new(const struct tokenizer *t, const struct doc_ends *ends, int threads,
                               struct batch_pool **ret);
/* An empty batch to fill; NULL: all are in use, take one first. */
struct batch *batch_pool_empty(struct batch_pool *p);
/* Batches come back in the order in which they were put. */
void batch_pool_put(struct batch_pool *p, struct batch *b);
/* Waits for the oldest batch. NULL: none was put. The caller gives it back with batch_pool_release. */
struct batch *batch_pool_take(struct batch_pool *p);
void batch_pool_release(struct batch_pool *p, struct batch *b);
void batch_pool_free(struct batch_pool *p);

#endif
