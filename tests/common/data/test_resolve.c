/* Patterns and paths. */
#include "tests/common/data/files.h"

static char **found, repeated[PATH_MAX];
static int n_found;

static err_t resolve(const char *dir, struct why *why, int n, const char *const *patterns)
{
    data_paths_free(found, n_found);
    found = NULL;
    n_found = 0;
    return data_resolve(dir, (char *const *)patterns, n, NULL, &found, &n_found, repeated, why);
}
#define RESOLVE(dir, why, ...) \
    resolve(dir, why, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

static void check_found(int n, ...)
{
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++) {
        const char *name = va_arg(ap, const char *);
        if (i >= n_found || strcmp(found[i], file_path(name)) != 0)
            fail_msg("%d: %s, expected %s", i, i < n_found ? found[i] : "(none)", name);
    }
    va_end(ap);
    assert_int_equal(n_found, n);
}

static const char *make_tree(void)
{
    mkdir(file_path("in"), 0755);
    mkdir(file_path("in/sub"), 0755);
    file_make_text("in/b.txt", "b");
    file_make_text("in/a.txt", "a");
    file_make_text("in/Z.txt", "z");
    file_make_text("in/x[1].md", "x");
    file_make_text("in/sub/c.txt", "c");
    assert_int_equal(symlink("a.txt", file_path("in/link.txt")), 0);
    return file_path("in");
}

TEST(sorted_unique_absolute)
{
    const char *dir = make_tree();
    struct why why = {0};
    assert_ok(RESOLVE(dir, &why, "*.txt"));
    check_found(4, "in/Z.txt", "in/a.txt", "in/b.txt", "in/link.txt");
    assert_string_equal(repeated, "");
    assert_ok(RESOLVE(dir, &why, "b.txt", "?.txt", "./a.txt", ".//b.txt"));
    check_found(3, "in/Z.txt", "in/a.txt", "in/b.txt");
    assert_string_equal(repeated, file_path("in/a.txt"));
    assert_ok(RESOLVE(dir, &why, "*"));
    check_found(5, "in/Z.txt", "in/a.txt", "in/b.txt", "in/link.txt", "in/x[1].md");
    assert_ok(RESOLVE(dir, &why, "*/*.txt", file_path("in/a.txt")));
    check_found(2, "in/a.txt", "in/sub/c.txt");
    data_paths_free(found, n_found);
}

TEST(a_name_with_brackets_is_a_name)
{
    const char *dir = make_tree();
    struct why why = {0};
    assert_ok(RESOLVE(dir, &why, "x[1].md"));
    check_found(1, "in/x[1].md");
    mkdir(file_path("we[i]rd*"), 0755);
    file_make_text("we[i]rd*/f.txt", "f");
    assert_ok(RESOLVE(file_path("we[i]rd*"), &why, "*.txt"));
    check_found(1, "we[i]rd*/f.txt");
    data_paths_free(found, n_found);
}

TEST(errors_name_the_pattern)
{
    const char *dir = make_tree();
    struct why why = {0};
    assert_err(ERR_NOTFOUND, RESOLVE(dir, &why, "a.txt", "*.tex"));
    assert_non_null(strstr(why.text, "*.tex"));
    assert_non_null(strstr(why.text, dir));
    assert_err(ERR_NOTFOUND, RESOLVE(dir, &why, "sub"));
    assert_non_null(strstr(why.text, "sub/*"));
    assert_err(ERR_NOTFOUND, RESOLVE(dir, &why, "missing.txt"));
    assert_int_equal(symlink("nowhere", file_path("in/broken")), 0);
    assert_err(ERR_NOTFOUND, RESOLVE(dir, &why, "b*"));
    assert_non_null(strstr(why.text, "in/broken"));
    assert_int_equal(mkfifo(file_path("in/pipe"), 0600), 0);
    assert_err(ERR_INVALID, RESOLVE(dir, &why, "p*"));
    assert_non_null(strstr(why.text, "regular"));
    file_make_text("in/no\xffutf", "x");
    assert_err(ERR_INVALID, RESOLVE(dir, &why, "no*"));
    assert_non_null(strstr(why.text, "UTF-8"));
    assert_err(ERR_INVALID, RESOLVE("relative", &why, "*"));
}

TEST(nothing_asked_is_nothing)
{
    struct why why = {0};
    assert_ok(resolve("/", &why, 0, NULL));
    assert_int_equal(n_found, 0);
    data_paths_free(found, n_found);
}
