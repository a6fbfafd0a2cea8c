/* The test runner: `PROGRAM` runs all cases, `PROGRAM case` one. */
#include "tests/lib/test.h"

#include <ftw.h>
#include <limits.h>

#define MAX_CASES 256

static struct {
    const char *name;
    void (*fn)(void);
} cases[MAX_CASES];
static int n_cases;
static char tmpdir[PATH_MAX];

void test_register(const char *name, void (*fn)(void))
{
    if (n_cases == MAX_CASES)
        abort();
    cases[n_cases].name = name;
    cases[n_cases++].fn = fn;
}

void test_assert_err(err_t expected, err_t actual, const char *expression, const char *file, int line)
{
    if (expected == actual)
        return;
    print_error("%s is %s (%s), expected %s\n", expression, err_name(actual), err_text(actual), err_name(expected));
    _fail(file, line);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void remove_tmpdir(void)
{
    if (tmpdir[0])
        nftw(tmpdir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *test_tmpdir(void)
{
    if (!tmpdir[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(tmpdir, sizeof(tmpdir), "%s/dtd-test-XXXXXX", base ? base : "/tmp");
        assert_non_null(mkdtemp(tmpdir));
    }
    return tmpdir;
}

static void run_case(void **state)
{
    (*(void (**)(void)) * state)();
}

int main(int argc, char **argv)
{
    int failed = 0, ran = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < n_cases; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) != 0)
            continue;
        const struct CMUnitTest test = {cases[i].name, run_case, NULL, NULL, &cases[i].fn};
        failed += _cmocka_run_group_tests(cases[i].name, &test, 1, NULL, NULL) != 0;
        ran++;
    }
    if (!failed)
        remove_tmpdir();
    return failed || !ran;
}
