/* Reads a SentencePiece .model: a protobuf message (sentencepiece_model.proto), of which few fields matter. Field
 * numbers are those of that file.
 *
 * Its BPE has no list of merges. Two neighbours may merge if their text is a piece, and the piece's score is the
 * priority; pieces of the same score have the same rank, so the leftmost is merged. Bytes for unknown characters come
 * after merging. Its Unigram adds scores as floats. */
#include "common/data/chain_priv.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PIECE 1024 /* bytes; SentencePiece trains pieces of up to 16 characters */

/* ---- the encoding of protobuf ---- */

struct wire {
    const uint8_t *at, *end;
};
struct field {
    uint32_t number;
    uint64_t value;    /* of a varint, or the bits of a fixed one */
    struct wire bytes; /* of a string or message */
    bool delimited;
};

static bool varint_read(struct wire *w, uint64_t *ret)
{
    *ret = 0;
    for (int shift = 0; shift < 64 && w->at < w->end; shift += 7) {
        uint8_t b = *w->at++;
        *ret |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80)
            return true;
    }
    return false;
}

static bool fixed_read(struct wire *w, size_t n, uint64_t *ret)
{
    if ((size_t)(w->end - w->at) < n)
        return false;
    *ret = 0;
    memcpy(ret, w->at, n);
    w->at += n;
    return true;
}

/* False: the message is damaged. */
static bool field_read(struct wire *w, struct field *f)
{
    uint64_t key, n;
    *f = (struct field){0};
    if (!varint_read(w, &key) || key >> 3 > UINT32_MAX || !(key >> 3))
        return false;
    f->number = (uint32_t)(key >> 3);
    switch (key & 7) {
    case 0:
        return varint_read(w, &f->value);
    case 1:
        return fixed_read(w, 8, &f->value);
    case 5:
        return fixed_read(w, 4, &f->value);
    case 2:
        if (!varint_read(w, &n) || n > (uint64_t)(w->end - w->at))
            return false;
        f->bytes = (struct wire){w->at, w->at + n};
        f->delimited = true;
        w->at += n;
        return true;
    default:
        return false;
    }
}

/* ---- the message ---- */

enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE };
struct piece {
    const uint8_t *text;
    size_t len;
    float score;
    enum piece_type type;
};

struct model_reader {
    struct chain_reader r;
    struct buf pieces; /* struct piece */
    int n;
    uint64_t kind; /* 1: unigram, 2: bpe */
    bool suffix;
    struct norm_step *norm;
};

static err_t damaged(struct model_reader *m)
{
    return chain_complain(&m->r, ERR_INVALID, "", "it is damaged, or not a SentencePiece model");
}

static err_t piece_read(struct model_reader *m, struct wire w)
{
    struct piece p = {.type = PIECE_NORMAL};
    struct field f;
    char place[40];
    while (w.at < w.end) {
        if (!field_read(&w, &f))
            return damaged(m);
        if (f.number == 1 && f.delimited) {
            p.text = f.bytes.at;
            p.len = (size_t)(f.bytes.end - f.bytes.at);
        }
        if (f.number == 2)
            memcpy(&p.score, &f.value, sizeof(p.score));
        if (f.number == 3)
            p.type = (enum piece_type)f.value;
    }
    snprintf(place, sizeof(place), "piece %d", m->n);
    if (!p.len || p.len > MAX_PIECE || memchr(p.text, '\0', p.len) || !isfinite(p.score))
        return chain_complain(&m->r, ERR_INVALID, place, "it is empty, too long, or has no score");
    if (p.type < PIECE_NORMAL || p.type > PIECE_BYTE)
        return chain_complain(&m->r, ERR_UNSUPPORTED, place, "its type is not known");
    m->n++;
    err_t err = buf_append(&m->pieces, &p, sizeof(p));
    return err ? chain_complain(&m->r, err, "", err_text(err)) : OK;
}

static err_t trainer_read(struct model_reader *m, struct wire w)
{
    struct field f;
    while (w.at < w.end) {
        if (!field_read(&w, &f))
            return damaged(m);
        if (f.number == 3)
            m->kind = f.value;
        if (f.number == 24)
            m->suffix = f.value;
        if (f.number == 35)
            m->r.c->byte_fallback = f.value;
    }
    return OK;
}

static err_t normalizer_read(struct model_reader *m, struct wire w)
{
    struct field f;
    err_t err = OK;
    while (!err && w.at < w.end) {
        if (!field_read(&w, &f))
            return damaged(m);
        if (f.number == 2 && f.delimited)
            err = norm_map_read(m->norm, f.bytes.at, (size_t)(f.bytes.end - f.bytes.at));
        if (f.number == 3)
            m->norm->dummy_prefix = f.value;
        if (f.number == 4)
            m->norm->squeeze = f.value;
        if (f.number == 5)
            m->norm->escape = f.value;
    }
    return err ? chain_complain(&m->r, err, "normalizer_spec", "its map of characters is damaged") : OK;
}

