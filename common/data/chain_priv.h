/* Shared by the files of chain.h. */
#ifndef DTD_COMMON_DATA_CHAIN_PRIV_H
#define DTD_COMMON_DATA_CHAIN_PRIV_H

#include "common/data/bpe_priv.h"
#include "common/data/chain.h"
#include "common/data/regex.h"
#include "common/data/trie.h"
#include "common/data/vocab.h"

#define CHAIN_MAX_STEPS 32         /* of each kind */
#define CHAIN_SPACE "\xe2\x96\x81" /* U+2581, which SentencePiece writes for a space */

/* Text, and for each byte the bytes of the original text that it stands for, unless spans are not wanted. */
struct chain_text {
    struct buf data;  /* valid UTF-8; a NUL follows */
    struct buf spans; /* struct chain_span */
    bool tracked;
};
struct chain_piece {
    uint32_t from, to; /* bytes in a chain_text */
};

/* ---- chain_norm.c ---- */

enum norm_kind {
    NORM_FORM,
    NORM_LOWER,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_BERT,
    NORM_PRECOMPILED,
    NORM_BYTES,
    NORM_SENTENCEPIECE
};
struct norm_step {
    enum norm_kind kind;
    bool compatible, compose;                   /* FORM */
    bool left, right;                           /* STRIP */
    bool clean, chinese, accents, lower;        /* BERT */
    bool dummy_prefix, squeeze, escape, suffix; /* SENTENCEPIECE */
    struct buf pattern, content;                /* REPLACE by a literal; content: REPLACE, PREPEND */
    struct regex *regex;                        /* REPLACE by a regular expression */
    struct buf map;                             /* PRECOMPILED, SENTENCEPIECE: the double array (uint32_t) */
    struct buf map_text;                        /* and its replacements, each with a NUL */
    const struct trie *kept;                    /* SENTENCEPIECE: strings that are not normalized */
};
void norm_step_fini(struct norm_step *s);
/* Takes a SentencePiece character map apart. ERR_INVALID: it is damaged. */
NODISCARD err_t norm_map_read(struct norm_step *s, const uint8_t *blob, size_t len);

/* ---- chain_pre.c ---- */

enum pre_kind { PRE_BYTES, PRE_METASPACE, PRE_REGEX, PRE_LITERAL, PRE_PUNCTUATION, PRE_DIGITS, PRE_WORDS, PRE_SPACES };
enum pre_behavior { PRE_REMOVED, PRE_ISOLATED, PRE_MERGED_PREVIOUS, PRE_MERGED_NEXT, PRE_CONTIGUOUS, PRE_BEHAVIORS };
enum pre_prepend { PRE_ALWAYS, PRE_FIRST, PRE_NEVER };
struct pre_step {
    enum pre_kind kind;
    enum pre_behavior behavior;
    bool invert;
    bool prefix_space; /* BYTES */
    bool split;        /* METASPACE */
    enum pre_prepend prepend;
    struct buf literal;  /* LITERAL; METASPACE: what replaces a space */
    struct regex *regex; /* REGEX, and BYTES with its pattern */
};

/* ---- added tokens: chain_added.c ---- */

struct added_token {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    struct buf content, matched; /* matched: the content, normalized if the token is */
};
struct added_tokens {
    struct added_token *list;
    int n;
    struct trie tries[BPE_PASSES]; /* values: indices of the list */
};

/* ---- models ---- */

enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL };
struct chain {
    struct norm_step norms[CHAIN_MAX_STEPS];
    struct pre_step pres[CHAIN_MAX_STEPS];
    int n_norms, n_pres;
    struct added_tokens added;
    struct buf before, after; /* int32 ids of the template */

    enum model_kind model;
    struct vocab words;       /* spellings */
    int32_t *ids;             /* of each word */
    struct bpe_token *tokens; /* by id: place in `text`; len 0: none */
    struct buf text;
    int32_t n_tokens;
    int32_t unk; /* -1: none */
    bool fuse_unk, byte_fallback;
    int32_t byte_ids[256]; /* of "<0x00>" ..; -1: not there */
    bool whole;            /* BPE: ignore_merges */
    struct bpe merges;     /* BPE: only its table of merges is used */
    int32_t ascii[128];    /* BPE: ids of single ASCII characters; -1: none */
    bool cuts_pieces;      /* BPE: no token has U+2581 behind another character, so pieces are cut there */
    struct trie kept;      /* of a .model: user-defined pieces, which are not normalized */
    struct trie pieces;    /* UNIGRAM: values are ids */
    double *scores;        /* UNIGRAM: by id */
    double unk_score;
    bool sentencepiece; /* of a .model: sums are rounded to float; bytes of unknown characters come after merging */
    struct buf prefix;  /* WORDPIECE: continuing_subword_prefix */
    int64_t max_chars;  /* WORDPIECE */

