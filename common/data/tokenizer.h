/* Streaming interface of tokenizers, for files that do not fit into memory: text arrives in chunks cut anywhere, and
 * words are emitted complete. For common/data only. */
#ifndef DTD_COMMON_DATA_TOKENIZER_H
#define DTD_COMMON_DATA_TOKENIZER_H

#include "common/data/bpe.h"
#include "common/data/chain.h"
#include "common/data/data.h"
#include "common/data/split.h"
#include "common/data/vocab.h"

#define TOKENIZER_EOS "<eos>"
#define TOKENIZER_UNK "<unk>"

/* Splits text at ASCII white space. `emit` is called with each word, with <eos> for each newline, and with <unk> for a
 * word of more than VOCAB_WORD_MAX_BYTES; an error that it returns ends the feed. */
struct splitter {
    bool lowercase; /* A-Z become a-z */
    err_t (*emit)(void *arg, const uint8_t *word, size_t len);
    void *arg;
    size_t n; /* bytes of an incomplete word at the end of the last chunk; VOCAB_WORD_MAX_BYTES + 1: too long */
    uint8_t word[VOCAB_WORD_MAX_BYTES];
};
NODISCARD err_t splitter_feed(struct splitter *s, const uint8_t *text, size_t len);
/* Ends the text: emits the incomplete word, if any. */
NODISCARD err_t splitter_finish(struct splitter *s);

struct encoder {
    const struct tokenizer *tokenizer;
    struct buf *ids; /* int32 ids are appended */
    struct splitter splitter;
    struct split split;
    struct bpe_encoder *bpe; /* one of the two, created by the first feed */
    struct chain_encoder *chain;
};
void encoder_init(struct encoder *e, const struct tokenizer *tokenizer, struct buf *ids);
void encoder_fini(struct encoder *e);
NODISCARD err_t encoder_feed(struct encoder *e, const uint8_t *text, size_t len);
NODISCARD err_t encoder_finish(struct encoder *e);
/* Number of bytes at the end of what was fed that are not encoded yet. An encoder that begins there, after
 * encoder_continue, gives the same ids. False: it is not known now. */
bool encoder_pending(const struct encoder *e, size_t *ret);
/* For a new encoder: the text does not begin here, but behind text that another encoder had. */
NODISCARD err_t encoder_continue(struct encoder *e);

enum tokenizer_kind tokenizer_kind(const struct tokenizer *t);
/* NULL: the tokenizer is no chain of steps. */
const struct chain *tokenizer_chain(const struct tokenizer *t);
bool tokenizer_lowercase(const struct tokenizer *t);
/* Writes the vocabulary file of counted words. For words: by descending count, then by bytes; <unk> and <eos> are added
 * if they are missing. For split: by bytes, which is the order of Python's sorted(). */
NODISCARD err_t tokenizer_vocab_print(enum tokenizer_kind kind, struct vocab *counted, struct buf *ret);
/* The spelling of a token, as its file has it; *ret_len 0: no token has this id, or the tokenizer is bytes. */
const uint8_t *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *ret_len);
/* Appends the ids that the file's post-processor puts before (`after` false) or behind a text. */
NODISCARD err_t tokenizer_template(const struct tokenizer *t, bool after, struct buf *ids, struct why *why);

#endif
