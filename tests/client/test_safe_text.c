/* Text of users on a terminal: what is left of escape sequences, wide and invisible characters. */
#include "client/safe_text.h"
#include "tests/lib/test.h"

static void check(const char *text, int columns, bool utf8, const char *expected, int width)
{
    char ret[200];
    assert_int_equal(width, safe_text(text, columns, utf8, ret, sizeof(ret)));
    assert_string_equal(expected, ret);
    assert_int_equal(width, safe_text_width(ret));
}

TEST(plain_text_is_kept)
{
    check("first-job", SAFE_TEXT_ALL, true, "first-job", 9);
    check("", 5, true, "", 0);
    check("gr\xc3\xb6\xc3\x9f"
          "er",
          SAFE_TEXT_ALL, true,
          "gr\xc3\xb6\xc3\x9f"
          "er",
          6);
    check("two\nlines\tand", SAFE_TEXT_ALL, true, "two lines and", 13);
}

TEST(nothing_controls_the_terminal)
{
    check("\x1b[31mred\x1b]0;title\x07", SAFE_TEXT_ALL, true, "?[31mred?]0;title?", 18);
    check("a\xc2\x9b"
          "2Jb",
          SAFE_TEXT_ALL, true, "a?2Jb", 5);                                  /* CSI of 8 bits */
    check("\xff\xfe|\xc0\xaf|\xe2\x82", SAFE_TEXT_ALL, true, "??|??|??", 8); /* no UTF-8 */
    check("\xed\xa0\x80", SAFE_TEXT_ALL, true, "???", 3);                    /* a surrogate */
    check("a\xe2\x80\xae"
          "cba\xe2\x80\x8b.",
          SAFE_TEXT_ALL, true, "acba.", 5); /* right to left, no width */
    check("\r\x08\x7f", SAFE_TEXT_ALL, true, "???", 3);
}

TEST(wide_characters_have_two_columns)
{
    check("\xe6\xa8\xa1\xe5\x9e\x8b", SAFE_TEXT_ALL, true, "\xe6\xa8\xa1\xe5\x9e\x8b", 4);
    check("\xe6\xa8\xa1\xe5\x9e\x8b", 4, true, "\xe6\xa8\xa1\xe5\x9e\x8b", 4);
    check("\xe6\xa8\xa1\xe5\x9e\x8b", 3, true, "\xe6\xa8\xa1~", 3);
    check("\xe6\xa8\xa1\xe5\x9e\x8b", 2, true, "~", 1);
    check("\xe6\xa8\xa1x", SAFE_TEXT_ALL, false, "??x", 3);
}

TEST(marks_belong_to_their_letter)
{
    check("e\xcc\x81x", SAFE_TEXT_ALL, true, "e\xcc\x81x", 2);
    check("e\xcc\x81\xcc\x81\xcc\x81\xcc\x81x", SAFE_TEXT_ALL, true, "e\xcc\x81\xcc\x81x", 2);
    check("e\xcc\x81x", SAFE_TEXT_ALL, false, "ex", 2);
}

TEST(a_long_text_is_cut)
{
    check("abcdef", 6, true, "abcdef", 6);
    check("abcdefg", 6, true, "abcde~", 6);
    check("abc", 1, true, "~", 1);
    check("abc", 0, true, "", 0);
    char small[4];
    assert_int_equal(3, safe_text("abcdef", SAFE_TEXT_ALL, true, small, sizeof(small)));
    assert_string_equal("ab~", small);
}
