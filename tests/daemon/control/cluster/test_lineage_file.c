/* The files `recovery` and `superseded`: printed and read again, and what is refused. */
#include "daemon/control/cluster/lineage_file.h"
#include "tests/lib/test.h"

static err_t parse(const char *text, struct lineage_file *ret)
{
    struct why why;
    return lineage_file_parse("recovery", text, strlen(text), ret, &why);
}

TEST(a_file_comes_back)
{
    struct lineage_file f = {
        .generation = 3, .at_ms = 1795820097000, .uid = 1000, .by = "n1", .gone = {2, 17}, .n_gone = 2};
    struct lineage_file back;
    char text[LINEAGE_FILE_MAX];
    size_t len = lineage_file_print(&f, text);
    assert_string_equal("generation=3\nat_ms=1795820097000\nuid=1000\nby=n1\ngone=2 17\n", text);
    assert_int_equal(strlen(text), len);
    assert_ok(parse(text, &back));
    assert_memory_equal(&f, &back, sizeof(f));
}

TEST(the_largest_file_comes_back)
{
    struct lineage_file f = {.generation = INT64_MAX, .at_ms = INT64_MAX, .uid = UINT32_MAX, .n_gone = LOG_MAX_MEMBERS};
    struct lineage_file back;
    char text[LINEAGE_FILE_MAX];
    memset(f.by, 'n', NODE_NAME_MAX);
    for (int i = 0; i < f.n_gone; i++)
        f.gone[i] = (uint64_t)INT64_MAX - (uint64_t)i;
    lineage_file_print(&f, text);
    assert_ok(parse(text, &back));
    assert_memory_equal(&f, &back, sizeof(f));
}

TEST(all_others_may_be_gone)
{
    struct lineage_file f;
    assert_ok(parse("generation=0\nat_ms=1\nuid=0\nby=\ngone=all\n", &f));
    assert_true(f.all_gone);
    assert_int_equal(0, f.n_gone);
    assert_int_equal(0, f.generation);
    assert_string_equal("", f.by);
}

TEST(other_texts_are_refused)
{
    static const char *const texts[] = {
        "",
        "generation=1\nat_ms=1\nuid=0\nby=a\n",                      /* a line is missing */
        "generation=1\nat_ms=1\nuid=0\nby=a\ngone=\nnew=1\n",        /* of a newer version */
        "generation=1\ngeneration=1\nat_ms=1\nuid=0\nby=a\ngone=\n", /* twice */
        "generation=-1\nat_ms=1\nuid=0\nby=a\ngone=\n",              /* no number */
        "generation=1\nat_ms=x\nuid=0\nby=a\ngone=\n",
        "generation=1\nat_ms=1\nuid=4294967296\nby=a\ngone=\n", /* no uid */
        "generation=1\nat_ms=1\nuid=0\nby=a b\ngone=\n",        /* no name */
        "generation=1\nat_ms=1\nuid=0\nby=a\ngone=1  2\n",
        "generation=1\nat_ms=1\nuid=0\nby=a\ngone=99999999999999999999\n",
    };
    struct lineage_file f;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (parse(texts[i], &f) != ERR_CORRUPT)
            fail_msg("accepted: %s", texts[i]);
}

TEST(a_file_on_the_disk)
{
    struct lineage_file f = {.generation = 2, .by = "n1"}, back;
    struct why why;
    char path[300];
    snprintf(path, sizeof(path), "%s/recovery", test_tmpdir());
    assert_err(ERR_NOTFOUND, lineage_file_read(path, &back, &why));
    assert_ok(lineage_file_write(path, &f, &why));
    assert_ok(lineage_file_read(path, &back, &why));
    assert_memory_equal(&f, &back, sizeof(f));
}
