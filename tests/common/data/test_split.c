/* Python's text.split() and text.lower().split(), from bytes in pieces of any size. The expected words are Python's. */
#include "common/data/split.h"
#include "tests/common/data/files.h"

static err_t collect(void *arg, const uint8_t *word, size_t len)
{
    return buf_printf(arg, "[%.*s]", (int)len, (const char *)word);
}

static void check(bool lowercase, const char *text, const char *words)
{
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        struct buf found = {0};
        struct split s = {.lowercase = lowercase, .emit = collect, .arg = &found};
        for (size_t at = 0; at < strlen(text); at += piece)
            assert_ok(
                split_feed(&s, (const uint8_t *)text + at, strlen(text) - at < piece ? strlen(text) - at : piece));
        assert_ok(split_finish(&s));
        assert_ok(buf_append(&found, "", 1));
        assert_string_equal((const char *)found.data, words);
        buf_fini(&found);
    }
}

TEST(white_space)
{
    check(false, "", "");
    check(false, " a  b\tc\nd\re\vf\fg ", "[a][b][c][d][e][f][g]");
    check(false,
          "a\x1c"
          "b\x1d"
          "c\x1e"
          "d\x1f"
          "e\x1b"
          "f\x7f",
          "[a][b][c][d][e\x1b"
          "f\x7f]");
    check(false,
          "a\xc2\x85"
          "b\u00a0c\u1680d\u2000e\u200af\u2028g\u2029h\u202fi\u205fj\u3000k",
          "[a][b][c][d][e][f][g][h][i][j][k]");
    check(false, "a\u200bb\u180ec\ufeffd\u2060e",
          "[a\u200bb\u180ec\ufeffd\u2060e]"); /* str.isspace is false for these */
    check(false, "\xc2 \xe2\x80 \xff", "[\xc2][\xe2\x80][\xff]");
}

TEST(lower_case)
{
    check(true, "The CAT <UNK> \u00c4\u00d6", "[the][cat][<unk>][\u00e4\u00f6]");
    check(true, "\u0130stanbul \u1e9e", "[i\u0307stanbul][\u00df]");
    /* a sigma is final behind a cased letter and before none; a soft hyphen and an apostrophe do not count */
    check(true, "\u039f\u0394\u039f\u03a3 \u03a3 A\u03a3\u00ad A\u03a3\u00adB A'\u03a3 \u03a3A",
          "[\u03bf\u03b4\u03bf\u03c2][\u03c3][a\u03c2\u00ad][a\u03c3\u00adb][a'\u03c2][\u03c3a]");
    check(true,
          "A\xff"
          "B",
          "[A\xff"
          "B]"); /* no UTF-8: Python has no such text */
}

TEST(long_words)
{
    static uint8_t text[VOCAB_WORD_MAX_BYTES + 2];
    memset(text, 'x', sizeof(text));
    struct buf found = {0};
    struct split s = {.emit = collect, .arg = &found};
    text[VOCAB_WORD_MAX_BYTES] = ' ';
    assert_ok(split_feed(&s, text, VOCAB_WORD_MAX_BYTES + 1));
    assert_int_equal(found.len, VOCAB_WORD_MAX_BYTES + 2);
    text[VOCAB_WORD_MAX_BYTES] = 'x';
    text[VOCAB_WORD_MAX_BYTES + 1] = ' ';
    assert_err(ERR_UNSUPPORTED, split_feed(&s, text, sizeof(text)));
    buf_fini(&found);
}
