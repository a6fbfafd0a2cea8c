/* Byte-pair encoding over bytes, as GPT-2 has it and Hugging Face writes it down. Inside common/data only.
 *
 * Text is cut into pieces by a regular expression, never across a special token; a piece becomes the ids of its bytes,
 * and the adjacent pair of lowest rank is merged, the leftmost first, until no pair has a rank. A model is read-only
 * and shared by threads; an encoder belongs to one. Bytes that are no UTF-8 stand for themselves, so decoding gives
 * back what was encoded, whatever it was. */
#ifndef DTD_COMMON_DATA_BPE_H
#define DTD_COMMON_DATA_BPE_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define BPE_MAX_BYTES ((size_t)64 << 20) /* of a file */
#define BPE_MAX_TOKENS (1 << 24)         /* ids are below */
#define BPE_MAX_SPECIALS 4096            /* matched in the text as they stand */
#define BPE_MAX_PIECE ((size_t)16 << 20) /* what the pattern does not cut */
#define BPE_MAX_PATTERN 4096

/* A file and what messages call it. */
struct bpe_text {
    const char *name;
    const uint8_t *data;
    size_t len;
};

struct bpe;
/* `merges` NULL: `vocab` is a tokenizer.json, which has everything; else they are vocab.json and merges.txt, and
 * entries that no byte and no merge makes are special tokens. ERR_INVALID names file, place and cause; ERR_UNSUPPORTED
 * a field that asks for what is not done here. */
NODISCARD err_t bpe_new(const struct bpe_text *vocab, const struct bpe_text *merges, struct bpe **ret, struct why *why);
void bpe_free(struct bpe *b);
/* Largest id + 1. */
int64_t bpe_vocab(const struct bpe *b);
/* The bytes of a token; none for an id that no token has. */
const uint8_t *bpe_token(const struct bpe *b, int32_t id, size_t *ret_len);

struct bpe_encoder;
NODISCARD err_t bpe_encoder_new(const struct bpe *b, struct bpe_encoder **ret);
void bpe_encoder_free(struct bpe_encoder *e);
/* Text arrives in pieces cut anywhere, the last one with `last`; int32 ids are appended as far as they are certain.
 * ERR_LIMIT: more than BPE_MAX_PIECE bytes that the pattern does not cut, or cannot be matched within its bounds. */
NODISCARD err_t bpe_encoder_feed(struct bpe_encoder *e, const uint8_t *text, size_t len, bool last, struct buf *ids);

#endif