static err_t message_read(struct model_reader *m, struct wire w)
{
    struct field f;
    err_t err = OK;
    while (!err && w.at < w.end) {
        if (!field_read(&w, &f))
            return damaged(m);
        if (f.delimited && f.number == 1)
            err = piece_read(m, f.bytes);
        if (f.delimited && f.number == 2)
            err = trainer_read(m, f.bytes);
        if (f.delimited && f.number == 3)
            err = normalizer_read(m, f.bytes);
        if (m->n > BPE_MAX_TOKENS)
            return chain_complain(&m->r, ERR_INVALID, "", "it has more than 16777216 pieces");
    }
    return err;
}

/* ---- the vocabulary ---- */

static const struct piece *pieces_of(const struct model_reader *m)
{
    return (const struct piece *)(const void *)m->pieces.data;
}

static bool matches_text(const struct piece *p)
{
    return p->type == PIECE_NORMAL || p->type == PIECE_USER_DEFINED;
}

/* Only pieces that can match text are words; the bytes and the unknown piece are found by their types. */
static err_t vocabulary_make(struct model_reader *m)
{
    struct chain *c = m->r.c;
    const struct piece *p = pieces_of(m);
    err_t err = chain_reserve(&m->r, m->n);
    for (int i = 0; i < 256; i++)
        c->byte_ids[i] = -1;
    for (int i = 0; !err && i < m->n; i++) {
        unsigned byte;
        char text[8] = "";
        if (matches_text(&p[i]) && chain_id(c, p[i].text, p[i].len) >= 0)
            return chain_complain(&m->r, ERR_INVALID, "", "a piece occurs twice");
        err = matches_text(&p[i]) ? chain_word_add(&m->r, p[i].text, p[i].len, i)
                                  : chain_spelling_set(&m->r, p[i].text, p[i].len, i);
        if (p[i].type == PIECE_UNKNOWN)
            c->unk = i;
        memcpy(text, p[i].text, p[i].len < 7 ? p[i].len : 7);
        if (p[i].type == PIECE_BYTE && sscanf(text, "<0x%02X>", &byte) == 1)
            c->byte_ids[byte & 0xff] = i;
        if (!err && p[i].type == PIECE_USER_DEFINED)
            err = trie_add(&c->kept, p[i].text, p[i].len, i);
    }
    if (!err && c->unk < 0)
        return chain_complain(&m->r, ERR_INVALID, "", "it has no piece for unknown characters");
    return err;
}

/* ---- BPE ---- */

/* Characters that occur in pieces but are none: neighbours may still merge with them. They get ids behind the
 * vocabulary, which only the encoder sees. */
static err_t characters_add(struct model_reader *m)
{
    struct chain *c = m->r.c;
    const struct piece *p = pieces_of(m);
    int32_t next = m->n, number;
    err_t err = OK;
    uint32_t ch;
    for (int i = 0; !err && i < m->n; i++)
        for (size_t at = 0, n; !err && matches_text(&p[i]) && at < p[i].len; at += n) {
            n = char_at(p[i].text + at, &ch);
            if (chain_id(c, p[i].text + at, n) >= 0)
                continue;
            err = vocab_add(&c->words, p[i].text + at, n, &number);
            int32_t *ids = err ? NULL : realloc(c->ids, ((size_t)number + 1) * 2 * sizeof(*ids));
            if (!ids)
                return chain_complain(&m->r, ERR_NOMEM, "", err_text(ERR_NOMEM));
            c->ids = ids;
            c->ids[number] = next++;
        }
    return err;
}

static int score_compare(const void *a, const void *b, void *arg)
{
    const struct piece *p = arg;
    float x = p[*(const int *)a].score, y = p[*(const int *)b].score;
    return (x < y) - (x > y);
}

/* Adds all ways to cut a piece into two. */
static void splits_add(struct model_reader *m, int id, int32_t rank)
{
    struct chain *c = m->r.c;
    const struct piece *p = &pieces_of(m)[id];
    uint32_t ch;
    for (size_t at = char_at(p->text, &ch); at < p->len; at += char_at(p->text + at, &ch)) {
        int32_t left = chain_id(c, p->text, at), right = left < 0 ? -1 : chain_id(c, p->text + at, p->len - at);
        if (right >= 0)
            bpe_merges_add(&c->merges, left, right, rank, id);
    }
}

