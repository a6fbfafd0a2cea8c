/* Both outputs go to files, so that the program cannot block on a full pipe. */
#include "tests/client/run.h"

#include "tests/lib/test.h"

#include <limits.h>
#include <sys/wait.h>

static void slurp(const char *name, char ret[65536])
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(ret, 1, 65535, f);
    ret[n] = '\0';
    fclose(f);
}

void run_shell(struct run_result *ret, const char *line)
{
    char command[16384];
    const char *bin = getenv("DTD_BIN"), *tmp = test_tmpdir();
    if (!bin)
        TEST_SKIP("DTD_BIN is not set: run me by ctest");
    int n = snprintf(command, sizeof(command),
                     "cd '%s' && export DTD_DIR='%s/dtd' XDG_CACHE_HOME='%s/cache' XDG_CONFIG_HOME='%s/config' && "
                     "dtctl() { '%s/dtctl' \"$@\"; } && { %s\n}"
                     " >'%s/.out' 2>'%s/.err' </dev/null",
                     tmp, tmp, tmp, tmp, bin, line, tmp, tmp);
    assert_in_range(n, 1, sizeof(command) - 1);
    int status = system(command);
    ret->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    slurp(".out", ret->out);
    slurp(".err", ret->err);
}

void run_expect(struct run_result *ret, int code, const char *line)
{
    run_shell(ret, line);
    if (ret->code == code)
        return;
    print_error("%s\n  exit %d, expected %d\n--- out\n%s--- err\n%s", line, ret->code, code, ret->out, ret->err);
    fail();
}

void expect_text(const char *where, const char *text)
{
    if (strstr(where, text))
        return;
    print_error("\"%s\" is not in:\n%s", text, where);
    fail();
}

void run_write(const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}
