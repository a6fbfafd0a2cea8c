/* Which strings are numbers, and the hints for those that are not. */
#include "common/conf/number.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>

TEST(integers)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"7", 7},
                {"-5", -5},
                {"+5", 5},
                {"-0", 0},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        int64_t value = 99;
        errno = ERANGE; /* left by an earlier call; it must not affect this one */
        const char *wrong = number_int_parse(good[i].text, &value);
        if (wrong || value != good[i].value)
            fail_msg("%s: read as %" PRId64 ", %s", good[i].text, value, wrong ? wrong : "");
    }
}

TEST(refused_integers)
{
    static const struct {
        const char *text, *hint;
    } bad[] = {{"", ""},
               {"-", ""},
               {" 1", ""},
               {"1 ", ""},
               {"many", ""},
               {"1x", ""},
               {"--1", ""},
               {"1_000", "without _"},
               {"1,000", "comma"},
               {"0x10", "decimal"},
               {"0b1", "decimal"},
               {"0o7", "decimal"},
               {"010", "leading zeros"},
               {"1e3", "all its digits"},
               {"1.0", "all its digits"},
               {"9223372036854775808", "64 bits"},
               {"-9223372036854775809", "64 bits"},
               {"99999999999999999999999999", "64 bits"},
               {".inf", "finite"},
               {"nan", "finite"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int64_t value = 99;
        const char *wrong = number_int_parse(bad[i].text, &value);
        if (!wrong || !strstr(wrong, bad[i].hint) || value != 99)
            fail_msg("\"%s\": read as %" PRId64 ", message \"%s\"", bad[i].text, value, wrong ? wrong : "(good)");
    }
}

TEST(unsigned_integers)
{
    uint64_t value = 0;
    assert_null(number_uint_parse("18446744073709551615", &value));
    assert_true(value == UINT64_MAX);
    assert_non_null(number_uint_parse("18446744073709551616", &value));
    assert_non_null(strstr(number_uint_parse("-5", &value), "negative"));
    assert_non_null(number_uint_parse("1_0", &value));
    assert_true(value == UINT64_MAX);
}

TEST(floats)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},       {"1", 1},    {"-2", -2},      {"3.0e-3", 0.003},
                {"1e-4", 1e-4}, {".5", 0.5}, {"1.", 1},       {"1E+3", 1000},
                {"0e0", 0},     {"0.0", 0},  {"0.000e-5", 0}, {"1.7976931348623157e308", 1.7976931348623157e308}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        double value = 99;
        const char *wrong = number_double_parse(good[i].text, &value);
        if (wrong || value != good[i].value)
            fail_msg("%s: read as %g, %s", good[i].text, value, wrong ? wrong : "");
    }
}

TEST(refused_floats)
{
    static const struct {
        const char *text, *hint;
    } bad[] = {
        {"", ""},           {".", ""},           {"e5", ""},         {"1e", ""},           {"1e+", ""},
        {"1.2.3", ""},      {"1x", ""},          {" 1", ""},         {"0x1p3", "decimal"}, {"1_0.5", "without _"},
        {"1,5", "point"},   {"nan", "finite"},   {".NaN", "finite"}, {"inf", "finite"},    {"-.inf", "finite"},
        {"1e999", "large"}, {"-1e999", "large"}, {"1e-999", "small"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        double value = 99;
        const char *wrong = number_double_parse(bad[i].text, &value);
        if (!wrong || !strstr(wrong, bad[i].hint) || value != 99)
            fail_msg("\"%s\": read as %g, message \"%s\"", bad[i].text, value, wrong ? wrong : "(good)");
    }
}

static void round_trip(double value)
{
    char text[NUMBER_TEXT];
    double back = NAN;
    number_double_print(value, text);
    const char *wrong = number_double_parse(text, &back);
    if (wrong || back != value || signbit(back) != signbit(value))
        fail_msg("%a is printed as %s and read as %a (%s)", value, text, back, wrong ? wrong : "");
}

TEST(doubles_round_trip_bit_for_bit)
{
    static const double some[] = {
        0, -0.0, 0.1, 3e-4, 1e22, 1e23, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308};
    uint64_t bits = 88172645463325252u;
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
        round_trip(some[i]);
    for (int i = 0; i < 2000; i++) {
        double value;
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        memcpy(&value, &bits, sizeof(value));
        if (isfinite(value))
            round_trip(value);
    }
}

TEST(short_forms)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.003, "0.003"}, {10000, "10000"}, {1e-5, "1e-05"}, {1, "1"}, {0.1, "0.1"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[NUMBER_TEXT];
        number_double_print(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
    }
}

TEST(a_locale_with_commas_changes_nothing)
{
    char text[NUMBER_TEXT];
    double value;
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8"))
        TEST_SKIP("no locale with a decimal comma is installed");
    number_double_print(0.5, text);
    assert_string_equal(text, "0.5");
    assert_null(number_double_parse("1.25", &value));
    assert_true(value == 1.25);
}
