/* Shared by the files of the byte-pair encoding. */
#ifndef DTD_COMMON_DATA_BPE_PRIV_H
#define DTD_COMMON_DATA_BPE_PRIV_H

#include "common/data/bpe.h"
#include "common/data/regex.h"
#include "common/data/vocab.h"

/* An entry of the hash table of merges, keyed by the pair of ids; id -1: free. */
struct bpe_merge {
    int32_t left, right, rank, id;
};

struct bpe_token {
    uint32_t offset, len; /* in bpe.text; len 0: no such token */
};

/* Tokens that are matched literally in the text. The matched text need not be the token's bytes: an added token that is
 * spelled like an entry of the vocabulary ("\u0120the") matches this spelling and decodes as that entry (" the"). */
struct bpe_special {
    int32_t id;
    uint32_t offset, len; /* the matched text, in bpe.text */
    bool special;         /* a plain encoder takes it for text; false: an added token that is an ordinary one */
};
struct bpe_specials {
    struct bpe_special *list; /* sorted by text; BPE_MAX_SPECIALS entries are allocated */
    int n;
    size_t longest;  /* length of the longest text in bytes; 0: none */
    bool first[256]; /* whether a text starts with this byte */
};
/* Hugging Face's tokenizers cut the text at tokens of the first kind, then the pieces between them at the second. */
enum bpe_pass { BPE_AS_IS, BPE_NORMALIZED, BPE_PASSES };

struct bpe {
    struct buf text;
    struct bpe_token *tokens;
    int32_t n_tokens;
    int32_t bytes[256]; /* id of each byte value */
    struct bpe_merge *merges;
    uint32_t mask; /* number of slots of merges - 1 */
    struct bpe_specials specials[BPE_PASSES];
    bool whole;                /* ignore_merges: a piece that is a token becomes that token, without merging */
    struct vocab whole_tokens; /* if `whole`: the tokens' bytes, and below their ids */
    int32_t *whole_ids;
    struct buf pattern; /* as the file has it */
    struct regex *regex;
};

/* ---- bpe_merge.c ---- */

NODISCARD err_t bpe_merges_init(struct bpe *b, size_t n);
/* If the pair exists already, the new rank replaces the old one. */
void bpe_merges_add(struct bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
/* The pair's entry; NULL: it has none. */
const struct bpe_merge *bpe_merges_find(const struct bpe *b, int32_t left, int32_t right);
/* Working memory for one piece, grown as needed. */
struct bpe_work {
    int32_t *ids, *next, *prev, *ranks;
    uint64_t *heap;
    size_t cap, n_heap;
    uint64_t steps; /* of the heap, a measure of work */
};
void bpe_work_fini(struct bpe_work *w);
/* Merges ids[n], n > 0, in place. ret_starts (or NULL): for each of the *ret_n ids that are left, the number of the id
 * with which it begins; valid until the next call. */
NODISCARD err_t bpe_merge_ids(const struct bpe *b, int32_t *ids, size_t n, struct bpe_work *work,
                              const uint32_t **ret_starts, size_t *ret_n);
/* Encodes one piece of n > 0 bytes; writes at most n ids. */
NODISCARD err_t bpe_merge_piece(const struct bpe *b, const uint8_t *text, size_t n, struct bpe_work *work,
                                int32_t *ret_ids, size_t *ret_n);

/* ---- bpe_read.c ---- */

extern const char bpe_gpt2_pattern[];

#endif
