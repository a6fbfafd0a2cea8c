/* The tokens that mark the begin and the end of each document. For common/data only. */
#ifndef DTD_COMMON_DATA_DOC_ENDS_H
#define DTD_COMMON_DATA_DOC_ENDS_H

#include "common/data/tokenizer.h"

struct doc_ends {
    struct buf before, after; /* int32 ids */
    bool line;                /* words: a document that does not end with a newline gets one, and so <eos> */
};

/* `bos`: file (what the tokenizer file's post-processor puts before a text), none, always, or the text of a token.
 * `eos`: auto (always, if the tokenizer has such a token), file (only what the post-processor puts behind a text),
 * none, always, or the text of a token. NULL or "": file and auto. `t` is used for bpe only, because the vocabulary of
 * words may not be counted yet. ERR_INVALID: the tokenizer has no such token. */
NODISCARD err_t doc_ends_make(enum tokenizer_kind kind, const struct tokenizer *t, const char *bos, const char *eos,
                              struct doc_ends *ret, struct why *why);
void doc_ends_fini(struct doc_ends *e);

#endif
