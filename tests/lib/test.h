/* Test cases based on cmocka. TEST(name) { ... } registers a case; ctest runs each case in its own process
 * (testing.cmake finds cases by that line). TEST_SKIP prints the reason and ends the case. */
#ifndef DTD_TESTS_LIB_TEST_H
#define DTD_TESTS_LIB_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/err.h"

void test_register(const char *name, void (*fn)(void));

#define TEST(name)                                                 \
    static void name(void);                                        \
    __attribute__((constructor)) static void register_##name(void) \
    {                                                              \
        test_register(#name, name);                                \
    }                                                              \
    static void name(void)

#define TEST_SKIP(...)                   \
    do {                                 \
        printf("skipped: " __VA_ARGS__); \
        printf("\n");                    \
        fflush(stdout);                  \
        _exit(77);                       \
    } while (0)

/* On failure, prints the name of the code and the sentence. */
#define assert_err(expected, expression) test_assert_err(expected, expression, #expression, __FILE__, __LINE__)
#define assert_ok(expression) assert_err(OK, expression)
void test_assert_err(err_t expected, err_t actual, const char *expression, const char *file, int line);

/* A new folder under $TMPDIR or /tmp; it is removed if the process succeeds. */
const char *test_tmpdir(void);

#endif
