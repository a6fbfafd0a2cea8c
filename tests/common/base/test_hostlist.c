/* Host lists, compared with names written out. If Slurm is installed, tests/slurm compares them with scontrol's output.
 */
#include "common/base/hostlist.h"
#include "tests/lib/test.h"

static void assert_names(const char *text, const char *want)
{
    char **names, joined[4096] = "";
    int n;
    struct why why = {""};
    assert_ok(hostlist_expand(text, &names, &n, &why));
    for (int i = 0; i < n; i++)
        snprintf(joined + strlen(joined), sizeof(joined) - strlen(joined), "%s%s", i ? " " : "", names[i]);
    assert_string_equal(joined, want);
    free(names);
}

TEST(names_are_written_out)
{
    assert_names("n1", "n1");
    assert_names("n1,n2", "n1 n2");
    assert_names("n[1-3]", "n1 n2 n3");
    assert_names("n[1-3,07],login", "n1 n2 n3 n07 login");
    assert_names("gpu[008-011]-ib", "gpu008-ib gpu009-ib gpu010-ib gpu011-ib");
    assert_names("r[1-2]n[08-10]", "r1n08 r1n09 r1n10 r2n08 r2n09 r2n10");
    assert_names("[1-2]", "1 2");
    assert_names("n[5-5]", "n5");
    assert_names("a.b-c_d", "a.b-c_d");
    assert_names("n[9-11]", "n9 n10 n11");
    assert_names("n[099-101]", "n099 n100 n101");
    assert_names("n1,n1", "n1 n1");
}

TEST(what_is_no_list_is_refused)
{
    static const char *const texts[] = {"",
                                        ",",
                                        "n1,",
                                        ",n1",
                                        "n1,,n2",
                                        "n[",
                                        "n[1",
                                        "n[1-",
                                        "n]",
                                        "n[]",
                                        "n[a]",
                                        "n[2-1]",
                                        "n[1,]",
                                        "n[,1]",
                                        "n[1--2]",
                                        "n[1]x[2",
                                        "n 1",
                                        "n/1",
                                        "n[1 2]",
                                        "../n",
                                        "n[1-2-3]",
                                        "n[-1]",
                                        "n[[1]]",
                                        "n\t",
                                        "n[1]]",
                                        "n[1][2][3][4][5]",
                                        "n[1.2]",
                                        "n[1-2][",
                                        "n[99999999999]"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char **names;
        int n;
        struct why why = {""};
        if (hostlist_expand(texts[i], &names, &n, &why) != ERR_INVALID)
            fail_msg("\"%s\" is taken", texts[i]);
        assert_non_null(strstr(why.text, "is not a host list"));
    }
}

TEST(too_much_is_refused_before_it_is_made)
{
    char **names, *text = malloc(1000);
    int n;
    struct why why = {""};
    assert_err(ERR_LIMIT, hostlist_expand("n[1-999][1-999]", &names, &n, &why));
    assert_err(ERR_LIMIT, hostlist_expand("n[0-65535],m", &names, &n, &why));
    assert_ok(hostlist_expand("n[0-65535]", &names, &n, &why));
    assert_int_equal(n, HOSTLIST_MAX);
    assert_string_equal(names[65535], "n65535");
    free(names);
    memset(text, 'x', 999);
    text[HOSTLIST_NAME_MAX] = '\0';
    assert_ok(hostlist_expand(text, &names, &n, &why));
    free(names);
    text[HOSTLIST_NAME_MAX] = 'x';
    text[HOSTLIST_NAME_MAX + 1] = '\0';
    assert_err(ERR_LIMIT, hostlist_expand(text, &names, &n, &why));
    text[HOSTLIST_NAME_MAX - 1] = '\0';
    strcat(text, "[1-10]");
    assert_err(ERR_LIMIT, hostlist_expand(text, &names, &n, &why));
    free(text);
}
