/* Tokenizers; streaming is compared with splitting the whole text at once. */
#include "common/data/tokenizer.h"
#include "tests/common/data/files.h"

static struct tokenizer *words(const char *vocab, bool lowercase)
{
    struct tokenizer *t = NULL;
    struct why why = {0};
    if (tokenizer_words_new(vocab, strlen(vocab), lowercase, &t, &why))
        fail_msg("%s", why.text);
    return t;
}

static void check_ids(const struct tokenizer *t, const char *text, const int32_t *ids, size_t n)
{
    struct buf found = {0};
    assert_ok(tokenizer_encode(t, text, strlen(text), &found));
    assert_int_equal(found.len, n * sizeof(int32_t));
    if (n)
        assert_memory_equal(found.data, ids, found.len);
    buf_fini(&found);
}
#define CHECK_IDS(t, text, ...) \
    check_ids(t, text, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

TEST(bytes)
{
    struct tokenizer *t;
    struct buf text = {0};
    size_t len = 99;
    assert_ok(tokenizer_bytes_new(&t));
    assert_int_equal(tokenizer_vocab(t), 256);
    CHECK_IDS(t, "a\xff\n", 'a', 255, '\n');
    for (int32_t id = 0; id < 256; id++)
        assert_ok(tokenizer_decode(t, id, &text));
    for (int i = 0; i < 256; i++)
        assert_int_equal(text.data[i], i);
    assert_err(ERR_INVALID, tokenizer_decode(t, 256, &text));
    assert_err(ERR_INVALID, tokenizer_decode(t, -1, &text));
    tokenizer_vocab_file(t, &len);
    assert_int_equal(len, 0);
    buf_fini(&text);
    tokenizer_free(t);
}

TEST(words_and_lines)
{
    struct tokenizer *t = words("the\n<eos>\ncat\n<unk>\nThe\n", false);
    struct buf text = {0};
    assert_int_equal(tokenizer_vocab(t), 5);
    CHECK_IDS(t, "the cat\n", 0, 2, 1);
    CHECK_IDS(t, " the\t cat\r\n\n", 0, 2, 1, 1);
    CHECK_IDS(t, "The dog", 4, 3);
    CHECK_IDS(t, "the<eos> <unk> <eos>", 3, 3, 1);
    check_ids(t, "", NULL, 0);
    check_ids(t, " \t\r\v\f", NULL, 0);
    for (int32_t id = 0; id < 3; id++)
        assert_ok(tokenizer_decode(t, id, &text));
    assert_int_equal(text.len, 9);
    assert_memory_equal(text.data, "the \ncat ", 9);
    assert_err(ERR_INVALID, tokenizer_decode(t, 5, &text));
    buf_fini(&text);
    tokenizer_free(t);
}

TEST(lower_case)
{
    struct tokenizer *t = words("the\n<eos>\n<unk>\n\xc3\x84\n", true);
    CHECK_IDS(t, "The THE \xc3\x84 x\n", 0, 0, 3, 2, 1); /* ASCII only: the umlaut stays */
    tokenizer_free(t);
}

TEST(too_long_words_are_unknown)
{
    static char text[VOCAB_WORD_MAX_BYTES + 8], vocab[VOCAB_WORD_MAX_BYTES + 32];
    memset(text, 'a', VOCAB_WORD_MAX_BYTES);
    snprintf(vocab, sizeof(vocab), "%s\n<eos>\n<unk>\n", text);
    struct tokenizer *t = words(vocab, false);
    CHECK_IDS(t, text, 0);
    strcat(text, "a");
    CHECK_IDS(t, text, 2);
    strcat(text, " a\n");
    CHECK_IDS(t, text, 2, 2, 1);
    tokenizer_free(t);
}

TEST(invalid_vocabularies)
{
    static const struct {
        const char *vocab, *part;
    } cases[] = {{"", "lacks <unk>"},
                 {"a\n<unk>\n", "lacks <eos>"},
                 {"<eos>\n<unk>\na", "has no newline"},
                 {"<eos>\n\n<unk>\n", "line 2: the word has 0 bytes"},
                 {"<eos>\n<unk>\na b\n", "line 3: the word contains white space"},
                 {"<eos>\n<unk>\na\n<eos>\n", "line 4: duplicate word, first in line 1"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tokenizer *t;
        struct why why = {0};
        assert_err(ERR_INVALID, tokenizer_words_new(cases[i].vocab, strlen(cases[i].vocab), false, &t, &why));
        if (!strstr(why.text, cases[i].part))
            fail_msg("\"%s\" says \"%s\", not \"%s\"", cases[i].vocab, why.text, cases[i].part);
    }
}

TEST(vocabulary_order)
{
    static const struct {
        const char *word;
        int64_t count;
    } cases[] = {{"b", 2}, {"a", 2}, {"rare", 1}, {"often", 9}, {"ab", 2}, {"<eos>", 3}};
    struct vocab w = {0};
    struct buf vocab = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int32_t id;
        assert_ok(vocab_add(&w, cases[i].word, strlen(cases[i].word), &id));
        w.list[id].count = cases[i].count;
    }
    assert_ok(tokenizer_vocab_print(TOKENIZER_WORDS, &w, &vocab));
    assert_ok(buf_append(&vocab, "", 1));
    assert_string_equal((char *)vocab.data, "often\n<eos>\na\nab\nb\nrare\n<unk>\n");
    buf_fini(&vocab);
    vocab_fini(&w);
}

static struct buf emitted;

static err_t remember(void *arg, const uint8_t *word, size_t len)
{
    err_t err = buf_append(&emitted, word, len);
    return err ? err : buf_append(&emitted, "|", 1);
}

static void cut(const uint8_t *text, size_t len, uint64_t *state, size_t max_piece, bool lowercase)
{
    struct splitter s = {.lowercase = lowercase, .emit = remember};
    emitted.len = 0;
    while (len) {
        size_t piece = 1 + random_next(state) % max_piece;
        piece = piece < len ? piece : len;
        assert_ok(splitter_feed(&s, text, piece));
        text += piece;
        len -= piece;
    }
    assert_ok(splitter_finish(&s));
}

/* The obvious implementation, over the whole text. */
static void cut_slowly(const uint8_t *text, size_t len, bool lowercase, struct buf *ret)
{
    size_t start = 0;
    for (size_t i = 0; i <= len; i++) {
        if (i < len && !strchr(" \t\n\v\f\r", text[i]))
            continue;
        if (i < len && !text[i])
            continue; /* strchr found the terminating NUL of its list */
        if (i - start > VOCAB_WORD_MAX_BYTES)
            assert_ok(buf_printf(ret, "<unk>|"));
        for (size_t k = start; k < i && i - start <= VOCAB_WORD_MAX_BYTES; k++) {
            uint8_t c = lowercase && text[k] >= 'A' && text[k] <= 'Z' ? text[k] | 32 : text[k];
            assert_ok(buf_append(ret, &c, 1));
            if (k + 1 == i)
                assert_ok(buf_append(ret, "|", 1));
        }
        if (i < len && text[i] == '\n')
            assert_ok(buf_printf(ret, "<eos>|"));
        start = i + 1;
    }
}

TEST(pieces_are_cut_like_the_whole)
{
    uint64_t state = 777;
    static uint8_t text[6000];
    for (int round = 0; round < 300; round++) {
        struct buf slow = {0};
        size_t len = random_next(&state) % sizeof(text);
        uint64_t spaces = 2 + random_next(&state) % (round % 3 ? 12 : 3000);
        for (size_t i = 0; i < len; i++)
            text[i] = random_next(&state) % spaces ? (uint8_t)random_next(&state)
                                                   : (uint8_t) " \n\t\r"[random_next(&state) % 4];
        cut_slowly(text, len, round & 1, &slow);
        cut(text, len, &state, round % 2 ? 3 : 2500, round & 1);
        if (slow.len != emitted.len || (slow.len && memcmp(slow.data, emitted.data, slow.len) != 0))
            fail_msg("round %d, %zu bytes: %zu bytes of words, %zu the slow way", round, len, emitted.len, slow.len);
        buf_fini(&slow);
    }
    buf_fini(&emitted);
}
