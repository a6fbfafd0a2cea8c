/* A small byte-pair vocabulary, trained here, and slow implementations of splitting and encoding: the oracle for
 * common/data/bpe*.c, with which it shares no code. */
#ifndef DTD_TESTS_COMMON_DATA_BPE_VOCAB_H
#define DTD_TESTS_COMMON_DATA_BPE_VOCAB_H

#include "tests/common/data/files.h"

#define SMALL_MERGES 300
#define SMALL_END "<|endoftext|>"
#define SMALL_END_ID (256 + SMALL_MERGES)
#define SMALL_MAX_TOKEN 64

struct small {
    int n; /* merges */
    int left[SMALL_MERGES], right[SMALL_MERGES];
    uint8_t text[256 + SMALL_MERGES][SMALL_MAX_TOKEN];
    int len[256 + SMALL_MERGES];
    struct buf vocab, merges, json; /* vocab.json, merges.txt, tokenizer.json */
};

/* ---- splitting: GPT-2's pattern by hand, for the characters that the tests use ---- */

enum small_class { SMALL_LETTER, SMALL_DIGIT, SMALL_SPACE, SMALL_OTHER };

/* Class and length of the character at p. */
static inline enum small_class small_class(const char *p, size_t n, size_t *ret)
{
    static const struct {
        const char *text;
        enum small_class class;
    } known[] = {{"\xc3\xa9", SMALL_LETTER},        {"\xe4\xb8\xad", SMALL_LETTER},    {"\xc2\xb2", SMALL_DIGIT},
                 {"\xc2\xa0", SMALL_SPACE},         {"\xe2\x80\x83", SMALL_SPACE},     {"\xe1\xa0\x8e", SMALL_OTHER},
                 {"\xe2\x82\xac", SMALL_OTHER},     {"\xf0\x9f\x98\x80", SMALL_OTHER}, {"\xc2\x85", SMALL_SPACE},
                 {"\xf0\x9d\x94\x84", SMALL_LETTER}};
    *ret = 1;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (n >= strlen(known[i].text) && memcmp(p, known[i].text, strlen(known[i].text)) == 0) {
            *ret = strlen(known[i].text);
            return known[i].class;
        }
    if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z'))
        return SMALL_LETTER;
    if (*p >= '0' && *p <= '9')
        return SMALL_DIGIT;
    return *p == ' ' || (*p >= '\t' && *p <= '\r') ? SMALL_SPACE : SMALL_OTHER;
}

static inline size_t small_run(const char *p, size_t n, enum small_class class)
{
    size_t at = 0, len;
    while (at < n && small_class(p + at, n - at, &len) == class)
        at += len;
    return at;
}

/* Length of the piece that starts at p in a text of n bytes, which is valid UTF-8. */
static inline size_t small_piece(const char *p, size_t n)
{
    static const char *const ends[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (n >= strlen(ends[i]) && memcmp(p, ends[i], strlen(ends[i])) == 0)
            return strlen(ends[i]);
    size_t space = *p == ' ' && n > 1, len, last = 0;
    enum small_class class = small_class(p + space, n - space, &len);
    if (class != SMALL_SPACE)
        return space + small_run(p + space, n - space, class);
    size_t run = small_run(p, n, SMALL_SPACE);
    for (size_t at = 0; at < run; at += len) {
        small_class(p + at, n - at, &len);
        last = at;
    }
    return run < n && last ? last : run; /* the last of several spaces belongs to the next piece */
}

/* ---- training ---- */

static inline void small_join(struct small *s, int *ids, int *n, int left, int right, int made)
{
    int to = 0;
    for (int i = 0; i < *n; i++)
        if (i + 1 < *n && ids[i] == left && ids[i + 1] == right) {
            ids[to++] = made;
            i++;
        } else {
            ids[to++] = ids[i];
        }
    *n = to;
}

/* Finds the most frequent pair in ids[n] (-1 between pieces), the smallest if several are equally frequent. False: no
 * pair occurs twice. */
static inline bool small_best(const struct small *s, const int *ids, int n, int *left, int *right)
{
    static int counts[256 + SMALL_MERGES][256 + SMALL_MERGES];
    int best = 1;
    memset(counts, 0, sizeof(counts));
    for (int i = 0; i + 1 < n; i++)
        if (ids[i] >= 0 && ids[i + 1] >= 0 && s->len[ids[i]] + s->len[ids[i + 1]] <= SMALL_MAX_TOKEN)
            counts[ids[i]][ids[i + 1]]++;
    for (int a = 0; a < 256 + s->n; a++)
        for (int b = 0; b < 256 + s->n; b++)
            if (counts[a][b] > best) {
                best = counts[a][b];
                *left = a;
                *right = b;
            }
    return best > 1;
}

static inline void small_train(struct small *s, const char *text)
{
    static int ids[1 << 16];
    int n = 0;
    for (int i = 0; i < 256; i++) {
        s->text[i][0] = (uint8_t)i;
        s->len[i] = 1;
    }
    for (size_t at = 0, size = strlen(text); at < size;) {
        size_t len = small_piece(text + at, size - at);
        for (size_t i = 0; i < len; i++)
            ids[n++] = (uint8_t)text[at + i];
        ids[n++] = -1;
        at += len;
    }
    for (int a, b; s->n < SMALL_MERGES && small_best(s, ids, n, &a, &b); s->n++) {
        int made = 256 + s->n;
        s->left[s->n] = a;
        s->right[s->n] = b;
        memcpy(s->text[made], s->text[a], (size_t)s->len[a]);
        memcpy(s->text[made] + s->len[a], s->text[b], (size_t)s->len[b]);
        s->len[made] = s->len[a] + s->len[b];
        small_join(s, ids, &n, a, b, made);
    }
}

/* ---- files ---- */

/* The table of characters that encode bytes, built like in GPT-2's code. */
static inline void small_char(uint8_t byte, bool json, struct buf *ret)
{
    uint32_t c = byte, extra = 0;
    for (uint32_t i = 0; i <= byte; i++) {
        bool own = (i >= '!' && i <= '~') || (i >= 0xa1 && i <= 0xac) || (i >= 0xae && i <= 0xff);
        c = own ? i : 256 + extra++;
    }
    if (json && (c == '"' || c == '\\'))
        assert_ok(buf_append(ret, "\\", 1));
    if (c < 0x80)
        assert_ok(buf_printf(ret, "%c", (int)c));
    else
        assert_ok(buf_printf(ret, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 63))));
}