static err_t merges_make(struct model_reader *m)
{
    const struct piece *p = pieces_of(m);
    int64_t splits = 0;
    int *order = malloc(((size_t)m->n + 1) * sizeof(*order));
    if (!order)
        return chain_complain(&m->r, ERR_NOMEM, "", err_text(ERR_NOMEM));
    for (int i = 0; i < m->n; i++) {
        order[i] = i;
        splits += matches_text(&p[i]) ? (int64_t)p[i].len - 1 : 0;
    }
    qsort_r(order, (size_t)m->n, sizeof(*order), score_compare, (void *)p);
    err_t err = splits > BPE_MAX_TOKENS ? ERR_LIMIT : bpe_merges_init(&m->r.c->merges, (size_t)splits);
    for (int i = 0, rank = 0; !err && i < m->n; i++) {
        rank += i && p[order[i]].score < p[order[i - 1]].score;
        if (matches_text(&p[order[i]]))
            splits_add(m, order[i], rank);
    }
    free(order);
    return err ? chain_complain(&m->r, err, "", err == ERR_LIMIT ? "its pieces are too long" : err_text(err)) : OK;
}

static err_t bpe_make(struct model_reader *m)
{
    const struct piece *p = pieces_of(m);
    m->r.c->model = MODEL_BPE;
    m->r.c->fuse_unk = true;
    for (int i = 0; i < m->n; i++)
        if (p[i].type == PIECE_UNUSED)
            return chain_complain(&m->r, ERR_UNSUPPORTED, "", "pieces of type UNUSED are not supported in BPE");
    err_t err = characters_add(m);
    if (!err)
        err = merges_make(m);
    for (int i = 0; i < 128; i++) {
        uint8_t one = (uint8_t)i;
        m->r.c->ascii[i] = chain_id(m->r.c, &one, 1);
    }
    return err;
}

/* ---- Unigram ---- */

static err_t unigram_make(struct model_reader *m)
{
    struct chain *c = m->r.c;
    const struct piece *p = pieces_of(m);
    float least = FLT_MAX;
    err_t err = OK;
    c->model = MODEL_UNIGRAM;
    c->scores = calloc((size_t)m->n + 1, sizeof(*c->scores));
    if (!c->scores)
        return chain_complain(&m->r, ERR_NOMEM, "", err_text(ERR_NOMEM));
    for (int i = 0; i < m->n; i++)
        if (p[i].type == PIECE_NORMAL)
            least = p[i].score < least ? p[i].score : least;
    for (int i = 0; !err && i < m->n; i++) {
        /* sentencepiece 0.2.3 ignores the score of a user-defined piece; found by experiment */
        bool defined = p[i].type == PIECE_USER_DEFINED;
        c->scores[i] = (double)(defined ? 0.1f * (float)p[i].len - 0.1f : p[i].score);
        if (matches_text(&p[i]))
            err = trie_add(&c->pieces, p[i].text, p[i].len, i);
    }
    c->unk_score = (double)(least - 10.0f);
    return err ? chain_complain(&m->r, err, "", err_text(err)) : OK;
}

/* ---- the file ---- */

static err_t model_read(struct model_reader *m, const struct bpe_text *file)
{
    err_t err = message_read(m, (struct wire){file->data, file->data + file->len});
    if (!err && !m->n)
        return damaged(m);
    if (!err && m->kind != 1 && m->kind != 2)
        return chain_complain(&m->r, ERR_UNSUPPORTED, "trainer_spec",
                              "its model_type is neither unigram nor bpe (docs/use/tokenizers.md lists what is read)");
    m->norm->suffix = m->suffix;
    m->norm->kept = &m->r.c->kept;
    m->r.c->decode_space = m->norm->escape;
    m->r.c->decode_fallback = m->r.c->byte_fallback;
    err = err ? err : vocabulary_make(m);
    err = err ? err : m->kind == 1 ? unigram_make(m) : bpe_make(m);
    return err ? err : chain_finish(&m->r);
}

err_t chain_sentencepiece_new(const struct bpe_text *file, struct chain **ret, struct why *why)
{
    struct chain *c = calloc(1, sizeof(*c));
    struct model_reader m = {.r = {c, file->name, why}, .kind = 1};
    if (!c)
        return why_set(why, ERR_NOMEM, "%s: %s", file->name, err_text(ERR_NOMEM));
    c->unk = -1;
    c->sentencepiece = true;
    c->n_norms = 1;
    m.norm = &c->norms[0];
    *m.norm = (struct norm_step){.kind = NORM_SENTENCEPIECE, .dummy_prefix = true, .squeeze = true, .escape = true};
    err_t err = model_read(&m, file);
    buf_fini(&m.pieces);
    if (err) {
        chain_free(c);
        return err;
    }
    *ret = c;
    return OK;
}
