/* What a stream of text shows after each token, written out by hand. */
#include "tests/lib/test.h"

#include "worker/text_stream.h"

/* Adds the pieces one by one and compares what can be taken after each; the last expectation is that after the end. */
static void check(const char *const *stops, int n_stops, const char *const *pieces, const char *const *shown)
{
    struct text_stream s;
    struct buf out = {0};
    text_stream_init(&s, stops, n_stops);
    for (int i = 0;; i++) {
        assert_ok(pieces[i] ? text_stream_add(&s, pieces[i], strlen(pieces[i])) : text_stream_end(&s));
        assert_ok(text_stream_take(&s, &out));
        assert_ok(buf_append(&out, "", 1));
        assert_string_equal((const char *)out.data, shown[i]);
        out.len = 0;
        if (!pieces[i])
            break;
    }
    buf_fini(&out);
    text_stream_fini(&s);
}

#define P(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(characters_come_whole)
{
    check(NULL, 0, P("a", "\xc3", "\xa9 b", "\xf0\x9f", "\x98", "\x80"),
          P("a", "", "\xc3\xa9 b", "", "", "\xf0\x9f\x98\x80", ""));
}

TEST(other_bytes_are_replaced)
{
    check(NULL, 0, P("\xff", "\xc3", "x", "\xe2\x82"),
          P("\xef\xbf\xbd", "", "\xef\xbf\xbdx", "", "\xef\xbf\xbd\xef\xbf\xbd"));
    check(NULL, 0, P("\x80\x80", "ok"), P("\xef\xbf\xbd\xef\xbf\xbd", "ok", ""));
}

TEST(text_ends_before_a_stop)
{
    const char *const stops[] = {"END", "\n\n"};
    check(stops, 2, P("say E", "N", "OUGH E", "ND more", "x"), P("say ", "", "ENOUGH ", "", "", ""));
    check(stops, 2, P("a\n", "b\n", "\nc"), P("a", "\nb", "", ""));
    check(stops, 2, P("a E", "N"), P("a ", "", "EN")); /* what waits is text after all */
    check(stops, 2, P("one\n\ntwo END"), P("one", ""));
}
