/* strtoll alone is too lenient: it accepts spaces, signs for unsigned values, prefixes and trailing characters. A YAML
 * library based on it read 1_000 as 1 and -5 as 2^64-5. This file checks the form first and converts afterwards. */
#include "common/conf/number.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_sign(const char *s)
{
    return *s == '-' || *s == '+' ? s + 1 : s;
}

static const char *skip_digits(const char *s)
{
    return s + strspn(s, "0123456789");
}

/* [sign] digits [. digits] [e [sign] digits], with a digit somewhere before the e. */
static bool is_float(const char *text)
{
    const char *s = skip_sign(text), *start = s;
    s = skip_digits(s);
    long digits = s - start;
    if (*s == '.') {
        start = ++s;
        s = skip_digits(s);
        digits += s - start;
    }
    if (!digits)
        return false;
    if (*s == 'e' || *s == 'E') {
        start = s = skip_sign(s + 1);
        s = skip_digits(s);
        if (s == start)
            return false;
    }
    return !*s;
}

static bool is_not_finite(const char *text)
{
    static const char *const words[] = {"nan", "inf", "infinity"};
    const char *s = skip_sign(text);
    if (*s == '.')
        s++;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasecmp(s, words[i]) == 0)
            return true;
    return false;
}

static const char *explain_form(const char *text)
{
    const char *s = skip_sign(text);
    if (is_not_finite(text))
        return "it is not a finite number";
    if (*s >= '0' && *s <= '9' && strchr(s, '_'))
        return "write the digits without _";
    if (*s >= '0' && *s <= '9' && strchr(s, ','))
        return "write the digits without a comma, and a fraction with a decimal point";
    if (*s == '0' && s[1] && strchr("xXoObB", s[1]))
        return "write it in decimal";
    return "";
}

static const char *check_int(const char *text)
{
    const char *s = skip_sign(text), *end = skip_digits(s);
    if (end == s || *end)
        return is_float(text) ? "write an integer with all its digits, without a decimal point or an exponent"
                              : explain_form(text);
    if (*s == '0' && s[1])
        return "leading zeros could mean octal: remove them";
    return NULL;
}

const char *number_int_parse(const char *text, int64_t *ret)
{
    const char *wrong = check_int(text);
    if (wrong)
        return wrong;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno)
        return "it does not fit into 64 bits";
    *ret = value;
    return NULL;
}

const char *number_scaled_parse(const char *text, const char *letters, const int64_t *factors, int64_t *ret)
{
    char digits[NUMBER_TEXT];
    double value;
    size_t n = strlen(text);
    const char *letter = n ? strchr(letters, text[n - 1]) : NULL;
    if (!letter || n < 2 || n > sizeof(digits) || strpbrk(text, "eE"))
        return number_int_parse(text, ret);
    memcpy(digits, text, n - 1);
    digits[n - 1] = '\0';
    if (number_double_parse(digits, &value))
        return number_int_parse(text, ret);
    value *= (double)factors[letter - letters];
    if (value != rint(value) || fabs(value) > 9e15)
        return "with its letter it is no integer, or too large";
    *ret = (int64_t)value;
    return NULL;
}

const char *number_uint_parse(const char *text, uint64_t *ret)
{
    const char *wrong = check_int(text);
    if (wrong)
        return wrong;
    if (*text == '-')
        return "it is negative";
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    if (errno)
        return "it does not fit into 64 bits";
    *ret = value;
    return NULL;
}

const char *number_double_parse(const char *text, double *ret)
{
    if (!is_float(text))
        return explain_form(text);
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return "out of memory";
    double value = strtod_l(text, NULL, c);
    freelocale(c);
    if (!isfinite(value))
        return "it is too large for a double";
    if (value == 0 && strcspn(text, "123456789") < strcspn(text, "eE"))
        return "it is too small for a double";
    *ret = value;
    return NULL;
}

void number_double_print(double value, char ret[NUMBER_TEXT])
{
    if (value == rint(value) && fabs(value) < 1e9) {
        snprintf(ret, NUMBER_TEXT, "%.0f", value);
        return;
    }
    for (int precision = 1; precision <= 17; precision++) {
        double back = 0;
        snprintf(ret, NUMBER_TEXT, "%.*g", precision, value);
        char *comma = strchr(ret, ',');
        if (comma)
            *comma = '.';
        if (!number_double_parse(ret, &back) && back == value)
            return;
    }
}