static inline void small_token(const struct small *s, int id, bool json, struct buf *ret)
{
    for (int i = 0; i < s->len[id]; i++)
        small_char(s->text[id][i], json, ret);
}

static inline void small_vocab(const struct small *s, bool special, struct buf *ret)
{
    assert_ok(buf_printf(ret, "{"));
    for (int id = 0; id < 256 + s->n; id++) {
        assert_ok(buf_printf(ret, "%s\"", id ? ", " : ""));
        small_token(s, id, true, ret);
        assert_ok(buf_printf(ret, "\": %d", id));
    }
    assert_ok(buf_printf(ret, special ? ", \"%s\": %d}\n" : "}\n", SMALL_END, SMALL_END_ID));
}

/* Merges in tokenizer.json are pairs or, with `old`, strings. */
static inline void small_merges(const struct small *s, bool json, bool old, struct buf *ret)
{
    for (int i = 0; i < s->n; i++) {
        if (json)
            assert_ok(buf_printf(ret, old ? "%s\"" : "%s[\"", i ? ",\n" : ""));
        small_token(s, s->left[i], json, ret);
        assert_ok(buf_printf(ret, json && !old ? "\", \"" : " "));
        small_token(s, s->right[i], json, ret);
        assert_ok(buf_printf(ret, json ? (old ? "\"" : "\"]") : "\n"));
    }
}

#define SMALL_BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true}"

/* Writes tokenizer.json. `model`: additional fields of the model; `pre`: the pre-tokenizer. */
static inline void small_json(const struct small *s, const char *model, const char *pre, bool old, struct buf *ret)
{
    ret->len = 0;
    assert_ok(
        buf_printf(ret,
                   "{\"version\": \"1.0\", \"normalizer\": null, \"pre_tokenizer\": %s,\n\"added_tokens\": "
                   "[{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
                   "false, \"normalized\": false, \"special\": true}],\n\"model\": {\"type\": \"BPE\", %s\"vocab\": ",
                   pre, SMALL_END_ID, SMALL_END, model));
    small_vocab(s, false, ret);
    assert_ok(buf_printf(ret, ", \"merges\": ["));
    small_merges(s, true, old, ret);
    assert_ok(buf_printf(ret, "]}}\n"));
}

static inline struct small *small_new(void)
{
    static const char text[] =
        "The quick brown fox jumps over the lazy dog, and the other dogs don't mind: they're asleep. "
        "There were 1234 of them in 2024, there'll be 12345 in 2025; \xc3\xa9t\xc3\xa9 \xc3\xa9tait "
        "\xe4\xb8\xad\xe4\xb8\xad.\n\n"
        "    for (int i = 0; i < n; i++) {\n        the_other[i] = the_one[i] + 1;\n    }\n"
        "She's sure that he'd say I'm right, and we've seen that the theory of the thing is there to be theirs.\n";
    struct small *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    small_train(s, text);
    small_vocab(s, true, &s->vocab);
    assert_ok(buf_printf(&s->merges, "#version: 0.2\n"));
    small_merges(s, false, false, &s->merges);
    small_json(s, "", SMALL_BYTE_LEVEL, false, &s->json);
    return s;
}

static inline void small_free(struct small *s)
{
    buf_fini(&s->vocab);
    buf_fini(&s->merges);
    buf_fini(&s->json);
    free(s);
}

/* ---- encoding ---- */

static inline void small_encode_piece(const struct small *s, const uint8_t *p, size_t n, struct buf *ret)
{
    int *ids = malloc((n + 1) * sizeof(*ids)), count = (int)n;
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = p[i];
    for (;;) { /* the applicable merge of lowest rank, at its leftmost place */
        int rank = s->n, at = -1;
        for (int i = 0; i + 1 < count; i++)
            for (int m = 0; m < rank; m++)
                if (s->left[m] == ids[i] && s->right[m] == ids[i + 1]) {
                    rank = m;
                    at = i;
                }
        if (at < 0)
            break;
        ids[at] = 256 + rank;
        memmove(&ids[at + 1], &ids[at + 2], (size_t)(count - at - 2) * sizeof(*ids));
        count--;
    }
    for (int i = 0; i < count; i++) {
        int32_t id = ids[i];
        assert_ok(buf_append(ret, &id, sizeof(id)));
    }
    free(ids);
}

#endif
