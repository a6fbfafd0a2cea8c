/* A preparation in progress, for the files that share the work. For common/data only. */
#ifndef DTD_COMMON_DATA_PREPARATION_H
#define DTD_COMMON_DATA_PREPARATION_H

#include "common/data/chat.h"
#include "common/data/data.h"
#include "common/data/doc_ends.h"
#include "common/data/index.h"
#include "common/data/input.h"
#include "common/data/marks.h"
#include "common/data/shard.h"
#include "common/data/unfinished.h"

#include <limits.h>

struct source {
    struct input input;
    char sha256[65]; /* of the bytes, of ids a fingerprint; "": not read yet */
    /* of ids only: */
    struct token_file tokens;
    char index_sha256[65], losses_sha256[65]; /* of the files beside it; "": none */
};

struct preparation {
    const struct data_prepare *p;
    struct why *why;
    char cache[PATH_MAX];
    struct buf name;              /* the text whose hash is the set's */
    struct unfinished unfinished; /* the folder that is written; its journal is where writing begins */
    int64_t saved_ms;             /* when a journal was written, or writing began */
    struct source *sources;
    int n_sources;        /* at most p->n_files: an .idx and its .bin are one */
    enum input_kind kind; /* of all of them */
    bool plain;           /* text, not compressed: the first version of the format */
    struct tokenizer *tokenizer;
    struct doc_ends ends;
    struct chat *chat; /* NULL: conversations are refused */
    uint8_t *piece;
    int64_t done, total;     /* bytes, over all passes */
    struct data_index index; /* of the set that is written */
};

err_t preparation_fail(struct preparation *x, err_t err);
void preparation_report(struct preparation *x, int64_t bytes);
/* ERR_CANCELED: the caller asked for the end; the sentence is set. */
NODISCARD err_t preparation_stopped(struct preparation *x);
/* Whether it is time to write a journal. */
bool preparation_saves(const struct preparation *x);
/* Writes one, behind sources 0 to `source` - 1, and `offset` documents or bytes of this one. `marks` NULL: the set has
 * no documents. */
NODISCARD err_t preparation_save(struct preparation *x, int source, int64_t offset, struct shard_writer *shards,
                                 struct marks_writer *marks);

/* ---- sources that are documents (documents.c) ---- */

/* Calls `each` with all documents in order, but not with those before document `offset` of source `from`; `source` is
 * the number of the file. */
typedef err_t each_document_fn(void *arg, int source, const struct document *d);
NODISCARD err_t documents_each(struct preparation *x, int from, int64_t offset, each_document_fn *each, void *arg);
/* Encodes all documents and writes tokens, documents.bin and weights.bin. Fills in the index's documents and sources.
 */
NODISCARD err_t documents_write(struct preparation *x, struct shard_writer *shards);
/* Fills in the index's sources, without documents and tokens. */
NODISCARD err_t documents_list(struct preparation *x);

/* ---- sources that are ids (tokens.c) ---- */

/* Opens the files and sets their fingerprints; checks a part of the ids against the vocabulary. */
NODISCARD err_t tokens_open(struct preparation *x);
/* Fills in the index, and writes documents.bin and weights.bin. */
NODISCARD err_t tokens_write(struct preparation *x);

#endif
