/* What the files of byte-pair encoding share. */
#ifndef DTD_COMMON_DATA_BPE_PRIV_H
#define DTD_COMMON_DATA_BPE_PRIV_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include "common/data/bpe.h"
#include "common/data/vocab.h"

#include <pcre2.h>

/* Open addressing by the pair of ids; id -1: free. */
struct bpe_merge {
    int32_t left, right, rank, id;
};

struct bpe_token {
    uint32_t offset, len; /* in bpe.text; len 0: no such token */
};

struct bpe {
    struct buf text;
    struct bpe_token *tokens;
    int32_t n_tokens;
    int32_t bytes[256]; /* id of each byte */
    struct bpe_merge *merges;
    uint32_t mask;     /* slots of merges - 1 */
    int32_t *specials; /* ids, sorted by text */
    int n_specials;
    size_t special_max; /* bytes of the longest */
    bool first[256];    /* a special token begins with this byte */
    bool whole;         /* a piece that is a token is that token (ignore_merges) */
    struct vocab whole_tokens; /* then: the tokens' bytes */
    int32_t *whole_ids;
    pcre2_code *code;
    bool jit;
};

/* ---- bpe_merge.c ---- */

NODISCARD err_t bpe_merges_init(struct bpe *b, size_t n);
/* A pair that is there already takes the new rank. */
void bpe_merges_add(struct bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
/* Arrays of the piece under way, grown as needed. */
struct bpe_work {
    int32_t *ids, *next, *prev, *ranks, *made;
    uint64_t *heap;
    size_t cap, n_heap;
};
void bpe_work_fini(struct bpe_work *w);
/* Ids of one piece of n > 0 bytes, at most n. */
NODISCARD err_t bpe_merge_piece(const struct bpe *b, const uint8_t *text, size_t n, struct bpe_work *work,
                                int32_t *ret_ids, size_t *ret_n);

/* ---- bpe_pattern.c ---- */

extern const char bpe_gpt2_pattern[];
/* Compiles a pattern of Hugging Face's (Oniguruma's syntax) for PCRE2. Only what means the same in both is taken, and
 * nothing that looks behind the place where it begins: ERR_UNSUPPORTED says what and where. */
NODISCARD err_t bpe_pattern_compile(struct bpe *b, const char *pattern, size_t len, struct why *why);

#endif
