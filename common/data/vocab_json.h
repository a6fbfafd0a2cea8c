/* Reads a tokenizer.json, or a vocab.json. Its words and merges are hundreds of thousands of values, which a tree of
 * JSON would hold in as many allocations; here they are tables, and only the rest of the file is a tree. For
 * common/data only. */
#ifndef DTD_COMMON_DATA_VOCAB_JSON_H
#define DTD_COMMON_DATA_VOCAB_JSON_H

#include "common/data/bpe.h"
#include "common/data/vocab.h"

#include <jansson.h>

enum vocab_json_kind { VOCAB_JSON_TOKENIZER, VOCAB_JSON_WORDS };

/* An item of model.merges: one text, which should contain two tokens, or a list of two; NONE: it is no merge. */
enum vocab_json_item { VOCAB_JSON_NONE, VOCAB_JSON_TEXT, VOCAB_JSON_PAIR };
struct vocab_json_merge {
    enum vocab_json_item kind;
    uint32_t left, n_left, right, n_right; /* places in `text`; TEXT: it is `left` */
};

/* An item of model.vocab, if that is a list: a piece and its score, or neither. */
struct vocab_json_piece {
    bool valid;
    uint32_t text, n; /* place in `text` */
    double score;
};

struct vocab_json {
    json_t *root;       /* TOKENIZER: the file, without items of model.vocab and model.merges; WORDS: NULL */
    struct vocab words; /* of model.vocab, or of the file, in the file's order */
    struct buf ids;     /* int64_t for each word; -1: its value is not an integer */
    bool model;         /* WORDS: the value of "model" is an object, so the file is a tokenizer.json */
    struct buf pieces;  /* struct vocab_json_piece */
    struct buf merges;  /* struct vocab_json_merge */
    struct buf text;    /* of pieces and merges */
};

/* The words and merges are empty if the file has none, or values of other types, which then are in `root`. ERR_INVALID:
 * the sentence names the file and the line. ERR_LIMIT: more than BPE_MAX_BYTES. */
NODISCARD err_t vocab_json_read(const struct bpe_text *file, enum vocab_json_kind kind, struct vocab_json *ret,
                                struct why *why);
void vocab_json_fini(struct vocab_json *v);
static inline int64_t vocab_json_id(const struct vocab_json *v, int32_t number)
{
    return ((const int64_t *)(const void *)v->ids.data)[number];
}
/* The id of a word; -1: there is no such word. */
static inline int64_t vocab_json_find(const struct vocab_json *v, const void *word, size_t n)
{
    int32_t number = vocab_find(&v->words, word, n);
    return number < 0 ? -1 : vocab_json_id(v, number);
}
static inline size_t vocab_json_pieces(const struct vocab_json *v)
{
    return v->pieces.len / sizeof(struct vocab_json_piece);
}
static inline const struct vocab_json_piece *vocab_json_piece(const struct vocab_json *v, size_t i)
{
    return (const struct vocab_json_piece *)(const void *)v->pieces.data + i;
}
static inline size_t vocab_json_merges(const struct vocab_json *v)
{
    return v->merges.len / sizeof(struct vocab_json_merge);
}
static inline const struct vocab_json_merge *vocab_json_merge(const struct vocab_json *v, size_t i)
{
    return (const struct vocab_json_merge *)(const void *)v->merges.data + i;
}

#endif