    bool decode_bytes, decode_space, decode_fallback, decode_wordpiece;
    bool cuts; /* see chain_cuts */
};

/* The id of a spelling; -1: none. */
static inline int32_t chain_id(const struct chain *c, const uint8_t *p, size_t n)
{
    int32_t number = c->words.n_slots ? vocab_find(&c->words, p, n) : -1;
    return number < 0 ? -1 : c->ids[number];
}

/* ---- chain_build.c: what the readers of all formats call ---- */

struct chain_reader {
    struct chain *c;
    const char *file;
    struct why *why;
};
NODISCARD err_t chain_complain(struct chain_reader *r, err_t err, const char *place, const char *what);
/* Makes room for ids below n. */
NODISCARD err_t chain_reserve(struct chain_reader *r, int64_t n);
/* Adds a token to the vocabulary. */
NODISCARD err_t chain_word_add(struct chain_reader *r, const uint8_t *p, size_t n, int64_t id);
/* Gives an id its spelling without making it a word of the vocabulary. */
NODISCARD err_t chain_spelling_set(struct chain_reader *r, const uint8_t *p, size_t n, int64_t id);
/* After the vocabulary: finds the ids of bytes and of ASCII characters. */
void chain_words_finish(struct chain *c);
/* After everything: normalizes the added tokens, and decides where a stream may be cut. */
NODISCARD err_t chain_finish(struct chain_reader *r);

/* ---- chain_check.c ---- */

void chain_check(struct chain *c);

/* ---- the encoder ---- */

struct chain_encoder {
    const struct chain *chain;
    struct buf pending;
    size_t cut_bytes, try_at;          /* do not try before so many bytes are pending */
    bool begun;                        /* a chunk of this text has been encoded */
    struct chain_text raw, text, a, b; /* text: normalized, if added tokens are looked for in it */
    struct buf pieces, more;           /* struct chain_piece */
    struct buf classes;
    struct regex_matcher *norm_matchers[CHAIN_MAX_STEPS], *pre_matchers[CHAIN_MAX_STEPS];
    struct buf chars; /* of normalization forms */
    struct buf nodes; /* of Viterbi */
    struct buf symbols, starts;
    struct bpe_work work;
    struct chain_cached *cache;
    bool continues; /* the segment continues a text whose beginning was encoded before */
    bool at_start;  /* the segment begins the text */
    bool plain;     /* the spelling of a special token is text */
    struct buf *ids, *spans;
    uint64_t count; /* of steps, without those of `work` */
};

NODISCARD err_t text_put(struct chain_text *t, const void *p, size_t n, struct chain_span span);
NODISCARD err_t text_put_char(struct chain_text *t, uint32_t c, struct chain_span span);
void text_clear(struct chain_text *t);
static inline struct chain_span text_span(const struct chain_text *t, size_t at, size_t n)
{
    const struct chain_span *s = (const struct chain_span *)(const void *)t->spans.data;
    return t->tracked && n ? (struct chain_span){s[at].from, s[at + n - 1].to} : (struct chain_span){0, 0};
}
/* Runs all normalizers over `t`. */
NODISCARD err_t chain_normalize(struct chain_encoder *e, struct chain_text *t);
NODISCARD err_t base64_decode(const char *text, size_t len, struct buf *ret); /* ERR_INVALID: it is not base64 */
/* Cuts e->a into e->pieces; steps may rewrite e->a. */
NODISCARD err_t chain_pre(struct chain_encoder *e);
/* Encodes one piece of e->a. */
NODISCARD err_t chain_piece_encode(struct chain_encoder *e, struct chain_piece p);
void chain_cache_free(struct chain_encoder *e);
NODISCARD err_t chain_cache_new(struct chain_encoder *e);

/* Finds added tokens of a pass in text[n]: calls `gap` with the stretches between them and `token` with each of them.
 */
struct added_walk {
    err_t (*gap)(void *arg, size_t from, size_t to);
    err_t (*token)(void *arg, const struct added_token *t, size_t from, size_t to);
    void *arg;
    bool plain; /* pass over special tokens */
};
NODISCARD err_t added_walk(const struct added_tokens *a, enum bpe_pass pass, const uint8_t *text, size_t n,
                           const struct added_walk *walk);
void added_tokens_fini(struct added_tokens *a);

/* The code point at p, which is valid UTF-8, and its length. */
static inline size_t char_at(const uint8_t *p, uint32_t *ret)
{
    if (p[0] < 0x80) {
        *ret = p[0];
        return 1;
    }
    if (p[0] < 0xe0) {
        *ret = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (p[0] < 0xf0) {
        *ret = (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        return 3;
    }
    *ret = (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    return 4;
}

/* The character that stands for a byte in byte-level vocabularies. */
static inline uint32_t byte_char(uint8_t b)
{
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174)
        return b;
    return 256 + (b < 33 ? b : b < 161 ? b - 127u + 33 : 67);
}

#endif
