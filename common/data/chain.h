/* Tokenizers as a chain of steps, as Hugging Face's tokenizers runs them: added tokens are cut out, a normalizer
 * rewrites the text between them, pre-tokenizers cut it into pieces, and a model turns each piece into ids. For
 * common/data only. bpe.h does the same, faster, for byte-level encoding without a normalizer.
 *
 * A chain is read-only and may be shared by threads; an encoder belongs to one thread. Each byte of a text that is not
 * UTF-8 is read as U+FFFD. */
#ifndef DTD_COMMON_DATA_CHAIN_H
#define DTD_COMMON_DATA_CHAIN_H

#include "common/data/bpe.h"

#define CHAIN_MAX_UNCUT ((size_t)64 << 20) /* text within which a stream cannot be cut; bounds memory */

struct vocab_json;
struct chain;
/* From a tokenizer.json. ERR_INVALID: the sentence names file, place and cause. ERR_UNSUPPORTED: it names the field
 * that requires an unsupported feature. */
NODISCARD err_t chain_new(const struct bpe_text *json, struct chain **ret, struct why *why);
/* The same from a file that is read already, of which it takes the words; name: for messages. */
NODISCARD err_t chain_json_new(const char *name, struct vocab_json *json, struct chain **ret, struct why *why);
/* From a SentencePiece .model, of the kinds unigram and bpe. */
NODISCARD err_t chain_sentencepiece_new(const struct bpe_text *file, struct chain **ret, struct why *why);
void chain_free(struct chain *c);
/* Largest id + 1. */
int64_t chain_vocab(const struct chain *c);
/* The spelling of a token in its file; *ret_len 0: no token has this id. */
const uint8_t *chain_token(const struct chain *c, int32_t id, size_t *ret_len);
/* Appends the text of one id. */
NODISCARD err_t chain_decode(const struct chain *c, int32_t id, struct buf *ret);
/* The ids that the post-processor puts before (`after` false) or behind a text. */
const int32_t *chain_template(const struct chain *c, bool after, size_t *ret_n);
/* Whether a stream can be cut at a space between letters, so that memory does not grow with the text. */
bool chain_cuts(const struct chain *c);

/* Whether it comes from a .model, in which no text gives a control piece. */
bool chain_hides_controls(const struct chain *c);

/* Bytes of the text that a token covers. */
struct chain_span {
    uint32_t from, to;
};
struct chain_encoder;
NODISCARD err_t chain_encoder_new(const struct chain *c, struct chain_encoder **ret);
void chain_encoder_free(struct chain_encoder *e);
/* As bpe_encoder_plain. */
void chain_encoder_plain(struct chain_encoder *e);
/* Encodes a stream of text in chunks of any size; `last` marks the last chunk. Appends int32 ids. ERR_LIMIT: more than
 * CHAIN_MAX_UNCUT bytes that cannot be cut, or a pattern exceeds its limits. ERR_UNSUPPORTED: the text has a character
 * that the vocabulary lacks, and there is no token for unknown ones. */
NODISCARD err_t chain_encoder_feed(struct chain_encoder *e, const uint8_t *text, size_t len, bool last,
                                   struct buf *ids);
/* Bytes of the stream's end that are not encoded yet. */
size_t chain_encoder_pending(const struct chain_encoder *e);
/* For a new encoder: text stands before what it is fed, up to a place where a stream was cut. */
void chain_encoder_continue(struct chain_encoder *e);
/* Cuts as soon as so many bytes are pending (default 1 MiB), if the text can be cut. Tests set it to 1. */
void chain_encoder_cut(struct chain_encoder *e, size_t bytes);
/* Steps of loops that might be more than linear (marks, heaps, tries, patterns), since the encoder was created. */
uint64_t chain_encoder_work(const struct chain_encoder *e);
/* Encodes a whole text, and appends a struct chain_span for each id. */
NODISCARD err_t chain_encode(struct chain_encoder *e, const uint8_t *text, size_t len, struct buf *ids,
                             struct buf *spans);

#endif
