/* Test cases over cmocka: TEST(name) { ... } registers a case; ctest runs each in a process of its own (testing.cmake
 * finds them by that line). TEST_SKIP says why and ends the case. */
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

/* Prints the code's name and the sentence when they differ. */
#define assert_err(expected, expression) test_assert_err(expected, expression, #expression, __FILE__, __LINE__)
#define assert_ok(expression) assert_err(OK, expression)
void test_assert_err(err_t expected, err_t actual, const char *expression, const char *file, int line);

/* A fresh folder under $TMPDIR or /tmp, removed when the process ends well. */
const char *test_tmpdir(void);

#endif
