/* Byte-level byte-pair encoding as in GPT-2, with Hugging Face's file formats. For common/data only.
 *
 * A regular expression cuts text into pieces, never across a special token. A piece becomes the ids of its bytes; then
 * the adjacent pair of lowest rank is merged, the leftmost first, until no pair has a rank. A model is read-only and
 * may be shared by threads; an encoder belongs to one thread. Bytes that are not UTF-8 become their byte tokens, so
 * decoding returns exactly the encoded bytes. */
#ifndef DTD_COMMON_DATA_BPE_H
#define DTD_COMMON_DATA_BPE_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define BPE_MAX_BYTES ((size_t)64 << 20) /* of a file; more than the tokenizer files of common models have */
#define BPE_MAX_TOKENS (1 << 24)         /* ids are smaller */
#define BPE_MAX_SPECIALS 4096            /* matched literally in the text */
#define BPE_MAX_PIECE ((size_t)32 << 20) /* text that the pattern does not cut; bounds memory */
#define BPE_MAX_PATTERN 4096

/* The content of a file and its name for messages. */
struct bpe_text {
    const char *name;
    const uint8_t *data;
    size_t len;
};

struct vocab_json;
struct bpe;
/* From a tokenizer.json; name: for messages. ERR_INVALID: the sentence names file, place and cause. ERR_UNSUPPORTED: it
 * names the field that requires an unsupported feature. */
NODISCARD err_t bpe_json_new(const char *name, const struct vocab_json *json, struct bpe **ret, struct why *why);
/* From vocab.json and merges.txt: entries that are neither bytes nor results of merges are special tokens. */
NODISCARD err_t bpe_new(const struct bpe_text *vocab, const struct bpe_text *merges, struct bpe **ret, struct why *why);
/* From a .tiktoken file (base64 and rank in each line) or a tekken.json. */
NODISCARD err_t bpe_ranks_new(const struct bpe_text *file, struct bpe **ret, struct why *why);
void bpe_free(struct bpe *b);
bool bpe_same(const struct bpe *a, const struct bpe *b);
/* Calls `each` with the texts and ids of the special tokens. An error of `each` ends the walk. */
NODISCARD err_t bpe_specials_each(const struct bpe *b,
                                  err_t (*each)(void *arg, const char *text, size_t len, int32_t id), void *arg);
/* Largest id + 1. */
int64_t bpe_vocab(const struct bpe *b);
/* The bytes of a token; *ret_len 0: no token has this id. */
const uint8_t *bpe_token(const struct bpe *b, int32_t id, size_t *ret_len);

struct bpe_encoder;
NODISCARD err_t bpe_encoder_new(const struct bpe *b, struct bpe_encoder **ret);
void bpe_encoder_free(struct bpe_encoder *e);
/* From now on the spelling of a special token is text like any other. The text must come in one chunk. */
void bpe_encoder_plain(struct bpe_encoder *e);
/* Encodes a stream of text in chunks of any size; `last` marks the last chunk. Appends int32 ids as soon as later text
 * cannot change them. ERR_LIMIT: more than BPE_MAX_PIECE bytes that the pattern does not cut, or the match exceeds the
 * limits of the pattern engine. */
NODISCARD err_t bpe_encoder_feed(struct bpe_encoder *e, const uint8_t *text, size_t len, bool last, struct buf *ids);
/* Bytes of the stream's end that are not encoded yet. The ids of later bytes do not depend on bytes before them. */
size_t bpe_encoder_pending(const struct bpe_encoder *e);

#endif
